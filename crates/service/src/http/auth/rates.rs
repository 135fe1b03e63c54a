//! Request rates of client addresses and tokens.
//!
//! One GCRA bucket each: a rate per second, with a burst of four seconds. Buckets of idle clients
//! are dropped.

use std::{hash::Hash, net::IpAddr, num::NonZeroU32};

use governor::{
    DefaultKeyedRateLimiter, Quota,
    clock::{Clock, DefaultClock},
};

use crate::http::{
    error::{ApiError, ErrorCode},
    traffic::{Refusal, Traffic, client_network},
};

/// Seconds' worth of requests in a burst.
const BURST: u32 = 4;
/// Number of buckets above which idle clients' buckets are dropped.
const MAX_BUCKETS: usize = 10_000;

/// The buckets; `None`: unlimited.
#[derive(Debug)]
pub struct Rates {
    addresses: Option<DefaultKeyedRateLimiter<IpAddr>>,
    tokens: Option<DefaultKeyedRateLimiter<i64>>,
    traffic: Traffic,
}

impl Rates {
    /// Requests per second; 0: unlimited.
    pub fn new(per_address: u32, per_token: u32, traffic: Traffic) -> Self {
        Self { addresses: bucket(per_address), tokens: bucket(per_token), traffic }
    }

    /// Counts a request of an address.
    pub fn take_address(&self, address: Option<IpAddr>) -> Result<(), ApiError> {
        let Some(network) = address.map(client_network) else { return Ok(()) };
        take(self.addresses.as_ref(), &network)
            .inspect_err(|_| self.traffic.refuse(Refusal::AddressRate))
    }

    /// Counts a request of a token.
    pub fn take_token(&self, id: i64) -> Result<(), ApiError> {
        take(self.tokens.as_ref(), &id).inspect_err(|_| self.traffic.refuse(Refusal::TokenRate))
    }
}

fn bucket<K: Hash + Eq + Clone>(per_s: u32) -> Option<DefaultKeyedRateLimiter<K>> {
    let rate = NonZeroU32::new(per_s)?;
    let burst = NonZeroU32::new(per_s.saturating_mul(BURST))?;
    Some(DefaultKeyedRateLimiter::keyed(Quota::per_second(rate).allow_burst(burst)))
}

fn take<K: Hash + Eq + Clone>(
    buckets: Option<&DefaultKeyedRateLimiter<K>>,
    key: &K,
) -> Result<(), ApiError> {
    let Some(buckets) = buckets else { return Ok(()) };
    if buckets.len() > MAX_BUCKETS {
        buckets.retain_recent();
    }
    buckets.check_key(key).map_err(|early| {
        let wait = early.wait_time_from(DefaultClock::default().now()).as_secs() + 1;
        ApiError::of(ErrorCode::RateLimited).retry_after(wait)
    })
}

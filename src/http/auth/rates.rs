//! Request rates of client addresses and tokens.
//!
//! One GCRA bucket each: a rate per second, with a burst of four seconds. Buckets of idle clients
//! are dropped.

use std::{
    hash::Hash,
    net::{IpAddr, Ipv6Addr},
    num::NonZeroU32,
};

use governor::{
    DefaultKeyedRateLimiter, Quota,
    clock::{Clock, DefaultClock},
};

use crate::http::error::{ApiError, ErrorCode};

/// Seconds' worth of requests in a burst.
const BURST: u32 = 4;
/// Buckets above which those of idle clients are dropped.
const MAX_BUCKETS: usize = 10_000;

/// The buckets; `None`: unlimited.
#[derive(Debug)]
pub struct Rates {
    addresses: Option<DefaultKeyedRateLimiter<IpAddr>>,
    tokens: Option<DefaultKeyedRateLimiter<i64>>,
}

impl Rates {
    /// Requests per second; 0: unlimited.
    pub fn new(per_address: u32, per_token: u32) -> Self {
        Self { addresses: bucket(per_address), tokens: bucket(per_token) }
    }

    /// Counts a request of an address. An IPv6 network (/64) is one address: a host has all of its
    /// addresses.
    pub fn take_address(&self, address: Option<IpAddr>) -> Result<(), ApiError> {
        let network = address.map(|address| match address {
            IpAddr::V6(six) => IpAddr::V6(Ipv6Addr::from_bits(six.to_bits() & (u128::MAX << 64))),
            four => four,
        });
        network.map_or(Ok(()), |network| take(self.addresses.as_ref(), &network))
    }

    /// Counts a request of a token.
    pub fn take_token(&self, id: i64) -> Result<(), ApiError> {
        take(self.tokens.as_ref(), &id)
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

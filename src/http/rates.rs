//! How often an address and a token may ask.
//!
//! A bucket each (GCRA): so many a second, four seconds' worth at once. It keeps nothing of those who have been quiet.

use std::{
    hash::Hash,
    net::{IpAddr, Ipv6Addr},
    num::NonZeroU32,
};

use governor::{
    DefaultKeyedRateLimiter, Quota,
    clock::{Clock, DefaultClock},
};

use super::error::{ApiError, ErrorCode};

/// Seconds' worth of requests that may come at once.
const BURST: u32 = 4;
/// Buckets that are kept before those of the quiet are dropped.
const KEPT: usize = 10_000;

/// The buckets; `None`: any rate.
#[derive(Debug)]
pub struct Rates {
    addresses: Option<DefaultKeyedRateLimiter<IpAddr>>,
    tokens: Option<DefaultKeyedRateLimiter<i64>>,
}

impl Rates {
    /// Requests a second; 0: any rate.
    pub fn new(per_address: u32, per_token: u32) -> Self {
        Self { addresses: bucket(per_address), tokens: bucket(per_token) }
    }

    /// Takes one request of an address. A network of IPv6 (/64) is one address: a host has all of its addresses.
    pub fn address(&self, address: Option<IpAddr>) -> Result<(), ApiError> {
        let network = address.map(|address| match address {
            IpAddr::V6(six) => IpAddr::V6(Ipv6Addr::from_bits(six.to_bits() & (u128::MAX << 64))),
            four => four,
        });
        network.map_or(Ok(()), |network| take(self.addresses.as_ref(), &network))
    }

    /// Takes one request of a token.
    pub fn token(&self, id: i64) -> Result<(), ApiError> {
        take(self.tokens.as_ref(), &id)
    }
}

fn bucket<K: Hash + Eq + Clone>(per_s: u32) -> Option<DefaultKeyedRateLimiter<K>> {
    let rate = NonZeroU32::new(per_s)?;
    let burst = NonZeroU32::new(per_s.saturating_mul(BURST))?;
    Some(DefaultKeyedRateLimiter::keyed(Quota::per_second(rate).allow_burst(burst)))
}

fn take<K: Hash + Eq + Clone>(buckets: Option<&DefaultKeyedRateLimiter<K>>, key: &K) -> Result<(), ApiError> {
    let Some(buckets) = buckets else { return Ok(()) };
    if buckets.len() > KEPT {
        buckets.retain_recent();
    }
    buckets.check_key(key).map_err(|early| {
        let wait = early.wait_time_from(DefaultClock::default().now()).as_secs() + 1;
        ApiError::new(ErrorCode::RateLimited, ErrorCode::RateLimited.example()).retry_after(wait)
    })
}

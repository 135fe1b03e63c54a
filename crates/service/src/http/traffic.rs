//! Counters of connections and of refused requests, for the metrics.

use std::net::{IpAddr, Ipv6Addr};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// Reason of a refusal that is counted and not logged, because clients cause any number of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Requests per second of an address.
    AddressRate,
    /// Requests per second of a token.
    TokenRate,
    /// All open connections.
    Connections,
    /// Open connections of an address.
    AddressConnections,
    /// The client read nothing of a response.
    UnreadResponse,
    /// Active uploads of an owner.
    OwnerUploads,
    /// The client sent an upload too slowly.
    SlowUpload,
}

impl Refusal {
    const ALL: [Self; 7] = [
        Self::AddressRate,
        Self::TokenRate,
        Self::Connections,
        Self::AddressConnections,
        Self::UnreadResponse,
        Self::OwnerUploads,
        Self::SlowUpload,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Self::AddressRate => "address_rate",
            Self::TokenRate => "token_rate",
            Self::Connections => "connections",
            Self::AddressConnections => "address_connections",
            Self::UnreadResponse => "unread_response",
            Self::OwnerUploads => "owner_uploads",
            Self::SlowUpload => "slow_upload",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    reason: &'static str,
}

/// The counters. Clones share them.
#[derive(Debug, Clone)]
pub struct Traffic {
    connections: Gauge,
    refused: Family<RefusalLabels, Counter>,
}

impl Default for Traffic {
    fn default() -> Self {
        let refused = Family::<RefusalLabels, Counter>::default();
        // A rate of a series needs its first value.
        for reason in Refusal::ALL {
            drop(refused.get_or_create(&RefusalLabels { reason: reason.as_str() }));
        }
        Self { connections: Gauge::default(), refused }
    }
}

impl Traffic {
    /// Counts a refused request or connection.
    pub fn refuse(&self, reason: Refusal) {
        self.refused.get_or_create(&RefusalLabels { reason: reason.as_str() }).inc();
    }

    pub fn set_connections(&self, open: usize) {
        self.connections.set(i64::try_from(open).unwrap_or(i64::MAX));
    }

    /// Adds the counters to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("connections", "Open connections", self.connections.clone());
        let help = "Connections and requests refused by a limit";
        registry.register("refused", help, self.refused.clone());
    }
}

/// The network of a client: an IPv6 network (/64) counts as one address, because a host has all
/// addresses of it.
pub fn client_network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(six) => IpAddr::V6(Ipv6Addr::from_bits(six.to_bits() & (u128::MAX << 64))),
        four => four,
    }
}

//! Connections of clients: limits in total and per address, a timeout for clients that read
//! nothing, and the ends of lines in request heads.

mod request_lines;
mod stream;

use std::{
    collections::HashMap,
    future::Future,
    io,
    net::IpAddr,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum_server::accept::Accept;
use socket2::SockRef;
use tokio::net::TcpStream;

use self::stream::ClientStream;
use super::traffic::{Refusal, Traffic, client_network};

/// Bytes of responses that the kernel holds for a client in addition to what is on its way. The
/// default is megabytes, for which a client that reads nothing could cause work.
const UNSENT_BYTES: u32 = 64 << 10;
/// Shortest time between two warnings about a limit.
const WARNING_PERIOD: Duration = Duration::from_secs(60);

/// Limits of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Open connections.
    pub total: usize,
    /// Open connections of one client address; `None`: no limit.
    pub per_address: Option<usize>,
    /// Longest time in which a client reads nothing of a response.
    pub write_timeout: Duration,
}

/// Acceptor of connections within limits; `inner` accepts them further, as by TLS.
#[derive(Debug, Clone)]
pub struct Gate<A> {
    inner: A,
    open: Connections,
}

/// Open connections. Clones share them.
#[derive(Debug, Clone)]
struct Connections {
    limits: ConnectionLimits,
    counts: Arc<Mutex<Counts>>,
    traffic: Traffic,
}

#[derive(Debug, Default)]
struct Counts {
    total: usize,
    /// Without addresses that have no connection.
    by_address: HashMap<IpAddr, usize>,
    warned: Option<Instant>,
}

/// An open connection; counted until it is dropped.
#[derive(Debug)]
struct OpenConnection {
    open: Connections,
    address: IpAddr,
}

impl<A> Gate<A> {
    pub fn new(inner: A, limits: ConnectionLimits, traffic: Traffic) -> Self {
        Self { inner, open: Connections { limits, counts: Arc::default(), traffic } }
    }
}

impl<A, S> Accept<TcpStream, S> for Gate<A>
where
    A: Accept<TcpStream, S>,
    A::Future: Send + 'static,
{
    type Stream = ClientStream<A::Stream>;
    type Service = A::Service;
    type Future = Pin<Box<dyn Future<Output = io::Result<(Self::Stream, A::Service)>> + Send>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let connection = self.open.admit(&stream);
        let accepted = connection.map(|open| (open, self.inner.accept(stream, service)));
        Box::pin(async move {
            let (connection, accepted) = accepted?;
            let (stream, service) = accepted.await?;
            Ok((ClientStream::new(stream, connection), service))
        })
    }
}

impl Connections {
    /// Counts a connection; refuses it beyond a limit.
    fn admit(&self, stream: &TcpStream) -> io::Result<OpenConnection> {
        let address = client_network(stream.peer_addr()?.ip().to_canonical());
        let connection = self.enter(address)?;
        SockRef::from(stream).set_tcp_notsent_lowat(UNSENT_BYTES)?;
        Ok(connection)
    }

    /// Returns true if few connections are left.
    fn is_crowded(&self) -> bool {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.total >= self.limits.total / 4 * 3
    }

    fn enter(&self, address: IpAddr) -> io::Result<OpenConnection> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let ConnectionLimits { total, per_address, .. } = self.limits;
        let of_address = counts.by_address.get(&address).copied().unwrap_or_default();
        let refusal = if counts.total >= total {
            Some((Refusal::Connections, "server.connections", total))
        } else {
            per_address
                .filter(|limit| of_address >= *limit)
                .map(|limit| (Refusal::AddressConnections, "server.connections_per_address", limit))
        };
        if let Some((reason, setting, limit)) = refusal {
            self.traffic.refuse(reason);
            if counts.warned.is_none_or(|at| at.elapsed() >= WARNING_PERIOD) {
                counts.warned = Some(Instant::now());
                tracing::warn!(%address, "connection refused: {setting} = {limit} are open");
            }
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        counts.total += 1;
        *counts.by_address.entry(address).or_default() += 1;
        self.traffic.set_connections(counts.total);
        Ok(OpenConnection { open: self.clone(), address })
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let mut counts = self.open.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.total -= 1;
        if let Some(count) = counts.by_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.by_address.remove(&self.address);
            }
        }
        self.open.traffic.set_connections(counts.total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections(total: usize, per_address: Option<usize>) -> Connections {
        let limits =
            ConnectionLimits { total, per_address, write_timeout: Duration::from_secs(60) };
        Connections { limits, counts: Arc::default(), traffic: Traffic::default() }
    }

    #[test]
    fn connections_are_limited_in_total_and_per_address_until_they_close() {
        let open = connections(3, Some(2));
        let [one, two]: [IpAddr; 2] = [[192, 0, 2, 1].into(), [192, 0, 2, 2].into()];
        let first = open.enter(one).unwrap();
        let _second = open.enter(one).unwrap();
        assert!(open.enter(one).is_err(), "the address has two");
        let third = open.enter(two).unwrap();
        assert!(open.enter(two).is_err(), "three are open");
        drop(third);
        drop(first);
        let _again = (open.enter(one).unwrap(), open.enter(two).unwrap());
        assert!(open.enter(two).is_err());
    }

    #[test]
    fn closed_connections_leave_no_count() {
        let open = connections(2, None);
        let addresses = (0..50_u8).map(|last| IpAddr::from([192, 0, 2, last]));
        addresses.for_each(|address| drop(open.enter(address).unwrap()));
        let counts = open.counts.lock().unwrap();
        assert_eq!((counts.total, counts.by_address.len()), (0, 0));
    }
}

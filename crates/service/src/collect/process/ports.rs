//! Ports of programs that are started later.

use std::{fs, io, net::TcpListener, ops::Range};

/// The kernel's range of ports for sockets that ask for any.
const ANY_PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// First port considered; well-known services mostly use lower ports.
const FIRST: u16 = 10_000;
const MAX_TRIES: usize = 100;

/// A free port below the kernel's range for automatic ports: another connection could take a port
/// in that range before the program listens.
pub fn free_port() -> io::Result<u16> {
    let below = outside(&fs::read_to_string(ANY_PORTS).unwrap_or_default());
    for _ in 0..MAX_TRIES {
        let mut bits = [0; 2];
        getrandom::fill(&mut bits).map_err(io::Error::other)?;
        let Some(at) = u16::from_ne_bytes(bits).checked_rem(below.end - below.start) else { break };
        if let Ok(free) = TcpListener::bind(("127.0.0.1", below.start + at)) {
            return Ok(free.local_addr()?.port());
        }
    }
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// Ports below the kernel's range, which may be empty.
fn outside(any_ports: &str) -> Range<u16> {
    let first = any_ports.split_whitespace().next().and_then(|first| first.parse().ok());
    FIRST..first.unwrap_or(FIRST).max(FIRST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_not_one_that_the_kernel_gives_to_other_sockets() {
        assert_eq!(outside("32768\t60999\n"), 10_000..32_768);
        assert!(outside("1024 65535").is_empty() && outside("").is_empty());
        let below = outside(&fs::read_to_string(ANY_PORTS).unwrap());
        let port = free_port().unwrap();
        assert!(below.contains(&port) || below.is_empty(), "{port} of {below:?}");
    }
}

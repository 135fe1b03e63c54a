//! Addresses of a host, and the filter for addresses of the public Internet.
//!
//! Only addresses known to be public pass: special registries (RFC 6890 and its updates) are
//! refused, also embedded in IPv6.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::Url;

/// Resolves the URL's host; `None` if it has no address.
pub async fn resolve(url: &Url) -> Option<Vec<SocketAddr>> {
    let host = url.host_str()?;
    let port = url.port_or_known_default()?;
    let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    if let Ok(address) = literal {
        return Some(vec![(address, port).into()]);
    }
    Some(tokio::net::lookup_host((host, port)).await.ok()?.collect())
}

/// Returns true for an address of the public Internet.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(four) => is_public_4(four),
        IpAddr::V6(six) => is_public_6(six),
    }
}

fn is_public_4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation()
        || a == 0
        || a >= 224 // multicast, reserved, broadcast
        || (a == 100 && (64..128).contains(&b)) // carrier-grade NAT
        || (a, b, c) == (192, 0, 0)
        || (a == 198 && (b == 18 || b == 19)); // benchmarking
    !special
}

/// Global unicast (2000::/3) without documentation addresses. An embedded IPv4 address decides for
/// the address that contains it.
fn is_public_6(address: Ipv6Addr) -> bool {
    let parts = address.segments();
    let four =
        |high: u16, low: u16| is_public_4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    match parts {
        [0, 0, 0, 0, 0, 0xffff, high, low] => four(high, low),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => four(high, low),
        [0x2002, high, low, ..] => four(high, low),
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => false,
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_are_refused_in_every_form() {
        let private = [
            "127.0.0.1",
            "127.8.8.8",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "100.64.0.1",
            "192.0.0.8",
            "198.18.0.1",
            "203.0.113.7",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::7f00:1",
            "64:ff9b::a00:1",
            "2002:7f00:1::",
            "2002:a9fe:a9fe::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "ff02::1",
            "2001:db8::1",
            "2001::1",
            "3fff::1",
            "64:ff9b:1::1",
        ];
        for address in private {
            assert!(!is_public(address.parse().unwrap()), "{address}");
        }
        for address in [
            "1.1.1.1",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700::1111",
            "::ffff:1.1.1.1",
            "64:ff9b::101:101",
        ] {
            assert!(is_public(address.parse().unwrap()), "{address}");
        }
    }

    #[tokio::test]
    async fn numeric_hosts_are_addresses_in_every_notation() {
        for url in [
            "http://127.1:80/",
            "http://2130706433/",
            "http://0x7f.1/",
            "http://[::ffff:7f00:1]/",
            "http://0177.0.0.1/",
        ] {
            let found = resolve(&Url::parse(url).unwrap()).await.unwrap();
            assert!(
                !found.is_empty() && found.iter().all(|address| !is_public(address.ip())),
                "{url}: {found:?}"
            );
        }
    }
}

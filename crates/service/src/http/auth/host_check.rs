//! Host names of the service, so that pages of other sites cannot reach one without authentication.
//!
//! A site can resolve its name to the loopback address once its page is open (DNS rebinding). The
//! page's requests then come from a browser on this host and have the page's own origin: only the
//! requested host name differs.

use std::net::IpAddr;

use axum::http::{HeaderMap, Uri, header, uri::Authority};

use crate::http::error::{ApiError, ErrorCode};

/// Refuses a request that names two hosts: a proxy may have checked the other one (RFC 9112, 3.2).
pub(super) fn check_single(headers: &HeaderMap) -> Result<(), ApiError> {
    let hosts = headers.get_all(header::HOST).iter().count();
    if hosts <= 1 {
        return Ok(());
    }
    let message = format!("{hosts} Host headers; send one");
    Err(ApiError::new(ErrorCode::InvalidParameter, message))
}

/// Refuses a request for a host that is neither this one nor listed. A request without a host does
/// not come from a browser.
pub(super) fn check(uri: &Uri, headers: &HeaderMap, listed: &[String]) -> Result<(), ApiError> {
    let named =
        headers.get_all(header::HOST).iter().map(|value| value.to_str().unwrap_or_default());
    for name in named.chain(uri.authority().map(Authority::as_str)) {
        if !known(name, listed) {
            let message = format!("host {name:?} is not allowed; add it to server.hosts");
            return Err(ApiError::new(ErrorCode::MisdirectedRequest, message));
        }
    }
    Ok(())
}

/// Returns true if `name`, with or without a port, is listed or this host's.
fn known(name: &str, listed: &[String]) -> bool {
    let Ok(authority) = name.parse::<Authority>() else { return false };
    if name.contains('@') {
        return false;
    }
    let host = authority.host().trim_end_matches('.');
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    let own = match address {
        Ok(address) => address.to_canonical().is_loopback(),
        // RFC 6761, 6.3: these names resolve to the loopback address only.
        Err(_) => {
            host.eq_ignore_ascii_case("localhost")
                || host.to_ascii_lowercase().ends_with(".localhost")
        }
    };
    own || listed.iter().any(|listed| listed.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_host_and_listed_names_are_known_on_any_port() {
        let listed = ["Llmprof.example".to_owned(), "10.0.0.7".to_owned()];
        let own = [
            "localhost",
            "LOCALHOST:8080",
            "a.localhost",
            "localhost.",
            "127.0.0.1:80",
            "127.9.9.9",
            "[::1]:8080",
            "[::ffff:127.0.0.1]",
        ];
        let more = ["llmprof.example", "LLMPROF.EXAMPLE:8443", "llmprof.example.", "10.0.0.7:8080"];
        for name in own.into_iter().chain(more) {
            assert!(known(name, &listed), "{name}");
        }
        let foreign = [
            "",
            ":",
            "evil.example",
            "localhost.evil.example",
            "notlocalhost",
            "127.0.0.1.evil.example",
            "localhost@evil.example",
            "evil.example@localhost",
            "192.168.0.1",
            "0.0.0.0",
            "10.0.0.70",
            "llmprof.example.evil",
            "[::2]",
            "localhost:8080/x",
            "a b",
        ];
        for name in foreign {
            assert!(!known(name, &listed), "{name}");
        }
        assert!(!known("llmprof.example", &[]));
    }
}

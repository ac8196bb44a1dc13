//! The names by which requests over TCP may address the API.
//!
//! Another site may let a name of its own point to this machine, so that its pages in a browser
//! send requests to the API as if it were their own site. What they cannot do is to use an IP
//! address, or a name that is not their own.

use std::net::IpAddr;

use axum::http::Uri;
use axum::http::uri::Authority;

/// The names that are allowed, besides IP addresses and `localhost`.
#[derive(Clone, Debug, Default)]
pub(super) struct Hosts(Vec<String>);

impl Hosts {
    /// The names, in any case.
    pub(super) fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self(names.into_iter().map(|name| name.to_ascii_lowercase()).collect())
    }

    /// Whether requests may address the API like this. `host` is the value of the header, with its port.
    pub(super) fn allow(&self, host: &str) -> bool {
        let Ok(authority) = host.parse::<Authority>() else { return false };
        let name = authority.host().trim_end_matches('.').to_ascii_lowercase();
        let address = name.trim_start_matches('[').trim_end_matches(']');
        name == "localhost" || address.parse::<IpAddr>().is_ok() || self.0.contains(&name)
    }
}

/// Whether a page of this origin comes from the host that the request addresses.
pub(super) fn is_of(origin: &str, host: &str) -> bool {
    let origin = origin.parse::<Uri>().ok();
    let web =
        origin.as_ref().and_then(Uri::scheme_str).is_some_and(|of| ["http", "https"].contains(&of));
    let authority = origin.as_ref().and_then(Uri::authority).map(Authority::as_str);
    web && authority.is_some_and(|own| own.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_localhost_and_named_hosts_are_allowed_and_no_other_name() {
        let hosts = Hosts::new(["Node1.example".to_owned()]);
        let own = ["127.0.0.1", "127.0.0.1:4646", "[::1]:4646", "10.1.2.3", "localhost:1"];
        for host in own.into_iter().chain(["node1.example", "NODE1.EXAMPLE:4646", "localhost."]) {
            assert!(hosts.allow(host), "{host}");
        }
        let others =
            ["", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "a b"];
        for host in others.into_iter().chain(["127.0.0.1@evil.example", "evil.example:4646"]) {
            assert!(!hosts.allow(host), "{host}");
        }
    }

    #[test]
    fn a_page_is_of_the_host_and_port_that_it_came_from() {
        assert!(is_of("http://127.0.0.1:4646", "127.0.0.1:4646"));
        assert!(is_of("https://node1.example", "Node1.example"));
        for origin in [
            "null",
            "",
            "127.0.0.1:4646",
            "x://127.0.0.1:4646",
            "http://127.0.0.1:8080",
            "http://evil.example",
            "file://",
        ] {
            assert!(!is_of(origin, "127.0.0.1:4646"), "{origin}");
        }
    }
}

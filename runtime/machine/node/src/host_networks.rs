//! The addresses of this node that ports may ask for by name.

use std::collections::BTreeMap;
use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;

use super::view::HostNetworkView;
use ostler_model::network::HostNetworkConfig;

/// Each configured network with the node's first address in it, IPv4 before IPv6, and the names of
/// the networks in which the node has no address.
#[must_use]
pub fn find_host_networks(
    configured: &BTreeMap<String, HostNetworkConfig>,
) -> (BTreeMap<String, HostNetworkView>, Vec<String>) {
    if configured.is_empty() {
        return (BTreeMap::new(), Vec::new());
    }
    choose_addresses(configured, &own_addresses())
}

/// Interfaces and addresses of this node.
fn own_addresses() -> Vec<(String, IpAddr)> {
    let all = match getifaddrs() {
        Ok(all) => all,
        Err(error) => {
            tracing::warn!(%error, "the addresses of this node cannot be listed");
            return Vec::new();
        }
    };
    let of = |one: nix::ifaddrs::InterfaceAddress| {
        let address = one.address?;
        let v4 = address.as_sockaddr_in().map(|at| IpAddr::V4(at.ip()));
        let v6 = || address.as_sockaddr_in6().map(|at| IpAddr::V6(at.ip()));
        Some((one.interface_name, v4.or_else(v6)?))
    };
    let mut all: Vec<_> = all.filter_map(of).collect();
    all.sort_by_key(|(_, address)| address.is_ipv6());
    all
}

fn choose_addresses(
    configured: &BTreeMap<String, HostNetworkConfig>,
    own: &[(String, IpAddr)],
) -> (BTreeMap<String, HostNetworkView>, Vec<String>) {
    let (mut found, mut missing) = (BTreeMap::new(), Vec::new());
    for (name, config) in configured {
        let fits = |(interface, address): &&(String, IpAddr)| {
            config.interface.as_ref().is_none_or(|wanted| wanted == interface)
                && config.cidr.is_none_or(|range| range.holds(*address))
        };
        match own.iter().find(fits) {
            Some((interface, address)) => {
                let (interface, reserved) = (interface.clone(), config.reserved_ports.clone());
                let view = HostNetworkView { address: *address, interface, reserved };
                found.insert(name.clone(), view);
            }
            None => missing.push(name.clone()),
        }
    }
    (found, missing)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_the_first_address_in_its_range_and_on_its_interface() {
        let own = [("lo", "127.0.0.1"), ("eth0", "10.0.0.5"), ("eth1", "10.1.0.5")];
        let own: Vec<_> =
            own.map(|(name, at)| (name.to_owned(), at.parse::<IpAddr>().unwrap())).into();
        let config = |cidr: Option<&str>, interface: Option<&str>| HostNetworkConfig {
            cidr: cidr.map(|text| text.parse().unwrap()),
            interface: interface.map(str::to_owned),
            reserved_ports: vec![(22, 22)],
        };
        let configured = [
            ("private", config(Some("10.0.0.0/8"), None)),
            ("second", config(Some("10.0.0.0/8"), Some("eth1"))),
            ("none", config(Some("192.0.2.0/24"), None)),
        ];
        let configured = configured.map(|(name, config)| (name.to_owned(), config)).into();
        let (found, missing) = choose_addresses(&configured, &own);
        assert_eq!(found.get("private").unwrap().address.to_string(), "10.0.0.5");
        let second = found.get("second").unwrap();
        assert_eq!((second.address.to_string().as_str(), &*second.interface), ("10.1.0.5", "eth1"));
        assert!(second.reserves(22) && !second.reserves(23));
        assert_eq!(missing, ["none"]);
    }
}

//! What a plugin may connect to in one call: granted addresses, and addresses that granted names
//! resolved to in the same call.
//!
//! ```text
//! look up "api.example.com" ─ granted? ─► addresses, learned with the grant's ports
//! connect 192.0.2.7:443 ─ granted, or learned with this port? ─► connection
//! ```
//! A name that is not granted is not even looked up, because a question to a name server
//! carries data out.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use wasmtime_wasi::WasiCtxBuilder;
use wasmtime_wasi::sockets::SocketAddrUse;

use ostler_model::endpoint::Endpoint;
use ostler_model::limits::PLUGIN_ADDRESSES_LEARNED_MAX;

/// An address that a granted name resolved to, and a port of that grant; absent: any port.
type LearnedAddress = (IpAddr, Option<u16>);

/// The addresses that one call learned, and its look-ups that go on.
#[derive(Debug, Default)]
pub(super) struct NetworkState {
    learned: Arc<Mutex<Vec<LearnedAddress>>>,
    /// Ports of the grants behind each look-up that goes on, by the resource of the look-up.
    lookups: HashMap<u32, Vec<Option<u16>>>,
}

impl NetworkState {
    /// Allow connections to what is granted, and look-ups of names.
    pub(super) fn open(&self, wasi: &mut WasiCtxBuilder, granted: &[Endpoint]) {
        if granted.is_empty() {
            return;
        }
        let (granted, learned) = (granted.to_vec(), Arc::clone(&self.learned));
        // Look-ups are narrowed to granted names by `imports::lookup`.
        wasi.allow_tcp(true).allow_ip_name_lookup(true).socket_addr_check(move |to, purpose| {
            let learned = learned.lock().unwrap_or_else(PoisonError::into_inner);
            Box::pin(std::future::ready(is_allowed(&granted, &learned, to, purpose)))
        });
    }

    /// A look-up of a granted name begins.
    pub(super) fn begin_lookup(&mut self, resource: u32, ports: Vec<Option<u16>>) {
        self.lookups.insert(resource, ports);
    }

    /// Learn an address that the looked-up name resolved to.
    pub(super) fn learn_address(&self, resource: u32, address: IpAddr) {
        let mut learned = self.learned.lock().unwrap_or_else(PoisonError::into_inner);
        for port in self.lookups.get(&resource).into_iter().flatten() {
            let known = (address, *port);
            if learned.len() < PLUGIN_ADDRESSES_LEARNED_MAX && !learned.contains(&known) {
                learned.push(known);
            }
        }
    }

    /// A look-up is over.
    pub(super) fn end_lookup(&mut self, resource: u32) {
        self.lookups.remove(&resource);
    }
}

/// The ports of the grants that allow a name to be looked up. An empty list: the name
/// is not granted.
pub(super) fn granted_ports(granted: &[Endpoint], name: &str) -> Vec<Option<u16>> {
    granted.iter().filter(|one| one.allows_name(name)).map(|one| one.port).collect()
}

fn is_allowed(
    granted: &[Endpoint],
    learned: &[LearnedAddress],
    to: SocketAddr,
    purpose: SocketAddrUse,
) -> bool {
    match purpose {
        // A socket that connects is first bound to the unspecified address.
        SocketAddrUse::TcpBind => to.ip().is_unspecified() && to.port() == 0,
        SocketAddrUse::TcpConnect => {
            let by_name = |(address, port): &LearnedAddress| {
                address.to_canonical() == to.ip().to_canonical()
                    && port.is_none_or(|port| port == to.port())
            };
            granted.iter().any(|one| one.allows(to)) || learned.iter().any(by_name)
        }
        _ => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn parse_address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn only_granted_places_are_connected_to_and_nothing_is_listened_on() {
        let granted = ["10.0.0.0/8:443".parse().unwrap()];
        let may = |address, purpose| is_allowed(&granted, &[], parse_address(address), purpose);
        assert!(may("10.1.2.3:443", SocketAddrUse::TcpConnect));
        assert!(!may("10.1.2.3:80", SocketAddrUse::TcpConnect));
        assert!(!may("127.0.0.1:443", SocketAddrUse::TcpConnect));
        assert!(may("0.0.0.0:0", SocketAddrUse::TcpBind), "before the connect");
        assert!(!may("10.1.2.3:443", SocketAddrUse::TcpBind));
        for never in [
            SocketAddrUse::TcpListen,
            SocketAddrUse::TcpAccept,
            SocketAddrUse::UdpSend,
            SocketAddrUse::UdpReceive,
            SocketAddrUse::UdpBind,
        ] {
            assert!(!may("10.1.2.3:443", never), "{never:?}");
        }
    }

    #[test]
    fn an_address_is_learned_only_from_a_granted_name_with_the_ports_of_its_grant() {
        let granted: Vec<Endpoint> =
            ["api.example.com:443", "api.example.com:8443"].map(|s| s.parse().unwrap()).into();
        assert_eq!(granted_ports(&granted, "api.example.com"), [Some(443), Some(8443)]);
        assert!(granted_ports(&granted, "secret.attacker.example").is_empty());
        let mut network = NetworkState::default();
        network.begin_lookup(1, granted_ports(&granted, "api.example.com"));
        network.learn_address(1, "192.0.2.7".parse().unwrap());
        network.learn_address(2, "192.0.2.8".parse().unwrap());
        let learned = network.learned.lock().unwrap().clone();
        let may = |address| {
            is_allowed(&granted, &learned, parse_address(address), SocketAddrUse::TcpConnect)
        };
        assert!(may("192.0.2.7:443") && may("192.0.2.7:8443"));
        assert!(!may("192.0.2.7:22") && !may("192.0.2.8:443"));
        network.end_lookup(1);
        for n in 0..255 {
            network.begin_lookup(2, vec![None]);
            network.learn_address(2, IpAddr::from([10, 0, 0, n]));
        }
        assert_eq!(network.learned.lock().unwrap().len(), PLUGIN_ADDRESSES_LEARNED_MAX);
    }
}

//! Where a node of a cluster answers other nodes: `bind_addr` and the blocks `ports`, `addresses`,
//! `advertise`.

use std::net::IpAddr;

use crate::diagnostic::shown;
use crate::keys::Bounds::Whole;
use crate::keys::{Context, Given, hint, keys};
use ostler_model::config::HttpConfig;
use ostler_model::server_address::ServerAddress;

/// What the keys of servers would say.
const OF_SERVERS: &str = "an agent is no server: other nodes reach it at http alone";

keys! {
    struct PortsKeys: "ports" {
        /// Port at which other nodes of the cluster fetch the disks of allocations that have ended; 0: none.
        http: Given<u16> [Whole(0, 65_535)], "`4646` with a `tls` block that has a certificate, `0` without one";
    }
    not_yet {
        "rpc" [hint(OF_SERVERS)]; "serf" [hint(OF_SERVERS)];
    }
}

keys! {
    struct AddressesKeys: "addresses" {
        /// Address that is listened at for them.
        http: Given<String>, "`bind_addr`";
    }
    not_yet {
        "rpc" [hint(OF_SERVERS)]; "serf" [hint(OF_SERVERS)];
    }
}

keys! {
    struct AdvertiseKeys: "advertise" {
        /// `HOST[:PORT]` by which they reach this node.
        http: Given<String>, "the address and port that are listened at";
    }
    not_yet {
        "rpc" [hint(OF_SERVERS)]; "serf" [hint(OF_SERVERS)];
    }
}

pub(super) fn http(
    bind_addr: Given<String>,
    ports: Option<PortsKeys>,
    addresses: Option<AddressesKeys>,
    advertise: Option<AdvertiseKeys>,
    cx: &mut Context<'_>,
) -> HttpConfig {
    HttpConfig {
        port: ports.and_then(|keys| keys.http.value),
        bind_addr: ip(bind_addr, cx),
        address: addresses.and_then(|keys| ip(keys.http, cx)),
        advertised: advertise.and_then(|keys| host(keys.http, cx)),
    }
}

/// An address; what is none is said.
pub(super) fn ip(given: Given<String>, cx: &mut Context<'_>) -> Option<IpAddr> {
    let at = given.at;
    let text = given.filled(cx)?;
    let message = || format!("{} is no IP address; write for example \"127.0.0.1\"", shown(&text));
    text.parse().map_err(|_| cx.error(at, message())).ok()
}

/// A host with the port that stands behind it, perhaps.
fn host(given: Given<String>, cx: &mut Context<'_>) -> Option<(String, Option<u16>)> {
    let at = given.at;
    let text = given.filled(cx)?;
    let read = text.parse::<ServerAddress>().map_err(|_| {
        let wrong =
            format!("{} is no HOST or HOST:PORT; put an IPv6 address in brackets", shown(&text));
        cx.error(at, wrong);
    });
    let ServerAddress { host, port } = read.ok()?;
    // Without a colon behind the host there is no port.
    let has_port = text.parse::<IpAddr>().is_err() && !text.ends_with(']') && text.contains(':');
    Some((host, Some(port).filter(|_| has_port)))
}

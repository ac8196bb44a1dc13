//! The addresses at which the API is offered over TCP, and at which a node of a cluster answers other nodes:
//! `bind_addr`, `http_hosts` and the blocks `ports`, `addresses`, `advertise`.

use std::net::IpAddr;

use crate::diagnostic::quote_text;
use crate::keys::FieldBounds::Whole;
use crate::keys::{Context, Setting, Texts, hint, keys};
use ostler_model::config::HttpConfig;
use ostler_model::limits::{HTTP_HOSTS_MAX, NAME_BYTES_MAX};
use ostler_model::server_address::ServerAddress;

/// The hint at the keys that are meant for servers.
const OF_SERVERS: &str = "an agent is not a server: other nodes reach it at http alone";

keys! {
    struct PortsKeys: "ports" {
        /// Port of the API; 0: none. In a cluster the port at which other nodes fetch the disks of allocations
        /// that have ended.
        http: Setting<u16> [Whole(0, 65_535)], "`4646` where an address is given; in a cluster `4646` with a `tls` block that has a certificate, `0` without one";
    }
    not_yet {
        "rpc" [hint(OF_SERVERS)]; "serf" [hint(OF_SERVERS)];
    }
}

keys! {
    struct AddressesKeys: "addresses" {
        /// Address that is listened at.
        http: Setting<String>, "`bind_addr`";
    }
    not_yet {
        "rpc" [hint(OF_SERVERS)]; "serf" [hint(OF_SERVERS)];
    }
}

keys! {
    struct AdvertiseKeys: "advertise" {
        /// `HOST[:PORT]` by which others reach this node.
        http: Setting<String>, "the address and port to listen on";
    }
    not_yet {
        "rpc" [hint(OF_SERVERS)]; "serf" [hint(OF_SERVERS)];
    }
}

pub(super) fn http(
    bind_addr: Setting<String>,
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

/// The names of hosts among the texts; other texts are reported.
pub(super) fn hosts(keys: Texts, cx: &mut Context<'_>) -> Vec<String> {
    let mut hosts = Vec::new();
    for (text, at) in keys.value.into_iter().flatten() {
        let fits = |c: char| c.is_ascii_alphanumeric() || ['-', '.', '_'].contains(&c);
        if text.is_empty() || text.len() > NAME_BYTES_MAX || !text.chars().all(fits) {
            cx.error(at, format!("{} is not a host name such as node1.example", quote_text(&text)));
        } else if hosts.len() >= HTTP_HOSTS_MAX {
            cx.error(at, format!("there are more than {HTTP_HOSTS_MAX} names of hosts"));
        } else {
            hosts.push(text.to_ascii_lowercase());
        }
    }
    hosts
}

/// The IP address that a text is; another text is reported.
pub(super) fn ip(given: Setting<String>, cx: &mut Context<'_>) -> Option<IpAddr> {
    let at = given.at;
    let text = given.non_empty(cx)?;
    let message =
        || format!("{} is not an IP address; write for example \"127.0.0.1\"", quote_text(&text));
    text.parse().map_err(|_| cx.error(at, message())).ok()
}

/// The host that a text is, with the port behind it if there is one.
fn host(given: Setting<String>, cx: &mut Context<'_>) -> Option<(String, Option<u16>)> {
    let at = given.at;
    let text = given.non_empty(cx)?;
    let read = text.parse::<ServerAddress>().map_err(|_| {
        let wrong = format!(
            "{} is not HOST or HOST:PORT; put an IPv6 address in brackets",
            quote_text(&text)
        );
        cx.error(at, wrong);
    });
    let ServerAddress { host, port } = read.ok()?;
    // The text has a port only if a colon stands behind the host.
    let has_port = text.parse::<IpAddr>().is_err() && !text.ends_with(']') && text.contains(':');
    Some((host, Some(port).filter(|_| has_port)))
}

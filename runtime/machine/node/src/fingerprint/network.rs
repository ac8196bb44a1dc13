//! Network: `unique.network.ip-address`, the node's own address on the interface of the default
//! route. IPv4 only; a node without a default route has no such fact. Ours:
//! `unique.network.interface`, its name, and `unique.network.mbits`, its speed in Mbit/s where the
//! kernel knows it (Nomad has both in `NodeResources.Networks`, not as attributes).
//!
//! `/proc/net/route` says which interface the default route uses and which subnets that interface
//! is in; `/proc/net/fib_trie` lists the node's own addresses; the address in such a subnet is it.

use std::net::Ipv4Addr;
use std::path::Path;

use super::{Facts, add_number, add_text, read, read_line};

pub(super) fn fingerprint(root: &Path, facts: &mut Facts) {
    let Some(routes) = read(root, "proc/net/route") else { return };
    let routes: Vec<KernelRoute<'_>> = routes.lines().skip(1).filter_map(parse_route).collect();
    let default = routes
        .iter()
        .filter(|route| route.destination == 0 && route.mask == 0)
        .min_by_key(|route| route.metric);
    // The kernel gives no name that could lead out of the directory, so such a name is not used.
    let Some(interface) = default.map(|route| route.interface).filter(|n| !n.contains('/')) else {
        return;
    };
    let trie = read(root, "proc/net/fib_trie");
    let address = trie.and_then(|trie| own_address(&routes, interface, &trie));
    add_text(facts, "unique.network.ip-address", address.map(|address| address.to_string()));
    add_text(facts, "unique.network.interface", Some(interface));
    // -1 and an error both mean that it is not known.
    let speed = read_line(root, &format!("sys/class/net/{interface}/speed"));
    add_number(facts, "unique.network.mbits", speed.and_then(|speed| speed.parse().ok()));
}

struct KernelRoute<'a> {
    interface: &'a str,
    destination: u32,
    mask: u32,
    metric: u32,
}

/// The node's own address in a subnet of `interface`.
fn own_address(routes: &[KernelRoute<'_>], interface: &str, trie: &str) -> Option<Ipv4Addr> {
    let mut own = local_addresses(trie);
    own.find(|address| {
        routes.iter().any(|route| {
            route.interface == interface
                && route.mask != 0
                && address.to_bits() & route.mask == route.destination
        })
    })
}

/// `eth0 00000000 0102A8C0 0003 0 0 100 00000000 …`: numbers are little-endian hex.
fn parse_route(line: &str) -> Option<KernelRoute<'_>> {
    let mut fields = line.split_whitespace();
    let hex = |text: &str| u32::from_str_radix(text, 16).ok().map(u32::swap_bytes);
    let interface = fields.next()?;
    let destination = hex(fields.next()?)?;
    let metric = fields.nth(4)?.parse().ok()?;
    let mask = hex(fields.next()?)?;
    Some(KernelRoute { interface, destination, mask, metric })
}

/// Addresses followed by a `/32 host LOCAL` line, loopback left out.
fn local_addresses(trie: &str) -> impl Iterator<Item = Ipv4Addr> {
    let lines = trie.lines().map(str::trim);
    lines.clone().zip(lines.skip(1)).filter_map(|(line, next)| {
        let address: Ipv4Addr = line.strip_prefix("|-- ")?.parse().ok()?;
        (next == "/32 host LOCAL" && !address.is_loopback()).then_some(address)
    })
}

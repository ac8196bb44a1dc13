//! Decodes the network of a group, and ports. Ports belong to a group, or to a task, as in early Nomad.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::PathBuf;

use crate::Syntax;
use crate::diagnostic::{Span, quote_text};
use crate::keys::FieldBounds::NotZero;
use crate::keys::{Context, MOST, Setting, Texts, hint, keys};
use ostler_model::job::{NetworkSpec, PortSpec};
use ostler_model::limits::{DNS_TEXTS_MAX, NAME_BYTES_MAX, NETWORK_PORTS_MAX};
use ostler_model::network::{Cidr, HostNetworkConfig, NetworkConfig, NetworkMode, is_hostname};
use ostler_model::saved::DnsConfig;

keys! {
    struct NetworkKeys: "a network" {
        /// `host`: the addresses of the node; `bridge`: one of its own at the node's bridge; `none`: a
        /// loopback alone; `cni/NAME`: as the CNI configuration of that name makes it.
        mode / Mode: Setting<String>, "`host`";
        /// A port, by its label; in JSON, those with a `static` one.
        ports "port" / ReservedPorts: Vec<PortKeys>;
        /// In JSON, ports without a `static` one.
        dynamic "" / DynamicPorts: Vec<PortKeys>;
        /// How names are resolved.
        dns / DNS: Option<DnsKeys>;
        /// The host's name as native tasks see it, in a network of the allocation's own; may have `${…}`.
        hostname / Hostname: Setting<String>, "the node's";
        /// No bandwidth is reserved; Nomad does not either, since 0.12.
        mbits / MBits: Setting<u32> [NotZero(0, MOST)], "none";
    }
    not_yet {
        "cni" / CNI;
        "" / Device => ""; "" / CIDR => ""; "" / IP => "";
    }
}

keys! {
    struct TaskNetworkKeys: "a network of a task" {
        /// Of no effect, as in Nomad: the group's network says which its tasks are in.
        mode / Mode: Setting<String>, "`host`";
        /// A port, by its label; in JSON, those with a `static` one.
        ports "port" / ReservedPorts: Vec<PortKeys>;
        /// In JSON, ports without a `static` one.
        dynamic "" / DynamicPorts: Vec<PortKeys>;
        /// Of no effect, as in Nomad: put it into the network of the group.
        dns / DNS: Option<DnsKeys>;
        /// No bandwidth is reserved; Nomad does not either, since 0.12.
        mbits / MBits: Setting<u32> [NotZero(0, MOST)], "none";
    }
    not_yet {
        "hostname" / Hostname [hint("put it into the network of the group")]; "cni" / CNI; "" / Device => ""; "" / CIDR => ""; "" / IP => "";
    }
}

keys! {
    struct DnsKeys: "dns" {
        /// Addresses of name servers.
        servers / Servers: Texts, "the node's";
        /// Domains that short names are looked for in.
        searches / Searches: Texts, "none";
        /// Options of the resolver, such as `ndots:2`.
        options / Options: Texts, "none";
    }
}

keys! {
    struct PortKeys: "a port", label Label {
        /// The port of the node.
        fixed "static" / Value: Setting<u16> [NotZero(1, 65_535)], "any free one";
        /// Port inside the task; in host mode only shown. -1: that of the node.
        to / To: Setting<i32> [NotZero(-1, 65_535)], "that of the node";
        /// A `host_network` of the node's configuration.
        host_network / HostNetwork: Setting<String>, "`default`: the address of the node";
    }
    not_yet {
        "ignore_collision" / IgnoreCollision;
    }
}

keys! {
    struct HostNetworkKeys: "a host network", label Name {
        /// Addresses of the node in this range.
        cidr: Setting<String>, "any";
        /// Addresses of this interface.
        interface: Setting<String>, "any";
        /// Ports that no allocation gets there: `22,8000-8100`.
        reserved_ports: Setting<String>, "none";
    }
}

/// Decode the `network` block of a group.
pub(super) fn network(blocks: Vec<NetworkKeys>, cx: &mut Context<'_>) -> Option<NetworkSpec> {
    let mut blocks = blocks.into_iter();
    let keys = blocks.next()?;
    for more in blocks {
        cx.error(more.at, "a group has one network; put all ports into the first");
    }
    let mode = match keys.mode.clone().with_place() {
        Some((mode, at)) => mode_of(&mode, at, cx),
        None => NetworkMode::Host,
    };
    warn_mbits(&keys.mbits, cx);
    let dns = match &keys.dns {
        Some(block) if block.says_nothing() => None,
        Some(block) => {
            let dns = dns(block, cx);
            if !mode.is_own() {
                let message = "dns has no effect: the node's own network has the node's own dns; give the \
                               network a mode such as bridge";
                cx.sink.warn(block.at, message);
            }
            Some(dns).filter(|_| mode.is_own())
        }
        None => None,
    };
    let hostname = hostname(keys.hostname, &mode, cx);
    let ports = ports(keys.ports, keys.dynamic, cx);
    if mode == NetworkMode::None && !ports.is_empty() {
        cx.error(keys.at, "ports in a network of mode none cannot be reached; leave them out");
    }
    Some(NetworkSpec { ports, mode, dns, hostname })
}

/// Decode the `network` block of a task's `resources`.
pub(super) fn task_ports(blocks: Vec<TaskNetworkKeys>, cx: &mut Context<'_>) -> Vec<PortSpec> {
    let mut blocks = blocks.into_iter();
    let Some(keys) = blocks.next() else { return Vec::new() };
    for more in blocks {
        cx.error(more.at, "a task has one network; put all ports into the first");
    }
    if let Some((mode, at)) = keys.mode.clone().with_place().filter(|(mode, _)| mode != "host") {
        mode_of(&mode, at, cx);
        let message = format!(
            "{} has no effect in the network of a task, nor has it in Nomad: its ports are the node's; put \
             network {{ mode = {} }} into the group",
            keys.mode.key,
            quote_text(&mode)
        );
        cx.sink.warn(at, message);
    }
    if let Some(block) = keys.dns.as_ref().filter(|block| !block.says_nothing()) {
        dns(block, cx);
        let message = "dns has no effect in the network of a task, nor has it in Nomad; put it into the \
                       network of the group";
        cx.sink.warn(block.at, message);
    }
    warn_mbits(&keys.mbits, cx);
    ports(keys.ports, keys.dynamic, cx)
}

/// The network of a group, with the ports of one of its tasks added.
pub(super) fn with_ports(network: Option<&NetworkSpec>, own: &[PortSpec]) -> Option<NetworkSpec> {
    let mut all = network.cloned().unwrap_or_default();
    all.ports.splice(0..0, own.iter().cloned());
    (!own.is_empty()).then_some(all)
}

fn warn_mbits(mbits: &Setting<u32>, cx: &mut Context<'_>) {
    if mbits.value.is_some_and(|mbits| mbits > 0) && cx.syntax == Syntax::Hcl {
        let message =
            "mbits has no effect: no bandwidth is reserved, nor is it by Nomad since 0.12";
        cx.sink.warn(mbits.key_at, message);
    }
}

fn ports(fixed: Vec<PortKeys>, dynamic: Vec<PortKeys>, cx: &mut Context<'_>) -> Vec<PortSpec> {
    for port in &fixed {
        if cx.syntax == Syntax::Json && !port.fixed.was_given {
            let message = "a reserved port needs a Value; without one it belongs to DynamicPorts";
            cx.error(port.at, message);
        }
    }
    for port in dynamic.iter().filter(|port| port.fixed.was_given) {
        let message = "a dynamic port has no Value; with one it belongs to ReservedPorts";
        cx.error(port.fixed.key_at, message);
    }
    let given = fixed.len().saturating_add(dynamic.len());
    if let Some(first) = fixed.first().or(dynamic.first()).filter(|_| given > NETWORK_PORTS_MAX) {
        cx.error(
            first.at,
            format!("the network has {given} ports; at most {NETWORK_PORTS_MAX} are allowed"),
        );
        return Vec::new();
    }
    let mut labels = BTreeSet::new();
    let mut taken: BTreeMap<u16, String> = BTreeMap::new();
    let mut variables: BTreeMap<String, String> = BTreeMap::new();
    let mut ports = Vec::new();
    let mut blocks: Vec<PortKeys> = fixed.into_iter().chain(dynamic).collect();
    blocks.sort_by_key(|port| port.at.start);
    for keys in blocks {
        let label = keys.label.name.clone();
        let allowed = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if label.is_empty() || !label.chars().all(allowed) || label.len() > NAME_BYTES_MAX {
            let message = format!(
                "{} is not a valid port label: give 1 to {NAME_BYTES_MAX} letters, digits, '_', '-' and '.'",
                quote_text(&label),
            );
            cx.error(keys.label.span, message);
            continue;
        }
        let variable = label.replace(['-', '.'], "_");
        if let Some(other) =
            variables.insert(variable.clone(), label.clone()).filter(|of| *of != label)
        {
            let message =
                format!("{} already has the variable NOMAD_PORT_{variable}", quote_text(&other));
            cx.error(keys.label.span, message);
        }
        cx.add_unique(&mut labels, "a port", &keys.label);
        let host_network = keys.host_network.value.clone();
        let host_network = host_network.filter(|name| !name.is_empty() && name != "default");
        if let Some((number, at)) = keys.fixed.clone().with_place()
            && let Some(other) = taken.insert(number, label.clone())
        {
            cx.error(at, format!("port {number} is already taken by {}", quote_text(&other)));
        }
        // -1 means the port of the node, which is the default.
        let to = keys.to.value.and_then(|to| u16::try_from(to).ok()).filter(|to| *to != 0);
        ports.push(PortSpec { label, fixed: keys.fixed.value, to, host_network });
    }
    // JSON has two lists of ports. With this order, HCL and JSON give the same job.
    ports.sort_by_key(|port| port.fixed.is_none());
    ports
}

fn mode_of(mode: &str, at: Span, cx: &mut Context<'_>) -> NetworkMode {
    match mode {
        "host" => NetworkMode::Host,
        "none" => NetworkMode::None,
        "bridge" => NetworkMode::Bridge,
        _ => match mode.strip_prefix("cni/") {
            Some(name) if is_network_name(name) => NetworkMode::Cni(name.to_owned()),
            Some(name) => {
                cx.error(at, format!("{} is not the name of a CNI network", quote_text(name)));
                NetworkMode::Host
            }
            None => {
                let known = ["host", "bridge", "none"];
                let instead = cx.sink.nearest(mode, known);
                let message = format!(
                    "{} is not a network mode; use host, bridge, none or cni/NAME",
                    quote_text(mode)
                );
                cx.sink.suggest(at, message, instead);
                NetworkMode::Host
            }
        },
    }
}

impl DnsKeys {
    /// Whether the block has no values. Command lines send such a block where the job has none.
    fn says_nothing(&self) -> bool {
        let lists = [&self.servers, &self.searches, &self.options];
        lists.iter().all(|list| list.value.as_ref().is_none_or(Vec::is_empty))
    }
}

fn hostname(given: Setting<String>, mode: &NetworkMode, cx: &mut Context<'_>) -> Option<String> {
    let (name, at) = given.with_place()?;
    if !mode.is_own() {
        let message = "in the node's own network tasks have the node's own name; give the network a mode \
                       such as bridge";
        return cx.refuse(at, message);
    }
    if !name.contains("${") && !is_hostname(&name) {
        let message = format!(
            "{} is not a valid host name: give letters, digits and dashes, with dots between them",
            quote_text(&name)
        );
        return cx.refuse(at, message);
    }
    Some(name)
}

/// Whether a text is the name of a network, by the specification of CNI.
fn is_network_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(allowed)
        && name.len() <= NAME_BYTES_MAX
}

fn dns(keys: &DnsKeys, cx: &mut Context<'_>) -> DnsConfig {
    let word = |text: &str| {
        let plain = !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic());
        (!plain || text.len() > NAME_BYTES_MAX * 2)
            .then(|| format!("{} is not valid in a resolv.conf", quote_text(text)))
    };
    keys.servers.check(cx, |text| {
        let server = text.parse::<IpAddr>().is_err();
        server.then(|| format!("{} is not the address of a name server", quote_text(text)))
    });
    keys.searches.check(cx, word);
    keys.options.check(cx, word);
    for list in [&keys.servers, &keys.searches, &keys.options] {
        if list.value.as_ref().is_some_and(|texts| texts.len() > DNS_TEXTS_MAX) {
            cx.error(list.at, format!("{} takes at most {DNS_TEXTS_MAX}", list.key));
        }
    }
    DnsConfig {
        servers: keys.servers.clone().plain().unwrap_or_default(),
        searches: keys.searches.clone().plain().unwrap_or_default(),
        options: keys.options.clone().plain().unwrap_or_default(),
    }
}

/// The keys of the `client` block that are about networks.
pub(super) struct NetworkConfigKeys {
    pub cni_path: Setting<String>,
    pub cni_config_dir: Setting<PathBuf>,
    pub bridge_name: Setting<String>,
    pub bridge_subnet: Setting<String>,
    pub host_networks: Vec<HostNetworkKeys>,
}

/// The longest name of an interface that the kernel accepts, in bytes.
const INTERFACE_BYTES_MAX: usize = 15;

pub(super) fn config(keys: NetworkConfigKeys, cx: &mut Context<'_>) -> NetworkConfig {
    let cni_path = keys.cni_path.with_place().map(|(text, at)| {
        let paths: Vec<PathBuf> = text.split(':').map(PathBuf::from).collect();
        if paths.iter().any(|path| !path.is_absolute()) {
            cx.error(at, "cni_path needs absolute directories, with ':' between them");
        }
        paths
    });
    let cni_config_dir = keys.cni_config_dir.with_place().map(|(path, at)| {
        if !path.is_absolute() {
            cx.error(at, "cni_config_dir needs an absolute directory");
        }
        path
    });
    let bridge_name = keys.bridge_name.with_place().map(|(name, at)| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
        if name.is_empty() || name.len() > INTERFACE_BYTES_MAX || !name.chars().all(allowed) {
            let told = quote_text(&name);
            let message =
                format!("{told} is not a valid bridge name: give 1 to {INTERFACE_BYTES_MAX} letters, digits, \
                         '-', '_'");
            cx.error(at, message);
        }
        name
    });
    let bridge_subnet = keys.bridge_subnet.with_place().map(|(text, at)| {
        match text.parse::<Cidr>() {
            Ok(range) if range.address.is_ipv4() && range.prefix <= 30 => {}
            Ok(_) => cx.error(
                at,
                "the bridge's subnet must be an IPv4 network of at least four addresses",
            ),
            Err(error) => cx.error(at, error),
        }
        text
    });
    let (mut names, mut host_networks) = (BTreeSet::new(), BTreeMap::new());
    for block in keys.host_networks {
        cx.add_unique(&mut names, "a host network", &block.label);
        let cidr = block.cidr.parse_with(cx, |text| text.parse::<Cidr>());
        let interface = block.interface.non_empty(cx);
        let reserved_ports =
            block.reserved_ports.parse_with(cx, |text| ranges(&text)).unwrap_or_default();
        if cidr.is_none() && interface.is_none() {
            cx.error(block.at, "a host network needs a cidr or an interface");
        }
        let network = HostNetworkConfig { cidr, interface, reserved_ports };
        host_networks.entry(block.label.name).or_insert(network);
    }
    NetworkConfig { cni_path, cni_config_dir, bridge_name, bridge_subnet, host_networks }
}

/// The ranges of ports in a text such as `22,8000-8100`: the first and the last port of each.
fn ranges(text: &str) -> Result<Vec<(u16, u16)>, String> {
    let wrong = || format!("{} are not ports; write for example 22,8000-8100", quote_text(text));
    let port = |text: &str| text.trim().parse::<u16>().map_err(|_| wrong());
    let parts = text.split(',').filter(|part| !part.trim().is_empty());
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (port(first)?, port(last)?);
        if first == 0 || first > last { Err(wrong()) } else { Ok((first, last)) }
    };
    parts.map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_ports_are_single_ones_and_ranges() {
        assert_eq!(ranges("22, 8000-8100,"), Ok(vec![(22, 22), (8000, 8100)]));
        assert_eq!(ranges(""), Ok(Vec::new()));
        for wrong in ["x", "1-", "5-4", "0", "70000", "1-2-3"] {
            assert!(ranges(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_of_networks_are_those_of_the_specification() {
        assert!(is_network_name("net-1.x_y"));
        for wrong in ["", "../x", "-a", "a b", "a/b"] {
            assert!(!is_network_name(wrong), "{wrong}");
        }
    }
}

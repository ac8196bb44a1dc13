//! Networks of allocations: what a group asks for, what the operator configures, and what came of it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::alloc::Allocation;
use super::limits::HOSTNAME_BYTES_MAX;
use super::ports::BoxFuture;
use super::saved::{DnsConfig, NetworkStatus};

/// Where CNI plugins are looked for without a word of the operator: where Nomad looks, and where Debian
/// puts them.
pub const CNI_PATHS: [&str; 2] = ["/opt/cni/bin", "/usr/lib/cni"];
/// Where the configuration of `cni/…` networks is, as in Nomad.
pub const CNI_CONFIG_DIR: &str = "/opt/cni/config";
/// The bridge of allocations, as in Nomad.
pub const BRIDGE_NAME: &str = "nomad";
/// Addresses of allocations at the bridge, as in Nomad.
pub const BRIDGE_SUBNET: &str = "172.26.64.0/20";
/// What bridges need, as Debian calls it.
pub const CNI_PACKAGE: &str = "containernetworking-plugins";

/// Which network the tasks of an allocation are in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkMode {
    /// The node's.
    #[default]
    Host,
    /// One of their own with a loopback and nothing else.
    None,
    /// One of their own, at the node's bridge.
    Bridge,
    /// One of their own, made by the CNI configuration of this name.
    Cni(String),
}

impl NetworkMode {
    /// Do the tasks have a network namespace of their own?
    #[must_use]
    pub fn is_own(&self) -> bool {
        *self != Self::Host
    }

    /// As job files say it.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Host => "host".to_owned(),
            Self::None => "none".to_owned(),
            Self::Bridge => "bridge".to_owned(),
            Self::Cni(name) => format!("cni/{name}"),
        }
    }
}

impl DnsConfig {
    /// As a `resolv.conf`.
    #[must_use]
    pub fn resolv_conf(&self) -> String {
        let mut text = String::new();
        if !self.searches.is_empty() {
            text.push_str(&format!("search {}\n", self.searches.join(" ")));
        }
        for server in &self.servers {
            text.push_str(&format!("nameserver {server}\n"));
        }
        if !self.options.is_empty() {
            text.push_str(&format!("options {}\n", self.options.join(" ")));
        }
        text
    }
}

/// A network namespace of an allocation, made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocNetwork {
    /// A file that holds the namespace.
    pub namespace: PathBuf,
    /// What it has.
    pub status: NetworkStatus,
    /// The host's name in it; the node's unless given.
    pub hostname: Option<String>,
}

/// Where a task is reached in a network that its driver made for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverNetwork {
    /// The task's address there.
    pub ip: IpAddr,
    /// Its ports there, by label; those that are missing are as in the allocation's own network.
    pub ports: BTreeMap<String, u16>,
}

/// Why an allocation has no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct NetworkError {
    /// What happened, and what to do.
    pub text: String,
    /// A later try may work.
    pub passing: bool,
}

/// Hears of one that stands in line for its network.
pub trait InLine: Send + Sync {
    /// It waits for its turn, or no longer.
    fn waits(&self, waits: bool) -> BoxFuture<'_, ()>;
}

/// Makes networks of allocations, and takes them away: of one allocation after the other. The wait for a turn
/// has no bound, and is told; what is done then has.
pub trait Networks: Send + Sync {
    /// The network of an allocation: made now, or found as an earlier call left it. Nothing for one that
    /// has the node's.
    fn set_up<'a>(
        &'a self,
        alloc: &'a Allocation,
        line: &'a dyn InLine,
    ) -> BoxFuture<'a, Result<Option<AllocNetwork>, NetworkError>>;
    /// Nothing of it is left. Idempotent.
    fn tear_down<'a>(
        &'a self,
        alloc: &'a Allocation,
        line: &'a dyn InLine,
    ) -> BoxFuture<'a, Result<(), NetworkError>>;
}

/// A node whose allocations all have its own network.
#[derive(Debug)]
pub struct HostNetworkOnly;

impl Networks for HostNetworkOnly {
    fn set_up<'a>(
        &'a self,
        alloc: &'a Allocation,
        _line: &'a dyn InLine,
    ) -> BoxFuture<'a, Result<Option<AllocNetwork>, NetworkError>> {
        let mode = mode_of(alloc);
        let answer = match mode.is_own() {
            false => Ok(None),
            true => Err(NetworkError {
                text: format!("this agent makes no networks of mode {}", mode.text()),
                passing: false,
            }),
        };
        Box::pin(std::future::ready(answer))
    }

    fn tear_down<'a>(
        &'a self,
        _alloc: &'a Allocation,
        _line: &'a dyn InLine,
    ) -> BoxFuture<'a, Result<(), NetworkError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// The mode of an allocation's network.
#[must_use]
pub fn mode_of(alloc: &Allocation) -> NetworkMode {
    let network = alloc.task_group().and_then(|group| group.network.as_ref());
    network.map(|network| network.mode.clone()).unwrap_or_default()
}

/// May a host have this name? Labels of letters, digits and dashes with dots between them, as Linux and
/// RFC 1123 take it.
#[must_use]
pub fn is_hostname(name: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let label = |label: &str| {
        edge(label.chars().next())
            && edge(label.chars().last())
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
    };
    name.len() <= HOSTNAME_BYTES_MAX && name.split('.').all(label)
}

/// What the operator says of networks: keys of the `client` block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkConfig {
    /// Directories of CNI plugins; [`CNI_PATHS`] unless given.
    pub cni_path: Option<Vec<PathBuf>>,
    /// Directory of CNI configurations; [`CNI_CONFIG_DIR`] unless given.
    pub cni_config_dir: Option<PathBuf>,
    /// See [`BRIDGE_NAME`].
    pub bridge_name: Option<String>,
    /// See [`BRIDGE_SUBNET`].
    pub bridge_subnet: Option<String>,
    /// Addresses of the node by name, for the `host_network` of a port.
    pub host_networks: BTreeMap<String, HostNetworkConfig>,
}

/// A `host_network` block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostNetworkConfig {
    /// Addresses in this range; any unless given.
    pub cidr: Option<Cidr>,
    /// Addresses of this interface; of any unless given.
    pub interface: Option<String>,
    /// Ports that no allocation gets there.
    pub reserved_ports: Vec<(u16, u16)>,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cidr {
    /// An address in it.
    pub address: IpAddr,
    /// Leading bits that all have in common.
    pub prefix: u8,
}

impl Cidr {
    /// Is the address one of it?
    #[must_use]
    pub fn holds(&self, address: IpAddr) -> bool {
        let prefix = u32::from(self.prefix);
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differ = own.to_bits() ^ other.to_bits();
                differ.checked_shr(32_u32.saturating_sub(prefix)).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differ = own.to_bits() ^ other.to_bits();
                differ.checked_shr(128_u32.saturating_sub(prefix)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl std::fmt::Display for Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl std::str::FromStr for Cidr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no range of addresses; write for example 10.0.0.0/8");
        let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let prefix: u8 = prefix.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        if prefix > most {
            return Err(wrong());
        }
        Ok(Self { address, prefix })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_range_holds_the_addresses_that_begin_as_it_does() {
        let holds = |range: &str, address: &str| {
            range.parse::<Cidr>().unwrap().holds(address.parse().unwrap())
        };
        assert!(holds("10.0.0.0/8", "10.255.1.2") && !holds("10.0.0.0/8", "11.0.0.0"));
        assert!(holds("0.0.0.0/0", "192.0.2.1") && !holds("0.0.0.0/0", "::1"));
        assert!(holds("192.0.2.1/32", "192.0.2.1") && !holds("192.0.2.1/32", "192.0.2.0"));
        assert!(holds("fe80::/10", "fe80::1") && !holds("fe80::/10", "::1"));
        for wrong in ["10.0.0.0", "10.0.0.0/33", "x/8", "10.0.0.0/-1", "/8", "::/129"] {
            wrong.parse::<Cidr>().unwrap_err();
        }
    }

    #[test]
    fn hosts_are_called_by_labels_with_dots_between_them() {
        assert!(is_hostname("web") && is_hostname("web-0.prod.example"));
        let long = "x".repeat(65);
        for wrong in ["", ".", "a..b", "-a", "a-", "a b", "a_b", "${x}", &long] {
            assert!(!is_hostname(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn a_resolver_gets_servers_searches_and_options() {
        let dns = DnsConfig {
            servers: vec!["192.0.2.53".to_owned(), "2001:db8::53".to_owned()],
            searches: vec!["example.com".to_owned(), "example.net".to_owned()],
            options: vec!["ndots:2".to_owned()],
        };
        let expected = "search example.com example.net\nnameserver 192.0.2.53\n\
                        nameserver 2001:db8::53\noptions ndots:2\n";
        assert_eq!(dns.resolv_conf(), expected);
        assert_eq!(DnsConfig::default().resolv_conf(), "");
    }
}

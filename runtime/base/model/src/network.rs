//! Networks of allocations: what a group asks for, what the operator configures, and the resulting
//! network.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::alloc::Allocation;
use super::limits::HOSTNAME_BYTES_MAX;
use super::ports::BoxFuture;
use super::saved::{DnsConfig, NetworkStatus};

/// Default directories of CNI plugins: the one of Nomad and the one of Debian.
pub const CNI_PATHS: [&str; 2] = ["/opt/cni/bin", "/usr/lib/cni"];
/// Where the configuration of `cni/…` networks is, as in Nomad.
pub const CNI_CONFIG_DIR: &str = "/opt/cni/config";
/// The bridge of allocations, as in Nomad.
pub const BRIDGE_NAME: &str = "nomad";
/// Addresses of allocations at the bridge, as in Nomad.
pub const BRIDGE_SUBNET: &str = "172.26.64.0/20";
/// Name of the Debian package that bridges need.
pub const CNI_PACKAGE: &str = "containernetworking-plugins";

/// Which network the tasks of an allocation are in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkMode {
    /// The network of the node.
    #[default]
    Host,
    /// A network of their own with nothing but a loopback.
    None,
    /// A network of their own at the node's bridge.
    Bridge,
    /// A network of their own, made by the CNI configuration of this name.
    Cni(String),
}

impl NetworkMode {
    /// Whether the tasks have a network namespace of their own.
    #[must_use]
    pub fn is_own(&self) -> bool {
        *self != Self::Host
    }

    /// The mode as job files write it.
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
    /// The configuration as the text of a `resolv.conf`.
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

/// The network namespace of an allocation, once it is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocNetwork {
    /// Path of the file that holds the namespace.
    pub namespace: PathBuf,
    /// Interface and addresses in the namespace.
    pub status: NetworkStatus,
    /// The host name in the namespace; the node's unless given.
    pub hostname: Option<String>,
}

/// Where a task is reached in a network that its driver made for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverNetwork {
    /// The task's address there.
    pub ip: IpAddr,
    /// The task's ports there, by label. Other ports are as in the allocation's own network.
    pub ports: BTreeMap<String, u16>,
}

/// Why an allocation has no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct NetworkError {
    /// What happened, and what to do.
    pub text: String,
    /// The cause may pass, so a later try may work.
    pub passing: bool,
}

/// Is told when an allocation has to wait for its turn to get its network.
pub trait NetworkWaitObserver: Send + Sync {
    /// The allocation begins to wait for its turn, or does not wait any more.
    fn set_waiting(&self, waits: bool) -> BoxFuture<'_, ()>;
}

/// Sets the networks of allocations up and takes them down, of one allocation after the other. The
/// wait for a turn has no bound and is reported; the work after it is bounded.
pub trait Networks: Send + Sync {
    /// Set up the network of an allocation, or find it as an earlier call left it. `None` for an
    /// allocation with the node's network.
    fn set_up<'a>(
        &'a self,
        alloc: &'a Allocation,
        line: &'a dyn NetworkWaitObserver,
    ) -> BoxFuture<'a, Result<Option<AllocNetwork>, NetworkError>>;
    /// Take down the network of an allocation. Idempotent.
    fn tear_down<'a>(
        &'a self,
        alloc: &'a Allocation,
        line: &'a dyn NetworkWaitObserver,
    ) -> BoxFuture<'a, Result<(), NetworkError>>;
}

/// The implementation for a node whose allocations all have the node's network.
#[derive(Debug)]
pub struct HostNetworkOnly;

impl Networks for HostNetworkOnly {
    fn set_up<'a>(
        &'a self,
        alloc: &'a Allocation,
        _line: &'a dyn NetworkWaitObserver,
    ) -> BoxFuture<'a, Result<Option<AllocNetwork>, NetworkError>> {
        let mode = mode_of(alloc);
        let answer = if mode.is_own() {
            Err(NetworkError {
                text: format!("this agent makes no networks of mode {}", mode.text()),
                passing: false,
            })
        } else {
            Ok(None)
        };
        Box::pin(std::future::ready(answer))
    }

    fn tear_down<'a>(
        &'a self,
        _alloc: &'a Allocation,
        _line: &'a dyn NetworkWaitObserver,
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

/// Whether a host may have this name: labels of letters, digits and dashes with dots between them,
/// as Linux and RFC 1123 allow.
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

/// Configuration of networks: keys of the `client` block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkConfig {
    /// Directories of CNI plugins; [`CNI_PATHS`] unless given.
    pub cni_path: Option<Vec<PathBuf>>,
    /// Directory of CNI configurations; [`CNI_CONFIG_DIR`] unless given.
    pub cni_config_dir: Option<PathBuf>,
    /// Name of the bridge; [`BRIDGE_NAME`] unless given.
    pub bridge_name: Option<String>,
    /// Addresses at the bridge; [`BRIDGE_SUBNET`] unless given.
    pub bridge_subnet: Option<String>,
    /// Addresses of the node by name, for the `host_network` of a port.
    pub host_networks: BTreeMap<String, HostNetworkConfig>,
}

/// A `host_network` block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostNetworkConfig {
    /// Range that the addresses are in; any address unless given.
    pub cidr: Option<Cidr>,
    /// Interface that has the addresses; any interface unless given.
    pub interface: Option<String>,
    /// Ranges of ports that no allocation gets there, each from first to last.
    pub reserved_ports: Vec<(u16, u16)>,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cidr {
    /// An address in the range.
    pub address: IpAddr,
    /// Number of leading bits that all addresses have in common.
    pub prefix: u8,
}

impl Cidr {
    /// Whether the address is in the range.
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
        let wrong =
            || format!("{text:?} is not a range of addresses; write for example 10.0.0.0/8");
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

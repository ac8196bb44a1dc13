//! A snapshot of the node.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};

use super::fingerprint::Facts;
use super::id::NodeId;
use ostler_model::attribute::{Attribute, AttributeValue};
use ostler_model::cores::CoreSet;
use ostler_model::device::{DeviceGroup, Health, HealthState};
use ostler_model::ids::PluginName;
use ostler_model::volume::HostVolume;

/// What the node has to give, in whole units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeTotals {
    /// MHz of processor time: cores times frequency.
    pub cpu_mhz: u64,
    /// MiB of memory.
    pub memory_mb: u64,
}

/// A driver as the node sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DriverView {
    /// Only healthy drivers get new tasks.
    pub health: Health,
    /// Version of the plugin.
    pub version: String,
    /// Attributes of its fingerprint, by names without a prefix or with `driver.<name>.`.
    pub attributes: BTreeMap<String, Attribute>,
    /// A summary of what it can do, for people.
    pub capabilities: String,
    /// Its tasks can reserve cores, because they are processes of their own.
    #[serde(default)]
    pub gives_cores: bool,
}

/// Cores that tasks may reserve.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeCores {
    /// The cores that can be reserved.
    pub ids: CoreSet,
    /// Why no core can be reserved; empty where some can.
    pub missing: String,
}

/// A `host_network` of the configuration, as it is on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostNetworkView {
    /// The node's address in it.
    pub address: IpAddr,
    /// Name of the interface that has the address, for example `eth0`.
    pub interface: String,
    /// Port ranges, first and last port, from which no allocation gets a port there.
    pub reserved: Vec<(u16, u16)>,
}

impl HostNetworkView {
    /// Does the configuration keep this port from allocations?
    #[must_use]
    pub fn reserves(&self, port: u16) -> bool {
        self.reserved.iter().any(|(first, last)| (*first..=*last).contains(&port))
    }
}

/// Everything known about this node at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeView {
    /// The node's id, which is stable over restarts.
    pub id: NodeId,
    /// Name people see; the host name unless configured.
    pub name: String,
    /// The agent's data center.
    pub datacenter: String,
    /// The address that is assigned with ports.
    pub host_ip: IpAddr,
    /// Facts of the node, by Nomad's names: `cpu.arch`, `unique.hostname` …
    pub attributes: BTreeMap<String, Attribute>,
    /// Configured key-value pairs.
    pub meta: BTreeMap<String, String>,
    /// Directories that the configuration offers to jobs, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub host_volumes: BTreeMap<String, HostVolume>,
    /// Addresses of this node that ports may ask for by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub host_networks: BTreeMap<String, HostNetworkView>,
    /// Processor time and memory that the node has in all.
    pub resources: NodeTotals,
    /// The cores of the node that can be reserved.
    #[serde(default)]
    pub cores: NodeCores,
    /// Loaded drivers.
    pub drivers: BTreeMap<PluginName, DriverView>,
    /// Loaded device plugins, and whether their last fingerprint succeeded.
    pub device_plugins: BTreeMap<PluginName, Health>,
    /// Devices found by all device plugins.
    pub devices: Vec<DeviceGroup>,
    /// Plugins that are still being loaded, named by their blocks. What they offer is
    /// not known yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub loading: Vec<String>,
    /// Plugins that were found and are not used, each with the reason. What they would offer
    /// is not known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refused_plugins: BTreeMap<String, String>,
}

impl NodeView {
    /// A node of which nothing is known yet: data center `dc1`, address 127.0.0.1, no resources.
    #[must_use]
    pub fn new(id: NodeId, name: impl Into<String>) -> Self {
        Self {
            id,
            name: name.into(),
            datacenter: "dc1".to_owned(),
            host_ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
            attributes: BTreeMap::new(),
            meta: BTreeMap::new(),
            host_volumes: BTreeMap::new(),
            host_networks: BTreeMap::new(),
            resources: NodeTotals::default(),
            cores: NodeCores::default(),
            drivers: BTreeMap::new(),
            device_plugins: BTreeMap::new(),
            devices: Vec::new(),
            loading: Vec::new(),
            refused_plugins: BTreeMap::new(),
        }
    }

    /// Sort devices by group and plugin, and their instances by id, so that two reports that differ
    /// only in their order are equal.
    pub(super) fn sort_devices(&mut self) {
        self.devices.sort_by(|a, b| (&a.key, &a.plugin).cmp(&(&b.key, &b.plugin)));
        for group in &mut self.devices {
            group.instances.sort_by(|a, b| a.id.cmp(&b.id));
        }
    }

    /// Take the result of a fingerprint: it replaces all attributes and the totals. A total that is
    /// not known is 0, so that nothing is placed against it.
    pub fn apply_facts(&mut self, facts: Facts) {
        let number = |name: &str| match facts.get(name).map(|fact| &fact.value) {
            Some(AttributeValue::Int(number)) => u64::try_from(*number).unwrap_or(0),
            _ => 0,
        };
        self.resources = NodeTotals {
            cpu_mhz: number("cpu.totalcompute"),
            memory_mb: number("memory.totalbytes") / ostler_model::limits::MIB,
        };
        self.attributes = facts;
        self.tell_cores();
    }

    /// Set the cores that can be reserved.
    pub fn set_cores(&mut self, cores: NodeCores) {
        self.cores = cores;
        self.tell_cores();
    }

    /// Set the attribute `cpu.reservablecores`, where there are such cores.
    fn tell_cores(&mut self) {
        const NAME: &str = "cpu.reservablecores";
        match i64::try_from(self.cores.ids.len()) {
            Ok(0) | Err(_) => self.attributes.remove(NAME),
            Ok(count) => self.attributes.insert(NAME.to_owned(), Attribute::from(count)),
        };
    }

    /// MHz of this many cores: their share of the total, rounded down, so that the shares of all
    /// cores fit into it.
    #[must_use]
    pub fn mhz_of_cores(&self, count: u32) -> u64 {
        let cores = match self.attributes.get("cpu.numcores").map(|found| &found.value) {
            Some(AttributeValue::Int(cores)) => u64::try_from(*cores).unwrap_or(0).max(1),
            _ => u64::try_from(self.cores.ids.len()).unwrap_or(0).max(1),
        };
        self.resources.cpu_mhz.saturating_mul(count.into()) / cores
    }

    /// The cores of each NUMA node. Where the kernel reports none, there is one node
    /// with all cores.
    #[must_use]
    pub fn numa_nodes(&self) -> Vec<CoreSet> {
        let nodes = self.attributes.iter().filter_map(|(name, cores)| {
            let number = name.strip_prefix("numa.node")?.strip_suffix(".cores")?;
            number.parse::<u32>().ok().and_then(|_| cores.to_string().parse().ok())
        });
        let nodes: Vec<CoreSet> = nodes.collect();
        if nodes.is_empty() { vec![self.cores.ids.clone()] } else { nodes }
    }

    /// What `${target}` stands for on this node: `attr.…`, `meta.…`, `node.unique.id`,
    /// `node.unique.name`, `node.datacenter`, `node.region`, `node.class`, `node.pool`.
    /// `attr.driver.<name>` is `1` for a healthy driver, `attr.driver.<name>.<x>` what its
    /// fingerprint says. `None` for anything else and for what is not set.
    #[must_use]
    pub fn lookup(&self, target: &str) -> Option<Attribute> {
        if let Some(name) = target.strip_prefix("attr.") {
            return self.attributes.get(name).cloned().or_else(|| self.driver_attribute(name));
        }
        if let Some(name) = target.strip_prefix("meta.") {
            return self.meta.get(name).map(|value| Attribute::from(value.as_str()));
        }
        let text = match target {
            "node.unique.id" => self.id.to_string(),
            "node.unique.name" => self.name.clone(),
            "node.datacenter" => self.datacenter.clone(),
            "node.region" => "global".to_owned(),
            "node.pool" => "default".to_owned(),
            _ => return None,
        };
        Some(Attribute::from(text))
    }

    /// Every attribute as text, those of drivers included: what `${attr.…}` may name in the texts
    /// of a task.
    #[must_use]
    pub fn attribute_texts(&self) -> BTreeMap<String, String> {
        let mut texts: BTreeMap<String, String> =
            self.attributes.iter().map(|(name, value)| (name.clone(), value.to_string())).collect();
        for (driver, view) in &self.drivers {
            let own = view.attributes.keys().map(|name| {
                let prefix = format!("driver.{driver}.");
                if name.starts_with(&prefix) { name.clone() } else { prefix + name }
            });
            let names = [format!("driver.{driver}"), format!("driver.{driver}.version")];
            for name in names.into_iter().chain(own) {
                if let Some(value) = self.driver_attribute(&name) {
                    texts.entry(name).or_insert_with(|| value.to_string());
                }
            }
        }
        texts
    }

    fn driver_attribute(&self, name: &str) -> Option<Attribute> {
        let rest = name.strip_prefix("driver.")?;
        let (driver, attribute) = match rest.split_once('.') {
            Some((driver, attribute)) => (driver, Some(attribute)),
            None => (rest, None),
        };
        let view = self.drivers.get(driver)?;
        match attribute {
            None => (view.health.state == HealthState::Healthy).then(|| Attribute::from("1")),
            Some(attribute) => {
                let found = view.attributes.get(name).or_else(|| view.attributes.get(attribute));
                let version = || (attribute == "version").then(|| view.version.as_str().into());
                found.cloned().or_else(version)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use ostler_model::rng::Rng;

    fn view() -> NodeView {
        let mut view = NodeView::new(NodeId::new(Rng::from_seed(1).uuid()), "box");
        view.apply_facts(Facts::from([
            ("cpu.totalcompute".to_owned(), Attribute::from(5_000)),
            ("memory.totalbytes".to_owned(), Attribute::from(2 * 1024 * 1024 * 1024 + 5)),
        ]));
        view.meta.insert("rack".into(), "r1".into());
        let health = Health { state: HealthState::Healthy, reason: String::new() };
        let attributes = BTreeMap::from([("driver.exec.cgroup".to_owned(), Attribute::from(true))]);
        let exec = DriverView { health, version: "1.2.0".into(), attributes, ..Default::default() };
        view.drivers.insert(PluginName::new("exec").unwrap(), exec);
        view.drivers.insert(PluginName::new("gone").unwrap(), DriverView::default());
        view
    }

    #[test]
    fn totals_come_from_the_facts() {
        assert_eq!(view().resources, NodeTotals { cpu_mhz: 5_000, memory_mb: 2_048 });
    }

    #[test]
    fn every_kind_of_name_is_looked_up() {
        let view = view();
        let text = |target: &str| view.lookup(target).map(|value| value.to_string());
        assert_eq!(text("attr.cpu.totalcompute").as_deref(), Some("5000"));
        assert_eq!(text("meta.rack").as_deref(), Some("r1"));
        assert_eq!(text("node.unique.name").as_deref(), Some("box"));
        assert_eq!(text("node.unique.id"), Some(view.id.to_string()));
        assert_eq!(text("attr.driver.exec").as_deref(), Some("1"));
        assert_eq!(text("attr.driver.exec.version").as_deref(), Some("1.2.0"));
        assert_eq!(text("attr.driver.exec.cgroup").as_deref(), Some("true"));
        let texts = view.attribute_texts();
        for (name, value) in &texts {
            assert_eq!(text(&format!("attr.{name}")).as_ref(), Some(value), "{name}");
        }
        assert_eq!(texts.get("driver.exec.cgroup").map(String::as_str), Some("true"));
        for absent in ["attr.driver.gone", "attr.nope", "meta.nope", "node.nope", "", "attr."] {
            assert_eq!(text(absent), None, "{absent}");
        }
    }
}

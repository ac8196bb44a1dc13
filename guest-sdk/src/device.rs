//! Device plugins: they find devices, and say how a task uses them. The agent decides which task
//! may use which device, and remembers it.

pub use crate::bindings::device::exports::ostler::plugin::device::{
    Claim, DeviceFingerprint as Fingerprint, DeviceInfo, Group, GroupStats, Instance,
    InstanceStats, Locality, Reservation,
};
use crate::error::Error;
use crate::types::{DeviceNode, Watches};
use crate::types::{EnvVar, Health, Milliseconds, Mount, NamedAttribute, StatEntry, StatValue};

/// Everything that a device plugin usually needs.
pub mod prelude {
    pub use super::{
        Claim, DeviceInfo, DevicePlugin, Fingerprint, Group, GroupStats, Instance, InstanceStats,
        Locality, Reservation,
    };
    pub use crate::error::{Error, Result};
    pub use crate::host::{self, clock, command, log};
    pub use crate::types::*;
}

/// A device plugin.
///
/// Every function may be called on a fresh instance of the component.
pub trait DevicePlugin {
    /// The name, the version and the schemas of the plugin. It is called once when the plugin
    /// is loaded.
    fn describe() -> DeviceInfo;

    /// All devices that are here now, not only the changes.
    ///
    /// # Errors
    /// The search failed. If no device of the plugin is here, that is no error, but
    /// [`Health::undetected`].
    fn fingerprint() -> Result<Fingerprint, Error>;

    /// The way in which a task uses the claimed instances. Two calls must give the same answer.
    ///
    /// # Errors
    /// [`Error::NotFound`] for an instance that is gone.
    fn reserve(claim: Claim) -> Result<Reservation, Error>;

    /// Release these instances, because the last task that used them has ended.
    ///
    /// # Errors
    /// The devices could not be given back.
    fn release(_claim: Claim) -> Result<(), Error> {
        Ok(())
    }

    /// Measure the devices. Without this function the plugin has no statistics.
    ///
    /// # Errors
    /// Measuring failed.
    fn stats() -> Result<Vec<GroupStats>, Error> {
        Ok(vec![])
    }
}

impl<T: DevicePlugin> crate::bindings::device::exports::ostler::plugin::device::Guest for T {
    fn describe() -> DeviceInfo {
        T::describe()
    }

    fn fingerprint() -> Result<Fingerprint, Error> {
        T::fingerprint()
    }

    fn reserve(claim: Claim) -> Result<Reservation, Error> {
        T::reserve(claim)
    }

    fn release(claim: Claim) -> Result<(), Error> {
        T::release(claim)
    }

    fn stats() -> Result<Vec<GroupStats>, Error> {
        T::stats()
    }
}

impl DeviceInfo {
    /// A plugin without configuration of its own.
    pub fn new(name: impl Into<String>, version: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            version: version.into(),
            config_schema: crate::driver::EMPTY_SCHEMA.to_owned(),
        }
    }

    /// JSON Schema of the `config` in the agent's `plugin` block.
    pub fn config_schema(mut self, schema: impl Into<String>) -> Self {
        self.config_schema = schema.into();
        self
    }
}

impl Fingerprint {
    /// A fingerprint with this health and no groups, which is repeated only when a watch fires.
    pub fn new(health: Health) -> Self {
        Self { health, groups: vec![], next_check: None, watch: Watches::none() }
    }

    /// Add groups.
    pub fn groups(mut self, groups: impl IntoIterator<Item = Group>) -> Self {
        self.groups.extend(groups);
        self
    }

    /// Ask again after this time.
    pub fn check_after(mut self, milliseconds: Milliseconds) -> Self {
        self.next_check = Some(milliseconds);
        self
    }

    /// Ask again when this path changes.
    pub fn watch_path(mut self, path: impl Into<String>) -> Self {
        self.watch.paths.push(path.into());
        self
    }

    /// Ask again when a device of this kernel subsystem comes or goes.
    pub fn watch_subsystem(mut self, name: impl Into<String>) -> Self {
        self.watch.subsystems.push(name.into());
        self
    }
}

impl Group {
    /// A group without instances yet.
    pub fn new(
        vendor: impl Into<String>,
        type_: impl Into<String>,
        name: impl Into<String>,
    ) -> Self {
        Self {
            vendor: vendor.into(),
            type_: type_.into(),
            name: name.into(),
            instances: vec![],
            attributes: vec![],
        }
    }

    /// Add attributes that all instances share.
    pub fn attributes(mut self, attributes: impl IntoIterator<Item = NamedAttribute>) -> Self {
        self.attributes.extend(attributes);
        self
    }

    /// Add instances.
    pub fn instances(mut self, instances: impl IntoIterator<Item = Instance>) -> Self {
        self.instances.extend(instances);
        self
    }
}

impl Instance {
    /// A usable device. The id must outlive restarts of agent and node.
    pub fn healthy(id: impl Into<String>) -> Self {
        Self { id: id.into(), health: Health::healthy(), locality: None }
    }

    /// A device that is here and cannot be used now.
    pub fn unhealthy(id: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { id: id.into(), health: Health::unhealthy(reason), locality: None }
    }

    /// Set where the device sits in the machine.
    pub fn at(mut self, pci_bus_id: Option<String>, numa_node: Option<u32>) -> Self {
        self.locality = Some(Locality { pci_bus_id, numa_node });
        self
    }
}

impl Reservation {
    /// A reservation that needs nothing yet.
    pub fn empty() -> Self {
        Self { env: vec![], mounts: vec![], device_nodes: vec![] }
    }

    /// Set an environment variable of the task.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push(EnvVar::new(name, value));
        self
    }

    /// Show a file or directory of the node to the task.
    pub fn mount(mut self, mount: Mount) -> Self {
        self.mounts.push(mount);
        self
    }

    /// Assign a device node to the task.
    pub fn device_node(mut self, node: DeviceNode) -> Self {
        self.device_nodes.push(node);
        self
    }
}

impl InstanceStats {
    /// Measurements of one instance, taken now.
    pub fn new(id: impl Into<String>, summary: Option<StatValue>) -> Self {
        Self { id: id.into(), summary, stats: vec![], taken_at: crate::host::clock::now() }
    }

    /// Add a measurement under a one-element path.
    pub fn stat(self, name: &str, value: StatValue) -> Self {
        self.nested(&[name], value)
    }

    /// Add a measurement inside named objects: `["link", "speed"]`.
    pub fn nested(mut self, path: &[&str], value: StatValue) -> Self {
        let path = path.iter().map(|part| (*part).to_owned()).collect();
        self.stats.push(StatEntry { path, value });
        self
    }
}

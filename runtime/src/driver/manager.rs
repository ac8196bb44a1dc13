//! All drivers of the node: health, attributes, dispense by name.
//!
//! ```text
//! DriverPlugin ─ fingerprint loop (interval, watches; back-off after a failure) ─► Node
//! task runner ─ dispense(name) ─► DriverProxy, when detected and healthy
//! ```
//! The newest answer always replaces the one before: a driver that starts unhealthy becomes
//! healthy, vanished attributes vanish.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::api::{Driver, Drivers, PluginCallError, Workloads};
use super::proxy::DriverProxy;
use crate::model::device::{Health, HealthState};
use crate::model::ids::PluginName;
use crate::node::{DriverView, Node};
use crate::plugin::convert::DriverFingerprint;
use crate::plugin::driver::DriverPlugin;
use crate::plugin::refresh::{Asked, Refresher};

struct Inner {
    node: Node,
    workloads: Arc<dyn Workloads>,
    drivers: Mutex<BTreeMap<PluginName, Arc<DriverProxy>>>,
    refresher: Refresher,
}

/// See the module. Clones share it.
#[derive(Clone)]
pub struct DriverManager(Arc<Inner>);

impl DriverManager {
    /// A manager without drivers; `refresher` asks them.
    #[must_use]
    pub fn new(node: Node, workloads: Arc<dyn Workloads>, refresher: Refresher) -> Self {
        Self(Arc::new(Inner { node, workloads, drivers: Mutex::new(BTreeMap::new()), refresher }))
    }

    fn drivers(&self) -> std::sync::MutexGuard<'_, BTreeMap<PluginName, Arc<DriverProxy>>> {
        self.0.drivers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Take a driver. The future asks for the first fingerprint (bounded wait), then goes on
    /// asking in the background. `None` when a driver of that name is already there.
    pub fn add(&self, plugin: DriverPlugin) -> Option<impl Future<Output = ()> + use<>> {
        let plugin = Arc::new(plugin);
        let proxy = DriverProxy::new(Arc::clone(&plugin), Arc::clone(&self.0.workloads));
        {
            let mut drivers = self.drivers();
            if drivers.contains_key(&plugin.name) {
                return None;
            }
            drivers.insert(plugin.name.clone(), Arc::new(proxy));
        }
        let manager = self.clone();
        Some(async move {
            let (meter, asking) = (Arc::clone(plugin.meter()), manager.clone());
            let ask = move || {
                let (manager, plugin) = (asking.clone(), Arc::clone(&plugin));
                async move { manager.fingerprint(&plugin).await }
            };
            manager.0.refresher.add(meter, ask).await;
        })
    }

    /// Ask once and publish.
    async fn fingerprint(&self, plugin: &DriverPlugin) -> Asked {
        let found = plugin.fingerprint().await;
        self.publish(&Described::of(plugin), found)
    }

    /// Put the newest answer in place of the one before, whatever that was.
    fn publish(
        &self,
        driver: &Described,
        found: Result<DriverFingerprint, PluginCallError>,
    ) -> Asked {
        let (health, attributes, asked) = match found {
            Ok(found) => {
                let named = found.attributes.into_iter().map(|a| (a.name, a.attribute));
                let nothing_here = found.health.state == HealthState::Undetected;
                let asked = if nothing_here { Asked::Undetected } else { Asked::Answered };
                (found.health, named.collect(), asked(found.next))
            }
            Err(error) => {
                tracing::warn!(driver = %driver.name, %error, "driver fingerprint failed");
                let reason = error.to_string();
                let health = Health { state: HealthState::Unhealthy, reason: reason.clone() };
                (health, BTreeMap::new(), Asked::Failed(reason))
            }
        };
        let view = DriverView {
            health,
            version: driver.version.clone(),
            attributes,
            capabilities: driver.capabilities.clone(),
        };
        self.0.node.update(|node| {
            node.drivers.insert(driver.name.clone(), view);
        });
        asked
    }

    /// Stop asking.
    pub async fn shutdown(&self) {
        self.0.refresher.shutdown().await;
    }
}

/// What a driver said of itself when it was loaded.
struct Described {
    name: PluginName,
    version: String,
    /// As words.
    capabilities: String,
}

impl Described {
    fn of(plugin: &DriverPlugin) -> Self {
        let can = &plugin.capabilities;
        let mut capabilities = vec![format!("fs-isolation={:?}", can.fs_isolation).to_lowercase()];
        if can.send_signals {
            capabilities.push("signals".to_owned());
        }
        if can.exec {
            capabilities.push("exec".to_owned());
        }
        let (name, version) = (plugin.name.clone(), plugin.version.clone());
        Self { name, version, capabilities: capabilities.join(" ") }
    }
}

impl Drivers for DriverManager {
    fn dispense(&self, name: &PluginName) -> Result<Arc<dyn Driver>, PluginCallError> {
        let drivers = self.drivers();
        let Some(proxy) = drivers.get(name) else {
            let known: Vec<&str> = drivers.keys().map(PluginName::as_str).collect();
            return Err(PluginCallError::UnknownPlugin {
                name: name.to_string(),
                known: known.join(", "),
            });
        };
        let view = self.0.node.current();
        let health = view.drivers.get(name).map(|driver| driver.health.clone()).unwrap_or_default();
        if health.state == HealthState::Healthy {
            return Ok(Arc::clone(proxy) as Arc<dyn Driver>);
        }
        let state = format!("{:?}", health.state).to_lowercase();
        let reason =
            if health.reason.is_empty() { state } else { format!("{state}: {}", health.reason) };
        Err(PluginCallError::NotReady { name: name.to_string(), reason })
    }
}

#[cfg(test)]
#[path = "manager_tests.rs"]
mod tests;

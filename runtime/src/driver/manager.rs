//! All drivers of the node: health, attributes, dispense by name.
//!
//! ```text
//! DriverPlugin ─ fingerprint loop (interval the plugin asks for; back-off after a failure) ─► Node
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
    /// A manager without drivers.
    #[must_use]
    pub fn new(node: Node, workloads: Arc<dyn Workloads>) -> Self {
        Self(Arc::new(Inner {
            node,
            workloads,
            drivers: Mutex::new(BTreeMap::new()),
            refresher: Refresher::default(),
        }))
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
            let refresher = &manager.0.refresher;
            let asking = manager.clone();
            let ask = move || {
                let (manager, plugin) = (asking.clone(), Arc::clone(&plugin));
                async move { manager.fingerprint(&plugin).await }
            };
            refresher.add(ask).await;
        })
    }

    /// Ask once and publish.
    async fn fingerprint(&self, plugin: &DriverPlugin) -> Asked {
        let (view, asked) = match plugin.fingerprint().await {
            Ok(found) => {
                let attributes =
                    found.attributes.into_iter().map(|a| (a.name, a.attribute)).collect();
                (self.view(plugin, found.health, attributes), Asked::Answered(found.next.after))
            }
            Err(error) => {
                tracing::warn!(driver = %plugin.name, %error, "driver fingerprint failed");
                let health = Health { state: HealthState::Unhealthy, reason: error.to_string() };
                (self.view(plugin, health, BTreeMap::new()), Asked::Failed)
            }
        };
        self.0.node.update(|node| {
            node.drivers.insert(plugin.name.clone(), view);
        });
        asked
    }

    fn view(
        &self,
        plugin: &DriverPlugin,
        health: Health,
        attributes: BTreeMap<String, crate::model::attribute::Attribute>,
    ) -> DriverView {
        let can = &plugin.capabilities;
        let mut capabilities = vec![format!("fs-isolation={:?}", can.fs_isolation).to_lowercase()];
        if can.send_signals {
            capabilities.push("signals".to_owned());
        }
        if can.exec {
            capabilities.push("exec".to_owned());
        }
        let version = plugin.version.clone();
        DriverView { health, version, attributes, capabilities: capabilities.join(" ") }
    }

    /// Stop asking.
    pub async fn shutdown(&self) {
        self.0.refresher.shutdown().await;
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

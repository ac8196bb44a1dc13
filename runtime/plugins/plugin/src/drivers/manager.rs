//! All drivers of the node: health, attributes, dispense by name.
//!
//! ```text
//! DriverPlugin ─ fingerprint loop (interval, watches; back-off after a failure) ─► Node
//! task runner ─ dispense(name) ─► DriverProxy, when detected and healthy
//! ```
//! A plugin that takes the place of another is put behind the same proxy, which task runners keep.
//! The newest answer always replaces the one before: a driver that starts unhealthy can become
//! healthy, and attributes that vanished are removed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::proxy::DriverProxy;
pub use super::proxy::LiveTask;
use crate::convert::DriverFingerprint;
use crate::driver::LoadedDriver;
use ostler_health::refresh::{FingerprintOutcome, Refresher};
use ostler_model::device::{Health, HealthState};
use ostler_model::ids::PluginName;
use ostler_model::ports::{Drivers, PluginCallError, TaskDriver, Workloads};
use ostler_node::{DriverView, NodePublisher};

struct DriverManagerInner {
    node: NodePublisher,
    workloads: Arc<dyn Workloads>,
    drivers: Mutex<BTreeMap<PluginName, Arc<DriverProxy>>>,
    /// For each driver, the number of the loop that asks it now.
    asked: Mutex<BTreeMap<PluginName, u64>>,
    turns: AtomicU64,
    refresher: Refresher,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All drivers of the node. Clones share them.
#[derive(Clone)]
pub struct DriverManager(Arc<DriverManagerInner>);

impl DriverManager {
    /// A manager without drivers; `refresher` asks them.
    #[must_use]
    pub fn new(node: NodePublisher, workloads: Arc<dyn Workloads>, refresher: Refresher) -> Self {
        Self(Arc::new(DriverManagerInner {
            node,
            workloads,
            drivers: Mutex::default(),
            asked: Mutex::default(),
            turns: AtomicU64::new(0),
            refresher,
        }))
    }

    fn drivers(&self) -> MutexGuard<'_, BTreeMap<PluginName, Arc<DriverProxy>>> {
        lock(&self.0.drivers)
    }

    /// Add a driver. The future asks for the first fingerprint (a bounded wait); asking then goes
    /// on in the background. `None`: there already is a driver of that name.
    pub fn add(&self, plugin: LoadedDriver) -> Option<impl Future<Output = ()> + use<>> {
        let plugin = Arc::new(plugin);
        let proxy = DriverProxy::new(Arc::clone(&plugin), Arc::clone(&self.0.workloads));
        {
            let mut drivers = self.drivers();
            if drivers.contains_key(&plugin.name) {
                return None;
            }
            drivers.insert(plugin.name.clone(), Arc::new(proxy));
        }
        Some(self.clone().keep_asking(plugin))
    }

    /// The plugin that is behind the driver of this name now.
    #[must_use]
    pub fn plugin(&self, name: &PluginName) -> Option<Arc<LoadedDriver>> {
        self.drivers().get(name).map(|proxy| proxy.plugin())
    }

    /// The tasks that this driver started or owns again, and has not forgotten.
    #[must_use]
    pub fn live_tasks(&self, name: &PluginName) -> Vec<LiveTask> {
        let proxy = self.drivers().get(name).cloned();
        proxy.map(|proxy| proxy.live_tasks()).unwrap_or_default()
    }

    /// Put a plugin in the place of the one with its name, between two calls. Calls in flight end
    /// on the old plugin, and all later ones go to the new one. The future asks the new plugin for
    /// a fingerprint; asking then goes on in the background. Until it answers, the last answer of
    /// the old plugin stands. `None`: there is no driver of that name.
    pub fn switch(&self, plugin: Arc<LoadedDriver>) -> Option<impl Future<Output = ()> + use<>> {
        let proxy = self.drivers().get(&plugin.name).cloned()?;
        let old = proxy.switch(Arc::clone(&plugin));
        // The loop of the old plugin looks, and ends.
        old.meter().request_check();
        Some(self.clone().keep_asking(plugin))
    }

    async fn keep_asking(self, plugin: Arc<LoadedDriver>) {
        let (meter, asking) = (Arc::clone(plugin.meter()), self.clone());
        // A plugin that comes back after another gets a new loop: its old loop may not have seen
        // that it was away.
        let turn = self.0.turns.fetch_add(1, Ordering::SeqCst);
        lock(&self.0.asked).insert(plugin.name.clone(), turn);
        let ask = move || {
            let (manager, plugin) = (asking.clone(), Arc::clone(&plugin));
            async move { manager.fingerprint(&plugin, turn).await }
        };
        self.0.refresher.add(meter, ask).await;
    }

    /// Ask for a fingerprint once and publish it, unless another plugin is asked in
    /// its place meanwhile.
    async fn fingerprint(&self, plugin: &LoadedDriver, turn: u64) -> FingerprintOutcome {
        let current = || lock(&self.0.asked).get(&plugin.name) == Some(&turn);
        if !current() {
            return FingerprintOutcome::Over;
        }
        let found = plugin.fingerprint().await;
        if !current() {
            return FingerprintOutcome::Over;
        }
        self.publish(&DriverDescription::from_plugin(plugin), found)
    }

    /// Put the newest answer in place of the one before, whatever that was.
    fn publish(
        &self,
        driver: &DriverDescription,
        found: Result<DriverFingerprint, PluginCallError>,
    ) -> FingerprintOutcome {
        let (health, attributes, asked) = match found {
            Ok(found) => {
                let named = found.attributes.into_iter().map(|a| (a.name, a.attribute));
                let asked = FingerprintOutcome::from_health(&found.health, found.next);
                (found.health, named.collect(), asked)
            }
            Err(error) => {
                tracing::warn!(driver = %driver.name, %error, "driver fingerprint failed");
                let reason = error.to_string();
                let health = Health { state: HealthState::Unhealthy, reason: reason.clone() };
                (health, BTreeMap::new(), FingerprintOutcome::Failed(reason))
            }
        };
        let view = DriverView {
            health,
            version: driver.version.clone(),
            attributes,
            capabilities: driver.capabilities.clone(),
            gives_cores: driver.gives_cores,
        };
        self.0.node.update(|node| {
            node.drivers.insert(driver.name.clone(), view);
        });
        asked
    }

    /// Stop asking all drivers.
    pub async fn shutdown(&self) {
        self.0.refresher.shutdown().await;
    }
}

/// How a driver described itself when it was loaded.
struct DriverDescription {
    name: PluginName,
    version: String,
    /// The capabilities as words, separated by spaces.
    capabilities: String,
    /// Whether tasks of the driver are processes, and so can have cores of their own.
    gives_cores: bool,
}

impl DriverDescription {
    fn from_plugin(plugin: &LoadedDriver) -> Self {
        let can = &plugin.capabilities;
        let mut capabilities = vec![format!("fs-isolation={:?}", can.fs_isolation).to_lowercase()];
        if can.send_signals {
            capabilities.push("signals".to_owned());
        }
        if can.exec {
            capabilities.push("exec".to_owned());
        }
        let (name, version) = (plugin.name.clone(), plugin.version.clone());
        let gives_cores = plugin.starts_processes();
        Self { name, version, capabilities: capabilities.join(" "), gives_cores }
    }
}

impl Drivers for DriverManager {
    fn dispense(&self, name: &PluginName) -> Result<Arc<dyn TaskDriver>, PluginCallError> {
        let drivers = self.drivers();
        let Some(proxy) = drivers.get(name) else {
            let loading = self.0.node.current().loading.join(", ");
            if !loading.is_empty() {
                let name = name.to_string();
                return Err(PluginCallError::StillLoading { name, loading });
            }
            let known: Vec<&str> = drivers.keys().map(PluginName::as_str).collect();
            return Err(PluginCallError::UnknownPlugin {
                name: name.to_string(),
                known: known.join(", "),
            });
        };
        let view = self.0.node.current();
        let health = view.drivers.get(name).map(|driver| driver.health.clone()).unwrap_or_default();
        if health.state == HealthState::Healthy {
            return Ok(Arc::clone(proxy) as Arc<dyn TaskDriver>);
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

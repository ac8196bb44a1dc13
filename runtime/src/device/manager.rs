//! All device plugins of the node.
//!
//! ```text
//! DevicePlugin ─ fingerprint loop ─► groups of this plugin ─ union over plugins ─► Node
//! task runner ─ reserve(instances) ─► the plugin that found the group ─► env, mounts, nodes
//! ```
//! A plugin that fails turns its devices and itself unhealthy and is asked again; tasks keep what
//! they hold.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::driver::api::{BoxFuture, Devices, PluginCallError};
use crate::model::device::{DeviceGroup, GroupKey, Health, HealthState, Reservation};
use crate::model::ids::{AllocId, PluginName, TaskName};
use crate::model::resources::AllocatedDevice;
use crate::node::Node;
use crate::plugin::device::DevicePlugin;
use crate::plugin::refresh::{Asked, Refresher};

struct Inner {
    node: Node,
    plugins: Mutex<BTreeMap<PluginName, Arc<DevicePlugin>>>,
    held: Mutex<BTreeMap<(AllocId, TaskName), Vec<AllocatedDevice>>>,
    refresher: Refresher,
}

/// See the module. Clones share it.
#[derive(Clone)]
pub struct DeviceManager(Arc<Inner>);

impl DeviceManager {
    /// A manager without plugins.
    #[must_use]
    pub fn new(node: Node) -> Self {
        Self(Arc::new(Inner {
            node,
            plugins: Mutex::new(BTreeMap::new()),
            held: Mutex::new(BTreeMap::new()),
            refresher: Refresher::default(),
        }))
    }

    fn plugins(&self) -> std::sync::MutexGuard<'_, BTreeMap<PluginName, Arc<DevicePlugin>>> {
        self.0.plugins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Take a plugin. The future asks for the first fingerprint (bounded wait), then goes on
    /// asking in the background. `None` when a plugin of that name is already there.
    pub fn add(&self, plugin: DevicePlugin) -> Option<impl Future<Output = ()> + use<>> {
        let plugin = Arc::new(plugin);
        {
            let mut plugins = self.plugins();
            if plugins.contains_key(&plugin.name) {
                return None;
            }
            plugins.insert(plugin.name.clone(), Arc::clone(&plugin));
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

    async fn fingerprint(&self, plugin: &DevicePlugin) -> Asked {
        match plugin.fingerprint().await {
            Ok(found) => {
                self.publish(&plugin.name, found.groups);
                Asked::Answered(found.next.after)
            }
            Err(error) => {
                tracing::warn!(plugin = %plugin.name, %error, "device fingerprint failed");
                self.turn_unhealthy(&plugin.name, &error.to_string());
                Asked::Failed
            }
        }
    }

    /// Replace the groups of one plugin. A group that another plugin already reports is left out
    /// and said so: two owners of one name could not be told apart in a reservation.
    fn publish(&self, plugin: &PluginName, groups: Vec<DeviceGroup>) {
        let healthy = Health { state: HealthState::Healthy, reason: String::new() };
        self.0.node.update(|node| {
            node.device_plugins.insert(plugin.clone(), healthy);
            node.devices.retain(|group| &group.plugin != plugin);
            for group in groups {
                match node.devices.iter().find(|known| known.key == group.key) {
                    Some(known) => tracing::warn!(
                        group = %group.key, %plugin, owner = %known.plugin,
                        "device group left out: another plugin reports it"
                    ),
                    None => node.devices.push(group),
                }
            }
            node.devices.sort_by(|a, b| a.key.cmp(&b.key));
        });
    }

    fn turn_unhealthy(&self, plugin: &PluginName, reason: &str) {
        let unhealthy = Health { state: HealthState::Unhealthy, reason: reason.to_owned() };
        self.0.node.update(|node| {
            for group in node.devices.iter_mut().filter(|group| &group.plugin == plugin) {
                for instance in &mut group.instances {
                    instance.health.clone_from(&unhealthy);
                }
            }
            node.device_plugins.insert(plugin.clone(), unhealthy);
        });
    }

    fn owner(&self, group: &GroupKey) -> Result<Arc<DevicePlugin>, PluginCallError> {
        let view = self.0.node.current();
        let found = view.devices.iter().find(|known| &known.key == group);
        let name = found.map(|group| group.plugin.clone()).ok_or_else(|| {
            PluginCallError::Recoverable(format!("no plugin reports the device group {group} now"))
        })?;
        self.plugins().get(&name).cloned().ok_or_else(|| PluginCallError::NotReady {
            name: name.to_string(),
            reason: "the plugin is gone".to_owned(),
        })
    }

    async fn reserve_all(
        &self,
        alloc: AllocId,
        task: &TaskName,
        devices: &[AllocatedDevice],
    ) -> Result<Reservation, PluginCallError> {
        let mut whole = Reservation::default();
        for device in devices {
            let part = self.owner(&device.group)?.reserve(device).await?;
            // Remembered at once: a later refusal releases what was reserved before it.
            self.held().entry((alloc, task.clone())).or_default().push(device.clone());
            whole.env.extend(part.env);
            whole.mounts.extend(part.mounts);
            whole.device_nodes.extend(part.device_nodes);
        }
        Ok(whole)
    }

    fn held(
        &self,
    ) -> std::sync::MutexGuard<'_, BTreeMap<(AllocId, TaskName), Vec<AllocatedDevice>>> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stop asking.
    pub async fn shutdown(&self) {
        self.0.refresher.shutdown().await;
    }
}

impl Devices for DeviceManager {
    fn reserve<'a>(
        &'a self,
        alloc: AllocId,
        task: &'a TaskName,
        devices: &'a [AllocatedDevice],
    ) -> BoxFuture<'a, Result<Reservation, PluginCallError>> {
        Box::pin(async move {
            // Reserved again before each start: what an earlier start held is replaced.
            self.held().remove(&(alloc, task.clone()));
            let reserved = self.reserve_all(alloc, task, devices).await;
            if reserved.is_err() {
                self.release(alloc, task).await;
            }
            reserved
        })
    }

    fn release<'a>(&'a self, alloc: AllocId, task: &'a TaskName) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            let held = self.held().remove(&(alloc, task.clone())).unwrap_or_default();
            for device in held {
                let released = match self.owner(&device.group) {
                    Ok(plugin) => plugin.release(&device).await,
                    Err(error) => Err(error),
                };
                match released {
                    Ok(())
                    | Err(PluginCallError::NotFound(_) | PluginCallError::Unsupported(_)) => {}
                    Err(error) => {
                        tracing::warn!(%alloc, %task, group = %device.group, %error,
                            "device plugin failed to release");
                    }
                }
            }
        })
    }
}

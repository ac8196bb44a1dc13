//! All device plugins of the node.
//!
//! ```text
//! DeviceSource ─ fingerprint loop ─► inventory (the owner of each group) ─► NodePublisher
//!              ─ statistics loop ──► index ─► of a task, of an allocation, of all
//!              ◄─ reserve, release ─ claims ◄── task runner          claims ─► the agent's ledger
//! ```
//! A plugin that fails, hangs or lies spoils only its own devices and statistics, which then carry
//! the reason, and it is asked again. Tasks keep what they hold. Each plugin has loops of its own,
//! every call has a bound, and at most [`DEVICE_CALLS_MAX`] reserves and releases of one plugin
//! wait: no plugin delays another.

mod claims;
mod collect;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::inventory::{GroupChanges, Inventory};
use super::ledger::InstanceHolder;
use super::source::DeviceSource;
use super::stats::StatsIndex;
use crate::source::DeviceFingerprint;
use ostler_health::refresh::{FingerprintOutcome, Refresher};
use ostler_model::clock::{self, Clock};
use ostler_model::device::{DeviceGroup, HealthState, Reservation};
use ostler_model::ids::{AllocId, PluginName, TaskName};
use ostler_model::limits::{
    DEVICE_CALL_WALL_MAX, DEVICE_CALLS_MAX, DEVICE_STATS_INTERVAL_DEFAULT,
    DEVICE_STATS_INTERVAL_MIN, DEVICE_STATS_OLD_INTERVALS, PLUGIN_CALL_SLACK,
};
use ostler_model::ports::{BoxFuture, Devices, PluginCallError};
use ostler_model::resources::AllocatedDevice;
use ostler_model::stats::DeviceGroupStats;
use ostler_node::NodePublisher;

pub use claims::{ClaimReport, ClaimState, LedgerBook};

/// Settings of the device manager.
#[derive(Clone, Default)]
pub struct DeviceOptions {
    /// Source of the time of day.
    pub clock: Clock,
    /// Time from one collection of a plugin's statistics to the next. The default is 5 s, the least
    /// is [`DEVICE_STATS_INTERVAL_MIN`].
    pub stats_interval: Option<Duration>,
    /// Where the agent records who holds what. Without it nothing is recorded.
    pub book: Option<Arc<dyn LedgerBook>>,
}

/// A plugin, and the bound on its calls.
struct ManagedPlugin {
    source: Arc<dyn DeviceSource>,
    /// Bounds the calls in flight. A plugin that replaces this one shares the bound.
    slots: Arc<Semaphore>,
}

struct DeviceManagerInner {
    node: NodePublisher,
    clock: Clock,
    stats_interval: Duration,
    plugins: Mutex<BTreeMap<PluginName, Arc<ManagedPlugin>>>,
    inventory: Mutex<Inventory>,
    stats: Mutex<StatsIndex>,
    claims: Mutex<BTreeMap<InstanceHolder, Arc<claims::ClaimEntry>>>,
    book: Option<Arc<dyn LedgerBook>>,
    refresher: Refresher,
    stop: CancellationToken,
    running: TaskTracker,
}

/// Asks all device plugins of the node. Clones share it. See the module.
#[derive(Clone)]
pub struct DeviceManager(Arc<DeviceManagerInner>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DeviceManager {
    /// A manager without plugins; `refresher` asks them.
    #[must_use]
    pub fn new(node: NodePublisher, options: DeviceOptions, refresher: Refresher) -> Self {
        let stats_interval = options
            .stats_interval
            .unwrap_or(DEVICE_STATS_INTERVAL_DEFAULT)
            .max(DEVICE_STATS_INTERVAL_MIN);
        let old_after = stats_interval.saturating_mul(DEVICE_STATS_OLD_INTERVALS);
        Self(Arc::new(DeviceManagerInner {
            node,
            clock: options.clock,
            stats_interval,
            plugins: Mutex::default(),
            inventory: Mutex::default(),
            stats: Mutex::new(StatsIndex::new(old_after)),
            claims: Mutex::default(),
            book: options.book,
            refresher,
            stop: CancellationToken::new(),
            running: TaskTracker::new(),
        }))
    }

    /// Add a plugin. The future asks for the first fingerprint (bounded wait) and then
    /// goes on asking, and measuring, in the background. `None` when there is a plugin of
    /// that name already.
    pub fn add<S: DeviceSource + 'static>(
        &self,
        source: S,
    ) -> Option<impl Future<Output = ()> + use<S>> {
        let name = source.name().clone();
        let slots = Arc::new(Semaphore::new(DEVICE_CALLS_MAX));
        let plugin = Arc::new(ManagedPlugin { source: Arc::new(source), slots });
        {
            let mut plugins = lock(&self.0.plugins);
            if plugins.contains_key(&name) {
                return None;
            }
            plugins.insert(name, Arc::clone(&plugin));
        }
        Some(self.clone().keep_asking(plugin))
    }

    /// Put a plugin in the place of the one with its name, between two calls: calls in flight end
    /// on the old plugin, later ones go to the new one. The future asks it for a fingerprint, then
    /// it is asked and measured in the background. Until it answers, the last answer of the old
    /// plugin stands. `None` when there is no plugin of that name.
    pub fn switch(
        &self,
        source: Arc<dyn DeviceSource>,
    ) -> Option<impl Future<Output = ()> + use<>> {
        let plugin = {
            let mut plugins = lock(&self.0.plugins);
            let old = plugins.get_mut(source.name())?;
            let plugin = Arc::new(ManagedPlugin { source, slots: Arc::clone(&old.slots) });
            // The loop of the old plugin wakes, sees that the plugin was replaced, and ends.
            std::mem::replace(old, Arc::clone(&plugin)).source.meter().request_check();
            plugin
        };
        Some(self.clone().keep_asking(plugin))
    }

    /// The plugin that is asked under this name now.
    #[must_use]
    pub fn source(&self, name: &PluginName) -> Option<Arc<dyn DeviceSource>> {
        lock(&self.0.plugins).get(name).map(|plugin| Arc::clone(&plugin.source))
    }

    /// Devices of this plugin that tasks hold.
    #[must_use]
    pub fn assigned_devices(&self, name: &PluginName) -> Vec<AllocatedDevice> {
        let inventory = lock(&self.0.inventory);
        let own = |device: &AllocatedDevice| inventory.owner(&device.group) == Some(name);
        self.claims().into_iter().flat_map(|claim| claim.devices).filter(own).collect()
    }

    async fn keep_asking(self, plugin: Arc<ManagedPlugin>) {
        let (meter, asking) = (plugin.source.meter(), (self.clone(), Arc::clone(&plugin)));
        let ask = move || {
            let (manager, plugin) = asking.clone();
            async move { manager.fingerprint(&plugin).await }
        };
        self.0.refresher.add(meter, ask).await;
        if self.is_current(&plugin) {
            self.0.running.spawn(collect::run(self.clone(), plugin));
        }
    }

    /// Is this plugin still the one of its name?
    fn is_current(&self, plugin: &Arc<ManagedPlugin>) -> bool {
        let plugins = lock(&self.0.plugins);
        plugins.get(plugin.source.name()).is_some_and(|now| Arc::ptr_eq(now, plugin))
    }

    /// Ask a plugin now, beside its own turns, and publish its answer. `false` when there is no
    /// plugin of that name.
    pub async fn ask(&self, name: &PluginName) -> bool {
        let plugin = lock(&self.0.plugins).get(name).cloned();
        let Some(plugin) = plugin else { return false };
        self.fingerprint(&plugin).await;
        true
    }

    async fn fingerprint(&self, plugin: &Arc<ManagedPlugin>) -> FingerprintOutcome {
        let name = plugin.source.name();
        if !self.is_current(plugin) {
            return FingerprintOutcome::Over;
        }
        let found = call_bounded(&*plugin.source, "fingerprint", plugin.source.fingerprint()).await;
        if !self.is_current(plugin) {
            return FingerprintOutcome::Over;
        }
        match found {
            Ok(DeviceFingerprint { health, groups, next }) => {
                let asked = FingerprintOutcome::from_health(&health, next);
                // An answer is nearly always the same as before, so it is compared in place,
                // without a copy.
                let same = lock(&self.0.inventory).is_latest_answer(name, &health, &groups);
                if !same {
                    if health.state == HealthState::Unhealthy {
                        lock(&self.0.stats).mark_stale(name, &health.reason);
                    }
                    let claim = |group: &_| plugin.source.claim(group);
                    self.publish(name, |inventory| {
                        inventory.record_answer(name, health, groups, claim)
                    });
                }
                asked
            }
            Err(error) => {
                tracing::warn!(plugin = %name, %error, "device fingerprint failed");
                let reason = error.to_string();
                self.publish(name, |inventory| {
                    inventory.record_failure(name, &reason);
                    GroupChanges::default()
                });
                lock(&self.0.stats).mark_stale(name, &reason);
                FingerprintOutcome::Failed(reason)
            }
        }
    }

    /// Change the inventory and publish it. Both happen under one lock, so that a later answer is
    /// never published before an earlier one.
    fn publish(&self, plugin: &PluginName, change: impl FnOnce(&mut Inventory) -> GroupChanges) {
        let mut inventory = lock(&self.0.inventory);
        let moved = change(&mut inventory);
        for (group, owner) in &moved.left_out {
            tracing::warn!(%group, %plugin, %owner, "device group left out: another plugin has it");
        }
        for (group, owner) in &moved.passed_on {
            tracing::info!(%group, %plugin, %owner, "device group goes to the other plugin that has it");
        }
        if !moved.passed_on.is_empty() || !moved.gone.is_empty() {
            lock(&self.0.stats).retain(|owner, group| inventory.owner(group) == Some(owner));
        }
        let (groups, plugins): (Vec<DeviceGroup>, _) = (inventory.groups(), inventory.plugins());
        self.0.node.update(|node| {
            node.devices = groups;
            node.device_plugins = plugins;
        });
    }

    /// The plugin that reports these instances now.
    fn owner(&self, device: &AllocatedDevice) -> Result<Arc<ManagedPlugin>, PluginCallError> {
        let inventory = lock(&self.0.inventory);
        let group = &device.group;
        let name = match inventory.owner_with(group, &device.ids) {
            Ok(name) => name.clone(),
            Err(None) => {
                return Err(PluginCallError::Recoverable(format!(
                    "no plugin reports the device group {group} now"
                )));
            }
            Err(Some(instance)) => {
                return Err(PluginCallError::Recoverable(format!(
                    "no plugin reports instance {instance} of the device group {group} now"
                )));
            }
        };
        drop(inventory);
        self.plugin(&name)
    }

    fn plugin(&self, name: &PluginName) -> Result<Arc<ManagedPlugin>, PluginCallError> {
        lock(&self.0.plugins).get(name).cloned().ok_or_else(|| PluginCallError::NotReady {
            name: name.to_string(),
            reason: "the plugin is not loaded".to_owned(),
        })
    }

    /// Newest statistics of these devices, by group. The devices may be those of one task or of
    /// several. Requests that one group serves come as one group.
    #[must_use]
    pub fn stats_of<'a>(
        &self,
        devices: impl IntoIterator<Item = &'a AllocatedDevice>,
    ) -> Vec<DeviceGroupStats> {
        let now = self.0.clock.now();
        lock(&self.0.stats).stats_of_devices(devices, now)
    }

    /// Newest statistics of all devices, by group.
    #[must_use]
    pub fn all_stats(&self) -> Vec<DeviceGroupStats> {
        let now = self.0.clock.now();
        lock(&self.0.stats).all_stats(now)
    }

    /// Stop asking. Calls in flight are waited for, since each has a bound. A release that is to be
    /// tried again stays in the ledger for the next start.
    pub async fn shutdown(&self) {
        self.0.stop.cancel();
        self.0.running.close();
        self.0.refresher.shutdown().await;
        self.0.running.wait().await;
    }
}

/// Wait for an answer within the bound of the call; without one, return an error.
async fn call_bounded<T>(
    source: &dyn DeviceSource,
    call: &'static str,
    answer: BoxFuture<'_, Result<T, PluginCallError>>,
) -> Result<T, PluginCallError> {
    let own = source.call_wall().saturating_mul(2).saturating_add(PLUGIN_CALL_SLACK);
    let bound = DEVICE_CALL_WALL_MAX.max(own);
    match clock::timeout(bound, answer).await {
        Some(answer) => answer,
        None => {
            source.record_hang(call, bound);
            Err(PluginCallError::CallFailed {
                plugin: source.name().to_string(),
                call,
                reason: format!("no answer within {bound:?}"),
            })
        }
    }
}

impl Devices for DeviceManager {
    fn fit(&self, devices: &[AllocatedDevice]) -> Result<(), PluginCallError> {
        let inventory = lock(&self.0.inventory);
        let unhealthy = devices.iter().find_map(|device| {
            inventory
                .first_unhealthy(&device.group, &device.ids)
                .map(|found| (&device.group, found))
        });
        drop(inventory);
        let Some((group, (id, health))) = unhealthy else { return Ok(()) };
        let state = match health.state {
            HealthState::Undetected => "not detected",
            HealthState::Unhealthy | HealthState::Healthy => "unhealthy",
        };
        let reason = if health.reason.is_empty() { "no reason given" } else { &health.reason };
        Err(PluginCallError::Recoverable(format!(
            "device {group} instance {id}, which the task holds, is {state}: {reason}"
        )))
    }

    fn reserve<'a>(
        &'a self,
        alloc: AllocId,
        task: &'a TaskName,
        devices: &'a [AllocatedDevice],
    ) -> BoxFuture<'a, Result<Reservation, PluginCallError>> {
        let holder = InstanceHolder { alloc, task: task.clone() };
        Box::pin(self.reserve_claim(holder, devices))
    }

    fn release<'a>(&'a self, alloc: AllocId, task: &'a TaskName) -> BoxFuture<'a, ()> {
        let holder = InstanceHolder { alloc, task: task.clone() };
        Box::pin(self.release_claim(holder))
    }
}

#[cfg(test)]
mod tests;

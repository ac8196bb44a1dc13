//! The newest statistics of every device, found by group and instance.
//!
//! ```text
//!  plugin's answer ─ replace ─► group ─► instance ─► Arc<InstanceStats>
//!  plugin failed ── mark_stale ─► of the plugin: the reason, until its next answer
//!                                   │
//! stats_of_task(its devices) ◄──────┘   looks up the task's own devices, and nothing else
//! ```
//! Pure. The cost of a task's statistics depends on the task's own devices, neither on the number
//! of tasks nor on the number of devices on the node. Values are shared, never copied.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use ostler_model::device::GroupKey;
use ostler_model::ids::PluginName;
use ostler_model::resources::AllocatedDevice;
use ostler_model::stats::{DeviceGroupStats, InstanceStats};
use ostler_model::time::Timestamp;

struct StatsGroup {
    plugin: PluginName,
    instances: HashMap<String, Arc<InstanceStats>>,
}

struct StatsAnswer {
    at: Timestamp,
    /// Why the plugin has not answered since.
    failure: Option<String>,
}

/// The newest statistics by group and instance. See the module.
pub struct StatsIndex {
    groups: HashMap<GroupKey, StatsGroup>,
    plugins: BTreeMap<PluginName, StatsAnswer>,
    old_after: Duration,
}

impl StatsIndex {
    /// An index without statistics. An answer older than `old_after` counts as stale even when
    /// nobody said that the plugin failed.
    #[must_use]
    pub fn new(old_after: Duration) -> Self {
        Self { groups: HashMap::new(), plugins: BTreeMap::new(), old_after }
    }

    /// Take an answer of a plugin. It replaces the plugin's earlier answer as a whole. Groups that
    /// belong to another plugin are left out and returned.
    pub fn replace(
        &mut self,
        plugin: &PluginName,
        groups: Vec<DeviceGroupStats>,
        now: Timestamp,
    ) -> Vec<GroupKey> {
        self.groups.retain(|_, group| &group.plugin != plugin);
        self.plugins.insert(plugin.clone(), StatsAnswer { at: now, failure: None });
        let mut foreign = Vec::new();
        for group in groups {
            if self.groups.contains_key(&group.key) {
                foreign.push(group.key);
                continue;
            }
            let instances = group.instances.into_iter().collect();
            self.groups.insert(group.key, StatsGroup { plugin: plugin.clone(), instances });
        }
        foreign
    }

    /// The plugin failed. Its last statistics are shown on, with this reason, until
    /// it answers again.
    pub fn mark_stale(&mut self, plugin: &PluginName, reason: &str) {
        if let Some(answer) = self.plugins.get_mut(plugin) {
            answer.failure = Some(reason.to_owned());
        }
    }

    /// Drop the groups for which `keep` is false, for example a group that went to another plugin.
    pub fn retain(&mut self, keep: impl Fn(&PluginName, &GroupKey) -> bool) {
        self.groups.retain(|key, group| keep(&group.plugin, key));
    }

    /// Statistics of these instances, by group. Several requests that one group serves
    /// come as one group. An instance without statistics is left out, and so is a group
    /// that no plugin measures.
    pub fn stats_of_devices<'a>(
        &self,
        devices: impl IntoIterator<Item = &'a AllocatedDevice>,
        now: Timestamp,
    ) -> Vec<DeviceGroupStats> {
        let mut found: BTreeMap<&GroupKey, (&StatsGroup, BTreeMap<_, _>)> = BTreeMap::new();
        for device in devices {
            let Some(group) = self.groups.get(&device.group) else { continue };
            let (_, instances) =
                found.entry(&device.group).or_insert_with(|| (group, BTreeMap::new()));
            for id in &device.ids {
                if let Some(stats) = group.instances.get(id) {
                    instances.insert(id.clone(), Arc::clone(stats));
                }
            }
        }
        let shown = found.into_iter().map(|(key, (group, instances))| DeviceGroupStats {
            key: key.clone(),
            instances,
            stale: self.stale_reason(&group.plugin, now),
        });
        shown.collect()
    }

    /// Statistics of one task's instances. See [`StatsIndex::stats_of_devices`].
    #[must_use]
    pub fn stats_of_task(
        &self,
        devices: &[AllocatedDevice],
        now: Timestamp,
    ) -> Vec<DeviceGroupStats> {
        self.stats_of_devices(devices, now)
    }

    /// Statistics of all devices, by group.
    #[must_use]
    pub fn all_stats(&self, now: Timestamp) -> Vec<DeviceGroupStats> {
        let mut all: Vec<DeviceGroupStats> = self
            .groups
            .iter()
            .map(|(key, group)| DeviceGroupStats {
                key: key.clone(),
                instances: group
                    .instances
                    .iter()
                    .map(|(id, stats)| (id.clone(), Arc::clone(stats)))
                    .collect(),
                stale: self.stale_reason(&group.plugin, now),
            })
            .collect();
        all.sort_by(|a, b| a.key.cmp(&b.key));
        all
    }

    fn stale_reason(&self, plugin: &PluginName, now: Timestamp) -> Option<String> {
        let answer = self.plugins.get(plugin)?;
        if let Some(reason) = &answer.failure {
            return Some(reason.clone());
        }
        let age = now.since(answer.at);
        (age > self.old_after)
            .then(|| format!("plugin {plugin} last measured {} s ago", age.as_secs()))
    }
}

#[cfg(test)]
#[path = "stats_tests.rs"]
mod tests;

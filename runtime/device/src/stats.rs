//! The newest statistics of every device, found by group and instance.
//!
//! ```text
//!  plugin's answer ─ replace ─► group ─► instance ─► Arc<InstanceStats>
//!  plugin failed ── mark_stale ─► of the plugin: the reason, until its next answer
//!                                   │
//!  of_task(its devices) ◄───────────┘   looks up what the task has, and nothing else
//! ```
//! Pure. What a task's statistics cost depends on the task's own devices: neither the number of
//! tasks nor that of devices on the node counts. Values are shared, never copied.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use ostler_model::device::GroupKey;
use ostler_model::ids::PluginName;
use ostler_model::resources::AllocatedDevice;
use ostler_model::stats::{DeviceGroupStats, InstanceStats};
use ostler_model::time::Timestamp;

struct Group {
    plugin: PluginName,
    instances: HashMap<String, Arc<InstanceStats>>,
}

struct Answer {
    at: Timestamp,
    /// Why the plugin has not answered since.
    failure: Option<String>,
}

/// See the module.
pub struct StatsIndex {
    groups: HashMap<GroupKey, Group>,
    plugins: BTreeMap<PluginName, Answer>,
    old_after: Duration,
}

impl StatsIndex {
    /// An index without statistics. An answer older than `old_after` counts as stale even when
    /// nobody said that the plugin failed.
    #[must_use]
    pub fn new(old_after: Duration) -> Self {
        Self { groups: HashMap::new(), plugins: BTreeMap::new(), old_after }
    }

    /// Take an answer of a plugin: it replaces the plugin's earlier one as a whole, what is not in
    /// it is gone. Groups that are another plugin's are left out and returned.
    pub fn replace(
        &mut self,
        plugin: &PluginName,
        groups: Vec<DeviceGroupStats>,
        now: Timestamp,
    ) -> Vec<GroupKey> {
        self.groups.retain(|_, group| &group.plugin != plugin);
        self.plugins.insert(plugin.clone(), Answer { at: now, failure: None });
        let mut foreign = Vec::new();
        for group in groups {
            if self.groups.contains_key(&group.key) {
                foreign.push(group.key);
                continue;
            }
            let instances = group.instances.into_iter().collect();
            self.groups.insert(group.key, Group { plugin: plugin.clone(), instances });
        }
        foreign
    }

    /// The plugin failed: what it said last is shown on, with this reason, until it answers again.
    pub fn mark_stale(&mut self, plugin: &PluginName, reason: &str) {
        if let Some(answer) = self.plugins.get_mut(plugin) {
            answer.failure = Some(reason.to_owned());
        }
    }

    /// Drop the groups that `keep` does not want; of a group that went to another plugin, say.
    pub fn retain(&mut self, keep: impl Fn(&PluginName, &GroupKey) -> bool) {
        self.groups.retain(|key, group| keep(&group.plugin, key));
    }

    /// Statistics of these instances, by group. Several requests served by one group come as one
    /// group; an instance without statistics is left out, and so is a group that no plugin
    /// measures.
    pub fn of<'a>(
        &self,
        devices: impl IntoIterator<Item = &'a AllocatedDevice>,
        now: Timestamp,
    ) -> Vec<DeviceGroupStats> {
        let mut found: BTreeMap<&GroupKey, (&Group, BTreeMap<_, _>)> = BTreeMap::new();
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
            stale: self.stale(&group.plugin, now),
        });
        shown.collect()
    }

    /// As [`StatsIndex::of`], for one task.
    #[must_use]
    pub fn of_task(&self, devices: &[AllocatedDevice], now: Timestamp) -> Vec<DeviceGroupStats> {
        self.of(devices, now)
    }

    /// Statistics of everything, by group.
    #[must_use]
    pub fn all(&self, now: Timestamp) -> Vec<DeviceGroupStats> {
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
                stale: self.stale(&group.plugin, now),
            })
            .collect();
        all.sort_by(|a, b| a.key.cmp(&b.key));
        all
    }

    fn stale(&self, plugin: &PluginName, now: Timestamp) -> Option<String> {
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

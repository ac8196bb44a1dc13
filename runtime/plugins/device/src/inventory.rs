//! The device groups that the plugins reported, and the plugin that owns each group.
//!
//! ```text
//!  plugin p: groups a, b ─┐  found                    a ─► p   (by grant; of equals the first to report
//!  plugin q: groups a, c ─┼────────► owners, groups   b ─► p    it, until it no longer does; then q)
//!  plugin p failed        ┘  failed                   c ─► q
//! ```
//! Pure. A plugin that fails keeps its groups, because it may come back and tasks may hold their
//! instances. Every instance of it is unhealthy then, with the reason. The same holds for a plugin
//! that reports itself as unhealthy. A group that two plugins report belongs to only one of them,
//! because a reservation names a group and not a plugin. The owner is the plugin to which the
//! configuration grants the group most narrowly; of two equals it is the one that reported it
//! first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use ostler_model::device::{DeviceGroup, DeviceInstance, GroupKey, Health, HealthState};
use ostler_model::ids::PluginName;
use ostler_model::stats::DeviceGroupStats;

#[derive(Default)]
struct PluginAnswer {
    groups: BTreeMap<GroupKey, DeviceGroup>,
    /// How narrowly each group is granted to the plugin, where that is known.
    claims: BTreeMap<GroupKey, u32>,
    health: Health,
    /// The plugin did not answer the last question, or its answer was wrong.
    failed: bool,
}

impl PluginAnswer {
    fn is_healthy(&self) -> bool {
        self.health.state == HealthState::Healthy
    }

    /// The health of an instance. The health of the plugin itself goes before it.
    fn health_of<'a>(&'a self, instance: &'a DeviceInstance) -> &'a Health {
        if self.is_healthy() { &instance.health } else { &self.health }
    }
}

/// The newest answer of each plugin, and the owner of each group. See the module.
#[derive(Default)]
pub struct Inventory {
    answers: BTreeMap<PluginName, PluginAnswer>,
    owners: BTreeMap<GroupKey, PluginName>,
}

/// The changes of ownership that an answer caused.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupChanges {
    /// Groups of the answer that another plugin owns, with that plugin.
    pub left_out: Vec<(GroupKey, PluginName)>,
    /// Groups that passed from one plugin to another, with the new owner.
    pub passed_on: Vec<(GroupKey, PluginName)>,
    /// Groups that nobody reports any more.
    pub gone: Vec<GroupKey>,
}

impl Inventory {
    /// Is this the plugin's last answer again? Then nothing is to be done.
    #[must_use]
    pub fn is_latest_answer(
        &self,
        plugin: &PluginName,
        health: &Health,
        groups: &[DeviceGroup],
    ) -> bool {
        self.answers.get(plugin).is_some_and(|answer| {
            !answer.failed
                && answer.health == *health
                && answer.groups.len() == groups.len()
                && groups.iter().all(|group| answer.groups.get(&group.key) == Some(group))
        })
    }

    /// Record a plugin's answer: its health, all the groups it sees now, and how narrowly each
    /// group is granted to it.
    pub fn record_answer(
        &mut self,
        plugin: &PluginName,
        health: Health,
        groups: Vec<DeviceGroup>,
        claim: impl Fn(&GroupKey) -> u32,
    ) -> GroupChanges {
        let claims = groups.iter().map(|group| (group.key.clone(), claim(&group.key))).collect();
        let groups = groups.into_iter().map(|group| (group.key.clone(), group)).collect();
        self.answers.insert(plugin.clone(), PluginAnswer { groups, claims, health, failed: false });
        let mut moved = GroupChanges::default();
        let own = self.owners.iter().filter(|(_, owner)| *owner == plugin);
        let lost: Vec<GroupKey> =
            own.map(|(key, _)| key).filter(|key| !self.reports(plugin, key)).cloned().collect();
        for key in lost {
            self.owners.remove(&key);
            match self.next_owner(&key) {
                Some(next) => {
                    self.owners.insert(key.clone(), next.clone());
                    moved.passed_on.push((key, next));
                }
                None => moved.gone.push(key),
            }
        }
        let reported = self.answers.get(plugin).into_iter().flat_map(|answer| answer.groups.keys());
        for key in reported.cloned().collect::<Vec<_>>() {
            match self.owners.get(&key) {
                None => drop(self.owners.insert(key, plugin.clone())),
                Some(owner) if owner == plugin => {}
                Some(owner) if self.claim(plugin, &key) > self.claim(owner, &key) => {
                    self.owners.insert(key.clone(), plugin.clone());
                    moved.passed_on.push((key, plugin.clone()));
                }
                Some(owner) => moved.left_out.push((key, owner.clone())),
            }
        }
        moved
    }

    /// How narrowly a group is granted to a plugin that reports it.
    fn claim(&self, plugin: &PluginName, key: &GroupKey) -> u32 {
        let claims = self.answers.get(plugin).map(|answer| &answer.claims);
        claims.and_then(|claims| claims.get(key)).copied().unwrap_or_default()
    }

    /// Record that a plugin did not answer, or that its answer was wrong.
    pub fn record_failure(&mut self, plugin: &PluginName, reason: &str) {
        let answer = self.answers.entry(plugin.clone()).or_default();
        answer.health = Health { state: HealthState::Unhealthy, reason: reason.to_owned() };
        answer.failed = true;
    }

    fn reports(&self, plugin: &PluginName, key: &GroupKey) -> bool {
        self.answers.get(plugin).is_some_and(|answer| answer.groups.contains_key(key))
    }

    /// The plugin that gets a group which its owner lost: first one to which it is granted more
    /// narrowly, then one that works.
    fn next_owner(&self, key: &GroupKey) -> Option<PluginName> {
        let candidates = self.answers.iter().filter(|(_, a)| a.groups.contains_key(key));
        let claim = |answer: &PluginAnswer| answer.claims.get(key).copied().unwrap_or_default();
        let next =
            candidates.min_by_key(|(_, answer)| (Reverse(claim(answer)), !answer.is_healthy()));
        next.map(|(name, _)| name.clone())
    }

    /// The plugin that owns this group.
    #[must_use]
    pub fn owner(&self, key: &GroupKey) -> Option<&PluginName> {
        self.owners.get(key)
    }

    /// The plugin that owns this group, if its newest answer has these instances.
    ///
    /// # Errors
    /// The first instance that the owner does not have; nothing when nobody owns the group.
    pub fn owner_with<'a>(
        &self,
        key: &GroupKey,
        instances: &'a [String],
    ) -> Result<&PluginName, Option<&'a str>> {
        let owner = self.owners.get(key).ok_or(None)?;
        let known = self.instances(owner, key);
        match instances.iter().find(|id| !known.contains(id.as_str())) {
            None => Ok(owner),
            Some(missing) => Err(Some(missing)),
        }
    }

    /// The first of these instances that is not healthy by its owner's newest answer. While the
    /// owner fails nothing is known of them, and the owner's answer to a reserve decides.
    #[must_use]
    pub fn first_unhealthy(
        &self,
        key: &GroupKey,
        instances: &[String],
    ) -> Option<(String, Health)> {
        let answer = self.answers.get(self.owners.get(key)?)?;
        let group = answer.groups.get(key).filter(|_| !answer.failed)?;
        let mut held = group.instances.iter().filter(|one| instances.contains(&one.id));
        let ill = held.find(|one| answer.health_of(one).state != HealthState::Healthy)?;
        Some((ill.id.clone(), answer.health_of(ill).clone()))
    }

    fn instances(&self, plugin: &PluginName, key: &GroupKey) -> BTreeSet<&str> {
        let group = self.answers.get(plugin).and_then(|answer| answer.groups.get(key));
        let instances = group.into_iter().flat_map(|group| &group.instances);
        instances.map(|instance| instance.id.as_str()).collect()
    }

    /// Remove from a plugin's measurements what is not its own. Returns the names of
    /// what was removed.
    pub fn keep_own(&self, plugin: &PluginName, stats: &mut Vec<DeviceGroupStats>) -> Vec<String> {
        let mut foreign = Vec::new();
        stats.retain_mut(|group| {
            if self.owner(&group.key) != Some(plugin) {
                foreign.push(group.key.to_string());
                return false;
            }
            let known = self.instances(plugin, &group.key);
            group.instances.retain(|id, _| {
                let own = known.contains(id.as_str());
                if !own {
                    foreign.push(format!("{} instance {id}", group.key));
                }
                own
            });
            true
        });
        foreign
    }

    /// The health of a plugin when it was last asked; `None`: it has not answered yet.
    #[must_use]
    pub fn health(&self, plugin: &PluginName) -> Option<&Health> {
        self.answers.get(plugin).map(|answer| &answer.health)
    }

    /// Every group, by name, as its owner reports it. Its instances are unhealthy while
    /// the owner fails.
    #[must_use]
    pub fn groups(&self) -> Vec<DeviceGroup> {
        let groups = self.owners.iter().filter_map(|(key, owner)| {
            let answer = self.answers.get(owner)?;
            let mut group = answer.groups.get(key)?.clone();
            for instance in &mut group.instances {
                instance.health = answer.health_of(instance).clone();
            }
            Some(group)
        });
        groups.collect()
    }

    /// The health of every plugin that was asked.
    #[must_use]
    pub fn plugins(&self) -> BTreeMap<PluginName, Health> {
        self.answers.iter().map(|(name, answer)| (name.clone(), answer.health.clone())).collect()
    }
}

#[cfg(test)]
#[path = "inventory_tests.rs"]
mod tests;

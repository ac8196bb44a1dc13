//! What the device plugins found, and which of them a group belongs to.
//!
//! ```text
//!  plugin p: groups a, b ─┐  found                    a ─► p   (by grant; of equals the first to report
//!  plugin q: groups a, c ─┼────────► owners, groups   b ─► p    it, until it no longer does; then q)
//!  plugin p failed        ┘  failed                   c ─► q
//! ```
//! Pure. A plugin that fails keeps its groups, every instance unhealthy with the reason: it may come
//! back, and tasks may hold them. So are the instances of one that says itself that it is unhealthy. A
//! group that two plugins report belongs to one: two owners of one name could not be told apart in a
//! reservation. That is the one to whom the configuration grants it most narrowly, and of two equals
//! the first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use ostler_model::device::{DeviceGroup, DeviceInstance, GroupKey, Health, HealthState};
use ostler_model::ids::PluginName;
use ostler_model::stats::DeviceGroupStats;

#[derive(Default)]
struct Answer {
    groups: BTreeMap<GroupKey, DeviceGroup>,
    /// How narrowly each of them is granted to the plugin, where that is known.
    claims: BTreeMap<GroupKey, u32>,
    health: Health,
    /// It did not answer when it was last asked, or wrongly.
    failed: bool,
}

impl Answer {
    fn healthy(&self) -> bool {
        self.health.state == HealthState::Healthy
    }

    /// Of an instance: what is said of the plugin goes before.
    fn health_of<'a>(&'a self, instance: &'a DeviceInstance) -> &'a Health {
        if self.healthy() { &instance.health } else { &self.health }
    }
}

/// See the module.
#[derive(Default)]
pub struct Inventory {
    answers: BTreeMap<PluginName, Answer>,
    owners: BTreeMap<GroupKey, PluginName>,
}

/// What an answer changed of who owns what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupChanges {
    /// Groups of the answer that another plugin has, and which.
    pub left_out: Vec<(GroupKey, PluginName)>,
    /// Groups that are no longer the plugin's, and whose they are now.
    pub passed_on: Vec<(GroupKey, PluginName)>,
    /// Groups that nobody reports any more.
    pub gone: Vec<GroupKey>,
}

impl Inventory {
    /// Is this what the plugin said last? Then nothing is to be done.
    #[must_use]
    pub fn says(&self, plugin: &PluginName, health: &Health, groups: &[DeviceGroup]) -> bool {
        self.answers.get(plugin).is_some_and(|answer| {
            !answer.failed
                && answer.health == *health
                && answer.groups.len() == groups.len()
                && groups.iter().all(|group| answer.groups.get(&group.key) == Some(group))
        })
    }

    /// A plugin answered: how it is, all it sees now, and how narrowly each group is granted to it.
    pub fn found(
        &mut self,
        plugin: &PluginName,
        health: Health,
        groups: Vec<DeviceGroup>,
        claim: impl Fn(&GroupKey) -> u32,
    ) -> GroupChanges {
        let claims = groups.iter().map(|group| (group.key.clone(), claim(&group.key))).collect();
        let groups = groups.into_iter().map(|group| (group.key.clone(), group)).collect();
        self.answers.insert(plugin.clone(), Answer { groups, claims, health, failed: false });
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

    /// A plugin did not answer, or wrongly.
    pub fn failed(&mut self, plugin: &PluginName, reason: &str) {
        let answer = self.answers.entry(plugin.clone()).or_default();
        answer.health = Health { state: HealthState::Unhealthy, reason: reason.to_owned() };
        answer.failed = true;
    }

    fn reports(&self, plugin: &PluginName, key: &GroupKey) -> bool {
        self.answers.get(plugin).is_some_and(|answer| answer.groups.contains_key(key))
    }

    /// Who gets a group that its owner lost: one to whom it is granted more narrowly, then one that
    /// works.
    fn next_owner(&self, key: &GroupKey) -> Option<PluginName> {
        let candidates = self.answers.iter().filter(|(_, a)| a.groups.contains_key(key));
        let claim = |answer: &Answer| answer.claims.get(key).copied().unwrap_or_default();
        let next = candidates.min_by_key(|(_, answer)| (Reverse(claim(answer)), !answer.healthy()));
        next.map(|(name, _)| name.clone())
    }

    /// Whose group this is.
    #[must_use]
    pub fn owner(&self, key: &GroupKey) -> Option<&PluginName> {
        self.owners.get(key)
    }

    /// Whose group this is, when its newest answer has these instances.
    ///
    /// # Errors
    /// The first instance it does not have; nothing when nobody has the group.
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

    /// The first of these instances that its owner's newest answer does not call healthy. While the
    /// owner fails nothing is known of them: its own answer to a reserve then counts.
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

    /// Of what a plugin measured, only what is its own stays. What went, as texts.
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

    /// How a plugin was when it was last asked; absent: it has not answered yet.
    #[must_use]
    pub fn health(&self, plugin: &PluginName) -> Option<&Health> {
        self.answers.get(plugin).map(|answer| &answer.health)
    }

    /// Every group, by name, as its owner sees it; unhealthy where the owner fails.
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

    /// How the plugins that were asked are.
    #[must_use]
    pub fn plugins(&self) -> BTreeMap<PluginName, Health> {
        self.answers.iter().map(|(name, answer)| (name.clone(), answer.health.clone())).collect()
    }
}

#[cfg(test)]
#[path = "inventory_tests.rs"]
mod tests;

//! What the device plugins found, and which of them a group belongs to.
//!
//! ```text
//!  plugin p: groups a, b ─┐  found                    a ─► p   (first to report it, until it no
//!  plugin q: groups a, c ─┼────────► owners, groups   b ─► p    longer does; then q)
//!  plugin p failed        ┘  failed                   c ─► q
//! ```
//! Pure. A plugin that fails keeps its groups, every instance unhealthy with the reason: it may come
//! back, and tasks may hold them. A group that two plugins report is the first one's: two owners of
//! one name could not be told apart in a reservation.

use std::collections::BTreeMap;

use crate::model::device::{DeviceGroup, GroupKey, Health, HealthState};
use crate::model::ids::PluginName;

#[derive(Default)]
struct Answer {
    groups: BTreeMap<GroupKey, DeviceGroup>,
    /// Why it has not answered since.
    failure: Option<String>,
}

/// See the module.
#[derive(Default)]
pub struct Inventory {
    answers: BTreeMap<PluginName, Answer>,
    owners: BTreeMap<GroupKey, PluginName>,
}

/// What an answer changed of who owns what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Groups of the answer that another plugin has, and which.
    pub left_out: Vec<(GroupKey, PluginName)>,
    /// Groups that are no longer the plugin's, and whose they are now.
    pub passed_on: Vec<(GroupKey, PluginName)>,
    /// Groups that nobody reports any more.
    pub gone: Vec<GroupKey>,
}

impl Inventory {
    /// A plugin answered: this is all it sees now.
    pub fn found(&mut self, plugin: &PluginName, groups: Vec<DeviceGroup>) -> Moved {
        let groups = groups.into_iter().map(|group| (group.key.clone(), group)).collect();
        self.answers.insert(plugin.clone(), Answer { groups, failure: None });
        let mut moved = Moved::default();
        let own = self.owners.iter().filter(|(_, owner)| *owner == plugin);
        let lost: Vec<GroupKey> =
            own.map(|(key, _)| key).filter(|key| !self.reports(plugin, key)).cloned().collect();
        for key in lost {
            self.owners.remove(&key);
            match self.heir(&key) {
                Some(heir) => {
                    self.owners.insert(key.clone(), heir.clone());
                    moved.passed_on.push((key, heir));
                }
                None => moved.gone.push(key),
            }
        }
        let reported = self.answers.get(plugin).into_iter().flat_map(|answer| answer.groups.keys());
        for key in reported {
            let owner = self.owners.entry(key.clone()).or_insert_with(|| plugin.clone());
            if owner != plugin {
                moved.left_out.push((key.clone(), owner.clone()));
            }
        }
        moved
    }

    /// A plugin did not answer, or wrongly.
    pub fn failed(&mut self, plugin: &PluginName, reason: &str) {
        self.answers.entry(plugin.clone()).or_default().failure = Some(reason.to_owned());
    }

    fn reports(&self, plugin: &PluginName, key: &GroupKey) -> bool {
        self.answers.get(plugin).is_some_and(|answer| answer.groups.contains_key(key))
    }

    /// Who gets a group that its owner lost: one that works before one that fails.
    fn heir(&self, key: &GroupKey) -> Option<PluginName> {
        let candidates = self.answers.iter().filter(|(_, a)| a.groups.contains_key(key));
        let heir = candidates.min_by_key(|(_, answer)| answer.failure.is_some());
        heir.map(|(name, _)| name.clone())
    }

    /// Whose group this is.
    #[must_use]
    pub fn owner(&self, key: &GroupKey) -> Option<&PluginName> {
        self.owners.get(key)
    }

    /// Is this instance of a group of this plugin there, by its newest answer?
    #[must_use]
    pub fn has(&self, plugin: &PluginName, key: &GroupKey, instance: &str) -> bool {
        self.owner(key) == Some(plugin)
            && self.answers.get(plugin).is_some_and(|answer| {
                let group = answer.groups.get(key);
                group.is_some_and(|group| group.instances.iter().any(|known| known.id == instance))
            })
    }

    /// Every group, by name, as its owner sees it; unhealthy where the owner fails.
    #[must_use]
    pub fn groups(&self) -> Vec<DeviceGroup> {
        let groups = self.owners.iter().filter_map(|(key, owner)| {
            let answer = self.answers.get(owner)?;
            let mut group = answer.groups.get(key)?.clone();
            if let Some(reason) = &answer.failure {
                let unhealthy = unhealthy(reason);
                for instance in &mut group.instances {
                    instance.health.clone_from(&unhealthy);
                }
            }
            Some(group)
        });
        groups.collect()
    }

    /// How the plugins that were asked are.
    #[must_use]
    pub fn plugins(&self) -> BTreeMap<PluginName, Health> {
        let health = |answer: &Answer| match &answer.failure {
            None => Health { state: HealthState::Healthy, reason: String::new() },
            Some(reason) => unhealthy(reason),
        };
        self.answers.iter().map(|(name, answer)| (name.clone(), health(answer))).collect()
    }
}

fn unhealthy(reason: &str) -> Health {
    Health { state: HealthState::Unhealthy, reason: reason.to_owned() }
}

#[cfg(test)]
#[path = "inventory_tests.rs"]
mod tests;

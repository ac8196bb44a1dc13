//! Who holds which device instance.
//!
//! ```text
//!            claim (all or nothing)
//!   free ───────────────────────────► held by (allocation, task)
//!     ▲                                        │
//!     └──── release, release_alloc ────────────┘   (a second one finds nothing and is fine)
//! ```
//! Health plays no part: an instance that turns unhealthy, or vanishes from the fingerprint, stays
//! with its holder until the holder releases it. Pure: no I/O, no plugins.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use ostler_model::device::GroupKey;
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::resources::AllocatedDevice;
use ostler_state::records::{DeviceLedgerKey, Record};

/// The task that holds an instance.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct InstanceHolder {
    /// Id of the allocation that the task belongs to.
    pub alloc: AllocId,
    /// Name of the task in its allocation.
    pub task: TaskName,
}

impl fmt::Display for InstanceHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {} of allocation {}", self.task, self.alloc.short())
    }
}

/// One instance and its holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldInstance {
    /// Group of the instance.
    pub group: GroupKey,
    /// Id of the instance in its group.
    pub instance: String,
    /// The task that has it.
    pub holder: InstanceHolder,
}

/// An instance that was asked for is not free. The error names the instance and its holder: another
/// task, or the asker itself when it asks for the same instance twice. Nothing was claimed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error(
    "device {} instance {} is held by {}; stop that allocation to free it",
    .0.group, .0.instance, .0.holder
)]
pub struct ClaimError(pub Box<HeldInstance>);

/// Who holds which instance. As data it is a list of [`HeldInstance`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<HeldInstance>", try_from = "Vec<HeldInstance>")]
pub struct DeviceLedger {
    held: BTreeMap<GroupKey, BTreeMap<String, InstanceHolder>>,
}

impl Record for DeviceLedger {
    type Key = DeviceLedgerKey;
}

impl DeviceLedger {
    /// Take all the instances of `devices` for `holder`, or none. An instance that the same holder
    /// has already is refused as well: nobody claims twice.
    ///
    /// # Errors
    /// [`ClaimError`] with the first instance that is not free and its holder.
    pub fn claim(
        &mut self,
        holder: &InstanceHolder,
        devices: &[AllocatedDevice],
    ) -> Result<(), ClaimError> {
        let mut asked = BTreeSet::new();
        for (group, id) in device_instances(devices) {
            let taken_by =
                if asked.insert((group, id)) { self.holder(group, id) } else { Some(holder) };
            if let Some(taken_by) = taken_by {
                return Err(ClaimError(Box::new(HeldInstance {
                    group: group.clone(),
                    instance: id.clone(),
                    holder: taken_by.clone(),
                })));
            }
        }
        for (group, id) in device_instances(devices) {
            self.held.entry(group.clone()).or_default().insert(id.clone(), holder.clone());
        }
        Ok(())
    }

    /// Free what a task holds. Returns what was freed; the second time that is nothing.
    pub fn release(&mut self, holder: &InstanceHolder) -> Vec<HeldInstance> {
        self.release_where(|candidate| candidate == holder)
    }

    /// Free what all the tasks of an allocation hold. Returns what was freed; the second time that
    /// is nothing.
    pub fn release_alloc(&mut self, alloc: AllocId) -> Vec<HeldInstance> {
        self.release_where(|candidate| candidate.alloc == alloc)
    }

    /// Free what the holders have for which `goes` is true. Returns what was freed.
    pub fn release_where(&mut self, goes: impl Fn(&InstanceHolder) -> bool) -> Vec<HeldInstance> {
        let freed: Vec<HeldInstance> = self.holders().filter(|held| goes(&held.holder)).collect();
        self.held.retain(|_, instances| {
            instances.retain(|_, holder| !goes(holder));
            !instances.is_empty()
        });
        freed
    }

    /// The holder of this instance; `None` when it is free.
    #[must_use]
    pub fn holder(&self, group: &GroupKey, instance: &str) -> Option<&InstanceHolder> {
        self.held.get(group)?.get(instance)
    }

    /// Does this task hold any of these instances?
    #[must_use]
    pub fn holds(&self, holder: &InstanceHolder, devices: &[AllocatedDevice]) -> bool {
        device_instances(devices)
            .any(|(group, instance)| self.holder(group, instance) == Some(holder))
    }

    /// Everything held, by group and instance.
    pub fn holders(&self) -> impl Iterator<Item = HeldInstance> + '_ {
        self.held.iter().flat_map(|(group, instances)| {
            instances.iter().map(|(instance, holder)| HeldInstance {
                group: group.clone(),
                instance: instance.clone(),
                holder: holder.clone(),
            })
        })
    }
}

fn device_instances(devices: &[AllocatedDevice]) -> impl Iterator<Item = (&GroupKey, &String)> {
    devices.iter().flat_map(|device| device.ids.iter().map(move |id| (&device.group, id)))
}

impl From<DeviceLedger> for Vec<HeldInstance> {
    fn from(ledger: DeviceLedger) -> Self {
        ledger.holders().collect()
    }
}

impl TryFrom<Vec<HeldInstance>> for DeviceLedger {
    type Error = ClaimError;
    fn try_from(list: Vec<HeldInstance>) -> Result<Self, ClaimError> {
        let mut ledger = Self::default();
        for HeldInstance { group, instance, holder } in list {
            ledger.claim(&holder, &[AllocatedDevice { group, ids: vec![instance] }])?;
        }
        Ok(ledger)
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        reason = "tests"
    )]

    use proptest::prelude::*;

    use super::*;

    fn group(name: &str) -> GroupKey {
        GroupKey { vendor: "acme".into(), kind: "gpu".into(), name: name.into() }
    }

    fn holder(alloc: u128, task: &str) -> InstanceHolder {
        InstanceHolder {
            alloc: AllocId::new(uuid::Uuid::from_u128(alloc)),
            task: TaskName::new(task).unwrap(),
        }
    }

    fn devices(name: &str, ids: &[&str]) -> Vec<AllocatedDevice> {
        let ids = ids.iter().map(|id| (*id).to_owned()).collect();
        vec![AllocatedDevice { group: group(name), ids }]
    }

    #[test]
    fn a_conflict_names_the_holder_and_claims_nothing() {
        let mut ledger = DeviceLedger::default();
        ledger.claim(&holder(1, "train"), &devices("a", &["1"])).unwrap();
        let before = ledger.clone();
        let error = ledger.claim(&holder(2, "other"), &devices("a", &["0", "1"])).unwrap_err();
        assert_eq!((error.0.instance.as_str(), &error.0.holder), ("1", &holder(1, "train")));
        assert!(error.to_string().contains("task train of allocation 00000000"), "{error}");
        assert_eq!(ledger, before);
    }

    #[test]
    fn one_request_cannot_name_an_instance_twice() {
        let mut ledger = DeviceLedger::default();
        assert!(ledger.claim(&holder(1, "t"), &devices("a", &["0", "0"])).is_err());
        assert_eq!(ledger, DeviceLedger::default());
    }

    #[test]
    fn the_same_id_in_two_groups_is_two_instances() {
        let mut ledger = DeviceLedger::default();
        ledger.claim(&holder(1, "t"), &devices("a", &["0"])).unwrap();
        ledger.claim(&holder(2, "t"), &devices("b", &["0"])).unwrap();
        assert_eq!(ledger.holder(&group("b"), "0"), Some(&holder(2, "t")));
    }

    #[test]
    fn releasing_an_allocation_frees_all_its_tasks_once() {
        let mut ledger = DeviceLedger::default();
        ledger.claim(&holder(1, "a"), &devices("a", &["0"])).unwrap();
        ledger.claim(&holder(1, "b"), &devices("a", &["1"])).unwrap();
        ledger.claim(&holder(2, "a"), &devices("a", &["2"])).unwrap();
        assert_eq!(ledger.release_alloc(holder(1, "a").alloc).len(), 2);
        assert_eq!(ledger.release_alloc(holder(1, "a").alloc), vec![]);
        assert_eq!(ledger.holders().count(), 1);
    }

    #[test]
    fn a_ledger_survives_json_and_postcard_and_a_doubled_entry_does_not() {
        let mut ledger = DeviceLedger::default();
        ledger.claim(&holder(1, "a"), &devices("a", &["0", "1"])).unwrap();
        let json = serde_json::to_string(&ledger).unwrap();
        assert_eq!(serde_json::from_str::<DeviceLedger>(&json).unwrap(), ledger);
        let bytes = postcard::to_stdvec(&ledger).unwrap();
        assert_eq!(postcard::from_bytes::<DeviceLedger>(&bytes).unwrap(), ledger);
        let mut list: Vec<HeldInstance> = ledger.into();
        list.push(list[0].clone());
        let doubled = serde_json::to_string(&list).unwrap();
        assert!(serde_json::from_str::<DeviceLedger>(&doubled).is_err());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Claim(u128, Vec<u8>),
        Release(u128),
        ReleaseAlloc(u128),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0_u128..4, prop::collection::vec(0_u8..6, 0..4)).prop_map(|(a, i)| Step::Claim(a, i)),
            (0_u128..4).prop_map(Step::Release),
            (0_u128..4).prop_map(Step::ReleaseAlloc),
        ]
    }

    proptest! {
        /// Against a model: a plain map from instance to allocation.
        #[test]
        fn no_instance_is_held_twice_and_each_is_released_once(
            steps in prop::collection::vec(step(), 0..60),
        ) {
            let mut ledger = DeviceLedger::default();
            let mut model: BTreeMap<String, u128> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Claim(alloc, ids) => {
                        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
                        let unique: std::collections::BTreeSet<_> = ids.iter().collect();
                        let free = unique.len() == ids.len()
                            && ids.iter().all(|id| !model.contains_key(id));
                        let wanted = vec![AllocatedDevice { group: group("a"), ids: ids.clone() }];
                        prop_assert_eq!(ledger.claim(&holder(alloc, "t"), &wanted).is_ok(), free);
                        if free {
                            model.extend(ids.into_iter().map(|id| (id, alloc)));
                        }
                    }
                    Step::Release(alloc) | Step::ReleaseAlloc(alloc) => {
                        let freed = if matches!(step, Step::Release(_)) {
                            ledger.release(&holder(alloc, "t"))
                        } else {
                            ledger.release_alloc(holder(alloc, "t").alloc)
                        };
                        let freed: Vec<String> = freed.into_iter().map(|h| h.instance).collect();
                        let expected: Vec<String> = model
                            .iter().filter(|(_, a)| **a == alloc).map(|(id, _)| id.clone()).collect();
                        prop_assert_eq!(freed, expected);
                        model.retain(|_, a| *a != alloc);
                    }
                }
                let held: BTreeMap<String, AllocId> =
                    ledger.holders().map(|h| (h.instance, h.holder.alloc)).collect();
                let expected: BTreeMap<String, AllocId> =
                    model.iter().map(|(id, a)| (id.clone(), holder(*a, "t").alloc)).collect();
                prop_assert_eq!(held, expected);
                prop_assert_eq!(ledger.holders().count(), model.len());
            }
        }
    }
}

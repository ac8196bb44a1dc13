//! Devices beyond the life of a task, for as long as a release is owed to their plugins.

use std::collections::BTreeSet;

use super::Admission;
use ostler_device::ledger::{ClaimError, DeviceLedger, InstanceHolder};
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::resources::AllocatedDevice;

impl Admission {
    /// Take back what an ended allocation has, except the devices of the tasks in `owing`, whose
    /// release is still owed. Those become free with [`Admission::note_release`].
    pub fn end_alloc(&mut self, alloc: AllocId, owing: &BTreeSet<TaskName>) {
        let released = std::mem::take(&mut self.released);
        let (of_alloc, others) = released.into_iter().partition(|holder| holder.alloc == alloc);
        self.released = others;
        let of_alloc: BTreeSet<InstanceHolder> = of_alloc;
        self.devices.release_where(|holder| {
            holder.alloc == alloc && (of_alloc.contains(holder) || !owing.contains(&holder.task))
        });
        self.ports.release(alloc);
        self.cores.release(alloc);
        self.unassign(alloc);
    }

    /// No release is owed for this task any more. Its devices become free when its allocation is
    /// over. Until then they stay with the task, because it may be started again.
    pub fn note_release(&mut self, holder: &InstanceHolder) {
        if self.assigned.contains_key(&holder.alloc) {
            self.released.insert(holder.clone());
        } else {
            self.devices.release(holder);
        }
    }

    /// A plugin is about to be asked for the task's devices, so a release will be owed. Returns
    /// whether that is new.
    pub fn owe_devices(&mut self, holder: &InstanceHolder) -> bool {
        self.released.remove(holder)
    }

    /// Enter the devices of a task whose allocation is over and whose release is owed.
    ///
    /// # Errors
    /// When one of the devices has another holder.
    pub fn adopt_owed(
        &mut self,
        holder: &InstanceHolder,
        devices: &[AllocatedDevice],
    ) -> Result<(), ClaimError> {
        self.devices.claim(holder, devices)
    }

    /// The devices that may have to be released, with their holders: what is to be on disk.
    #[must_use]
    pub fn owed_devices(&self) -> DeviceLedger {
        let mut owed = self.devices.clone();
        if !self.released.is_empty() {
            owed.release_where(|holder| self.released.contains(holder));
        }
        owed
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use ostler_model::device::GroupKey;
    use ostler_model::job::JobKind;
    use ostler_model::rng::Rng;
    use ostler_testing::fixtures;

    fn assigned(id: &str) -> Vec<AllocatedDevice> {
        let group = GroupKey { vendor: "acme".into(), kind: "gpu".into(), name: "a".into() };
        vec![AllocatedDevice { group, ids: vec![id.into()] }]
    }

    /// An allocation of two tasks with a device each, adopted.
    fn adopted() -> (Admission, InstanceHolder, InstanceHolder) {
        let tasks = vec![fixtures::task("one").unwrap(), fixtures::task("two").unwrap()];
        let mut alloc = fixtures::allocation(JobKind::Batch, tasks, &Rng::from_seed(1)).unwrap();
        let holder = |name| InstanceHolder { alloc: alloc.id, task: TaskName::new(name).unwrap() };
        let (one, two) = (holder("one"), holder("two"));
        alloc.devices.insert(one.task.clone(), assigned("0"));
        alloc.devices.insert(two.task.clone(), assigned("1"));
        let mut admission = Admission::default();
        admission.adopt(&alloc).unwrap();
        (admission, one, two)
    }

    fn held(ledger: &DeviceLedger) -> Vec<String> {
        ledger.holders().map(|held| held.instance).collect()
    }

    #[test]
    fn a_released_task_keeps_its_device_until_its_allocation_is_over() {
        let (mut admission, one, two) = adopted();
        admission.note_release(&one);
        assert_eq!(held(admission.devices()), ["0", "1"]);
        assert_eq!(held(&admission.owed_devices()), ["1"]);
        assert!(admission.owe_devices(&one), "started again");
        assert!(!admission.owe_devices(&two));
        assert_eq!(held(&admission.owed_devices()), ["0", "1"]);
        admission.note_release(&one);
        admission.end_alloc(one.alloc, &BTreeSet::from([two.task.clone()]));
        assert_eq!(held(admission.devices()), ["1"], "not assigned while its release is owing");
        assert_eq!(admission.assigned_totals(), Admission::default().assigned_totals());
        admission.note_release(&two);
        assert_eq!(admission, Admission::default());
    }

    #[test]
    fn what_was_released_meanwhile_is_not_kept() {
        let (mut admission, one, two) = adopted();
        admission.note_release(&one);
        admission.note_release(&two);
        admission.end_alloc(one.alloc, &BTreeSet::from([one.task.clone(), two.task.clone()]));
        assert_eq!(admission, Admission::default());
    }

    #[test]
    fn what_an_earlier_agent_owes_is_held_until_it_is_released() {
        let (admission, one, _) = adopted();
        let mut later = Admission::default();
        later.adopt_owed(&one, &assigned("0")).unwrap();
        assert!(
            later
                .adopt_owed(
                    &InstanceHolder { task: TaskName::new("x").unwrap(), ..one.clone() },
                    &assigned("0")
                )
                .is_err()
        );
        assert_eq!(held(&later.owed_devices()), ["0"]);
        later.note_release(&one);
        assert_eq!(later, Admission::default());
        drop(admission);
    }
}

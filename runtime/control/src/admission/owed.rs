//! Devices beyond the life of a task: what plugins are still to be told of.

use std::collections::BTreeSet;

use super::Admission;
use ostler_device::ledger::{ClaimError, DeviceLedger, InstanceHolder};
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::resources::AllocatedDevice;

impl Admission {
    /// An allocation is over: take back what was assigned to it, but for the devices of tasks of which
    /// a release is still `owing`. Those are free with [`Admission::devices_released`].
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

    /// No release is owed for this task any more. Its devices are free when its allocation is
    /// over; until then they stay with it, for the task may be started again.
    pub fn devices_released(&mut self, holder: &InstanceHolder) {
        if self.assigned.contains_key(&holder.alloc) {
            self.released.insert(holder.clone());
        } else {
            self.devices.release(holder);
        }
    }

    /// A plugin is about to be asked for the task's devices: a release will be owed. Whether that
    /// is news.
    pub fn owe_devices(&mut self, holder: &InstanceHolder) -> bool {
        self.released.remove(holder)
    }

    /// Enter the devices of a task whose allocation is over and of which a release is owed.
    ///
    /// # Errors
    /// When one of them is somebody else's.
    pub fn adopt_owed(
        &mut self,
        holder: &InstanceHolder,
        devices: &[AllocatedDevice],
    ) -> Result<(), ClaimError> {
        self.devices.claim(holder, devices)
    }

    /// Who holds which device and may have to be released: what is to be on disk.
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
        let mut alloc = fixtures::allocation(JobKind::Batch, tasks, &Rng::seeded(1)).unwrap();
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
        admission.devices_released(&one);
        assert_eq!(held(admission.devices()), ["0", "1"]);
        assert_eq!(held(&admission.owed_devices()), ["1"]);
        assert!(admission.owe_devices(&one), "started again");
        assert!(!admission.owe_devices(&two));
        assert_eq!(held(&admission.owed_devices()), ["0", "1"]);
        admission.devices_released(&one);
        admission.end_alloc(one.alloc, &BTreeSet::from([two.task.clone()]));
        assert_eq!(held(admission.devices()), ["1"], "not assigned while its release is owing");
        assert_eq!(admission.assigned(), Admission::default().assigned());
        admission.devices_released(&two);
        assert_eq!(admission, Admission::default());
    }

    #[test]
    fn what_was_released_meanwhile_is_not_kept() {
        let (mut admission, one, two) = adopted();
        admission.devices_released(&one);
        admission.devices_released(&two);
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
        later.devices_released(&one);
        assert_eq!(later, Admission::default());
        drop(admission);
    }
}

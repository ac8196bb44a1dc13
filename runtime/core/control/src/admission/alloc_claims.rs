//! The claims of an allocation, taken from it for a moment. A place is tried without the allocation
//! that it would replace, which runs on when the place cannot be filled. To copy what ten thousand
//! allocations have, for each of their places, would take minutes.

use super::{Admission, AllocShare, needs};
use crate::ports::PortHolder;
use ostler_device::ledger::{HeldInstance, InstanceHolder};
use ostler_model::cores::CoreSet;
use ostler_model::ids::AllocId;
use ostler_model::resources::AllocatedDevice;

/// Everything that was assigned to one allocation. See the module.
#[must_use]
pub(crate) struct AllocClaims {
    alloc: AllocId,
    devices: Vec<HeldInstance>,
    released: Vec<InstanceHolder>,
    ports: Vec<(u16, PortHolder)>,
    cores: Option<CoreSet>,
    assigned: Option<AllocShare>,
}

impl Admission {
    /// Take everything from an allocation, so that it can be given back.
    pub(crate) fn take_alloc(&mut self, alloc: AllocId) -> AllocClaims {
        AllocClaims {
            alloc,
            devices: self.devices.release_alloc(alloc),
            released: self.released.extract_if(.., |holder| holder.alloc == alloc).collect(),
            ports: self.ports.take(alloc),
            cores: self.cores.release(alloc),
            assigned: self.unassign(alloc),
        }
    }

    /// Give an allocation back what was taken from it and what nobody has been given since.
    pub(crate) fn put_back(&mut self, taken: AllocClaims) {
        let AllocClaims { alloc, devices, released, ports, cores, assigned } = taken;
        for HeldInstance { group, instance, holder } in devices {
            let device = AllocatedDevice { group, ids: vec![instance] };
            if let Err(error) = self.devices.claim(&holder, std::slice::from_ref(&device)) {
                tracing::error!(%error, "a device that was taken for a trial is somebody else's");
            }
        }
        self.released.extend(released);
        self.ports.put_back(ports);
        if let Some(cores) = cores {
            self.cores.put_back(alloc, cores);
        }
        if let Some(AllocShare { needs, of, shares }) = assigned {
            let of = self.live.add(&of.0, &of.1);
            self.assigned.insert(alloc, AllocShare { needs, of, shares });
            self.total = needs::add(self.total, needs);
            self.sharing = self.sharing.saturating_add(usize::from(shares));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use ostler_model::device::GroupKey;
    use ostler_model::ids::TaskName;
    use ostler_model::job::JobKind;
    use ostler_model::resources::{AllocatedCores, AllocatedPort};
    use ostler_model::rng::Rng;
    use ostler_testing::fixtures;

    #[test]
    fn an_allocation_has_all_that_it_had_when_what_was_taken_is_put_back() {
        let mut admission = Admission::default();
        let mut allocs = Vec::new();
        for seed in 1..3_u16 {
            let tasks = vec![fixtures::task("one").unwrap(), fixtures::task("two").unwrap()];
            let rng = Rng::from_seed(seed.into());
            let mut alloc = fixtures::allocation(JobKind::Batch, tasks, &rng).unwrap();
            let task = TaskName::new("one").unwrap();
            let group = GroupKey { vendor: "acme".into(), kind: "gpu".into(), name: "a".into() };
            let ids = vec![format!("{seed}a"), format!("{seed}b")];
            alloc.devices.insert(task.clone(), vec![AllocatedDevice { group, ids }]);
            let cores = AllocatedCores { cores: format!("{seed}").parse().unwrap(), cpu_mhz: 10 };
            alloc.cores.insert(task.clone(), cores);
            alloc.ports.push(AllocatedPort {
                label: "http".into(),
                value: 8_000 + seed,
                to: 80,
                host_ip: "127.0.0.1".into(),
                task: None,
            });
            admission.adopt(&alloc).unwrap();
            admission.note_release(&InstanceHolder { alloc: alloc.id, task });
            allocs.push(alloc);
        }
        let before = admission.clone();
        for alloc in &allocs {
            let taken = admission.take_alloc(alloc.id);
            let mut without = before.clone();
            without.release_alloc(alloc.id);
            assert_eq!(admission, without);
            assert_ne!(admission, before);
            admission.put_back(taken);
            assert_eq!(admission, before);
        }
        let taken = admission.take_alloc(AllocId::new(uuid::Uuid::nil()));
        admission.put_back(taken);
        assert_eq!(admission, before, "of one that has nothing nothing is taken");
    }
}

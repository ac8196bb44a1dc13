//! What must not be of a place of a job: that its work begins again when it is done or its successors are used
//! up, and that two allocations run in it.
//!
//! Who has ended is read off what the agent shows, as its users do; who begins off what is on record when a run
//! is let go. What the node promises has two bounds. A place that somebody empties begins anew, with all its
//! successors. And a change that the disk refuses is taken back: what it had placed ends without having run, as
//! if it had not been, and its place is filled again; where its start was under way, it runs for a moment.

use std::collections::{BTreeMap, BTreeSet};

use crate::world::{Inner, World};
use ostler_control::reconcile::reason;
use ostler_control::{AllocEntry, AllocView, ControlHandle};
use ostler_model::alloc::{Allocation, ClientStatus, DesiredStatus};
use ostler_model::ids::{AllocId, JobId, RunId};
use ostler_model::rollout::JobDeployments;
use ostler_model::saved::{JobOrigin, JobRecord};
use ostler_state::records::{AllocKey, JobDeploymentsKey, JobRecordKey};

/// A place of one version of a job.
type Place = (JobId, u64, u32);

/// An allocation that is over by itself.
#[derive(Clone, Debug)]
struct Over {
    place: Place,
    create_index: u64,
    complete: bool,
}

/// Those of all places.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    /// With the place that they have now: an update that is taken back gives them their place of before.
    over: BTreeMap<AllocId, Over>,
    /// Something of these was let go.
    began: BTreeSet<AllocId>,
    /// What somebody stopped, whether that came to be or was taken back, and what was over in its place: that
    /// may be filled again.
    stopped: BTreeSet<AllocId>,
}

impl Places {
    /// `taken_back`: so was the change that placed it.
    fn see(&mut self, view: &AllocView, taken_back: bool) {
        let (alloc, status) = (&view.allocation, view.state.client_status);
        let followed = alloc.desired_description == reason::RESCHEDULED;
        let by_itself = alloc.desired == DesiredStatus::Run || followed;
        let by_itself = by_itself && !self.stopped.contains(&alloc.id);
        let counts = match status {
            ClientStatus::Complete => !taken_back && self.began.contains(&alloc.id),
            ClientStatus::Failed => !taken_back,
            _ => false,
        };
        if view.phase.has_ended() && by_itself && counts {
            let place = (alloc.job.id.clone(), alloc.job_version, alloc.index);
            let complete = status == ClientStatus::Complete;
            let over = Over { place, create_index: alloc.create_index, complete };
            self.over.insert(alloc.id, over);
        }
    }

    /// Somebody stops these.
    pub(crate) fn stop<'a>(&mut self, views: impl IntoIterator<Item = &'a AllocView>) {
        for view in views {
            let alloc = &view.allocation;
            let place = (alloc.job.id.clone(), alloc.job_version, alloc.index);
            let before = self.over.extract_if(.., |id, one| *id == alloc.id || one.place == place);
            self.stopped.extend(before.map(|(id, _)| id));
            self.stopped.insert(alloc.id);
        }
    }

    /// Why another allocation of this place is one too many.
    fn too_many(&self, alloc: &Allocation, since: u64) -> Option<String> {
        let place = (alloc.job.id.clone(), alloc.job_version, alloc.index);
        let mut over = self.over.iter().filter(|(id, one)| {
            one.place == place && **id != alloc.id && one.create_index >= since
        });
        let (id, _) = match alloc.task_group().map(|group| group.reschedule) {
            Some(policy) if policy.unlimited => over.find(|(_, one)| one.complete)?,
            policy => {
                let most = usize::try_from(policy.map_or(0, |policy| policy.attempts)).ok()?;
                let done = over.clone().find(|(_, one)| one.complete);
                done.or_else(|| over.nth(most))?
            }
        };
        Some(format!("after {}, whose end was the last of that place", id.short()))
    }
}

/// See which allocations of one agent are over, for as long as its runtime lives.
pub(crate) async fn watch(world: World, control: ControlHandle) {
    let mut changes = control.changes();
    loop {
        {
            let views = control.allocs();
            let known = control.read_tables(|tables| {
                let registered = |id| tables.alloc(id).is_some_and(AllocEntry::is_registered);
                views.iter().map(|view| registered(view.allocation.id)).collect::<Vec<_>>()
            });
            let mut inner = world.lock();
            for (view, registered) in views.iter().zip(known) {
                inner.places.see(view, !registered);
            }
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

impl Inner {
    /// Is the work of this run, which is let go now, to begin, and is its place free?
    pub(crate) fn check_place(&mut self, id: &RunId) {
        let Some((run, store)) = self.runs.get(id).zip(self.store.as_ref()) else { return };
        let Ok(Some(alloc)) = store.get::<Allocation>(&AllocKey::of(run.alloc)) else { return };
        self.places.began.insert(alloc.id);
        let record = store.get::<JobRecord>(&JobRecordKey::of(alloc.job.id.clone()));
        // Who writes files stops by files, which nobody sees here.
        let record = record.ok().flatten().filter(|record| record.origin == JobOrigin::Api);
        let since = record.map(|record| record.create_index);
        // What began beside others may run beside them until these have ended, also when it was accepted.
        let deployed = store.get::<JobDeployments>(&JobDeploymentsKey::of(alloc.job.id.clone()));
        let deployed = deployed.ok().flatten();
        let mut groups =
            deployed.iter().flat_map(|known| &known.all).flat_map(|one| one.groups.values());
        let canary = alloc.deployment.as_ref().is_some_and(|of| of.canary)
            || groups.any(|group| group.canaries.contains(&alloc.id));
        let place = (alloc.job.id.clone(), alloc.index);
        let beside = self.runs.iter().find(|(_, other)| {
            other.lives() && other.alloc != alloc.id && other.place.as_ref() == Some(&place)
        });
        let beside = beside.filter(|_| !canary).map(|(other, _)| other.clone());
        let again = since.and_then(|since| self.places.too_many(&alloc, since));
        if let Some(run) = self.runs.get_mut(id) {
            run.place = (!canary && since.is_some()).then_some(place);
        }
        if let Some(other) = beside {
            self.break_with(format!("run {id} of {} is let go beside run {other}", alloc.name));
        }
        if let Some(why) = again {
            self.break_with(format!("run {id} of {} is let go {why}", alloc.name));
        }
    }
}

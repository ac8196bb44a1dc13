//! Gives allocations of earlier agents their owners back.
//!
//! ```text
//! Restore ─► jobs and places entered ─► what is held is assigned again ─► Write, owners
//!         ─► Owned, one after the other ─► every job: what is missing is placed ─► answered
//! ```
//! An embedded agent restores nothing: what the allocations hold only counts as assigned.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::turn::WaitingChange;
use super::types::{
    ControlAnswer, ControlEffect, RequestId, RestoredNode, World, Write, WriteWait,
};
use super::{AfterWrite, Machine, answer};
use crate::admission::AdoptError;
use crate::deployments::History;
use crate::proposal::stopped_copy;
use crate::tables::PlacedBy;
use crate::views::AgentStage;
use ostler_device::ledger::{DeviceLedger, InstanceHolder};
use ostler_model::alloc::{Allocation, DesiredStatus};
use ostler_model::causes::chain;
use ostler_model::device::GroupKey;
use ostler_model::ids::{AllocId, JobId};
use ostler_model::resources::AllocatedDevice;
use ostler_model::rollout::{JobDeployments, JobVersions};
use ostler_model::saved::JobRecord;
use ostler_model::scheduling::{NodeEvent, NodeEventKind};
use ostler_state::StateError;

/// The reason for a stop of an allocation whose device another one has by the records.
const DEVICE_OF_ANOTHER: &str =
    "another allocation has its device, according to the records of an earlier agent";

/// A restore that is under way.
#[derive(Debug)]
pub(super) struct RestoreProgress {
    request: RequestId,
    jobs: BTreeSet<JobId>,
    /// Number of owners that are still to be made, and of all of them.
    left: usize,
    total: usize,
    written: bool,
}

impl Machine {
    pub(super) fn restore(
        &mut self,
        world: &World<'_>,
        request: RequestId,
        restored: RestoredNode,
        out: &mut Vec<ControlEffect>,
    ) {
        let RestoredNode { jobs, deployments, versions, .. } = &restored;
        let histories = histories(jobs, deployments, versions);
        let RestoredNode {
            jobs, rebuilt, ended, allocs, assigned, ledger, own, scheduling, ..
        } = restored;
        if own {
            let mut scheduling = scheduling;
            if scheduling.events.is_empty() {
                let (at, kind) = (world.now, NodeEventKind::Registered);
                scheduling.events.push(NodeEvent { at, index: 0, kind });
            }
            self.tables.restore_scheduling(scheduling);
        }
        let mut writes = Vec::new();
        let mut names = BTreeSet::new();
        for record in jobs.into_iter().filter(|_| own) {
            if rebuilt.contains(&record.job.id) {
                writes.push(Write::Job(Arc::clone(&record)));
            }
            names.insert(record.job.id.clone());
            self.tables.put_job(record);
        }
        for (job, history) in histories.into_iter().filter(|_| own) {
            self.tables.put_history(&job, history);
        }
        for (block, places) in ended.into_iter().filter(|_| own) {
            self.tables.restore_ended(&block.job, &block.group, places);
        }
        // It is done before owners are made, because an owner asks at once for what its task holds.
        let without = self.restore_held(&allocs, ledger.as_ref(), own, out);
        let mut owners = Vec::new();
        for (mut alloc, saved) in allocs.into_iter().filter(|_| own) {
            if without.contains(&alloc.id) && alloc.desired == DesiredStatus::Run {
                alloc = stopped_copy(&alloc, DEVICE_OF_ANOTHER, self.tables.next_index());
                writes.push(Write::Alloc(Arc::clone(&alloc)));
            }
            // An allocation without a job belongs to a purged job when it is told to stop.
            // Otherwise an embedded agent ran it.
            let of_job = alloc.desired == DesiredStatus::Stop
                || self.tables.jobs.contains_key(&alloc.job.id);
            let placed_by = if assigned.contains(&alloc.id) {
                PlacedBy::Server
            } else if of_job {
                PlacedBy::Job
            } else {
                PlacedBy::Nobody
            };
            let ended = saved.as_ref().is_some_and(|saved| saved.finished);
            if self.tables.holds.withhold(&alloc, ended) {
                self.tables.put_alloc(alloc, placed_by, world.now);
                continue;
            }
            self.tables.restore_alloc(&alloc, placed_by, saved.as_ref(), world.now);
            if let Some(entry) = self.tables.alloc_mut(alloc.id) {
                owners.push(entry.make_owner());
            }
        }
        let total = owners.len();
        writes.extend(self.ledger_write());
        self.restoring =
            Some(RestoreProgress { request, jobs: names, left: total, total, written: false });
        if own {
            self.tables.stage = AgentStage::Restoring { done: 0, total };
        }
        self.write(AfterWrite::Restored, writes, owners, WriteWait::No, out);
    }

    /// Assign again what the allocations hold that have not ended, and what is owed to plugins for
    /// others. Returns the allocations with a device that another one has.
    fn restore_held(
        &mut self,
        allocs: &[(Arc<Allocation>, Option<ostler_model::saved::SavedAllocState>)],
        ledger: Option<&DeviceLedger>,
        own: bool,
        out: &mut Vec<ControlEffect>,
    ) -> BTreeSet<AllocId> {
        let mut without = BTreeSet::new();
        let ended = |saved: &Option<ostler_model::saved::SavedAllocState>| {
            saved.as_ref().is_some_and(|saved| saved.finished)
        };
        for (alloc, _) in allocs.iter().filter(|(_, saved)| !ended(saved)) {
            match self.tables.admission.adopt(alloc) {
                Ok(()) => {}
                // Such records come from changes that could not be taken back as a whole, on a disk
                // that failed.
                Err(error @ AdoptError::Device { .. }) => {
                    tracing::error!(alloc = %alloc.id, error = chain(&error), "the allocation is stopped");
                    without.insert(alloc.id);
                    continue;
                }
                // The allocation runs all the same: by the records two allocations share something.
                Err(error) => {
                    let error = chain(&error);
                    tracing::error!(alloc = %alloc.id, error, "what the allocation holds is not entered");
                }
            }
            self.restore_devices(alloc, ledger, own, out);
        }
        let Some(ledger) = ledger else { return without };
        let live = self.tables.admission.allocs();
        let known: BTreeSet<AllocId> = allocs.iter().map(|(alloc, _)| alloc.id).collect();
        // An embedded agent does not release what a serving agent owes to plugins.
        self.restore_owed(ledger, &live, |alloc| own || !known.contains(&alloc), out);
        without
    }

    /// Restore the claims of a live allocation's tasks. `ledger` is what was on disk; absent where
    /// it was not readable, which counts as a ledger with everything. `own`: the tasks belong to
    /// this agent.
    fn restore_devices(
        &mut self,
        alloc: &Allocation,
        ledger: Option<&DeviceLedger>,
        own: bool,
        out: &mut Vec<ControlEffect>,
    ) {
        for (task, devices) in alloc.devices.iter().filter(|(_, devices)| !devices.is_empty()) {
            let holder = InstanceHolder { alloc: alloc.id, task: task.clone() };
            if ledger.is_some_and(|ledger| !ledger.holds(&holder, devices)) {
                self.tables.admission.note_release(&holder);
            } else if own {
                out.push(ControlEffect::RestoreClaim(holder, devices.clone()));
            }
        }
    }

    /// Hold what the ledger has for allocations that are not live: their plugins were not told of
    /// the end, or it is not on disk that they were. It is held until they are told. `release`
    /// tells for which allocations this agent tells them.
    fn restore_owed(
        &mut self,
        ledger: &DeviceLedger,
        live: &BTreeSet<AllocId>,
        release: impl Fn(AllocId) -> bool,
        out: &mut Vec<ControlEffect>,
    ) {
        let mut owed: BTreeMap<InstanceHolder, BTreeMap<GroupKey, Vec<String>>> = BTreeMap::new();
        for held in ledger.holders().filter(|held| !live.contains(&held.holder.alloc)) {
            let groups = owed.entry(held.holder).or_default();
            groups.entry(held.group).or_default().push(held.instance);
        }
        for (holder, groups) in owed {
            let devices: Vec<AllocatedDevice> =
                groups.into_iter().map(|(group, ids)| AllocatedDevice { group, ids }).collect();
            if let Err(error) = self.tables.admission.adopt_owed(&holder, &devices) {
                // The device is assigned again, so it was released; the ledger on disk was older.
                tracing::info!(%holder, %error, "nothing to release any more");
                continue;
            }
            if release(holder.alloc) {
                tracing::info!(%holder, "the task is over: its devices are released");
                let alloc = holder.alloc;
                out.push(ControlEffect::RestoreClaim(holder, devices));
                out.push(ControlEffect::ReleaseDevices(alloc));
            }
        }
    }

    /// The records of a restore are queued, or could not be queued.
    pub(super) fn finish_restore_write(
        &mut self,
        world: &World<'_>,
        result: Result<(), StateError>,
        out: &mut Vec<ControlEffect>,
    ) {
        match (result, &mut self.restoring) {
            (Ok(()), Some(restoring)) => {
                restoring.written = true;
                self.fill_restored_jobs(world, out);
            }
            (Err(error), restoring) => {
                if let Some(restoring) = restoring.take() {
                    answer(restoring.request, ControlAnswer::Written(Err(error)), out);
                }
            }
            (Ok(()), None) => {}
        }
    }

    /// One more owner was made, or could not be made.
    pub(super) fn note_restored_owner(&mut self, world: &World<'_>, out: &mut Vec<ControlEffect>) {
        let Some(restoring) = self.restoring.as_mut().filter(|r| r.left > 0) else { return };
        restoring.left = restoring.left.saturating_sub(1);
        let (done, total) = (restoring.total.saturating_sub(restoring.left), restoring.total);
        if self.tables.stage != AgentStage::Leaving {
            self.tables.stage = AgentStage::Restoring { done, total };
        }
        self.fill_restored_jobs(world, out);
    }

    /// When all allocations have their owners, do what is left to do for each job.
    fn fill_restored_jobs(&mut self, world: &World<'_>, out: &mut Vec<ControlEffect>) {
        let Some(restoring) = self.restoring.as_ref().filter(|r| r.written && r.left == 0) else {
            return;
        };
        for job in restoring.jobs.clone() {
            if self.turns.is_free(&job) {
                self.take_turn(world, job, WaitingChange::fill(), out);
            }
        }
        self.finish_restore(world, out);
    }

    /// The turn of a job has ended.
    pub(super) fn note_turn_end(
        &mut self,
        world: &World<'_>,
        job: &JobId,
        out: &mut Vec<ControlEffect>,
    ) {
        if let Some(restoring) = &mut self.restoring {
            restoring.jobs.remove(job);
            self.finish_restore(world, out);
        }
        self.leave_if_idle(out);
    }

    fn finish_restore(&mut self, world: &World<'_>, out: &mut Vec<ControlEffect>) {
        let ended = |r: &mut RestoreProgress| r.written && r.left == 0 && r.jobs.is_empty();
        if let Some(restoring) = self.restoring.take_if(ended) {
            let all = self.tables.ids();
            self.remove_all_purged(&all, out);
            // Places that do not fit now are tried again.
            self.wake(world);
            answer(restoring.request, ControlAnswer::Written(Ok(())), out);
        }
    }
}

/// Earlier versions and deployments of the jobs that exist. Those of a purged job with the same
/// name are left out.
fn histories(
    jobs: &[Arc<JobRecord>],
    deployments: &[(JobId, JobDeployments)],
    versions: &[(JobId, JobVersions)],
) -> BTreeMap<JobId, History> {
    let index: BTreeMap<&JobId, u64> =
        jobs.iter().map(|record| (&record.job.id, record.create_index)).collect();
    let mut histories: BTreeMap<JobId, History> = BTreeMap::new();
    for (job, known) in versions {
        if index.get(job) == Some(&known.create_index) {
            histories.entry(job.clone()).or_default().versions.clone_from(&known.all);
        }
    }
    for (job, known) in deployments {
        if index.get(job) == Some(&known.create_index) {
            histories.entry(job.clone()).or_default().deployments.clone_from(&known.all);
        }
    }
    histories
}

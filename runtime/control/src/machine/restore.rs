//! Allocations of earlier agents get their owners back.
//!
//! ```text
//!   Restore ─► jobs and places entered ─► what is held is assigned again ─► Write, owners
//!           ─► Owned, one after the other ─► every job: what is missing is placed ─► answered
//! ```
//! An embedded agent restores nothing: what the allocations hold counts as assigned.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::turn::Waiting;
use super::types::{Answer, ControlEffect, RequestId, RestoredNode, Wait, World, Write};
use super::{AfterWrite, Machine, answer};
use crate::admission::AdoptError;
use crate::deployments::History;
use crate::proposal::stopped_copy;
use crate::tables::PlacedBy;
use crate::views::Stage;
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

/// Why an allocation is stopped whose device another one has by the records.
const DEVICE_OF_ANOTHER: &str =
    "another allocation has its device, by the records of an earlier agent";

/// A restore under way.
#[derive(Debug)]
pub(super) struct Restoring {
    request: RequestId,
    jobs: BTreeSet<JobId>,
    /// Owners that are to be made, and all of them.
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
        // Before owners are made: an owner asks at once for what its task holds.
        let without = self.restore_held(&allocs, ledger.as_ref(), own, out);
        let mut owners = Vec::new();
        for (mut alloc, saved) in allocs.into_iter().filter(|_| own) {
            if without.contains(&alloc.id) && alloc.desired == DesiredStatus::Run {
                alloc = stopped_copy(&alloc, DEVICE_OF_ANOTHER, self.tables.next_index());
                writes.push(Write::Alloc(Arc::clone(&alloc)));
            }
            // An allocation without a job is of a purged one when it is to stop; otherwise an
            // embedded agent ran it.
            let of_job = alloc.desired == DesiredStatus::Stop
                || self.tables.jobs.contains_key(&alloc.job.id);
            let placed_by = match of_job {
                _ if assigned.contains(&alloc.id) => PlacedBy::Server,
                true => PlacedBy::Job,
                false => PlacedBy::Nobody,
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
            Some(Restoring { request, jobs: names, left: total, total, written: false });
        if own {
            self.tables.stage = Stage::Restoring { done: 0, total };
        }
        self.write(AfterWrite::Restored, writes, owners, Wait::No, out);
    }

    /// What the allocations that have not ended hold, and what is owed to plugins for others. Those
    /// with a device that another one has.
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
                // Changes that could not be taken back whole, on a disk that failed.
                Err(error @ AdoptError::Device { .. }) => {
                    tracing::error!(alloc = %alloc.id, error = chain(&error), "the allocation is stopped");
                    without.insert(alloc.id);
                    continue;
                }
                // It runs all the same: by the records two allocations share something.
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
        // What a serving agent owes to plugins is not released by an embedded one.
        self.restore_owed(ledger, &live, |alloc| own || !known.contains(&alloc), out);
        without
    }

    /// What the tasks of a live allocation hold towards their plugins. `ledger`: what was on disk;
    /// absent where it was not readable, which counts as everything. `own`: its tasks are this
    /// agent's.
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
                self.tables.admission.devices_released(&holder);
            } else if own {
                out.push(ControlEffect::RestoreClaim(holder, devices.clone()));
            }
        }
    }

    /// What is in the ledger for allocations that are not live: their plugins were not told of the
    /// end, or that they were is not on disk. Held until they are; `release` says of which
    /// allocations they are to be told by this agent.
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

    /// The records of a restore are queued, or cannot be.
    pub(super) fn restored_written(
        &mut self,
        world: &World<'_>,
        result: Result<(), StateError>,
        out: &mut Vec<ControlEffect>,
    ) {
        match (result, &mut self.restoring) {
            (Ok(()), Some(restoring)) => {
                restoring.written = true;
                self.restored_owners(world, out);
            }
            (Err(error), restoring) => {
                if let Some(restoring) = restoring.take() {
                    answer(restoring.request, Answer::Written(Err(error)), out);
                }
            }
            (Ok(()), None) => {}
        }
    }

    /// One more owner was made, or could not be.
    pub(super) fn restored_one(&mut self, world: &World<'_>, out: &mut Vec<ControlEffect>) {
        let Some(restoring) = self.restoring.as_mut().filter(|r| r.left > 0) else { return };
        restoring.left = restoring.left.saturating_sub(1);
        let (done, total) = (restoring.total.saturating_sub(restoring.left), restoring.total);
        if self.tables.stage != Stage::Leaving {
            self.tables.stage = Stage::Restoring { done, total };
        }
        self.restored_owners(world, out);
    }

    /// All have their owners: do what is left to do for each job.
    fn restored_owners(&mut self, world: &World<'_>, out: &mut Vec<ControlEffect>) {
        let Some(restoring) = self.restoring.as_ref().filter(|r| r.written && r.left == 0) else {
            return;
        };
        for job in restoring.jobs.clone() {
            if self.turns.is_free(&job) {
                self.take_turn(world, job, Waiting::fill(), out);
            }
        }
        self.restored(world, out);
    }

    /// The turn of a job is free.
    pub(super) fn turn_ended(
        &mut self,
        world: &World<'_>,
        job: &JobId,
        out: &mut Vec<ControlEffect>,
    ) {
        if let Some(restoring) = &mut self.restoring {
            restoring.jobs.remove(job);
            self.restored(world, out);
        }
        self.turn_ended_while_leaving(out);
    }

    fn restored(&mut self, world: &World<'_>, out: &mut Vec<ControlEffect>) {
        let ended = |r: &mut Restoring| r.written && r.left == 0 && r.jobs.is_empty();
        if let Some(restoring) = self.restoring.take_if(ended) {
            let all = self.tables.ids();
            self.remove_all_purged(&all, out);
            // Places that do not fit now are looked at again.
            self.wake(world);
            answer(restoring.request, Answer::Written(Ok(())), out);
        }
    }
}

/// Earlier versions and deployments of the jobs that are there; those of a job of the same name that was purged
/// are none of theirs.
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

//! Allocations of earlier agents get their owners back.
//!
//! ```text
//!  state file ─► Found: jobs, allocations, their tasks
//!    │ no readable Alloc record ───────────► records removed; what lives is held back (`held`)
//!    │ to run, and its job is not on record ► (a run of `ostler run` that crashed) killed and closed
//!    ▼ the rest is kept:
//!  admission adopts what is not over ─► owners ─► every job: what is missing is placed
//! ```
//! A record that does not decode is put aside and told; it stops nothing. An embedded agent restores
//! nothing: it lets the kept allocations be, counts what they hold as lent, and ends the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

use super::change::Asked;
use super::held::decide::{KnownAlloc, KnownTask};
use super::rebooted::Tasks;
use super::registry::Registry;
use super::views::Stage;
use super::{AgentHandle, leftovers};
use ostler_device::ledger::DeviceLedger;
use ostler_lifecycle::alloc::RestoredAlloc;
use ostler_lifecycle::task::handle::{LocalState, RunRecord};
use ostler_lifecycle::task::restart::RestartTracker;
use ostler_model::alloc::{Allocation, DesiredStatus};
use ostler_model::ids::{AllocId, JobId, RunId, TaskName};
use ostler_model::saved::{DeploymentStatus, EndedPlaces, JobRecord, SavedAllocState};
use ostler_model::task::{TaskState, TaskStatus};
use ostler_model::time::Timestamp;
use ostler_state::Record;
use ostler_state::keys::EndedBlock;
use ostler_state::{Key, Prefix, Quarantined, StateError, StateStore};

/// Everything about jobs and allocations that an earlier agent left.
#[derive(Default)]
pub(super) struct Found {
    jobs: BTreeMap<JobId, Arc<JobRecord>>,
    /// Places whose allocations were over when they were collected.
    ended: Vec<(EndedBlock, EndedPlaces)>,
    allocs: BTreeMap<AllocId, FoundAlloc>,
    /// Who held which device; absent where it is not readable or was never written.
    ledger: Option<DeviceLedger>,
    /// Records that do not decode.
    bad: Vec<Key>,
    /// Jobs whose records were made from their allocations.
    rebuilt: Vec<JobId>,
    /// What the operator should hear.
    notices: Vec<String>,
    /// Exit records of runs that are not here belong to nobody, but for those of these processes
    /// (pid, start time). Absent: any may be of interest.
    pub(super) sweep: Option<Vec<(u32, u64)>>,
}

/// An allocation, what its tasks were at, and whether it is over.
type KeptAlloc = (Arc<Allocation>, RestoredAlloc, bool);

#[derive(Default)]
struct FoundAlloc {
    allocation: Option<Arc<Allocation>>,
    restored: RestoredAlloc,
}

impl FoundAlloc {
    fn over(&self) -> bool {
        self.restored.saved.as_ref().is_some_and(|saved| saved.finished)
    }

    /// An agent with jobs ran it: tasks of an embedded one have no supervisors.
    fn supervised(&self) -> bool {
        let runs =
            self.restored.tasks.values().filter_map(|task| task.local.as_ref()?.run.as_ref());
        runs.flat_map(|run| &run.identities).any(|identity| identity.supervisor.is_some())
    }

    fn known_task(&self, name: &TaskName, lacks: bool) -> KnownTask {
        let Some(task) = self.restored.tasks.get(name) else { return KnownTask::default() };
        let dead = task.state.as_ref().is_some_and(|state| state.status == TaskStatus::Dead);
        let complete = task.local.as_ref().is_some_and(|local| local.run_complete);
        let run = task.local.as_ref().and_then(|local| local.run.clone());
        KnownTask { run, over: (dead || complete) && !lacks }
    }
}

impl Found {
    /// Read all of it. Changes nothing.
    ///
    /// # Errors
    /// When the state file cannot be read at all.
    pub(super) fn read(state: &StateStore) -> Result<Self, StateError> {
        let mut found = Self::default();
        for record in state.scan(&Prefix::Jobs)? {
            match record.key.clone() {
                Key::Job(id) => {
                    let job = found.decoded(&record).map(Arc::new);
                    found.jobs.extend(job.map(|job| (id, job)));
                }
                Key::EndedPlaces(block) => {
                    let places = found.decoded(&record);
                    found.ended.extend(places.map(|places| (*block, places)));
                }
                _ => {}
            }
        }
        for record in state.scan(&Prefix::Allocs)? {
            found.take(&record);
        }
        found.keep_jobs_of_lost_records(&state.opened().quarantined);
        found.reopen_what_may_run();
        found.ledger = match state.get(&Key::DeviceLedger) {
            Ok(ledger) => ledger,
            Err(error @ StateError::Record { .. }) => {
                tracing::warn!(%error, "device ledger not readable, written anew");
                None
            }
            Err(error) => return Err(error),
        };
        Ok(found)
    }

    /// A finished allocation with a run on record is not over: an agent before this one could not end
    /// its processes. It gets an owner, which ends them by what identifies them.
    fn reopen_what_may_run(&mut self) {
        for (id, found) in &mut self.allocs {
            let runs = found.restored.tasks.values().any(|task| {
                let run = task.local.as_ref().and_then(|local| local.run.as_ref());
                run.is_some_and(|run| !run.identities.is_empty())
            });
            if let Some(saved) = found.restored.saved.as_mut().filter(|s| s.finished && runs) {
                tracing::warn!(alloc = %id, "a finished allocation has a run on record; what is left of it is ended");
                saved.finished = false;
            }
        }
    }

    fn decoded<T: DeserializeOwned>(&mut self, record: &Record) -> Option<T> {
        match record.decode() {
            Ok(value) => Some(value),
            Err(error) => {
                tracing::error!(%error, "a record is put aside");
                self.notices.push(format!("state record {} was put aside: {error}", record.key));
                self.bad.push(record.key.clone());
                None
            }
        }
    }

    fn take(&mut self, record: &Record) {
        let Some(id) = record.key.alloc() else { return };
        self.allocs.entry(id).or_default();
        match record.key.clone() {
            Key::Alloc(_) => {
                let alloc: Option<Allocation> = self.decoded(record);
                self.of(id).allocation = alloc.map(Arc::new);
            }
            Key::AllocState(_) => {
                let saved: Option<SavedAllocState> = self.decoded(record);
                self.of(id).restored.saved = saved;
            }
            Key::DeploymentStatus(_) => {
                let health: Option<DeploymentStatus> = self.decoded(record);
                self.of(id).restored.health = health;
            }
            Key::TaskState(_, task) => {
                let state: Option<TaskState> = self.decoded(record);
                self.of(id).restored.tasks.entry(task).or_default().state = state;
            }
            Key::TaskLocal(_, task) => {
                let local: Option<LocalState> = self.decoded(record);
                let restored = &mut self.of(id).restored;
                if local.is_none() {
                    // Which processes it has is not known: it cannot be owned again.
                    restored.trouble = Some(format!("the record of task {task} could not be read"));
                }
                restored.tasks.entry(task).or_default().local = local;
            }
            _ => {}
        }
    }

    fn of(&mut self, id: AllocId) -> &mut FoundAlloc {
        self.allocs.entry(id).or_default()
    }

    /// A job whose record is damaged is known from its allocations: they run on.
    /// Likewise one whose record is not there, of an allocation that was run by an agent with jobs.
    /// `put_aside`: records that were found damaged when the file was opened.
    fn keep_jobs_of_lost_records(&mut self, put_aside: &[Quarantined]) {
        let put_aside = put_aside.iter().filter_map(|bad| bad.key.parse::<Key>().ok());
        let bad = self.bad.iter().cloned().chain(put_aside).filter_map(|key| match key {
            Key::Job(id) => Some(id),
            _ => None,
        });
        let served = self.allocs.values().filter(|found| found.supervised());
        let served = served.filter_map(|found| Some(found.allocation.as_ref()?.job.id.clone()));
        let lost: BTreeSet<JobId> =
            bad.chain(served).filter(|id| !self.jobs.contains_key(id)).collect();
        for id in lost {
            let of_job = self.allocs.values().filter_map(|found| found.allocation.as_ref());
            let newest = of_job
                .filter(|alloc| alloc.job.id == id && alloc.desired == DesiredStatus::Run)
                .max_by_key(|alloc| (alloc.job_version, alloc.modify_index));
            let Some(newest) = newest else { continue };
            // Or the places that are over would be those of another job.
            let ended = self.ended.iter().filter(|(block, ended)| {
                block.job == id
                    && ended.version == newest.job_version
                    && ended.create_index <= newest.create_index
            });
            let create_index = ended.map(|(_, ended)| ended.create_index).max().unwrap_or(0);
            let record = JobRecord {
                job: Arc::clone(&newest.job),
                version: newest.job_version,
                submitted_at: newest.created_at,
                create_index,
                modify_index: newest.modify_index,
                job_modify_index: newest.modify_index,
                stopped: false,
                origin: ostler_model::saved::JobOrigin::default(),
            };
            self.notices.push(format!(
                "job {id} is known from its allocations: its own record is lost, and with it what \
                 was changed after they were placed"
            ));
            self.rebuilt.push(id.clone());
            self.jobs.insert(id, Arc::new(record));
        }
    }

    /// Allocations with a record of any kind, readable or not.
    pub(super) fn recorded(&self) -> BTreeSet<AllocId> {
        self.allocs.keys().copied().collect()
    }

    /// Allocations that an agent with jobs is to own: the rest is what crashed.
    pub(super) fn kept(&self) -> BTreeSet<AllocId> {
        let kept = self.allocs.iter().filter(|(_, found)| {
            found.allocation.as_ref().is_some_and(|alloc| {
                alloc.desired == DesiredStatus::Stop
                    || self.jobs.contains_key(&alloc.job.id)
                    || found.over()
            })
        });
        kept.map(|(id, _)| *id).collect()
    }

    /// What is on record, to compare runs with that are found alive. Of a file that `lacks` something
    /// no end is believed.
    pub(super) fn known(&self, lacks: bool) -> BTreeMap<AllocId, KnownAlloc> {
        let kept = self.kept();
        let known = self.allocs.iter().map(|(id, found)| {
            let group = found.allocation.as_ref().and_then(|alloc| alloc.task_group());
            let names = group.into_iter().flat_map(|group| &group.tasks).map(|task| &task.name);
            let tasks = names.map(|name| (name.clone(), found.known_task(name, lacks))).collect();
            (*id, KnownAlloc { owned: kept.contains(id) && !found.over(), tasks })
        });
        known.collect()
    }

    /// A run that lives is the one of its task.
    pub(super) fn adopt_run(
        &mut self,
        alloc: AllocId,
        task: &TaskName,
        run: RunRecord,
        now: Timestamp,
    ) {
        let unreadable = |key: &Key| matches!(key, Key::TaskLocal(id, _) if *id == alloc);
        let this_one = Key::TaskLocal(alloc, task.clone());
        let others_bad = self.bad.iter().any(|key| unreadable(key) && *key != this_one);
        let Some(found) = self.allocs.get_mut(&alloc) else { return };
        if !others_bad {
            found.restored.trouble = None;
        }
        let restored = found.restored.tasks.entry(task.clone()).or_default();
        let local = restored.local.get_or_insert_with(|| LocalState {
            run: None,
            tracker: RestartTracker::new(now),
            run_complete: false,
            delayed_until: None,
        });
        local.run = Some(run);
        // What was decided of an earlier run is over.
        (local.run_complete, local.delayed_until) = (false, None);
        if let Some(state) =
            restored.state.as_mut().filter(|state| state.status == TaskStatus::Dead)
        {
            state.status = TaskStatus::Running;
            state.failed = false;
            state.finished_at = None;
        }
    }

    /// Allocations that an agent with jobs is to run on, with what is recorded of their tasks.
    pub(super) fn going_on(&mut self) -> impl Iterator<Item = (&Allocation, &mut Tasks)> {
        let kept = self.kept();
        self.allocs.iter_mut().filter_map(move |(id, found)| {
            let goes_on = kept.contains(id) && !found.over() && found.restored.trouble.is_none();
            let alloc = found.allocation.as_deref().filter(|_| goes_on)?;
            Some((alloc, &mut found.restored.tasks))
        })
    }

    /// Every run that may have an exit worth reading: one without a process on record was never
    /// let go.
    fn runs(&self) -> Vec<RunId> {
        let tasks = self.allocs.values().flat_map(|found| found.restored.tasks.values());
        let runs = tasks.filter_map(|task| task.local.as_ref()?.run.as_ref());
        runs.filter(|run| !run.identities.is_empty()).map(|run| run.id.clone()).collect()
    }

    /// The highest index on record.
    fn index(&self) -> u64 {
        let jobs = self.jobs.values().map(|record| record.modify_index);
        let allocs = self.allocs.values().filter_map(|found| found.allocation.as_ref());
        jobs.chain(allocs.map(|alloc| alloc.modify_index)).max().unwrap_or_default()
    }

    /// Records of places of jobs or versions that are no more.
    fn stale_places(&self) -> impl Iterator<Item = Key> {
        let stale = self.ended.iter().filter(|(block, places)| {
            self.jobs.get(&block.job).is_none_or(|record| {
                (record.create_index, record.version) != (places.create_index, places.version)
            })
        });
        stale.map(|(block, _)| Key::EndedPlaces(Box::new(block.clone())))
    }

    /// A registry that begins above everything here.
    pub(super) fn registry(&self, now: Timestamp) -> Registry {
        Registry::new(self.index(), now)
    }

    /// What the operator should hear; empty afterwards.
    pub(super) fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// Kept allocations, oldest first, so that each comes after the one whose place it takes.
    fn kept_allocs(mut self) -> Vec<KeptAlloc> {
        let kept = self.kept();
        self.allocs.retain(|id, _| kept.contains(id));
        let mut allocs: Vec<_> = self
            .allocs
            .into_values()
            .filter_map(|found| {
                let over = found.over();
                Some((found.allocation?, found.restored, over))
            })
            .collect();
        allocs.sort_by_key(|(alloc, ..)| (alloc.create_index, alloc.created_at, alloc.id));
        allocs
    }
}

/// End what nobody is to own again, and put bad records aside. What was done, as sentences.
///
/// # Errors
/// When the state cannot be read or written.
pub(super) async fn clear(
    state: &StateStore,
    found: &Found,
    embedded: bool,
    now: Timestamp,
) -> Result<Vec<String>, StateError> {
    let leftovers::Cleared { said, unended } = leftovers::clear(state, &found.kept(), now).await?;
    if embedded {
        // Another agent's, which may understand them.
        return Ok(said);
    }
    let mut writes = JoinSet::new();
    for key in found.bad.clone() {
        let state = state.clone();
        writes.spawn(async move { state.quarantine(&key).await });
    }
    while let Some(written) = writes.join_next().await {
        written.unwrap_or(Ok(()))?;
    }
    for key in found.stale_places() {
        let state = state.clone();
        writes.spawn(async move { state.delete(&key).await });
    }
    let half = found.allocs.iter().filter(|(_, found)| found.allocation.is_none());
    // The records of what could not be ended are what a later start ends it by.
    for (id, half) in half.filter(|(id, _)| !unended.contains(id)) {
        let (id, state, tasks) = (*id, state.clone(), half.restored.tasks.len());
        tracing::warn!(alloc = %id, tasks, "allocation without its own record removed");
        writes.spawn(async move { state.destroy_alloc(id).await });
    }
    while let Some(written) = writes.join_next().await {
        written.unwrap_or(Ok(()))?;
    }
    Ok(said)
}

impl AgentHandle {
    /// Count what the kept allocations hold as lent, without owning them.
    pub(super) async fn adopt(&self, mut found: Found) -> Result<(), StateError> {
        let (ledger, kept) = (found.ledger.take(), found.kept());
        self.adopt_live(&found.kept_allocs(), ledger.as_ref(), false);
        if let Some(ledger) = &ledger {
            let live = self.admission().allocs();
            // Those of an agent that serves are its own to release.
            self.restore_owed(ledger, &live, |alloc| !kept.contains(&alloc));
        }
        self.queue_ledger().await
    }

    /// Enter what the allocations that are not over hold.
    fn adopt_live(&self, allocs: &[KeptAlloc], ledger: Option<&DeviceLedger>, own: bool) {
        for (alloc, _, _) in allocs.iter().filter(|(.., over)| !over) {
            self.adopt_one(alloc);
            self.restore_devices(alloc, ledger, own);
        }
    }

    fn adopt_one(&self, alloc: &Allocation) {
        if let Err(error) = self.admission().adopt(alloc) {
            // It runs all the same: two that share something is what the records say.
            tracing::error!(alloc = %alloc.id, %error, "what the allocation holds is not entered");
        }
    }

    /// Give every kept allocation its owner, then do what is left to do for each job.
    ///
    /// # Errors
    /// When the state cannot be written.
    pub(super) async fn restore(&self, mut found: Found) -> Result<(), StateError> {
        let now = self.0.clock.now();
        // Before anything starts: a new run's record is of interest too.
        if let Some(live) = found.sweep.take() {
            self.sweep_exits(found.runs(), live).await;
        }
        // Whatever comes now is decided on all of it.
        let order = self.0.order.lock().await;
        for record in found.jobs.values() {
            self.registry().put_job(Arc::clone(record));
        }
        for id in &found.rebuilt {
            if let Some(record) = found.jobs.get(id) {
                self.0.state.put_later(&Key::Job(id.clone()), &**record).await?;
            }
        }
        for (block, places) in std::mem::take(&mut found.ended) {
            self.registry().restore_ended(&block.job, &block.group, places);
        }
        let jobs: Vec<JobId> = found.jobs.keys().cloned().collect();
        let ledger = found.ledger.take();
        let allocs = found.kept_allocs();
        // Before anything starts: an owner asks at once for what its task holds.
        self.adopt_live(&allocs, ledger.as_ref(), true);
        if let Some(ledger) = &ledger {
            let live = self.admission().allocs();
            self.restore_owed(ledger, &live, |_| true);
        }
        let total = allocs.len();
        for (done, (alloc, restored, _)) in allocs.into_iter().enumerate() {
            self.0.stage.send_replace(Stage::Restoring { done, total });
            // Those of a purged job are told to stop; others without a job were run embedded.
            let registered = alloc.desired == DesiredStatus::Stop
                || self.registry().jobs.contains_key(&alloc.job.id);
            if self.withhold(&alloc, &restored, registered) {
                self.registry().put_alloc(alloc, registered, now);
            } else {
                self.restore_one(alloc, restored, registered).await;
            }
        }
        drop(order);
        self.queue_ledger().await?;
        self.0.stage.send_replace(Stage::Restoring { done: total, total });
        self.fill_all(jobs).await;
        self.collect_purged(Registry::ids);
        Ok(())
    }

    /// Remove the exit records of runs that nobody knows.
    async fn sweep_exits(&self, known: Vec<RunId>, live: Vec<(u32, u64)>) {
        let processes = self.0.services.processes.clone();
        match tokio::task::spawn_blocking(move || processes.sweep(&known, &live)).await {
            Ok(Ok(0)) => {}
            Ok(Ok(removed)) => tracing::info!(removed, "exit records of unknown runs removed"),
            Ok(Err(error)) => tracing::warn!(%error, "exit records of unknown runs stay"),
            Err(error) => tracing::error!(%error, "exit records of unknown runs stay"),
        }
    }

    /// Do what is left to do for these jobs, side by side, so that they share commits.
    async fn fill_all(&self, jobs: Vec<JobId>) {
        let mut fills = JoinSet::new();
        for job in jobs {
            let agent = self.clone();
            fills.spawn(async move {
                if let Err(error) = agent.change(&job, Asked::Fill).await {
                    tracing::error!(%job, %error, "the job is not as it should be");
                }
            });
        }
        while fills.join_next().await.is_some() {}
    }

    async fn queue_ledger(&self) -> Result<(), StateError> {
        let _order = self.0.order.lock().await;
        self.put_ledger().await
    }
}

#[cfg(test)]
#[path = "restore_tests.rs"]
mod tests;

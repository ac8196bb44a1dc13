//! What an earlier agent left on record: jobs, allocations and their tasks.
//!
//! ```text
//!  state file ─► NodeRecords
//!    │ no readable Alloc record ───────────► not kept: its records go
//!    │ to run, and its job is not on record ► not kept: a run that ended with its agent
//!    ▼ the rest is kept and taken over, see [`crate::ControlHandle::restore`]
//! ```
//! A record that does not decode is put aside and reported. It stops nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::try_join_all;

mod future_times;
mod leftovers;
mod reboot;
mod registration;
mod runs;

pub use self::leftovers::EndLeftover;
pub use self::registration::register_node;
use super::machine::RestoredNode;
use ostler_device::ledger::DeviceLedger;
use ostler_lifecycle::alloc::RestoredAlloc;
use ostler_lifecycle::task::RestoredTask;
use ostler_lifecycle::task::handle::{LocalState, RunRecord};
use ostler_lifecycle::task::restart::RestartTracker;
use ostler_model::alloc::{Allocation, DesiredStatus};
use ostler_model::ids::{AllocId, GroupName, JobId, TaskName};
use ostler_model::job::Job;
use ostler_model::rollout::{JobDeployments, JobVersions};
use ostler_model::saved::{EndedPlaces, JobRecord, NodeRegistration};
use ostler_model::scheduling::{NodeEvent, NodeEventKind, NodeScheduling};
use ostler_model::task::TaskStatus;
use ostler_model::time::Timestamp;
use ostler_state::StoredRecord;
use ostler_state::keys::EndedBlock;
use ostler_state::records::{DeviceLedgerKey, NodeRegistrationKey, NodeSchedulingKey, Record};
use ostler_state::{KeyPrefix, RecordKey, StateError, StateStore};

/// The records of an allocation's tasks.
pub type Tasks = BTreeMap<TaskName, RestoredTask>;

/// What the state file says about an allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownAlloc {
    /// This agent gives it an owner, because it is to go on.
    pub owned: bool,
    /// Its job, group and index; absent where its own record is not readable.
    pub place: Option<(JobId, GroupName, u32)>,
    /// What is known of each of its tasks.
    pub tasks: BTreeMap<TaskName, KnownTask>,
}

/// What the state file says about a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownTask {
    /// The run on record, where there is one.
    pub run: Option<RunRecord>,
    /// The task ended for good, by a file that is not stale: a process of it that lives
    /// is being ended.
    pub ended: bool,
}

/// Everything about jobs and allocations that an earlier agent left.
#[derive(Default)]
pub struct NodeRecords {
    jobs: BTreeMap<JobId, Arc<JobRecord>>,
    /// Places whose allocations were over when they were collected.
    ended: Vec<(EndedBlock, EndedPlaces)>,
    versions: Vec<(JobId, JobVersions)>,
    deployments: Vec<(JobId, JobDeployments)>,
    allocs: BTreeMap<AllocId, AllocRecords>,
    /// Allocations that a server placed.
    assigned: BTreeSet<AllocId>,
    /// Shared jobs of allocations that differ from the job's record, by id and version.
    alloc_jobs: BTreeMap<(JobId, u64), Arc<Job>>,
    /// Who held which device; absent where it is not readable or was never written.
    ledger: Option<DeviceLedger>,
    /// Whether the node takes new allocations, and its drain.
    scheduling: NodeScheduling,
    /// Keys of records that do not decode.
    bad: Vec<RecordKey>,
    /// Jobs whose records were rebuilt from their allocations.
    rebuilt: Vec<JobId>,
    /// Sentences for the operator.
    notices: Vec<String>,
}

/// Treat a record that does not decode as missing: it is written anew.
///
/// # Errors
/// When the state cannot be read.
pub fn skip_unreadable<T>(read: Result<Option<T>, StateError>) -> Result<Option<T>, StateError> {
    match read {
        Err(error @ StateError::Record { .. }) => {
            tracing::warn!(%error, "record not readable, written anew");
            Ok(None)
        }
        other => other,
    }
}

/// An allocation, and what its owner needs to go on.
type KeptAlloc = (Arc<Allocation>, RestoredAlloc);

#[derive(Default)]
struct AllocRecords {
    allocation: Option<Arc<Allocation>>,
    restored: RestoredAlloc,
}

impl AllocRecords {
    fn has_ended(&self) -> bool {
        self.restored.saved.as_ref().is_some_and(|saved| saved.finished)
    }

    /// Did an agent with jobs run it? Tasks of an embedded agent have no supervisors.
    fn is_supervised(&self) -> bool {
        let runs =
            self.restored.tasks.values().filter_map(|task| task.local.as_ref()?.run.as_ref());
        runs.flat_map(|run| &run.identities).any(|identity| identity.supervisor.is_some())
    }

    fn known_task(&self, name: &TaskName, lacks: bool) -> KnownTask {
        let Some(task) = self.restored.tasks.get(name) else { return KnownTask::default() };
        let dead = task.state.as_ref().is_some_and(|state| state.status == TaskStatus::Dead);
        let complete = task.local.as_ref().is_some_and(|local| local.run_complete);
        let run = task.local.as_ref().and_then(|local| local.run.clone());
        KnownTask { run, ended: (dead || complete) && !lacks }
    }
}

impl NodeRecords {
    /// Read all records, and change nothing. What is recorded as later than `now` is taken as now.
    ///
    /// # Errors
    /// When the state file cannot be read at all.
    pub fn read(state: &StateStore, now: Timestamp) -> Result<Self, StateError> {
        let mut found = Self::default();
        for record in state.scan(&KeyPrefix::Jobs)? {
            match record.key.clone() {
                RecordKey::Job(id) => {
                    let job = found.decode_or_set_aside(&record).map(Arc::new);
                    found.jobs.extend(job.map(|job| (id, job)));
                }
                RecordKey::EndedPlaces(block) => {
                    let places = found.decode_or_set_aside(&record);
                    found.ended.extend(places.map(|places| (*block, places)));
                }
                RecordKey::JobVersions(id) => {
                    let known = found.decode_or_set_aside(&record);
                    found.versions.extend(known.map(|known| (id, known)));
                }
                RecordKey::JobDeployments(id) => {
                    let known = found.decode_or_set_aside(&record);
                    found.deployments.extend(known.map(|known| (id, known)));
                }
                _ => {}
            }
        }
        for record in state.scan(&KeyPrefix::Allocs)? {
            found.take_record(&record);
        }
        let put_aside: Vec<RecordKey> =
            state.open_report().quarantined.iter().filter_map(|bad| bad.key.parse().ok()).collect();
        found.assigned.extend(put_aside.iter().filter_map(|key| match key {
            RecordKey::AcknowledgedState(id) => Some(*id),
            _ => None,
        }));
        found.keep_jobs_of_lost_records(&put_aside);
        found.reopen_finished_allocs();
        found.ledger = skip_unreadable(state.get(&DeviceLedgerKey::of()))?;
        found.scheduling =
            skip_unreadable(state.get(&NodeSchedulingKey::of()))?.unwrap_or_default();
        if found.scheduling.events.is_empty() {
            let known = skip_unreadable(state.get::<NodeRegistration>(&NodeRegistrationKey::of()))?;
            let at = known.map(|known| known.registered_at);
            let event = |at| NodeEvent { at, index: 0, kind: NodeEventKind::Registered };
            found.scheduling.events.extend(at.map(event));
        }
        found.clamp_future_times(now);
        Ok(found)
    }

    /// Reopen finished allocations with a run on record: an earlier agent could not end their
    /// processes. Such an allocation gets an owner, which ends the processes by their identities.
    fn reopen_finished_allocs(&mut self) {
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

    fn decode_or_set_aside<T: Record>(&mut self, record: &StoredRecord) -> Option<T> {
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

    fn take_record(&mut self, record: &StoredRecord) {
        let Some(id) = record.key.alloc() else { return };
        self.allocs.entry(id).or_default();
        match record.key.clone() {
            RecordKey::Alloc(_) => {
                let known = self
                    .decode_or_set_aside(record)
                    .map(|alloc| Arc::new(self.with_shared_job(alloc)));
                self.alloc_records(id).allocation = known;
            }
            RecordKey::AllocState(_) => {
                self.alloc_records(id).restored.saved = self.decode_or_set_aside(record);
            }
            // That is also true of a record that does not decode: its state is told again.
            RecordKey::AcknowledgedState(_) => drop(self.assigned.insert(id)),
            RecordKey::DeploymentStatus(_) => {
                self.alloc_records(id).restored.health = self.decode_or_set_aside(record);
            }
            RecordKey::TaskState(_, task) => {
                let state = self.decode_or_set_aside(record);
                self.alloc_records(id).restored.tasks.entry(task).or_default().state = state;
            }
            RecordKey::TaskLocal(_, task) => {
                let local: Option<LocalState> = self.decode_or_set_aside(record);
                let restored = &mut self.alloc_records(id).restored;
                if local.is_none() {
                    // The processes of the task are not known, so nobody can own it again.
                    restored.trouble = Some(format!("the record of task {task} could not be read"));
                }
                restored.tasks.entry(task).or_default().local = local;
            }
            _ => {}
        }
    }

    /// Share the job of an allocation. Each record has a copy of the job, and one of equal copies
    /// is kept.
    fn with_shared_job(&mut self, mut alloc: Allocation) -> Allocation {
        let key = (alloc.job.id.clone(), alloc.job_version);
        let record = self.jobs.get(&key.0).filter(|record| record.version == key.1);
        if let Some(record) = record.filter(|record| record.job == alloc.job) {
            alloc.job = Arc::clone(&record.job);
            return alloc;
        }
        let known = self.alloc_jobs.entry(key).or_insert_with(|| Arc::clone(&alloc.job));
        if *known == alloc.job {
            alloc.job = Arc::clone(known);
        }
        alloc
    }

    fn alloc_records(&mut self, id: AllocId) -> &mut AllocRecords {
        self.allocs.entry(id).or_default()
    }

    /// Rebuild a job whose record is damaged from its allocations, which run on. The same is done
    /// for a job without a record, where an agent with jobs ran an allocation of it. `put_aside`:
    /// records that were found damaged when the file was opened.
    fn keep_jobs_of_lost_records(&mut self, put_aside: &[RecordKey]) {
        let bad = self.bad.iter().chain(put_aside).cloned().filter_map(|key| match key {
            RecordKey::Job(id) => Some(id),
            _ => None,
        });
        let of_jobs = || self.allocs.iter().filter(|(id, _)| !self.assigned.contains(id));
        let served = of_jobs().filter(|(_, found)| found.is_supervised());
        let served =
            served.filter_map(|(_, found)| Some(found.allocation.as_ref()?.job.id.clone()));
        let lost: BTreeSet<JobId> =
            bad.chain(served).filter(|id| !self.jobs.contains_key(id)).collect();
        for id in lost {
            let of_job = self.allocs.iter().filter(|(id, _)| !self.assigned.contains(id));
            let of_job = of_job.filter_map(|(_, found)| found.allocation.as_ref());
            let newest = of_job
                .filter(|alloc| alloc.job.id == id && alloc.desired == DesiredStatus::Run)
                .max_by_key(|alloc| (alloc.job_version, alloc.modify_index));
            let Some(newest) = newest else { continue };
            // The index must fit the records of ended places. Otherwise those would count as places
            // of another job.
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
                stable: false,
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
    pub fn recorded_ids(&self) -> BTreeSet<AllocId> {
        self.allocs.keys().copied().collect()
    }

    /// Allocations that an agent with jobs is to own. The rest is left over from a crash.
    pub fn kept_ids(&self) -> BTreeSet<AllocId> {
        let kept = self.allocs.iter().filter(|(id, found)| {
            found.allocation.as_ref().is_some_and(|alloc| {
                alloc.desired == DesiredStatus::Stop
                    || self.assigned.contains(id)
                    || self.jobs.contains_key(&alloc.job.id)
                    || found.has_ended()
            })
        });
        kept.map(|(id, _)| *id).collect()
    }

    /// What is on record, for a comparison with the runs that are found alive. Where the file
    /// `lacks` something, no end is taken for certain.
    pub fn known_allocs(&self, lacks: bool) -> BTreeMap<AllocId, KnownAlloc> {
        let kept = self.kept_ids();
        let known = self.allocs.iter().map(|(id, found)| {
            let group = found.allocation.as_ref().and_then(|alloc| alloc.task_group());
            let names = group.into_iter().flat_map(|group| &group.tasks).map(|task| &task.name);
            let tasks = names.map(|name| (name.clone(), found.known_task(name, lacks))).collect();
            let place =
                |alloc: &Arc<Allocation>| (alloc.job.id.clone(), alloc.group.clone(), alloc.index);
            let place = found.allocation.as_ref().map(place);
            (*id, KnownAlloc { owned: kept.contains(id) && !found.has_ended(), place, tasks })
        });
        known.collect()
    }

    /// Record that a run which lives is the one of its task.
    pub fn adopt_run(&mut self, alloc: AllocId, task: &TaskName, run: RunRecord, now: Timestamp) {
        let unreadable =
            |key: &RecordKey| matches!(key, RecordKey::TaskLocal(id, _) if *id == alloc);
        let this_one = RecordKey::TaskLocal(alloc, task.clone());
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
        // What was decided for an earlier run does not hold for this one.
        (local.run_complete, local.delayed_until) = (false, None);
        if let Some(state) =
            restored.state.as_mut().filter(|state| state.status == TaskStatus::Dead)
        {
            state.status = TaskStatus::Running;
            state.failed = false;
            state.finished_at = None;
        }
    }

    /// Allocations that an agent with jobs is to run on, with the records of their tasks.
    pub fn continuing_allocs(&mut self) -> impl Iterator<Item = (&Allocation, &mut Tasks)> {
        let kept = self.kept_ids();
        self.allocs.iter_mut().filter_map(move |(id, found)| {
            let goes_on =
                kept.contains(id) && !found.has_ended() && found.restored.trouble.is_none();
            let alloc = found.allocation.as_deref().filter(|_| goes_on)?;
            Some((alloc, &mut found.restored.tasks))
        })
    }

    /// The highest index on record.
    pub fn index(&self) -> u64 {
        let jobs = self.jobs.values().map(|record| record.modify_index);
        let allocs = self.allocs.values().filter_map(|found| found.allocation.as_ref());
        let deployments = self.deployments.iter().flat_map(|(_, known)| &known.all);
        jobs.chain(allocs.map(|alloc| alloc.modify_index))
            .chain(deployments.map(|deployment| deployment.modify_index))
            .chain([self.scheduling.modify_index])
            .max()
            .unwrap_or_default()
    }

    /// Versions and deployments of jobs that do not exist any more.
    fn stale_histories(&self) -> impl Iterator<Item = RecordKey> {
        let stale = |id: &JobId, create_index: u64| {
            self.jobs.get(id).is_none_or(|record| record.create_index != create_index)
        };
        let versions = self.versions.iter().filter(move |(id, k)| stale(id, k.create_index));
        let deployments = self.deployments.iter().filter(move |(id, k)| stale(id, k.create_index));
        let versions = versions.map(|(id, _)| RecordKey::JobVersions(id.clone()));
        versions.chain(deployments.map(|(id, _)| RecordKey::JobDeployments(id.clone())))
    }

    /// Records of places of jobs or versions that do not exist any more.
    fn stale_places(&self) -> impl Iterator<Item = RecordKey> {
        let stale = self.ended.iter().filter(|(block, places)| {
            self.jobs.get(&block.job).is_none_or(|record| {
                (record.create_index, record.version) != (places.create_index, places.version)
            })
        });
        stale.map(|(block, _)| RecordKey::EndedPlaces(Box::new(block.clone())))
    }

    /// Take the sentences for the operator.
    pub fn take_notices(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notices)
    }

    /// Kept allocations, oldest first, so that each comes after the earlier one of its place.
    fn kept_allocs(mut self) -> Vec<KeptAlloc> {
        let kept = self.kept_ids();
        self.allocs.retain(|id, _| kept.contains(id));
        let mut allocs: Vec<_> = self
            .allocs
            .into_values()
            .filter_map(|found| Some((found.allocation?, found.restored)))
            .collect();
        allocs.sort_by_key(|(alloc, _)| (alloc.create_index, alloc.created_at, alloc.id));
        allocs
    }
}

impl NodeRecords {
    /// Close what nobody is to own again, with the processes that `end` ends, and put bad records
    /// aside. Returns what was done, as sentences.
    ///
    /// # Errors
    /// When the state cannot be read or written.
    pub async fn clear(
        &self,
        state: &StateStore,
        embedded: bool,
        now: Timestamp,
        end: EndLeftover<'_>,
    ) -> Result<Vec<String>, StateError> {
        let cleared = leftovers::clear_leftovers(state, &self.kept_ids(), now, end).await?;
        // Records of another agent, which may understand them, are left to it. The records of what
        // could not be ended are needed by a later start to end it.
        if !embedded {
            self.tidy(state, &cleared.unended).await?;
        }
        Ok(cleared.said)
    }

    /// Put bad records aside, and remove records of places and allocations that do not exist any
    /// more, except those of the allocations in `keep`.
    async fn tidy(&self, state: &StateStore, keep: &BTreeSet<AllocId>) -> Result<(), StateError> {
        try_join_all(self.bad.iter().map(|key| state.quarantine(key))).await?;
        let stale: Vec<RecordKey> = self.stale_places().chain(self.stale_histories()).collect();
        try_join_all(stale.iter().map(|key| state.delete(key))).await?;
        let half = self.allocs.iter().filter(|(_, records)| records.allocation.is_none());
        let half = half.filter(|(id, _)| !keep.contains(id)).map(|(id, records)| {
            let tasks = records.restored.tasks.len();
            tracing::warn!(alloc = %id, tasks, "allocation without its own record removed");
            state.destroy_alloc(*id)
        });
        try_join_all(half).await.map(drop)
    }

    /// What is to be taken over, and what the owners of allocations need for it. `own`: the
    /// allocations are this agent's to run.
    #[must_use]
    pub fn into_restored(mut self, own: bool) -> (RestoredNode, BTreeMap<AllocId, RestoredAlloc>) {
        let mut restored = RestoredNode {
            jobs: self.jobs.values().cloned().collect(),
            rebuilt: self.rebuilt.iter().cloned().collect(),
            assigned: self.assigned.clone(),
            ended: std::mem::take(&mut self.ended),
            versions: std::mem::take(&mut self.versions),
            deployments: std::mem::take(&mut self.deployments),
            ledger: self.ledger.take(),
            scheduling: std::mem::take(&mut self.scheduling),
            own,
            ..RestoredNode::default()
        };
        let mut owners = BTreeMap::new();
        for (alloc, of_owner) in self.kept_allocs() {
            let (id, saved) = (alloc.id, of_owner.saved.clone());
            restored.allocs.push((alloc, saved));
            owners.insert(id, of_owner);
        }
        (restored, owners)
    }
}

#[cfg(test)]
mod clear_tests;
#[cfg(test)]
mod tests;

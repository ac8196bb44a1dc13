//! What is to be done so that a job runs as it says. Pure.
//!
//! ```text
//!                             place (group, index) of the job
//!   the newest allocation of the place that is not told to stop (one of a later version is newer than any of
//!   an earlier one: see `rank`):
//!     none                          ─► Place, after the newest one of the place; with the attempts that were
//!                                      made, where that one was stopped for a successor that never came to be
//!     none, this version was there  ─► nothing          (it ended and was collected)
//!     of this version               ─► Ignore           (also when it is complete: it is not run again)
//!     of this version, failed       ─► as its reschedule policy says: later, Stop and Place, or Ignore
//!     older, ended                  ─► Place, after the newest one of the place
//!     older, runs, same but rules   ─► Update
//!     older, runs, differs          ─► Stop and Place, after the newest one of the place
//!   places the job does not have, a stopped job: what runs ─► Stop
//! ```
//! Of a job that is deployed step by step only so many are stopped and placed as its policy and the
//! health of the new ones allow; what is left of the older version lives on by its own rules (`places`).
//!
//! Level-triggered: it looks at what is, not at what happened, so that it can be asked again at any
//! time, and after a crash. When everything it said was done, it says [`PlaceAction::Ignore`] only, and
//! goes on saying so when allocations that are over are collected: [`Ended`] remembers their places.

mod places;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::ended::Ended;
use ostler_model::alloc::{Allocation, ClientStatus};
use ostler_model::held_once::HeldOnce;
use ostler_model::ids::{AllocId, GroupName};
use ostler_model::job::{Job, LogConfig, NetworkSpec, RestartMode, RestartPolicy, Task, TaskGroup};
use ostler_model::placement::Placement;
use ostler_model::rollout::{Deployment, RescheduleEvent, ReschedulePolicy};
use ostler_model::saved::JobRecord;
use ostler_model::time::Timestamp;

/// Why an allocation is stopped, as people read it.
pub mod reason {
    /// The job was stopped.
    pub const JOB_STOPPED: &str = "alloc not needed as job is stopped";
    /// Its group is gone, or its index is beyond the count.
    pub const NOT_NEEDED: &str = "alloc not needed due to job update";
    /// A new one with the job's changes takes its place.
    pub const REPLACED: &str = "alloc is being updated due to job update";
    /// The node is being emptied.
    pub const MIGRATED: &str = "alloc is being migrated";
    /// It failed, and its successor takes its place.
    pub const RESCHEDULED: &str = "alloc was rescheduled because it failed";
    /// A newer one has the same place.
    pub const DOUBLE: &str = "another allocation has the same place";
}

/// A job as it is to be.
#[derive(Clone, Copy, Debug)]
pub struct WantedJob<'a> {
    /// Its newest version.
    pub job: &'a Job,
    /// The number of that version.
    pub version: u64,
    /// Index at which the job first came: older allocations are those of a purged job of its name.
    pub create_index: u64,
    /// Nothing of it is to run.
    pub stopped: bool,
    /// Places that were filled with this version and are over.
    pub ended: Option<&'a Ended>,
    /// Time of day.
    pub now: Timestamp,
    /// It outlives what fails of it, and changes step by step: a run that ends with its agent does not.
    pub lives_on: bool,
    /// The deployment of this version.
    pub deployment: Option<&'a Deployment>,
    /// What failed gets its successor now, whatever its policy says.
    pub forced: bool,
}

/// A version of a job, and the index at which the job came; of an allocation that at which it was placed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VersionAt {
    pub(crate) version: u64,
    pub(crate) create_index: u64,
}

/// Of several allocations of one place that of the highest rank came last: those of a later version of the job
/// come after those of an earlier one, whenever they were placed. While canaries run beside what they may
/// replace, that gets successors of its own version, which do not come after canaries that are accepted then.
/// Versions later than the present one were taken back, and count as that.
pub(crate) fn rank(alloc: VersionAt, present: VersionAt) -> (bool, u64, u64) {
    let VersionAt { version, create_index } = alloc;
    let of_job = create_index >= present.create_index;
    let version = if of_job { version.min(present.version) } else { 0 };
    (of_job, version, create_index)
}

impl From<&Allocation> for VersionAt {
    fn from(alloc: &Allocation) -> Self {
        Self { version: alloc.job_version, create_index: alloc.create_index }
    }
}

impl From<&JobRecord> for VersionAt {
    fn from(record: &JobRecord) -> Self {
        Self { version: record.version, create_index: record.create_index }
    }
}

impl WantedJob<'_> {
    fn has_ended(&self, group: &GroupName, index: u32) -> bool {
        self.ended.is_some_and(|ended| ended.has(group, index))
    }
}

/// An allocation of the job as it is.
#[derive(Clone, Copy, Debug)]
pub struct Existing<'a> {
    /// Its id.
    pub id: AllocId,
    /// The job as it was placed or updated to last.
    pub job: &'a Job,
    /// Its group.
    pub group: &'a GroupName,
    /// Its index in the group.
    pub index: u32,
    /// Version of `job`.
    pub version: u64,
    /// Index at which it was placed.
    pub create_index: u64,
    /// It is told to stop.
    pub stopping: bool,
    /// And that because it failed and another one follows it.
    pub followed: bool,
    /// When it was placed.
    pub created_at: Timestamp,
    /// What became of it.
    pub status: ClientStatus,
    /// When its last task ended, where all have.
    pub ended_at: Timestamp,
    /// It is over as a whole: nothing of it is on its way out.
    pub over: bool,
    /// Those before it in its place that had failed.
    pub before: &'a [RescheduleEvent],
    /// One of the first of its version, and nobody has accepted those yet.
    pub canary: bool,
    /// It belongs to [`WantedJob::deployment`].
    pub deployed: bool,
    /// The verdict on its health.
    pub healthy: Option<bool>,
}

impl Existing<'_> {
    fn is_of(&self, wanted: &WantedJob<'_>) -> bool {
        self.version == wanted.version && self.create_index >= wanted.create_index
    }

    /// It was placed for a version that is not there any more: its update was taken back, and an agent was
    /// killed before this one was gone.
    fn was_taken_back(&self, wanted: &WantedJob<'_>) -> bool {
        self.version > wanted.version && self.create_index >= wanted.create_index
    }

    fn rank(&self, wanted: &WantedJob<'_>) -> ((bool, u64, u64), AllocId) {
        let present = VersionAt { version: wanted.version, create_index: wanted.create_index };
        let alloc = VersionAt { version: self.version, create_index: self.create_index };
        (rank(alloc, present), self.id)
    }

    /// It failed, and is told to stop for the one that follows it.
    fn is_followed(&self) -> bool {
        self.stopping && self.followed && self.status == ClientStatus::Failed
    }
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlaceAction {
    /// Make an allocation.
    Place {
        /// Of this group.
        group: GroupName,
        /// With this index.
        index: u32,
        /// In the place of this one, which it waits for and whose data it gets.
        previous: Option<AllocId>,
        /// One that runs now is stopped for this one.
        replaces: bool,
        /// What else there is to say of it.
        how: How,
    },
    /// Give it the new version of the job; its tasks run on.
    Update(AllocId),
    /// Stop it.
    Stop {
        /// The allocation.
        alloc: AllocId,
        /// One of [`reason`].
        reason: &'static str,
    },
    /// Nothing.
    Ignore(AllocId),
}

/// What is special about an allocation that is to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct How {
    /// Those before it in its place that had failed.
    pub reschedules: Vec<RescheduleEvent>,
    /// It runs beside what it may replace.
    pub canary: bool,
    /// It is of the job's version that this one is of; absent: of the wanted one.
    pub like: Option<AllocId>,
}

/// How far the groups of a job are from what it says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupProgress {
    /// Something of it is of an older version and changes, now or later.
    pub updates: bool,
    /// Something of it is placed.
    pub places: bool,
    /// Something of the wanted version was there before.
    pub known: bool,
    /// Canaries are to come first.
    pub wants_canaries: bool,
    /// Every place has an allocation of the wanted version that is healthy where that is asked, and
    /// nothing is left to do.
    pub done: bool,
}

/// What is to be done, now and later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reconciled {
    /// Now.
    pub actions: Vec<PlaceAction>,
    /// Allocations that failed, and when each gets its successor.
    pub later: BTreeMap<AllocId, Timestamp>,
    /// When there is more to do, where time decides.
    pub next: Option<Timestamp>,
    /// How far each group is.
    pub groups: BTreeMap<GroupName, GroupProgress>,
    /// Those of an older version that run on for now, and are replaced or stopped in a later step.
    pub behind: BTreeSet<AllocId>,
}

/// See the module. Stops come first, highest indexes before lower ones, then updates, then
/// placements in the order of the job file.
#[must_use]
pub fn reconcile<'a>(wanted: &WantedJob<'a>, existing: &[Existing<'a>]) -> Reconciled {
    places::all(wanted, existing)
}

#[derive(Default)]
struct Actions {
    stops: Vec<(u32, PlaceAction)>,
    updates: Vec<PlaceAction>,
    places: Vec<PlaceAction>,
    ignored: Vec<PlaceAction>,
}

impl Actions {
    fn stop(&mut self, alloc: &Existing<'_>, reason: &'static str) {
        self.stops.push((alloc.index, PlaceAction::Stop { alloc: alloc.id, reason }));
    }

    /// Stop it if it runs and does not know yet.
    fn end(&mut self, alloc: &Existing<'_>, reason: &'static str) {
        if alloc.stopping || alloc.status.terminal() {
            self.ignored.push(PlaceAction::Ignore(alloc.id));
        } else {
            self.stop(alloc, reason);
        }
    }

    fn in_order(mut self) -> Vec<PlaceAction> {
        self.stops.sort_by_key(|(index, _)| std::cmp::Reverse(*index));
        let stops = self.stops.into_iter().map(|(_, action)| action);
        stops.chain(self.updates).chain(self.places).chain(self.ignored).collect()
    }
}

/// Must an allocation of this group be made anew to get from `old` to `new`? What only says how
/// its tasks are watched, stopped, restarted or judged does not count: owners read that when they
/// use it.
#[must_use]
pub fn is_destructive(old: &Job, new: &Job, group: &GroupName) -> bool {
    let (Some(before), Some(after)) = (old.group(group), new.group(group)) else {
        return true;
    };
    // `${job.…}`, the environment and what an exit means.
    let of_job = |job: &Job| (job.name.clone(), job.kind, job.source_dir.clone());
    of_job(old) != of_job(new) || essence(old, before) != essence(new, after)
}

/// What of a job cannot change under its tasks; where two versions have the same, nothing is made anew.
/// Allocations get the `meta` of the job by their tasks.
#[must_use]
pub fn decisive(job: &Job) -> Job {
    let groups = job.groups.iter().map(|group| essence(job, group)).collect();
    Job {
        groups,
        datacenters: Vec::new(),
        priority: 0,
        meta: BTreeMap::new(),
        constraints: Vec::new(),
        placement: Placement::default(),
        all_at_once: false,
        ..job.clone()
    }
}

/// What of a group cannot change under its tasks: everything but rules, each with one value.
fn essence(job: &Job, group: &TaskGroup) -> TaskGroup {
    // All fields by name, so that a new one must be decided on.
    let TaskGroup {
        name,
        meta,
        network,
        tasks,
        ephemeral_disk,
        volumes,
        count: _,
        constraints: _,
        placement: _,
        scaling: _,
        shutdown_delay: _,
        health: _,
        services: _,
        max_run_duration: _,
        update: _,
        reschedule: _,
        stop_after_disconnect: _,
        migrate_parallel: _,
    } = group;
    let mut merged = job.meta.clone();
    merged.extend(meta.clone());
    let essences = tasks.iter().map(|task| HeldOnce::from(task_essence(&merged, task)));
    let mut tasks: Vec<_> = essences.collect();
    tasks.sort_by(|a, b| a.name.cmp(&b.name));
    TaskGroup {
        name: name.clone(),
        count: 0,
        meta: BTreeMap::new(),
        constraints: Vec::new(),
        placement: Placement::default(),
        scaling: None,
        network: network.clone().or_else(|| Some(NetworkSpec::default())),
        tasks,
        shutdown_delay: None,
        ephemeral_disk: *ephemeral_disk,
        health: None,
        services: Vec::new(),
        max_run_duration: None,
        update: None,
        reschedule: ReschedulePolicy::NEVER,
        stop_after_disconnect: None,
        migrate_parallel: 1,
        volumes: volumes.clone(),
    }
}

fn task_essence(meta: &BTreeMap<String, String>, task: &Task) -> Task {
    const SAME: RestartPolicy = RestartPolicy {
        attempts: 0,
        interval: Duration::ZERO,
        delay: Duration::ZERO,
        mode: RestartMode::Fail,
    };
    let mut merged = meta.clone();
    merged.extend(task.meta.clone());
    Task {
        meta: merged,
        constraints: Vec::new(),
        affinities: Vec::new(),
        restart: SAME,
        kill_timeout: Duration::ZERO,
        kill_signal: None,
        leader: false,
        logs: LogConfig { disabled: task.logs.disabled, ..LogConfig::default() },
        shutdown_delay: None,
        ..task.clone()
    }
}

#[cfg(test)]
mod tests;

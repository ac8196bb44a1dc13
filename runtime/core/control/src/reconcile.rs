//! Decides what is to be done so that a job runs as its record says. Pure.
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
//! Of a job that is deployed step by step, only as many allocations are stopped and placed as its
//! policy and the health of the new ones allow. The rest of the older version lives on by its own
//! rules (`places`).
//!
//! The decision looks at the present state, not at what happened. So it can be asked for at any
//! time, and after a crash. When every action was done, the only action is [`PlaceAction::Ignore`].
//! That stays so when allocations that are over are collected, because [`EndedPlaceIndex`] keeps their
//! places.

mod places;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::ended_places::EndedPlaceIndex;
use ostler_model::alloc::{Allocation, ClientStatus};
use ostler_model::cow_arc::CowArc;
use ostler_model::ids::{AllocId, GroupName};
use ostler_model::job::{Job, LogConfig, NetworkSpec, RestartMode, RestartPolicy, Task, TaskGroup};
use ostler_model::placement::Placement;
use ostler_model::rollout::{Deployment, RescheduleEvent, ReschedulePolicy};
use ostler_model::saved::JobRecord;
use ostler_model::time::Timestamp;

/// The reasons for stops, as people read them.
pub mod reason {
    /// The job was stopped.
    pub const JOB_STOPPED: &str = "alloc not needed as job is stopped";
    /// Its group is gone, or its index is beyond the count.
    pub const NOT_NEEDED: &str = "alloc not needed due to job update";
    /// A new one with the job's changes takes its place.
    pub const REPLACED: &str = "alloc is being updated due to job update";
    /// The node is being drained.
    pub const MIGRATED: &str = "alloc is being migrated";
    /// It failed, and its successor takes its place.
    pub const RESCHEDULED: &str = "alloc was rescheduled because it failed";
    /// A newer allocation has the same place.
    pub const DOUBLE: &str = "another allocation has the same place";
}

/// A job as its record says it.
#[derive(Clone, Copy, Debug)]
pub struct WantedJob<'a> {
    /// The job with its newest version.
    pub job: &'a Job,
    /// Number of the newest version.
    pub version: u64,
    /// Index at which the job first came. Older allocations belong to a purged job of its name.
    pub create_index: u64,
    /// The job is stopped: nothing of it is to run.
    pub stopped: bool,
    /// Places that were filled with this version and are over.
    pub ended: Option<&'a EndedPlaceIndex>,
    /// The time of day.
    pub now: Timestamp,
    /// Failed allocations are replaced, and changes are made step by step. False for a run that
    /// ends with its agent.
    pub lives_on: bool,
    /// The deployment of this version, where there is one.
    pub deployment: Option<&'a Deployment>,
    /// Failed allocations get their successors now, whatever the policy says.
    pub forced: bool,
}

/// A version of a job, and the index at which the job came. For an allocation it is the index at
/// which it was placed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VersionAt {
    pub(crate) version: u64,
    pub(crate) create_index: u64,
}

/// The rank of an allocation among those of its place: the one with the highest rank came last.
/// Allocations of a later version of the job come after those of an earlier one, whenever they were
/// placed. While canaries run beside what they may replace, that gets successors of its own
/// version, which do not come after the canaries that are accepted then. Versions later than the
/// present one were taken back, and count as the present one.
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
        self.ended.is_some_and(|ended| ended.has_ended(group, index))
    }
}

/// An allocation of the job, in its present state.
#[derive(Clone, Copy, Debug)]
pub struct ExistingAlloc<'a> {
    /// Id of the allocation.
    pub id: AllocId,
    /// The job as it was placed with, or updated to last.
    pub job: &'a Job,
    /// Name of its task group.
    pub group: &'a GroupName,
    /// Its index in the group.
    pub index: u32,
    /// Version of `job`.
    pub version: u64,
    /// Index at which it was placed.
    pub create_index: u64,
    /// It is told to stop.
    pub stopping: bool,
    /// It is told to stop because it failed and another one follows it.
    pub followed: bool,
    /// The time when it was placed.
    pub created_at: Timestamp,
    /// Its client status.
    pub status: ClientStatus,
    /// The time when its last task ended, where all have ended.
    pub ended_at: Timestamp,
    /// It is over as a whole: no task or hook of it runs any more.
    pub over: bool,
    /// The failed allocations before it in its place.
    pub before: &'a [RescheduleEvent],
    /// It is a canary of its version that nobody has accepted yet.
    pub canary: bool,
    /// It belongs to [`WantedJob::deployment`].
    pub deployed: bool,
    /// The verdict on its health; `None`: there is none yet.
    pub healthy: Option<bool>,
}

impl ExistingAlloc<'_> {
    fn is_of(&self, wanted: &WantedJob<'_>) -> bool {
        self.version == wanted.version && self.create_index >= wanted.create_index
    }

    /// Was it placed for a version that does not exist any more? Its update was taken back, and an
    /// agent was killed before this allocation was gone.
    fn was_taken_back(&self, wanted: &WantedJob<'_>) -> bool {
        self.version > wanted.version && self.create_index >= wanted.create_index
    }

    fn rank(&self, wanted: &WantedJob<'_>) -> ((bool, u64, u64), AllocId) {
        let present = VersionAt { version: wanted.version, create_index: wanted.create_index };
        let alloc = VersionAt { version: self.version, create_index: self.create_index };
        (rank(alloc, present), self.id)
    }

    /// Did it fail, and is it told to stop for its successor?
    fn is_followed(&self) -> bool {
        self.stopping && self.followed && self.status == ClientStatus::Failed
    }
}

/// One action for a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlaceAction {
    /// Place a new allocation.
    Place {
        /// Name of its task group.
        group: GroupName,
        /// Its index in the group.
        index: u32,
        /// The allocation before it in the place. The new one waits for its end and gets its data.
        previous: Option<AllocId>,
        /// A running allocation is stopped for this one.
        replaces: bool,
        /// What else is special about it.
        how: PlacementDetails,
    },
    /// Give this allocation the new version of the job. Its tasks run on.
    Update(AllocId),
    /// Stop an allocation.
    Stop {
        /// Id of the allocation.
        alloc: AllocId,
        /// The reason, one of [`reason`].
        reason: &'static str,
    },
    /// Leave this allocation as it is.
    Ignore(AllocId),
}

/// What is special about an allocation that is to be placed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementDetails {
    /// The failed allocations before it in its place.
    pub reschedules: Vec<RescheduleEvent>,
    /// It runs beside what it may replace.
    pub canary: bool,
    /// It gets the job's version of this allocation; `None`: the wanted version.
    pub like: Option<AllocId>,
}

/// How far a group is from what the job says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupProgress {
    /// Something of it has an older version and changes, now or later.
    pub updates: bool,
    /// Something of it is placed now.
    pub places: bool,
    /// Something of the wanted version existed before.
    pub known: bool,
    /// Canaries are to come first.
    pub wants_canaries: bool,
    /// Every place has an allocation of the wanted version, which is healthy where that is
    /// required, and nothing is left to do.
    pub done: bool,
}

/// The actions for a job, now and later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReconcilePlan {
    /// The actions for now, in their order.
    pub actions: Vec<PlaceAction>,
    /// Allocations that failed, with the time when each gets its successor.
    pub later: BTreeMap<AllocId, Timestamp>,
    /// The next time at which something is to be done, where time decides.
    pub next: Option<Timestamp>,
    /// The progress of each group.
    pub groups: BTreeMap<GroupName, GroupProgress>,
    /// Allocations of an older version that run on for now, and are replaced or stopped in
    /// a later step.
    pub behind: BTreeSet<AllocId>,
}

/// The actions for a job. Stops come first, the highest indexes before lower ones, then updates,
/// then placements in the order of the job file. See the module.
#[must_use]
pub fn reconcile<'a>(wanted: &WantedJob<'a>, existing: &[ExistingAlloc<'a>]) -> ReconcilePlan {
    places::reconcile_places(wanted, existing)
}

#[derive(Default)]
struct Actions {
    stops: Vec<(u32, PlaceAction)>,
    updates: Vec<PlaceAction>,
    places: Vec<PlaceAction>,
    ignored: Vec<PlaceAction>,
}

impl Actions {
    fn stop(&mut self, alloc: &ExistingAlloc<'_>, reason: &'static str) {
        self.stops.push((alloc.index, PlaceAction::Stop { alloc: alloc.id, reason }));
    }

    /// Stop an allocation, unless it is over or told to stop already.
    fn end(&mut self, alloc: &ExistingAlloc<'_>, reason: &'static str) {
        if alloc.stopping || alloc.status.is_terminal() {
            self.ignored.push(PlaceAction::Ignore(alloc.id));
        } else {
            self.stop(alloc, reason);
        }
    }

    fn into_ordered(mut self) -> Vec<PlaceAction> {
        self.stops.sort_by_key(|(index, _)| std::cmp::Reverse(*index));
        let stops = self.stops.into_iter().map(|(_, action)| action);
        stops.chain(self.updates).chain(self.places).chain(self.ignored).collect()
    }
}

/// Must an allocation of this group be placed anew to get from `old` to `new`? Rules about how its
/// tasks are watched, stopped, restarted or judged do not count, because owners read them when they
/// use them.
#[must_use]
pub fn is_destructive(old: &Job, new: &Job, group: &GroupName) -> bool {
    let (Some(before), Some(after)) = (old.group(group), new.group(group)) else {
        return true;
    };
    // They appear in `${job.…}`, in the environment and in the meaning of an exit.
    let of_job = |job: &Job| (job.name.clone(), job.kind, job.source_dir.clone());
    of_job(old) != of_job(new) || essence(old, before) != essence(new, after)
}

/// The part of a job that cannot change under running tasks. Where it is the same in two versions,
/// nothing is placed anew. The `meta` of the job is part of its tasks here.
#[must_use]
pub fn job_essence(job: &Job) -> Job {
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

/// The part of a group that cannot change under running tasks: everything but rules, which get
/// fixed values.
fn essence(job: &Job, group: &TaskGroup) -> TaskGroup {
    // All fields are named, so that somebody has to decide about a new one.
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
    let essences = tasks.iter().map(|task| CowArc::from(task_essence(&merged, task)));
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

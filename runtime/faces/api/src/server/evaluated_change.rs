//! The changes that evaluations stand for, from the records of jobs and allocations.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::evaluation_ids::{
    BLOCKED_SEED, SEED, UNCHANGED_SEED, evaluation_id, followup_id, id_of,
};
use super::json::{metric, moment, word};
use ostler_agent::{AgentHandle, AllocRef, JobView, reason};
use ostler_model::alloc::DesiredStatus;
use ostler_model::ids::JobId;
use ostler_model::job::Job;
use ostler_model::time::Timestamp;
use ostler_wire::{self as wire, AllocMetric, Trigger};

/// The number of removed jobs whose evaluations are kept.
const PURGED_MAX: usize = 64;

/// What an evaluation stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EvaluationKind {
    /// A change of a job.
    Change,
    /// A registration that changed nothing.
    Unchanged,
    /// Allocations that wait for resources.
    Blocked,
    /// A replacement that is due later.
    Later,
}

/// A change that has an evaluation.
#[derive(Debug)]
pub(super) struct EvaluatedChange {
    pub of: EvaluationKind,
    pub job: Arc<Job>,
    pub index: u64,
    pub trigger: Trigger,
    pub created_at: Timestamp,
    /// The number of allocations that wait, by group.
    pub queued: BTreeMap<String, u32>,
    /// Why allocations wait, by group; none if none do.
    pub failed: Option<BTreeMap<String, AllocMetric>>,
    /// The id of the evaluation for what waits since this one; empty if nothing waits.
    pub blocked: String,
    /// The id of the evaluation whose allocations could not be placed; empty if there is none.
    pub previous: String,
    /// Its own id, if the index does not determine it; otherwise empty.
    pub named: String,
    /// The time at which it is due, if that is later.
    pub at: Option<Timestamp>,
    /// The id of the deployment that started with the change; empty if none did.
    pub deployment: String,
}

impl EvaluatedChange {
    /// The evaluation of a change that left nothing to do.
    fn new(job: &Arc<Job>, index: u64, trigger: Trigger, created_at: Timestamp) -> Self {
        Self {
            of: EvaluationKind::Change,
            job: Arc::clone(job),
            index,
            trigger,
            created_at,
            queued: BTreeMap::new(),
            failed: None,
            blocked: String::new(),
            previous: String::new(),
            named: String::new(),
            at: None,
            deployment: String::new(),
        }
    }

    fn all_from_job(view: &JobView, datacenter: &str) -> Vec<Self> {
        let record = &view.record;
        let of = |index, trigger| Self {
            queued: view.groups.iter().map(|(name, c)| (name.to_string(), c.queued)).collect(),
            ..Self::new(&record.job, index, trigger, record.submitted_at)
        };
        let mut newest = of(record.job_modify_index, Trigger::JobRegister);
        newest.failed = metric::failed_placements(&view.blocked, datacenter);
        let deployment = view.deployment.as_ref().filter(|one| one.version == record.version);
        newest.deployment = deployment.map(|one| one.id.to_string()).unwrap_or_default();
        let mut blocked = None;
        if newest.failed.is_some() {
            let waits = of(record.job_modify_index, Trigger::QueuedAllocs);
            let failed = metric::failed_placements(&view.blocked, datacenter);
            let waits =
                Self { of: EvaluationKind::Blocked, previous: newest.id(), failed, ..waits };
            newest.blocked = waits.id();
            blocked = Some(waits);
        }
        let failed = metric::failed_placements(&view.blocked, datacenter);
        let unchanged = of(record.job_modify_index, Trigger::JobRegister);
        let unchanged = Self {
            of: EvaluationKind::Unchanged,
            failed,
            blocked: newest.blocked.clone(),
            ..unchanged
        };
        let mut all = vec![newest, unchanged];
        all.extend(blocked);
        let last = view.deployment.as_ref();
        all.extend(last.map(|one| Self {
            deployment: one.id.to_string(),
            ..of(one.modify_index, Trigger::DeploymentWatcher)
        }));
        if record.stopped && record.modify_index != record.job_modify_index {
            all.push(of(record.modify_index, Trigger::JobDeregister));
        }
        all
    }

    /// The change that created an allocation, or the last change of it.
    fn from_alloc(view: &AllocRef, made: bool) -> Self {
        let alloc = &view.allocation;
        let stopped = !made && alloc.desired == DesiredStatus::Stop;
        let index = if made { alloc.create_index } else { alloc.modify_index };
        let trigger = match (stopped, &*alloc.desired_description) {
            (true, reason::RESCHEDULED) => Trigger::AllocFailure,
            (true, reason::REPLACED | reason::NOT_NEEDED) => Trigger::DeploymentWatcher,
            (true, _) => Trigger::AllocStop,
            (false, _) if made && !alloc.reschedules.is_empty() => Trigger::AllocFailure,
            (false, _) => Trigger::JobRegister,
        };
        let deployment = alloc.deployment_id().filter(|_| made).unwrap_or_default().to_owned();
        Self { deployment, ..Self::new(&alloc.job, index, trigger, alloc.created_at) }
    }

    /// The evaluation that will place the successor of a failed allocation, if it has one.
    fn from_failure(view: &AllocRef) -> Option<Self> {
        let at = view.successor_at?;
        let (of, trigger) = (EvaluationKind::Later, Trigger::AllocFailure);
        let (index, named) = (view.modify_index, followup_id(&view.allocation));
        let created_at = view.modify_time;
        let rest = Self::from_alloc(view, true);
        Some(Self { of, index, trigger, created_at, named, at: Some(at), ..rest })
    }

    /// The id of the evaluation.
    pub(super) fn id(&self) -> String {
        if !self.named.is_empty() {
            return self.named.clone();
        }
        let seed = match self.of {
            EvaluationKind::Change | EvaluationKind::Later => SEED,
            EvaluationKind::Unchanged => UNCHANGED_SEED,
            EvaluationKind::Blocked => BLOCKED_SEED,
        };
        id_of(seed, &self.job.id, self.index)
    }

    /// The evaluation as JSON.
    pub(super) fn json(&self) -> wire::Evaluation<'_> {
        wire::Evaluation {
            id: self.id().into(),
            priority: self.job.priority,
            kind: word(self.job.kind),
            triggered_by: self.trigger,
            namespace: self.job.namespace().into(),
            job_id: self.job.id.as_str().into(),
            job_modify_index: self.index,
            status: match self.of {
                EvaluationKind::Blocked => "blocked",
                EvaluationKind::Later => "pending",
                EvaluationKind::Change | EvaluationKind::Unchanged => "complete",
            }
            .into(),
            deployment_id: (&self.deployment).into(),
            wait_until: self.at.map(moment),
            previous_eval: (&self.previous).into(),
            blocked_eval: (&self.blocked).into(),
            failed_tg_allocs: self.failed.as_ref().map(Cow::Borrowed),
            queued_allocations: Cow::Borrowed(&self.queued),
            snapshot_index: self.index,
            create_index: self.index,
            modify_index: self.index,
            create_time: self.created_at,
            modify_time: self.created_at,
            ..wire::Evaluation::default()
        }
    }
}

/// The records of jobs and their allocations that evaluations follow from.
pub(super) struct ChangeRecord {
    jobs: Vec<JobView>,
    allocs: Vec<AllocRef>,
    datacenter: String,
}

impl ChangeRecord {
    /// The records of the jobs that `wanted` accepts.
    pub(super) fn load_records(agent: &AgentHandle, wanted: impl Fn(&JobId) -> bool) -> Self {
        let mut jobs = agent.control().jobs();
        jobs.retain(|view| wanted(&view.record.job.id));
        let allocs = agent.control().alloc_refs(|alloc| wanted(&alloc.job.id));
        Self { jobs, allocs, datacenter: agent.node().datacenter.clone() }
    }

    /// Every change in these records, by index. If several have one index, the change of the job
    /// counts first, then that of a stopped allocation before that of its replacement.
    pub(super) fn changes(&self) -> Vec<EvaluatedChange> {
        let Self { jobs, allocs: of_allocs, datacenter } = self;
        let of_jobs = jobs.iter().flat_map(|view| EvaluatedChange::all_from_job(view, datacenter));
        let (steps, of_jobs): (Vec<_>, Vec<_>) =
            of_jobs.partition(|of_job| of_job.trigger == Trigger::DeploymentWatcher);
        let mut found: BTreeMap<(u64, JobId, EvaluationKind), EvaluatedChange> = BTreeMap::new();
        let mut enter = |evaluation: EvaluatedChange| {
            let key = (evaluation.index, evaluation.job.id.clone(), evaluation.of);
            found.entry(key).or_insert(evaluation);
        };
        of_jobs.into_iter().for_each(&mut enter);
        // An allocation that was not changed since its creation has no second change.
        let changed = of_allocs.iter().filter(|view| {
            let alloc = &view.allocation;
            alloc.modify_index != alloc.create_index
        });
        changed.map(|view| EvaluatedChange::from_alloc(view, false)).for_each(&mut enter);
        // A step of a deployment places allocations too, and a successor may be one of them.
        let made = of_allocs.iter().map(|view| EvaluatedChange::from_alloc(view, true));
        let (failures, made): (Vec<_>, Vec<_>) =
            made.partition(|change| change.trigger == Trigger::AllocFailure);
        failures.into_iter().chain(steps).chain(made).for_each(&mut enter);
        let later = of_allocs.iter().filter_map(EvaluatedChange::from_failure);
        let mut all: Vec<EvaluatedChange> = found.into_values().chain(later).collect();
        all.sort_by_key(|evaluation| evaluation.index);
        all
    }
}

/// The last jobs that were removed with all their records. A client that removed one asks for the
/// evaluation next.
#[derive(Default)]
pub(super) struct PurgedJobs(VecDeque<(Arc<Job>, u64, Timestamp)>);

impl PurgedJobs {
    /// Note that a job was removed at an index.
    pub(super) fn add(&mut self, job: Arc<Job>, index: u64, at: Timestamp) {
        self.0.push_front((job, index, at));
        self.0.truncate(PURGED_MAX);
    }

    /// The evaluation with this id, if it is of the removal of one of these jobs.
    pub(super) fn find(&self, wanted: &str) -> Option<EvaluatedChange> {
        let found = self.0.iter().find(|(job, index, _)| evaluation_id(&job.id, *index) == wanted);
        found.map(|(job, index, at)| EvaluatedChange::new(job, *index, Trigger::JobDeregister, *at))
    }
}

//! Evaluations, which Nomad's tools ask for after a change.
//!
//! ```text
//!   a change of a job (register, stop, stop of an allocation) ─ job, index ─► id of its evaluation
//!   id ─► the job or allocation on record whose index makes the same id ─► complete
//! ```
//! Nothing is scheduled elsewhere: a change is decided when it is answered. So an evaluation is no
//! record but a name for a change. It is complete from the beginning, and can be found as long as
//! the job or an allocation of it is on record with that index. A registration that found nothing
//! to do has an evaluation without allocations, and what waits of a job has a blocked one.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use sha2::{Digest as _, Sha256};

use super::allocs;
use super::error::RequestFailure;
use super::json::{metric, moment, word};
use super::params::{NamedRequest, Params};
use super::reply;
use super::router::{Api, ApiState};
use super::wait::{self, IndexedValue};
use ostler_agent::{AllocRef, JobView, RegisterOutcome, reason};
use ostler_model::alloc::{Allocation, DesiredStatus};
use ostler_model::ids::JobId;
use ostler_model::job::{Job, TaskGroup};
use ostler_model::time::Timestamp;
use ostler_wire::{self as wire, AllocMetric, Trigger};

/// The seed of the id of an evaluation that will place the successor of a failed allocation.
const FOLLOWUP_SEED: &[u8] = b"ostler followup\0";

/// The seed of the id of an evaluation; the job and the index are hashed after it.
const SEED: &[u8] = b"ostler evaluation\0";

/// The seed of the id of the evaluation of a registration that changed nothing.
const UNCHANGED_SEED: &[u8] = b"ostler unchanged\0";
/// The seed of the id of the evaluation of what waits.
const BLOCKED_SEED: &[u8] = b"ostler blocked\0";
/// The seed of the id of the scaling policy of a group.
const POLICY_SEED: &[u8] = b"ostler scaling\0";

/// The id of the evaluation of the change of a job at an index: a UUID, always the same.
pub(super) fn evaluation_id(job: &JobId, index: u64) -> String {
    id_of(SEED, job, index)
}

/// The id of the evaluation of a registration.
pub(super) fn id_of_registration(job: &JobId, registered: &RegisterOutcome) -> String {
    match registered.index {
        Some(index) => evaluation_id(job, index),
        None => id_of_unchanged(job, registered.job_modify_index),
    }
}

/// The id of the evaluation of a registration that found nothing to do for this version of a job.
pub(super) fn id_of_unchanged(job: &JobId, job_modify_index: u64) -> String {
    id_of(UNCHANGED_SEED, job, job_modify_index)
}

/// The id of the evaluation that will place the successor of an allocation.
pub(super) fn followup_id(alloc: &Allocation) -> String {
    uuid_of(&[FOLLOWUP_SEED, alloc.id.as_bytes()])
}

/// The id of the scaling policy of a group. It stays the same as long as the job exists.
pub(super) fn policy_id(job: &Job, create_index: u64, group: &TaskGroup) -> String {
    let (id, name) = (job.id.as_str().as_bytes(), group.name.as_str().as_bytes());
    uuid_of(&[POLICY_SEED, &create_index.to_le_bytes(), id, b"\0", name])
}

fn id_of(seed: &[u8], job: &JobId, index: u64) -> String {
    uuid_of(&[seed, &index.to_le_bytes(), job.as_str().as_bytes()])
}

fn uuid_of(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    let digest: [u8; 32] = hash.finalize().into();
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, ..] = digest;
    let bytes = [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p];
    uuid::Builder::from_custom_bytes(bytes).into_uuid().to_string()
}

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
    of: EvaluationKind,
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

    fn id(&self) -> String {
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

    fn json(&self) -> wire::Evaluation<'_> {
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

/// Every change on record, by index. If several have one index, the change of the job counts first,
/// then that of a stopped allocation before that of its replacement.
fn all_changes(api: &Api, wanted: impl Fn(&JobId) -> bool) -> Vec<EvaluatedChange> {
    ChangeRecord::load_records(api, wanted).changes()
}

/// The records of jobs and their allocations that evaluations follow from.
struct ChangeRecord {
    jobs: Vec<JobView>,
    allocs: Vec<AllocRef>,
    datacenter: String,
}

impl ChangeRecord {
    fn load_records(api: &Api, wanted: impl Fn(&JobId) -> bool) -> Self {
        let mut jobs = api.agent.control().jobs();
        jobs.retain(|view| wanted(&view.record.job.id));
        let allocs = api.agent.control().alloc_refs(|alloc| wanted(&alloc.job.id));
        Self { jobs, allocs, datacenter: api.agent.node().datacenter.clone() }
    }

    /// The changes in these records; see [`all`].
    fn changes(&self) -> Vec<EvaluatedChange> {
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

/// The ids of all evaluations of jobs in the namespaces that `wanted` accepts.
pub(super) fn evaluation_ids(api: &Api, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let all = all_changes(api, |job| wanted(job.namespace()));
    all.iter().filter(|one| one.of != EvaluationKind::Unchanged).map(EvaluatedChange::id).collect()
}

fn find(api: &Api, wanted: &str) -> Result<EvaluatedChange, RequestFailure> {
    let wanted = wanted.to_ascii_lowercase();
    let found = all_changes(api, |_| true).into_iter().find(|known| known.id() == wanted);
    found.or_else(|| api.purged().find(&wanted)).ok_or(RequestFailure::NotThere("eval"))
}

/// The id of the job of an evaluation, if there is such an evaluation.
pub(super) fn job_of(api: &Api, id: &str) -> Option<JobId> {
    find(api, id).ok().map(|found| found.job.id.clone())
}

/// The evaluation of the change of a job at an index, as JSON; none if it is not on record any
/// more.
pub(super) fn change_json(api: &Api, job: &JobId, index: u64) -> Option<serde_json::Value> {
    let of_job = all_changes(api, |known| known == job);
    let found =
        of_job.into_iter().find(|one| one.of == EvaluationKind::Change && one.index == index);
    let found = found.or_else(|| api.purged().find(&evaluation_id(job, index)))?;
    serde_json::to_value(found.json()).ok()
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

    fn find(&self, wanted: &str) -> Option<EvaluatedChange> {
        let found = self.0.iter().find(|(job, index, _)| evaluation_id(&job.id, *index) == wanted);
        found.map(|(job, index, at)| EvaluatedChange::new(job, *index, Trigger::JobDeregister, *at))
    }
}

/// `GET /v1/evaluation/ID`
pub(super) async fn read(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let look = || {
        let value = find(&api, &id);
        IndexedValue {
            index: value.as_ref().map_or_else(|_| api.agent.control().index(), |e| e.index),
            value,
        }
    };
    wait::answer(&api, &params, look, |found| reply::json(&params, &found.json())).await
}

/// `GET /v1/evaluation/ID/allocations`: the allocations that the change created, changed or
/// stopped.
pub(super) async fn allocations(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let evaluation = find(&api, &id)?;
    let wanted = |alloc: &Allocation| {
        let index = evaluation.index;
        evaluation.of == EvaluationKind::Change
            && alloc.job.id == evaluation.job.id
            && (alloc.create_index == index || alloc.modify_index == index)
    };
    allocs::answer_list(&api, &params, wanted).await
}

/// `GET /v1/evaluations`
pub(super) async fn list(State(api): ApiState, params: Params) -> Result<Response, RequestFailure> {
    answer_list(&api, params, |_| true).await
}

/// `GET /v1/job/ID/evaluations`
pub(super) async fn list_of_job(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let id = super::jobs::listed_job_id(&api, &params, &id)?;
    answer_list(&api, params, |job| *job == id).await
}

async fn answer_list(
    api: &Api,
    params: Params,
    wanted: impl Fn(&JobId) -> bool,
) -> Result<Response, RequestFailure> {
    let index = api.agent.control().index();
    let known = ChangeRecord::load_records(api, |job| {
        wanted(job) && params.includes_namespace(job.namespace())
    });
    let caller = params.access().caller();
    let write = move || {
        let mut found = known.changes();
        // There is no record of registrations that changed nothing, so lists leave them out; a
        // client that got the id can ask for it.
        found.retain(|one| {
            one.of != EvaluationKind::Unchanged && one.id().starts_with(params.prefix())
        });
        let json: Vec<_> = found.iter().rev().map(EvaluatedChange::json).collect();
        reply::json(&params, &json)
    };
    Ok(reply::with_read_index(index, api.computing.answer(caller, write).await?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn the_id_of_an_evaluation_is_a_uuid_of_the_job_and_the_index_alone() {
        let (web, db) = (JobId::new("web").unwrap(), JobId::new("db").unwrap());
        assert_eq!(evaluation_id(&web, 7), evaluation_id(&web, 7));
        assert_eq!(evaluation_id(&web, 7).len(), 36);
        assert_eq!(
            evaluation_id(&web, 7).as_bytes().get(14),
            Some(&b'8'),
            "a UUID of one's own kind"
        );
        let others = [
            evaluation_id(&web, 8),
            evaluation_id(&db, 7),
            evaluation_id(&web, u64::MAX),
            id_of(UNCHANGED_SEED, &web, 7),
            id_of(BLOCKED_SEED, &web, 7),
        ];
        assert!(!others.contains(&evaluation_id(&web, 7)));
    }
}

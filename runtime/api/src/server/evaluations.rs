//! Evaluations, as Nomad's tools ask for them after a change.
//!
//! ```text
//!   a change of a job (register, stop, stop of an allocation) ─ job, index ─► id of its evaluation
//!   id ─► the job or allocation on record whose index makes the same id ─► complete
//! ```
//! Nothing is scheduled elsewhere: when a change is answered it is decided. So an evaluation is no
//! record but a name for a change, complete from the first, and is found as long as something of the
//! job is on record with that index. A registration that found nothing to do has one too, without
//! allocations; and so has what waits of a job, which is blocked.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use sha2::{Digest as _, Sha256};

use super::allocs;
use super::error::Failure;
use super::json::{metric, moment, word};
use super::params::{Asked, Params};
use super::reply;
use super::router::{Api, Shared};
use super::wait::{self, Found};
use ostler_agent::{AllocRef, JobView, Registered, reason};
use ostler_model::alloc::{Allocation, DesiredStatus};
use ostler_model::ids::JobId;
use ostler_model::job::{Job, TaskGroup};
use ostler_model::time::Timestamp;
use ostler_wire::{self as wire, AllocMetric, Trigger};

/// The same of what is to place the successor of an allocation that failed.
const FOLLOWUP_SEED: &[u8] = b"ostler followup\0";

/// What the id of an evaluation is made of, beside the job and the index.
const SEED: &[u8] = b"ostler evaluation\0";

/// The same of the evaluation of a registration that changed nothing.
const UNCHANGED_SEED: &[u8] = b"ostler unchanged\0";
/// The same of the evaluation of what waits.
const BLOCKED_SEED: &[u8] = b"ostler blocked\0";
/// The same of the scaling policy of a group.
const POLICY_SEED: &[u8] = b"ostler scaling\0";

/// The id of the evaluation of the change of a job at an index: a UUID that is the same each time.
pub(super) fn id(job: &JobId, index: u64) -> String {
    id_of(SEED, job, index)
}

/// The id of the evaluation of a registration.
pub(super) fn of_registration(job: &JobId, registered: &Registered) -> String {
    match registered.index {
        Some(index) => id(job, index),
        None => of_nothing(job, registered.job_modify_index),
    }
}

/// The id of an evaluation that found nothing to do for a job of this version.
pub(super) fn of_nothing(job: &JobId, job_modify_index: u64) -> String {
    id_of(UNCHANGED_SEED, job, job_modify_index)
}

/// The id of the evaluation that is to place the successor of an allocation.
pub(super) fn followup(alloc: &Allocation) -> String {
    uuid_of(&[FOLLOWUP_SEED, alloc.id.as_bytes()])
}

/// The id of the scaling policy of a group, as long as its job is there.
pub(super) fn policy(job: &Job, create_index: u64, group: &TaskGroup) -> String {
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

/// Evaluations of removed jobs that are kept.
const PURGED_MAX: usize = 64;

/// What an evaluation is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Of {
    /// A change.
    Change,
    /// A registration that changed nothing.
    Unchanged,
    /// What waits.
    Blocked,
    /// What is to be done later.
    Later,
}

/// A change that has an evaluation.
#[derive(Debug)]
pub(super) struct Evaluation {
    of: Of,
    pub job: Arc<Job>,
    pub index: u64,
    pub trigger: Trigger,
    pub created_at: Timestamp,
    /// Places by group that wait to be filled.
    pub queued: BTreeMap<String, u32>,
    /// Why.
    pub failed: Option<BTreeMap<String, AllocMetric>>,
    /// Id of the evaluation of what waits since this one; or empty.
    pub blocked: String,
    /// Id of the evaluation that left this one's places empty; or empty.
    pub previous: String,
    /// Its own id, where the index does not say it.
    pub named: String,
    /// When it does what it is to do.
    pub at: Option<Timestamp>,
    /// The deployment that came with the change; or empty.
    pub deployment: String,
}

impl Evaluation {
    /// Of a change that left nothing to be done.
    fn new(job: &Arc<Job>, index: u64, trigger: Trigger, created_at: Timestamp) -> Self {
        Self {
            of: Of::Change,
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

    fn of_job(view: &JobView, datacenter: &str) -> Vec<Self> {
        let record = &view.record;
        let of = |index, trigger| Self {
            queued: view.groups.iter().map(|(name, c)| (name.to_string(), c.queued)).collect(),
            ..Self::new(&record.job, index, trigger, record.submitted_at)
        };
        let mut newest = of(record.job_modify_index, Trigger::JobRegister);
        newest.failed = metric::failed(&view.blocked, datacenter);
        let deployment = view.deployment.as_ref().filter(|one| one.version == record.version);
        newest.deployment = deployment.map(|one| one.id.to_string()).unwrap_or_default();
        let mut blocked = None;
        if newest.failed.is_some() {
            let waits = of(record.job_modify_index, Trigger::QueuedAllocs);
            let failed = metric::failed(&view.blocked, datacenter);
            let waits = Self { of: Of::Blocked, previous: newest.id(), failed, ..waits };
            newest.blocked = waits.id();
            blocked = Some(waits);
        }
        let failed = metric::failed(&view.blocked, datacenter);
        let unchanged = of(record.job_modify_index, Trigger::JobRegister);
        let unchanged =
            Self { of: Of::Unchanged, failed, blocked: newest.blocked.clone(), ..unchanged };
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

    /// What made an allocation, or what changed it last.
    fn of_alloc(view: &AllocRef, made: bool) -> Self {
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

    /// What is to place the successor of one that failed.
    fn of_failure(view: &AllocRef) -> Option<Self> {
        let at = view.successor_at?;
        let (of, trigger) = (Of::Later, Trigger::AllocFailure);
        let (index, named) = (view.modify_index, followup(&view.allocation));
        let created_at = view.modify_time;
        let rest = Self::of_alloc(view, true);
        Some(Self { of, index, trigger, created_at, named, at: Some(at), ..rest })
    }

    fn id(&self) -> String {
        if !self.named.is_empty() {
            return self.named.clone();
        }
        let seed = match self.of {
            Of::Change | Of::Later => SEED,
            Of::Unchanged => UNCHANGED_SEED,
            Of::Blocked => BLOCKED_SEED,
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
                Of::Blocked => "blocked",
                Of::Later => "pending",
                Of::Change | Of::Unchanged => "complete",
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

/// Every change on record, by index. Of several of one index that of the job, then that of an
/// allocation that was stopped before that of the one that took its place.
fn all(api: &Api, wanted: impl Fn(&JobId) -> bool) -> Vec<Evaluation> {
    Record::of(api, wanted).changes()
}

/// What is on record of jobs and their allocations.
struct Record {
    jobs: Vec<JobView>,
    allocs: Vec<AllocRef>,
    datacenter: String,
}

impl Record {
    fn of(api: &Api, wanted: impl Fn(&JobId) -> bool) -> Self {
        let mut jobs = api.agent.jobs();
        jobs.retain(|view| wanted(&view.record.job.id));
        let allocs = api.agent.alloc_refs(|alloc| wanted(&alloc.job.id));
        Self { jobs, allocs, datacenter: api.agent.node().datacenter.clone() }
    }

    /// See [`all`].
    fn changes(&self) -> Vec<Evaluation> {
        let Self { jobs, allocs: of_allocs, datacenter } = self;
        let of_jobs = jobs.iter().flat_map(|view| Evaluation::of_job(view, datacenter));
        let (steps, of_jobs): (Vec<_>, Vec<_>) =
            of_jobs.partition(|of_job| of_job.trigger == Trigger::DeploymentWatcher);
        let mut found: BTreeMap<(u64, JobId, Of), Evaluation> = BTreeMap::new();
        let mut enter = |evaluation: Evaluation| {
            let key = (evaluation.index, evaluation.job.id.clone(), evaluation.of);
            found.entry(key).or_insert(evaluation);
        };
        of_jobs.into_iter().for_each(&mut enter);
        // One that is as it was made was not changed since.
        let changed = of_allocs.iter().filter(|view| {
            let alloc = &view.allocation;
            alloc.modify_index != alloc.create_index
        });
        changed.map(|view| Evaluation::of_alloc(view, false)).for_each(&mut enter);
        // A step of a deployment places too, and a successor is one of its allocations.
        let made = of_allocs.iter().map(|view| Evaluation::of_alloc(view, true));
        let (failures, made): (Vec<_>, Vec<_>) =
            made.partition(|change| change.trigger == Trigger::AllocFailure);
        failures.into_iter().chain(steps).chain(made).for_each(&mut enter);
        let later = of_allocs.iter().filter_map(Evaluation::of_failure);
        let mut all: Vec<Evaluation> = found.into_values().chain(later).collect();
        all.sort_by_key(|evaluation| evaluation.index);
        all
    }
}

/// Ids of those on record of jobs of such namespaces.
pub(super) fn ids(api: &Api, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let all = all(api, |job| wanted(job.namespace()));
    all.iter().filter(|one| one.of != Of::Unchanged).map(Evaluation::id).collect()
}

fn find(api: &Api, wanted: &str) -> Result<Evaluation, Failure> {
    let wanted = wanted.to_ascii_lowercase();
    let found = all(api, |_| true).into_iter().find(|known| known.id() == wanted);
    found.or_else(|| api.purged().find(&wanted)).ok_or(Failure::NotThere("eval"))
}

/// The job of an evaluation.
pub(super) fn job_of(api: &Api, id: &str) -> Option<JobId> {
    find(api, id).ok().map(|found| found.job.id.clone())
}

/// That of the change of a job at an index, as JSON; nothing of what is on no record any more.
pub(super) fn of_change(api: &Api, job: &JobId, index: u64) -> Option<serde_json::Value> {
    let of_job = all(api, |known| known == job);
    let found = of_job.into_iter().find(|one| one.of == Of::Change && one.index == index);
    let found = found.or_else(|| api.purged().find(&id(job, index)))?;
    serde_json::to_value(found.json()).ok()
}

/// The last jobs that were removed with all that is on record of them: who asked for it asks for its
/// evaluation next.
#[derive(Default)]
pub(super) struct Purged(VecDeque<(Arc<Job>, u64, Timestamp)>);

impl Purged {
    /// Note that a job was removed at an index.
    pub(super) fn add(&mut self, job: Arc<Job>, index: u64, at: Timestamp) {
        self.0.push_front((job, index, at));
        self.0.truncate(PURGED_MAX);
    }

    fn find(&self, wanted: &str) -> Option<Evaluation> {
        let found = self.0.iter().find(|(job, index, _)| id(&job.id, *index) == wanted);
        found.map(|(job, index, at)| Evaluation::new(job, *index, Trigger::JobDeregister, *at))
    }
}

/// `GET /v1/evaluation/ID`
pub(super) async fn read(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    let look = || {
        let value = find(&api, &id);
        Found { index: value.as_ref().map_or_else(|_| api.agent.index(), |e| e.index), value }
    };
    wait::answer(&api, &params, look, |found| reply::json(&params, &found.json())).await
}

/// `GET /v1/evaluation/ID/allocations`: those that the change made, changed or stopped.
pub(super) async fn allocations(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    let evaluation = find(&api, &id)?;
    let wanted = |alloc: &Allocation| {
        let index = evaluation.index;
        evaluation.of == Of::Change
            && alloc.job.id == evaluation.job.id
            && (alloc.create_index == index || alloc.modify_index == index)
    };
    allocs::listed(&api, &params, wanted).await
}

/// `GET /v1/evaluations`
pub(super) async fn list(State(api): Shared, params: Params) -> Result<Response, Failure> {
    listed(&api, params, |_| true).await
}

/// `GET /v1/job/ID/evaluations`
pub(super) async fn of_job(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    let id = super::jobs::known(&api, &params, &id)?;
    listed(&api, params, |job| *job == id).await
}

async fn listed(
    api: &Api,
    params: Params,
    wanted: impl Fn(&JobId) -> bool,
) -> Result<Response, Failure> {
    let index = api.agent.index();
    let known = Record::of(api, |job| wanted(job) && params.means_namespace(job.namespace()));
    let caller = params.access().caller();
    let write = move || {
        let mut found = known.changes();
        // Whether a registration changed nothing is on no record: who was told of it asks for it.
        found.retain(|one| one.of != Of::Unchanged && one.id().starts_with(params.prefix()));
        let json: Vec<_> = found.iter().rev().map(Evaluation::json).collect();
        reply::json(&params, &json)
    };
    Ok(reply::read_at(index, api.computing.answer(caller, write).await?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn the_id_of_an_evaluation_is_a_uuid_of_the_job_and_the_index_alone() {
        let (web, db) = (JobId::new("web").unwrap(), JobId::new("db").unwrap());
        assert_eq!(id(&web, 7), id(&web, 7));
        assert_eq!(id(&web, 7).len(), 36);
        assert_eq!(id(&web, 7).as_bytes().get(14), Some(&b'8'), "a UUID of one's own kind");
        let others = [
            id(&web, 8),
            id(&db, 7),
            id(&web, u64::MAX),
            id_of(UNCHANGED_SEED, &web, 7),
            id_of(BLOCKED_SEED, &web, 7),
        ];
        assert!(!others.contains(&id(&web, 7)));
    }
}

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

use axum::extract::State;
use axum::response::Response;

use super::allocs;
use super::error::RequestFailure;
use super::evaluated_change::{ChangeRecord, EvaluatedChange, EvaluationKind};
use super::evaluation_ids::evaluation_id;
use super::jobs;
use super::params::Params;
use super::reply;
use super::state::{Api, ApiState, NamedRequest};
use super::wait::{self, IndexedValue};
use ostler_model::alloc::Allocation;
use ostler_model::ids::JobId;

/// Every change on record of the jobs that `wanted` accepts, by index.
fn all_changes(api: &Api, wanted: impl Fn(&JobId) -> bool) -> Vec<EvaluatedChange> {
    ChangeRecord::load_records(&api.agent, wanted).changes()
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

/// The evaluation of the change of a job at an index, as JSON; none if it is not on record any more.
pub(super) fn change_json(api: &Api, job: &JobId, index: u64) -> Option<serde_json::Value> {
    let of_job = all_changes(api, |known| known == job);
    let found =
        of_job.into_iter().find(|one| one.of == EvaluationKind::Change && one.index == index);
    let found = found.or_else(|| api.purged().find(&evaluation_id(job, index)))?;
    serde_json::to_value(found.json()).ok()
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

/// `GET /v1/evaluation/ID/allocations`: the allocations that the change created, changed or stopped.
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
    let id = jobs::listed_job_id(&api, &params, &id)?;
    answer_list(&api, params, |job| *job == id).await
}

async fn answer_list(
    api: &Api,
    params: Params,
    wanted: impl Fn(&JobId) -> bool,
) -> Result<Response, RequestFailure> {
    let index = api.agent.control().index();
    let known = ChangeRecord::load_records(&api.agent, |job| {
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

//! Reads, promotes, pauses and fails deployments; and returns to earlier versions of a job.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;

use super::allocs;
use super::body::{self, Body};
use super::error::RequestFailure;
use super::evaluation_ids;
use super::jobs::{self, trace_parent};
use super::json::change;
use super::json::deployment::deployment as shown;
use super::params::Params;
use super::reply;
use super::state::{Api, ApiState, NamedRequest};
use super::wait::{self, IndexedValue};
use ostler_agent::{DeploymentAsk, DeploymentError, DeploymentOutcome, SubmitError};
use ostler_model::alloc::Allocation;
use ostler_model::ids::{AllocId, GroupName, JobId};
use ostler_model::job::Job;
use ostler_model::rollout::Deployment;
use ostler_trace::Registration;
use ostler_wire::{
    Absent, AllocHealthRequest, DeploymentUpdateResponse, JobStabilityResponse, PauseRequest,
    PromoteRequest, RevertRequest, StableRequest,
};

/// A deployment with its job.
type JobDeployment = (Arc<Job>, Arc<Deployment>);

fn find_deployments(
    api: &Api,
    wanted: impl Fn(&JobDeployment) -> bool,
) -> IndexedValue<Vec<JobDeployment>> {
    let mut found: Vec<JobDeployment> =
        api.agent.control().deployments().into_iter().filter(wanted).collect();
    // The newest comes first, as people look for them.
    found.sort_by_key(|(_, one)| std::cmp::Reverse((one.create_index, one.id.clone())));
    let newest = found.iter().map(|(_, one)| one.modify_index).max().unwrap_or(0);
    // A deployment that is removed with its job shows in the change of the job.
    IndexedValue { index: newest.max(api.began_at), value: Ok(found) }
}

fn find_deployment(api: &Api, id: &str) -> Result<JobDeployment, RequestFailure> {
    let id = id.to_ascii_lowercase();
    let found = api.agent.control().deployments().into_iter().find(|(_, one)| *one.id == *id);
    found.ok_or(RequestFailure::NotThere("deployment"))
}

fn answer_list(params: &Params, found: Vec<JobDeployment>) -> Result<Response, RequestFailure> {
    let (page, next) = params.page(found, |(_, one)| one.id.to_string())?;
    let json: Vec<_> = page.iter().map(|(job, one)| shown(job, one)).collect();
    reply::page(params, &json, next.as_deref())
}

/// `GET /v1/deployments`
pub(super) async fn list(State(api): ApiState, params: Params) -> Result<Response, RequestFailure> {
    let prefix = params.prefix().to_ascii_lowercase();
    let wanted = |(job, one): &JobDeployment| {
        one.id.starts_with(&prefix) && params.includes_namespace(job.namespace())
    };
    let shape = params.clone();
    let show = move |found| answer_list(&shape, found);
    wait::answer_whole(&api, &params, || find_deployments(&api, wanted), show).await
}

/// `GET /v1/deployment/ID`
pub(super) async fn read(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let look = || match find_deployment(&api, &id) {
        Ok(known) => IndexedValue { index: known.1.modify_index, value: Ok(known) },
        Err(error) => IndexedValue { index: api.agent.control().index(), value: Err(error) },
    };
    let show = |(job, one): JobDeployment| reply::json(&params, &shown(&job, &one));
    wait::answer(&api, &params, look, show).await
}

/// `GET /v1/deployment/allocations/ID`
pub(super) async fn allocations(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let (job, one) = find_deployment(&api, &id)?;
    let wanted =
        |alloc: &Allocation| alloc.job.id == job.id && alloc.deployment_id() == Some(&*one.id);
    allocs::answer_list(&api, &params, wanted).await
}

/// `GET /v1/job/ID/deployments`
pub(super) async fn list_of_job(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let id = jobs::listed_job_id(&api, &params, &id)?;
    let (wanted, shape) = (|(job, _): &JobDeployment| job.id == id, params.clone());
    let show = move |found| answer_list(&shape, found);
    wait::answer_whole(&api, &params, || find_deployments(&api, wanted), show).await
}

/// `GET /v1/job/ID/deployment`: the newest deployment.
pub(super) async fn newest_of_job(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let id = jobs::listed_job_id(&api, &params, &id)?;
    let wanted = |(job, _): &JobDeployment| job.id == id;
    let show = |found: Vec<JobDeployment>| match found.first() {
        Some((job, one)) => reply::json(&params, &shown(job, one)),
        None => reply::json(&params, &Absent),
    };
    wait::answer(&api, &params, || find_deployments(&api, wanted), show).await
}

async fn ask(
    api: &Api,
    params: &Params,
    id: &str,
    ask: DeploymentAsk,
) -> Result<Response, RequestFailure> {
    let (job, one) = find_deployment(api, id)?;
    let deployed = api.agent.deployment(job.id.clone(), &one.id, ask).await?;
    change_answer(params, &job.id, deployed)
}

fn change_answer(
    params: &Params,
    job: &JobId,
    deployed: DeploymentOutcome,
) -> Result<Response, RequestFailure> {
    let DeploymentOutcome { index, reverted } = deployed;
    let answer = DeploymentUpdateResponse {
        eval_id: evaluation_ids::evaluation_id(job, index),
        eval_create_index: index,
        deployment_modify_index: index,
        reverted_job_version: reverted,
        index,
    };
    Ok(reply::with_index(index, reply::json(params, &answer)?))
}

/// `PUT /v1/deployment/promote/ID`
pub(super) async fn promote(
    NamedRequest { api, id, params }: NamedRequest,
    body: Body,
) -> Result<Response, RequestFailure> {
    let PromoteRequest { deployment_id, all, groups } = body::read(&params, body)?;
    body::check_same_as_path(&id, &deployment_id)?;
    let groups: Result<BTreeSet<GroupName>, _> = groups.iter().map(GroupName::new).collect();
    let groups = groups.map_err(|_| RequestFailure::NotThere("task group"))?;
    ask(&api, &params, &id, DeploymentAsk::Promote((!all).then_some(groups))).await
}

/// `PUT /v1/deployment/fail/ID`
pub(super) async fn fail(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    ask(&api, &params, &id, DeploymentAsk::Fail).await
}

/// `PUT /v1/deployment/pause/ID`
pub(super) async fn pause(
    NamedRequest { api, id, params }: NamedRequest,
    body: Body,
) -> Result<Response, RequestFailure> {
    let PauseRequest { deployment_id, pause } = body::read(&params, body)?;
    body::check_same_as_path(&id, &deployment_id)?;
    let what = if pause { DeploymentAsk::Pause } else { DeploymentAsk::Resume };
    ask(&api, &params, &id, what).await
}

/// `PUT /v1/deployment/unblock/ID`. Only deployments in several regions can be blocked.
pub(super) async fn unblock(
    NamedRequest { api, id, params: _ }: NamedRequest,
) -> Result<Response, RequestFailure> {
    find_deployment(&api, &id)?;
    Err(SubmitError::Deployment(DeploymentError::NotBlocked).into())
}

/// `PUT /v1/deployment/allocation-health/ID`
pub(super) async fn judge(
    NamedRequest { api, id, params }: NamedRequest,
    body: Body,
) -> Result<Response, RequestFailure> {
    let AllocHealthRequest { deployment_id, healthy, unhealthy } = body::read(&params, body)?;
    body::check_same_as_path(&id, &deployment_id)?;
    let (_, one) = find_deployment(&api, &id)?;
    if !one.phase.is_active() {
        return Err(SubmitError::Deployment(DeploymentError::Over(one.phase)).into());
    }
    let said = healthy.iter().map(|id| (id, true)).chain(unhealthy.iter().map(|id| (id, false)));
    let said: Result<Vec<(AllocId, bool)>, RequestFailure> =
        said.map(|(id, healthy)| Ok((allocs::alloc_id(id)?, healthy))).collect();
    let said = said?;
    for (alloc, _) in &said {
        let of_it =
            |view: &ostler_agent::AllocView| view.allocation.deployment_id() == Some(&*one.id);
        if !api.agent.control().alloc(*alloc).as_ref().is_some_and(of_it) {
            return Err(SubmitError::Deployment(DeploymentError::Alloc(*alloc)).into());
        }
    }
    for (alloc, healthy) in said {
        api.agent.judge_alloc(alloc, healthy).await?;
    }
    // What follows from the verdict is a change of its own.
    let index = api.agent.control().index();
    let answer =
        DeploymentUpdateResponse { deployment_modify_index: index, index, ..Default::default() };
    Ok(reply::with_index(index, reply::json(&params, &answer)?))
}

/// `PUT /v1/job/ID/revert`
pub(super) async fn revert(
    NamedRequest { api, id, params }: NamedRequest,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, RequestFailure> {
    let RevertRequest { job_id, job_version, enforce_prior_version } = body::read(&params, body)?;
    let id = named_job(&params, &id, &job_id)?;
    let parent = trace_parent(&headers);
    let registration = Registration::start_span(parent, id.as_str(), id.namespace(), "revert");
    let trace = registration.context;
    let reverting = api.agent.revert(&id, job_version, enforce_prior_version, trace);
    let registered = registration.run(reverting).await?;
    let index = registered.answer_index();
    let evaluation = evaluation_ids::id_of_registration(&id, &registered);
    registration.record_result(registered.version, index, Some(&evaluation));
    let answer = change::register_response(registered, index, evaluation, Vec::new());
    Ok(reply::with_index(index, reply::json(&params, &answer)?))
}

/// `PUT /v1/job/ID/stable`
pub(super) async fn stable(
    NamedRequest { api, id, params }: NamedRequest,
    body: Body,
) -> Result<Response, RequestFailure> {
    let StableRequest { job_id, job_version, stable } = body::read(&params, body)?;
    let id = named_job(&params, &id, &job_id)?;
    let index = api.agent.set_stable(&id, job_version, stable).await?;
    let answer = JobStabilityResponse { job_modify_index: index, index };
    Ok(reply::with_index(index, reply::json(&params, &answer)?))
}

/// The job that a path names; the body must name the same one or none.
fn named_job(params: &Params, path: &str, body: &str) -> Result<JobId, RequestFailure> {
    let id = params.job_id(path)?;
    match id.sibling(body) {
        Ok(other) if other != id => Err(RequestFailure::OtherJob { path: id, body: other }),
        _ => Ok(id),
    }
}

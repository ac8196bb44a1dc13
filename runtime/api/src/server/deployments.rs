//! Deployments: looked at, promoted, halted, given up; and the versions of a job that one may go back to.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;

use super::allocs;
use super::body;
use super::error::Failure;
use super::evaluations;
use super::jobs::{self, Body, trace_parent};
use super::json::change;
use super::json::deployment::deployment as shown;
use super::params::{Asked, Params};
use super::reply;
use super::router::{Api, Shared};
use super::wait::{self, Found};
use ostler_agent::{Deployed, DeploymentAsk, DeploymentError, SubmitError};
use ostler_model::alloc::Allocation;
use ostler_model::ids::{AllocId, GroupName, JobId};
use ostler_model::job::Job;
use ostler_model::rollout::Deployment;
use ostler_trace::Registration;
use ostler_wire::{
    Absent, AllocHealthRequest, DeploymentChanged, PauseRequest, PromoteRequest, RevertRequest,
    StableRequest, StableSet,
};

/// A deployment with its job.
type Known = (Arc<Job>, Arc<Deployment>);

fn all(api: &Api, wanted: impl Fn(&Known) -> bool) -> Found<Vec<Known>> {
    let mut found: Vec<Known> = api.agent.deployments().into_iter().filter(wanted).collect();
    // Newest first, as people look for them.
    found.sort_by_key(|(_, one)| std::cmp::Reverse((one.create_index, one.id.clone())));
    let newest = found.iter().map(|(_, one)| one.modify_index).max().unwrap_or(0);
    // What went with its job is seen by the job's own change.
    Found { index: newest.max(api.began_at), value: Ok(found) }
}

fn find(api: &Api, id: &str) -> Result<Known, Failure> {
    let id = id.to_ascii_lowercase();
    let found = api.agent.deployments().into_iter().find(|(_, one)| *one.id == *id);
    found.ok_or(Failure::NotThere("deployment"))
}

fn list_of(params: &Params, found: Vec<Known>) -> Result<Response, Failure> {
    let (page, next) = params.page(found, |(_, one)| one.id.to_string())?;
    let json: Vec<_> = page.iter().map(|(job, one)| shown(job, one)).collect();
    reply::page(params, &json, next.as_deref())
}

/// `GET /v1/deployments`
pub(super) async fn list(State(api): Shared, params: Params) -> Result<Response, Failure> {
    let prefix = params.prefix().to_ascii_lowercase();
    let wanted =
        |(job, one): &Known| one.id.starts_with(&prefix) && params.means_namespace(job.namespace());
    let shape = params.clone();
    let show = move |found| list_of(&shape, found);
    wait::answer_whole(&api, &params, || all(&api, wanted), show).await
}

/// `GET /v1/deployment/ID`
pub(super) async fn read(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    let look = || match find(&api, &id) {
        Ok(known) => Found { index: known.1.modify_index, value: Ok(known) },
        Err(error) => Found { index: api.agent.index(), value: Err(error) },
    };
    let show = |(job, one): Known| reply::json(&params, &shown(&job, &one));
    wait::answer(&api, &params, look, show).await
}

/// `GET /v1/deployment/allocations/ID`
pub(super) async fn allocations(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    let (job, one) = find(&api, &id)?;
    let wanted =
        |alloc: &Allocation| alloc.job.id == job.id && alloc.deployment_id() == Some(&*one.id);
    allocs::listed(&api, &params, wanted).await
}

/// `GET /v1/job/ID/deployments`
pub(super) async fn of_job(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    let id = jobs::known(&api, &params, &id)?;
    let (wanted, shape) = (|(job, _): &Known| job.id == id, params.clone());
    let show = move |found| list_of(&shape, found);
    wait::answer_whole(&api, &params, || all(&api, wanted), show).await
}

/// `GET /v1/job/ID/deployment`: the newest one.
pub(super) async fn newest_of(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    let id = jobs::known(&api, &params, &id)?;
    let wanted = |(job, _): &Known| job.id == id;
    let show = |found: Vec<Known>| match found.first() {
        Some((job, one)) => reply::json(&params, &shown(job, one)),
        None => reply::json(&params, &Absent),
    };
    wait::answer(&api, &params, || all(&api, wanted), show).await
}

async fn ask(
    api: &Api,
    params: &Params,
    id: &str,
    ask: DeploymentAsk,
) -> Result<Response, Failure> {
    let (job, one) = find(api, id)?;
    let deployed = api.agent.deployment(job.id.clone(), &one.id, ask).await?;
    changed(params, &job.id, deployed)
}

fn changed(params: &Params, job: &JobId, deployed: Deployed) -> Result<Response, Failure> {
    let Deployed { index, reverted } = deployed;
    let answer = DeploymentChanged {
        eval_id: evaluations::id(job, index),
        eval_create_index: index,
        deployment_modify_index: index,
        reverted_job_version: reverted,
        index,
    };
    Ok(reply::at_index(index, reply::json(params, &answer)?))
}

/// `PUT /v1/deployment/promote/ID`
pub(super) async fn promote(
    Asked { api, id, params }: Asked,
    body: Body,
) -> Result<Response, Failure> {
    let PromoteRequest { deployment_id, all, groups } = body::read(&params, body)?;
    body::as_path(&id, &deployment_id)?;
    let groups: Result<BTreeSet<GroupName>, _> = groups.iter().map(GroupName::new).collect();
    let groups = groups.map_err(|_| Failure::NotThere("task group"))?;
    ask(&api, &params, &id, DeploymentAsk::Promote((!all).then_some(groups))).await
}

/// `PUT /v1/deployment/fail/ID`
pub(super) async fn fail(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    ask(&api, &params, &id, DeploymentAsk::Fail).await
}

/// `PUT /v1/deployment/pause/ID`
pub(super) async fn pause(
    Asked { api, id, params }: Asked,
    body: Body,
) -> Result<Response, Failure> {
    let PauseRequest { deployment_id, pause } = body::read(&params, body)?;
    body::as_path(&id, &deployment_id)?;
    let what = if pause { DeploymentAsk::Pause } else { DeploymentAsk::Resume };
    ask(&api, &params, &id, what).await
}

/// `PUT /v1/deployment/unblock/ID`: only those of several regions are blocked.
pub(super) async fn unblock(Asked { api, id, params: _ }: Asked) -> Result<Response, Failure> {
    find(&api, &id)?;
    Err(SubmitError::Deployment(DeploymentError::NotBlocked).into())
}

/// `PUT /v1/deployment/allocation-health/ID`
pub(super) async fn judge(
    Asked { api, id, params }: Asked,
    body: Body,
) -> Result<Response, Failure> {
    let AllocHealthRequest { deployment_id, healthy, unhealthy } = body::read(&params, body)?;
    body::as_path(&id, &deployment_id)?;
    let (_, one) = find(&api, &id)?;
    if !one.phase.is_active() {
        return Err(SubmitError::Deployment(DeploymentError::Over(one.phase)).into());
    }
    let said = healthy.iter().map(|id| (id, true)).chain(unhealthy.iter().map(|id| (id, false)));
    let said: Result<Vec<(AllocId, bool)>, Failure> =
        said.map(|(id, healthy)| Ok((allocs::alloc_id(id)?, healthy))).collect();
    let said = said?;
    for (alloc, _) in &said {
        let of_it =
            |view: &ostler_agent::AllocView| view.allocation.deployment_id() == Some(&*one.id);
        if !api.agent.alloc(*alloc).as_ref().is_some_and(of_it) {
            return Err(SubmitError::Deployment(DeploymentError::Alloc(*alloc)).into());
        }
    }
    for (alloc, healthy) in said {
        api.agent.judge_alloc(alloc, healthy).await?;
    }
    // What follows from a verdict is a change of its own.
    let index = api.agent.index();
    let answer = DeploymentChanged { deployment_modify_index: index, index, ..Default::default() };
    Ok(reply::at_index(index, reply::json(&params, &answer)?))
}

/// `PUT /v1/job/ID/revert`
pub(super) async fn revert(
    Asked { api, id, params }: Asked,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let RevertRequest { job_id, job_version, enforce_prior_version } = body::read(&params, body)?;
    let id = named(&params, &id, &job_id)?;
    let parent = trace_parent(&headers);
    let registration = Registration::begin(parent, id.as_str(), id.namespace(), "revert");
    let trace = registration.context;
    let reverting = api.agent.revert(&id, job_version, enforce_prior_version, trace);
    let registered = registration.run(reverting).await?;
    let index = registered.answer_index();
    let evaluation = evaluations::of_registration(&id, &registered);
    registration.done(registered.version, index, Some(&evaluation));
    let answer = change::registered(registered, index, evaluation, Vec::new());
    Ok(reply::at_index(index, reply::json(&params, &answer)?))
}

/// `PUT /v1/job/ID/stable`
pub(super) async fn stable(
    Asked { api, id, params }: Asked,
    body: Body,
) -> Result<Response, Failure> {
    let StableRequest { job_id, job_version, stable } = body::read(&params, body)?;
    let id = named(&params, &id, &job_id)?;
    let index = api.agent.set_stable(&id, job_version, stable).await?;
    let answer = StableSet { job_modify_index: index, index };
    Ok(reply::at_index(index, reply::json(&params, &answer)?))
}

/// The job of a path, which a body may name too.
fn named(params: &Params, path: &str, body: &str) -> Result<JobId, Failure> {
    let id = params.job_id(path)?;
    match id.beside(body) {
        Ok(other) if other != id => Err(Failure::OtherJob { path: id, body: other }),
        _ => Ok(id),
    }
}

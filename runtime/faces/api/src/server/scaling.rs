//! Changes the counts of task groups, and reads their history and the policies of autoscalers.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;

use super::body::{self, Body};
use super::error::RequestFailure;
use super::evaluation_ids;
use super::jobs;
use super::json::change;
use super::params::Params;
use super::reply;
use super::scaling_history::key;
use super::state::{Api, ApiState, NamedRequest};
use super::wait::{self, IndexedValue};
use ostler_agent::{JobView, ScaleError, SubmitError};
use ostler_model::ids::{GroupName, JobId};
use ostler_model::job::{Job, TaskGroup};
use ostler_model::limits::SCALING_EVENT_BYTES_MAX;
use ostler_model::placement::ScalingPolicy;
use ostler_trace::Registration;
use ostler_wire::{
    self as wire, GroupScaleStatus, JobScaleStatus, ScalingEvent, ScalingPolicyStub, ScalingRequest,
};

/// Check a request as far as that is possible without its job. Returns the group and the new count.
fn read_request(
    request: &ScalingRequest,
    id: &JobId,
) -> Result<(GroupName, Option<u32>), RequestFailure> {
    // No policy of a job could be overridden.
    let ScalingRequest {
        count,
        target,
        message,
        error,
        meta,
        policy_override: _,
        job_modify_index: _,
    } = request;
    let refuse = |error: ScaleError| RequestFailure::from(SubmitError::Scale(error));
    let named = |key: &str| target.get(key).map(String::as_str).filter(|of| !of.is_empty());
    if named("Namespace").is_some_and(|of| of != id.namespace()) {
        return Err(refuse(ScaleError::OtherNamespace));
    }
    if let Some(other) = named("Job").filter(|of| *of != id.as_str()) {
        let body = id.sibling(other).map_err(|_| RequestFailure::NotThere("job"))?;
        return Err(RequestFailure::OtherJob { path: id.clone(), body });
    }
    let group = named("Group").ok_or_else(|| refuse(ScaleError::NoGroup))?;
    let group = GroupName::new(group)
        .map_err(|_| refuse(ScaleError::UnknownGroup(group.chars().take(64).collect())))?;
    let bytes = meta.text().len().saturating_add(message.len());
    let most = SCALING_EVENT_BYTES_MAX;
    if bytes > most {
        return Err(refuse(ScaleError::TooLong { bytes, most }));
    }
    let count = match *count {
        None => None,
        Some(..0) => return Err(refuse(ScaleError::Negative)),
        Some(_) if *error => return Err(refuse(ScaleError::CountOfError)),
        Some(count) => Some(u32::try_from(count).map_err(|_| refuse(ScaleError::TooLarge(count)))?),
    };
    Ok((group, count))
}

/// `PUT /v1/job/ID/scale`
pub(super) async fn scale(
    NamedRequest { api, id, params }: NamedRequest,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, RequestFailure> {
    let request: ScalingRequest = body::read(&params, body)?;
    let (group, count) = read_request(&request, &params.job_id(&id)?)?;
    let job = jobs::current_job(&api, &params, &id)?;
    let known = job.record.job.group(&group);
    let previous_count = known.map(|group| group.count).ok_or_else(|| {
        RequestFailure::from(SubmitError::Scale(ScaleError::UnknownGroup(group.to_string())))
    })?;
    let (index, answer) = match count {
        None => {
            let index = job.record.job_modify_index;
            let (job_modify_index, known_leader) = (index, true);
            let answer = wire::JobRegisterResponse {
                job_modify_index,
                index,
                known_leader,
                ..Default::default()
            };
            (index, answer)
        }
        Some(count) => {
            let expected = Some(request.job_modify_index).filter(|index| *index > 0);
            let id = &job.record.job.id;
            let parent = jobs::trace_parent(&headers);
            let registration =
                Registration::start_span(parent, id.as_str(), id.namespace(), "scale");
            let scaling = api.agent.scale(id, &group, count, expected, registration.context);
            let registered = registration.run(scaling).await?;
            let index = registered.answer_index();
            let evaluation = evaluation_ids::id_of_registration(id, &registered);
            registration.record_result(registered.version, index, Some(&evaluation));
            (index, change::register_response(registered, index, evaluation, Vec::new()))
        }
    };
    let event = ScalingEvent {
        time: api.clock.now(),
        count,
        previous_count,
        message: request.message,
        error: request.error,
        meta: Some(request.meta).filter(|meta| !meta.map().is_empty()),
        eval_id: Some(answer.eval_id.clone()).filter(|id| !id.is_empty()),
        create_index: index,
    };
    let jobs = api.agent.control().jobs();
    api.scalings().add(key(&job), group, event, &jobs);
    Ok(reply::with_index(index, reply::json(&params, &answer)?))
}

/// `GET /v1/job/ID/scale`
pub(super) async fn status(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    jobs::answer_job(&api, &params, &id, |job| reply::json(&params, &status_of(&api, &job))).await
}

fn status_of<'a>(api: &Api, job: &'a JobView) -> JobScaleStatus<'a> {
    let (record, key) = (&job.record, key(job));
    let noted = api.scalings();
    let empty = |group: &'a TaskGroup| {
        let events = noted.events_of_group(&key, &group.name);
        let status = GroupScaleStatus { desired: group.count, events, ..Default::default() };
        (group.name.as_str().into(), status)
    };
    let mut groups: BTreeMap<wire::Text<'a>, GroupScaleStatus> =
        record.job.groups.iter().map(empty).collect();
    drop(noted);
    for alloc in api.agent.control().alloc_refs(|alloc| alloc.job.id == record.job.id) {
        let alloc = alloc.view();
        let state = &alloc.state;
        let group = groups.get_mut(alloc.allocation.group.as_str());
        let Some(group) = group.filter(|_| !state.client_status.is_terminal() && !alloc.canary)
        else {
            continue;
        };
        let one_more = |count: &mut u32, really: bool| {
            *count = count.saturating_add(u32::from(really));
        };
        one_more(&mut group.placed, true);
        let runs = state.client_status == ostler_model::alloc::ClientStatus::Running;
        one_more(&mut group.running, runs);
        let health = state.health.as_ref().and_then(|health| health.healthy);
        one_more(&mut group.healthy, health == Some(true));
        one_more(&mut group.unhealthy, health == Some(false));
    }
    JobScaleStatus {
        job_id: record.job.id.as_str().into(),
        namespace: record.job.namespace().into(),
        job_create_index: record.create_index,
        job_modify_index: record.modify_index,
        job_stopped: record.stopped,
        task_groups: groups,
    }
}

/// The type of all policies: only the counts of groups are scaled.
const HORIZONTAL: &str = "horizontal";

fn stub<'a>(
    view: &'a JobView,
    group: &'a TaskGroup,
    policy: &ScalingPolicy,
) -> ScalingPolicyStub<'a> {
    let (record, job) = (&view.record, &view.record.job);
    let target =
        [("Namespace", job.namespace()), ("Job", job.id.as_str()), ("Group", group.name.as_str())];
    ScalingPolicyStub {
        id: evaluation_ids::policy_id(job, record.create_index, group).into(),
        enabled: policy.enabled,
        kind: HORIZONTAL.into(),
        target: target.map(|(key, value)| (key.into(), value.into())).into(),
        create_index: record.create_index,
        modify_index: record.job_modify_index,
    }
}

/// Every scaling policy of a job, with its group.
fn policies_of_job(job: &Job) -> impl Iterator<Item = (&TaskGroup, &ScalingPolicy)> {
    job.groups.iter().filter_map(|group| Some((group, group.scaling.as_ref()?)))
}

fn find_jobs(api: &Api) -> IndexedValue<Vec<JobView>> {
    let jobs = api.agent.control().jobs();
    let newest = jobs.iter().map(|job| job.record.modify_index).max().unwrap_or(0);
    IndexedValue { index: newest.max(api.began_at), value: Ok(jobs) }
}

/// The ids of the policies of jobs in the namespaces that `wanted` accepts.
pub(super) fn policy_ids(api: &Api, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let jobs = api.agent.control().jobs();
    let jobs = jobs.iter().filter(|view| wanted(view.record.job.namespace()));
    let all = jobs.flat_map(|view| {
        policies_of_job(&view.record.job)
            .map(move |(group, policy)| stub(view, group, policy).id.to_string())
    });
    all.collect()
}

/// `GET /v1/scaling/policies`
pub(super) async fn policies(
    State(api): ApiState,
    params: Params,
) -> Result<Response, RequestFailure> {
    let prefix = params.prefix().to_ascii_lowercase();
    // As in Nomad, the requested type may be the beginning of one.
    let kind = HORIZONTAL.starts_with(params.text("type").unwrap_or_default());
    let shape = params.clone();
    let show = move |jobs: Vec<JobView>| {
        let params = shape;
        let wanted = |view: &&JobView| {
            let job = &view.record.job;
            let named = params.text("job").is_none_or(|named| named == job.id.as_str());
            let runs = !view.record.stopped;
            kind && runs && named && params.includes_namespace(job.namespace())
        };
        let all = jobs.iter().filter(wanted).flat_map(|view| {
            policies_of_job(&view.record.job).map(move |(group, policy)| stub(view, group, policy))
        });
        let all: Vec<_> = all.filter(|policy| policy.id.starts_with(&prefix)).collect();
        reply::json(&params, &all)
    };
    wait::answer_whole(&api, &params, || find_jobs(&api), show).await
}

/// `GET /v1/scaling/policy/ID`
pub(super) async fn policy(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let id = id.to_ascii_lowercase();
    let show = |jobs: Vec<JobView>| {
        let all = jobs.iter().flat_map(|view| {
            policies_of_job(&view.record.job).map(move |(group, policy)| (view, group, policy))
        });
        let found = all
            .map(|(view, group, policy)| wire::WireScalingPolicy {
                stub: stub(view, group, policy),
                namespace: view.record.job.namespace().into(),
                policy: std::borrow::Cow::Borrowed(&policy.policy),
                min: policy.min,
                max: policy.max,
            })
            .find(|policy| policy.stub.id == id);
        let found = found.ok_or(RequestFailure::NotThere("policy"))?;
        reply::json(&params, &found)
    };
    wait::answer(&api, &params, || find_jobs(&api), show).await
}

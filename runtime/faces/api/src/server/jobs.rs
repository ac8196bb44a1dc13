//! Registers, reads, plans and stops jobs.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use serde::de::IgnoredAny;
use serde_json::Value;
use tokio::runtime::Handle;

use super::body::{self, Body, body_bytes};
use super::error::RequestFailure;
use super::evaluation_ids;
use super::index::ListReading;
use super::json::change::{self, warnings_text};
use super::json::job::{self, JobJsonInput, full, waits_for};
use super::json::{REGION, diff};
use super::params::Params;
use super::reply;
use super::state::{Api, ApiState, NamedRequest};
use super::wait::{self, IndexedValue};
use ostler_agent::{
    AgentHandle, JobOptions, JobView, PlanSnapshot, RegisterOptions, StopOptions, StopOutcome,
};
use ostler_jobspec::{FileDiagnostic, Inputs, JobBody, ParsedJob, Syntax, nomad_json};
use ostler_model::access::AccessLevel;
use ostler_model::cancellation::CancelFlag;
use ostler_model::clock;
use ostler_model::ids::{JobId, NAMESPACE, Namespace};
use ostler_model::job::Job;
use ostler_model::limits::{API_COMPUTING_WALL_MAX, API_START_WAIT};
use ostler_model::saved::{JobOrigin, JobRecord};
use ostler_trace::{Registration, TraceParent};
use ostler_wire::{
    EvalOptions, EvaluateRequest, JobDiff, JobRegisterResponse, JobRequest, JobValidateResponse,
    JobVersionsResponse, ParseRequest,
};

/// The error about a text in the syntax of Nomad before 1.0.
const HCL_V1: &str =
    "hclv1: Ostler reads HCL2, as Nomad does since 1.0; send the file without hclv1";

/// A job that a client has sent, with the options beside it, and warnings about parts that are
/// accepted without effect.
struct SubmittedJob {
    job: Job,
    meant: JobOptions,
    /// The index that the job must be at; none for any.
    expected: Option<u64>,
    /// Whether to create a new version even if nothing of the job changed.
    rerun: bool,
    /// Whether the answer has the difference.
    diff: bool,
    warnings: Vec<String>,
}

/// The keys beside the job that a registration, a plan and a validation act on.
const OF_REGISTRATION: &[&str] =
    &["Region", "Namespace", "EnforceIndex", "JobModifyIndex", "PreserveCounts", "Rerun"];
const OF_PLAN: &[&str] = &["Region", "Namespace", "Diff", "PreserveCounts"];
const OF_VALIDATION: &[&str] = &["Region", "Namespace"];

/// A body, and the keys beside its job that the request acts on.
type BodyAndKeys = (Bytes, &'static [&'static str]);

async fn read_job(
    api: &Api,
    params: &Params,
    (bytes, acted_on): BodyAndKeys,
) -> Result<SubmittedJob, RequestFailure> {
    let read = api.computing.run(params.access().caller(), move |_| {
        let request = ostler_jobspec::read_request(&bytes, acted_on).map_err(|diagnostics| {
            let text = std::str::from_utf8(&bytes).unwrap_or_default();
            RequestFailure::BadJob(diagnostics.render(text, false))
        })?;
        // Other keys were reported or refused when the job was read.
        let beside: JobRequest<IgnoredAny> =
            serde_json::from_slice(&bytes).map_err(RequestFailure::BadBody)?;
        Ok::<_, RequestFailure>((request, beside))
    });
    let (JobBody { parsed, stop }, beside) = read.await??;
    let ParsedJob { mut job, warnings, .. } = parsed;
    let JobRequest {
        job: _,
        namespace,
        region,
        enforce_index,
        job_modify_index,
        preserve_counts,
        rerun,
        diff,
    } = beside;
    // As in Nomad, the first one that names a namespace counts: the query, the request, the job.
    let of_request = namespace.as_deref().filter(|named| !named.is_empty());
    if let Some(namespace) = params.text("namespace").or(of_request) {
        let namespace =
            Namespace::new(namespace).map_err(|_| RequestFailure::other_namespace(namespace))?;
        let id = JobId::in_namespace(&namespace, job.id.as_str());
        job.id = id.map_err(|error| RequestFailure::BadJob(error.to_string()))?;
    }
    if let Some(other) = region.as_deref()
        && !matches!(other, "" | REGION)
    {
        return Err(RequestFailure::OtherRegion(other.chars().take(64).collect()));
    }
    let warnings = warnings.iter().map(FileDiagnostic::message_with_path).collect();
    let meant = JobOptions { stopped: stop, keeps_counts: preserve_counts.unwrap_or(false) };
    let enforced = enforce_index.unwrap_or(false);
    let expected = enforced.then_some(job_modify_index.unwrap_or(0));
    let (rerun, diff) = (rerun.unwrap_or(false), diff.unwrap_or(false));
    Ok(SubmittedJob { job, meant, expected, rerun, diff, warnings })
}

/// As [`job_of`], for a client that must be allowed to change the job. Its namespace may stand in
/// the body only.
async fn read_changeable_job(
    api: &Api,
    params: &Params,
    whole: BodyAndKeys,
) -> Result<SubmittedJob, RequestFailure> {
    let given = read_job(api, params, whole).await?;
    params.access().require(AccessLevel::Submit, given.job.namespace())?;
    Ok(given)
}

/// As [`read_changeable_job`], for a path that names the job too.
async fn read_named_job(
    api: &Api,
    params: &Params,
    id: &str,
    whole: BodyAndKeys,
) -> Result<SubmittedJob, RequestFailure> {
    let given = read_changeable_job(api, params, whole).await?;
    let path = given.job.id.sibling(id).map_err(|_| RequestFailure::NotThere("job"))?;
    if given.job.id == path {
        Ok(given)
    } else {
        Err(RequestFailure::OtherJob { path, body: given.job.id })
    }
}

/// A job, and the index of its last change, including those of its allocations and its deployment.
/// If there is no such job, the index is that of the list, so that a client can wait for the job to appear.
fn find_job(api: &Api, params: &Params, id: &str) -> IndexedValue<JobView> {
    let found = params
        .job_id(id)
        .and_then(|id| api.agent.control().job(&id).ok_or(RequestFailure::NotThere("job")));
    match found {
        Ok(job) => {
            let deployment = job.deployment.as_ref().map_or(0, |newest| newest.modify_index);
            IndexedValue { index: job.modify_index.max(deployment), value: Ok(job) }
        }
        Err(error) => IndexedValue { index: find_all_jobs(api).index, value: Err(error) },
    }
}

fn find_all_jobs(api: &Api) -> IndexedValue<Vec<JobView>> {
    let before = api.agent.control().index();
    let jobs = api.agent.control().jobs();
    let after = api.agent.control().index();
    let ids: BTreeSet<JobId> = jobs.iter().map(|job| job.record.job.id.clone()).collect();
    let newest = jobs.iter().map(|job| job.modify_index).max().unwrap_or(0);
    let index = api.seen_jobs().index(ListReading { before, after, ids, newest });
    IndexedValue { index, value: Ok(jobs) }
}

/// `GET /v1/jobs`
pub(super) async fn list(State(api): ApiState, params: Params) -> Result<Response, RequestFailure> {
    let (look, shape) = (|| find_all_jobs(&api), params.clone());
    wait::answer_whole(&api, &params, look, move |jobs| {
        let params = shape;
        let wanted = |job: &JobView| {
            let job = &job.record.job;
            job.id.as_str().starts_with(params.prefix())
                && params.includes_namespace(job.namespace())
        };
        let mut jobs: Vec<_> = jobs.iter().filter(|job| wanted(job)).collect();
        let name = |job: &&JobView| params.name_of(&job.record.job.id);
        // The jobs of one namespace are in this order already.
        if params.includes_all_namespaces() {
            jobs.sort_by_cached_key(name);
        }
        let (jobs, next) = params.page(jobs, name)?;
        let jobs: Vec<_> = jobs.into_iter().map(|job| (job, waits_for(job))).collect();
        let stubs: Vec<_> = jobs
            .iter()
            .map(|(job, waits_for)| job::stub(JobJsonInput::new(job, waits_for)))
            .collect();
        reply::page(&params, &stubs, next.as_deref())
    })
    .await
}

/// `PUT /v1/jobs`
pub(super) async fn register(
    State(api): ApiState,
    params: Params,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, RequestFailure> {
    let given = read_changeable_job(&api, &params, (body_bytes(body)?, OF_REGISTRATION)).await?;
    submit_job(&api, &params, &headers, given).await
}

/// `PUT /v1/job/ID`
pub(super) async fn update(
    NamedRequest { api, id, params }: NamedRequest,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, RequestFailure> {
    let given = read_named_job(&api, &params, &id, (body_bytes(body)?, OF_REGISTRATION)).await?;
    submit_job(&api, &params, &headers, given).await
}

/// Wait a while for the drivers of the job while plugins are loaded, because only they know which
/// task configurations are valid. If they take longer, the allocations wait for them.
async fn wait_for_drivers(api: &Api, job: &Job) {
    let _late = clock::timeout(API_START_WAIT, api.agent.wait_drivers_known(job)).await;
}

/// The header that names the trace of a request.
const TRACEPARENT: &str = "traceparent";

pub(super) fn trace_parent(headers: &HeaderMap) -> Option<TraceParent> {
    TraceParent::parse(headers.get(TRACEPARENT)?.to_str().ok()?)
}

async fn submit_job(
    api: &Api,
    params: &Params,
    headers: &HeaderMap,
    given: SubmittedJob,
) -> Result<Response, RequestFailure> {
    let SubmittedJob { job, meant, expected, rerun, diff: _, warnings } = given;
    let mut here = api.agent.capped_kill_timeouts(&job);
    here.extend(api.agent.counts_out_of_range(&job, meant));
    let (name, namespace) = (job.id.as_str(), job.namespace());
    let registration = Registration::start_span(trace_parent(headers), name, namespace, "api");
    let options = RegisterOptions {
        enforce_job_modify_index: expected,
        origin: JobOrigin::Api,
        all_or_nothing: false,
        meant,
        rerun,
        trace: registration.context,
    };
    let id = job.id.clone();
    let registering = async {
        wait_for_drivers(api, &job).await;
        let done = api.agent.register(job, options).await;
        tracing::debug!(job = %id, taken = done.is_ok(), "job registered");
        done
    };
    let mut registered = registration.run(registering).await?;
    registered.warnings.extend(here);
    let index = registered.answer_index();
    let evaluation = evaluation_ids::id_of_registration(&id, &registered);
    registration.record_result(registered.version, index, Some(&evaluation));
    let answer = change::register_response(registered, index, evaluation, warnings);
    Ok(reply::with_index(index, reply::json(params, &answer)?))
}

/// `PUT /v1/jobs/parse`
pub(super) async fn parse(
    State(api): ApiState,
    params: Params,
    body: Body,
) -> Result<Response, RequestFailure> {
    // The answer always has the defaults.
    let ParseRequest { job_hcl: text, canonicalize: _, variables, hcl_v1 } =
        body::read(&params, body)?;
    if hcl_v1 {
        return Err(RequestFailure::BadJob(HCL_V1.to_owned()));
    }
    let mut inputs = Inputs::default();
    if let Some(variables) = variables.filter(|text| !text.is_empty()) {
        inputs.add_file("Variables", variables).map_err(RequestFailure::BadJob)?;
    }
    let read = api.computing.run(params.access().caller(), move |wanted| {
        inputs.wanted = wanted.clone();
        let syntax = Some(Syntax::Hcl);
        let read = ostler_jobspec::read_with(text.as_bytes(), Path::new(""), syntax, &inputs);
        read.map_err(|diagnostics| RequestFailure::BadJob(diagnostics.render(&text, false)))
    });
    let job = read.await??.job;
    let caller = params.access().caller();
    api.computing.answer(caller, move || reply::json(&params, &job::unregistered_job(&job))).await
}

/// `PUT /v1/validate/job`
pub(super) async fn validate(
    State(api): ApiState,
    params: Params,
    body: Body,
) -> Result<Response, RequestFailure> {
    let (mut warnings, mut agent_warnings, mut config_problems) = Default::default();
    let whole = (body_bytes(body)?, OF_VALIDATION);
    let problems: Vec<String> = match read_job(&api, &params, whole).await {
        Ok(given) => {
            wait_for_drivers(&api, &given.job).await;
            (warnings, agent_warnings) = (given.warnings, api.agent.driver_warnings(&given.job));
            agent_warnings.extend(api.agent.capped_kill_timeouts(&given.job));
            let (agent, job) = (api.agent.clone(), given.job);
            let checked = api.computing.run(params.access().caller(), move |_| agent.check(&job));
            config_problems = checked.await?;
            config_problems.iter().map(ToString::to_string).collect()
        }
        Err(RequestFailure::BadJob(text)) => vec![text],
        Err(other) => return Err(other),
    };
    warnings.extend_from_slice(&agent_warnings);
    let answer = JobValidateResponse {
        driver_config_validated: true,
        error: problems.join("\n"),
        validation_errors: (!problems.is_empty()).then_some(problems),
        warnings: warnings_text(&warnings),
        config_problems: config_problems.into_iter().map(change::config_problem).collect(),
        agent_warnings,
    };
    let caller = params.access().caller();
    api.computing.answer(caller, move || reply::json(&params, &answer)).await
}

/// Answer a query about one job.
pub(super) async fn answer_job(
    api: &Api,
    params: &Params,
    id: &str,
    show: impl FnOnce(JobView) -> Result<Response, RequestFailure>,
) -> Result<Response, RequestFailure> {
    wait::answer(api, params, || find_job(api, params, id), show).await
}

/// `GET /v1/job/ID`
pub(super) async fn read(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let shape = params.clone();
    let show =
        move |job: JobView| reply::json(&shape, &full(JobJsonInput::new(&job, &waits_for(&job))));
    wait::answer_whole(&api, &params, || find_job(&api, &params, &id), show).await
}

/// `GET /v1/job/ID/summary`
pub(super) async fn summary(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let show = |job: JobView| reply::json(&params, &job::summary(JobJsonInput::new(&job, "")));
    answer_job(&api, &params, &id, show).await
}

/// `GET /v1/job/ID/versions`: the versions that are kept, newest first.
pub(super) async fn versions(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let diffs = params.flag("diffs")?;
    let found = wait::find_newer(&api, &params, || find_job(&api, &params, &id)).await?;
    let job = match found.value {
        Ok(job) => job,
        Err(failure) => return Ok(reply::with_read_index(found.index, failure.into_response())),
    };
    let earlier = api.agent.control().versions(&job.record.job.id);
    let diffs = if diffs {
        let (earlier, newest) = (earlier.clone(), Arc::clone(&job.record));
        let compare = move |wanted: &CancelFlag| version_diffs(&earlier, &newest, wanted);
        Some(api.computing.run(params.access().caller(), compare).await?)
    } else {
        None
    };
    let of_job = api.agent.control().alloc_refs(|alloc| alloc.job.id == job.record.job.id);
    let live = of_job.iter().filter(|one| !one.handle.state().borrow().client_status.is_terminal());
    let live: BTreeSet<u64> = live.map(|alloc| alloc.allocation.job_version).collect();
    let (caller, index) = (params.access().caller(), found.index);
    let write = move || {
        let waits = waits_for(&job);
        let newest = JobJsonInput::new(&job, &waits);
        let runs = |record: &JobRecord| live.contains(&record.version);
        let earlier = earlier.iter().rev();
        let earlier = earlier.map(|record| full(newest.with_version(record, runs(record))));
        let versions = std::iter::once(full(newest)).chain(earlier).collect();
        let index = job.record.modify_index;
        let answer =
            JobVersionsResponse { versions, diffs, index, last_contact: 0, known_leader: true };
        reply::json(&params, &answer)
    };
    Ok(reply::with_read_index(index, api.computing.answer(caller, write).await?))
}

/// The difference of each version but the first from the one before it, newest first, as long as it
/// is wanted. `earlier` has the oldest version first.
fn version_diffs(
    earlier: &[Arc<JobRecord>],
    newest: &Arc<JobRecord>,
    wanted: &CancelFlag,
) -> Vec<JobDiff<'static>> {
    let all = earlier.iter().chain([newest]).map(|record| &record.job);
    let texts = all.take_while(|_| !wanted.is_cancelled());
    let texts: Vec<_> = texts.map(|job| (job.id.as_str(), nomad_json(job))).collect();
    let pairs = texts.iter().zip(texts.iter().skip(1)).take_while(|_| !wanted.is_cancelled());
    let each = pairs.map(|((_, old), (id, new))| diff::job(id, Some(old), new, &|_| None));
    let mut each: Vec<_> = each.collect();
    each.reverse();
    each
}

/// `PUT /v1/job/ID/plan`
pub(super) async fn plan(
    NamedRequest { api, id, params }: NamedRequest,
    body: Body,
) -> Result<Response, RequestFailure> {
    let given = read_named_job(&api, &params, &id, (body_bytes(body)?, OF_PLAN)).await?;
    let SubmittedJob { job, meant, expected: _, rerun: _, diff, warnings } = given;
    wait_for_drivers(&api, &job).await;
    let (agent, job) = (api.agent.clone(), Arc::new(job));
    let planned = Arc::clone(&job);
    let runtime = Handle::current();
    let compute = move |_: &CancelFlag| {
        let planning = copy_planning(&runtime, agent.clone(), planned)?;
        Ok::<_, RequestFailure>(agent.plan_with(&planning, meant)?)
    };
    let mut plan = api.computing.run(params.access().caller(), compute).await??;
    plan.warnings.extend(api.agent.capped_kill_timeouts(&job));
    plan.warnings.extend(api.agent.counts_out_of_range(&job, meant));
    let (index, node) = (plan.job_modify_index, api.agent.node());
    let diff = if diff {
        let (known, groups) = (plan.known.clone(), plan.groups.clone());
        let compare = move |_: &CancelFlag| {
            let (old, new) = jobs_to_compare(known.as_deref(), &job, meant);
            let of_group = |name: &str| {
                let mut groups = groups.iter();
                groups.find(|(group, _)| group.as_str() == name).map(|(_, plan)| plan.clone())
            };
            diff::job(job.id.as_str(), old.as_ref(), &new, &of_group)
        };
        Some(api.computing.run(params.access().caller(), compare).await?)
    } else {
        None
    };
    let caller = params.access().caller();
    let write =
        move || reply::json(&params, &change::plan(&plan, &node.datacenter, diff, &warnings));
    Ok(reply::with_index(index, api.computing.answer(caller, write).await?))
}

/// Copy the state of the node that decides about a job. A thread of normal priority makes the copy,
/// because the node waits for it. The computing thread asks for it, so that there are few copies at once.
fn copy_planning(
    runtime: &Handle,
    agent: AgentHandle,
    job: Arc<Job>,
) -> Result<PlanSnapshot, RequestFailure> {
    let (copy, copied) = sync_channel(1);
    // A new thread inherits the priority of the thread that starts it, so it is not started here.
    drop(runtime.spawn(async move {
        if let Ok(planning) = clock::run_blocking(move || agent.control().plan_snapshot(job)).await
        {
            // An error means that nobody waits for the copy any more.
            let _gone = copy.send(planning);
        }
    }));
    let failed =
        |_| RequestFailure::Internal("the state of the node could not be read in time".to_owned());
    copied.recv_timeout(API_COMPUTING_WALL_MAX).map_err(failed)
}

/// The present and the new form of a job, to be compared. A stopped job would run again unless the
/// new form is stopped too.
fn jobs_to_compare(
    known: Option<&JobRecord>,
    job: &Job,
    meant: JobOptions,
) -> (Option<Value>, Value) {
    let job = meant.apply_to(job, known);
    let (mut old, mut new) = (known.map(|known| nomad_json(&known.job)), nomad_json(&job));
    let stopped = known.map(|known| known.stopped);
    if let Some(stopped) = stopped.filter(|stopped| *stopped || meant.stopped) {
        let stops = [stopped, meant.stopped];
        for (value, stop) in old.as_mut().into_iter().chain([&mut new]).zip(stops) {
            if let Some(members) = value.as_object_mut() {
                members.insert("Stop".to_owned(), stop.into());
            }
        }
    }
    (old, new)
}

/// `PUT /v1/job/ID/evaluate`. What waits is tried again at each change anyway. Failed allocations
/// get successors at once if the request asks for it.
pub(super) async fn evaluate(
    NamedRequest { api, id, params }: NamedRequest,
    body: Body,
) -> Result<Response, RequestFailure> {
    let EvaluateRequest { job_id, eval_options } = body::read(&params, body)?;
    body::check_same_as_path(&id, &job_id)?;
    let EvalOptions { force_reschedule } = eval_options;
    let found = find_job(&api, &params, &id).value?;
    let record = &found.record;
    let placed =
        if force_reschedule { api.agent.reschedule(&record.job.id).await?.index } else { None };
    let index = placed.unwrap_or_else(|| api.agent.control().index());
    let answer = JobRegisterResponse {
        eval_id: match placed {
            Some(index) => evaluation_ids::evaluation_id(&record.job.id, index),
            None => evaluation_ids::id_of_unchanged(&record.job.id, record.job_modify_index),
        },
        eval_create_index: placed.unwrap_or(record.job_modify_index),
        job_modify_index: record.job_modify_index,
        index,
        known_leader: true,
        ..JobRegisterResponse::default()
    };
    Ok(reply::with_index(index, reply::json(&params, &answer)?))
}

/// `DELETE /v1/job/ID`
pub(super) async fn stop(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    let options = StopOptions {
        purge: params.flag("purge")?,
        skip_shutdown_delay: params.flag("no_shutdown_delay")?,
        reason: String::new(),
    };
    let found = find_job(&api, &params, &id).value?;
    let (id, purge) = (&found.record.job.id, options.purge);
    let StopOutcome { index, unwritten } = api.agent.deregister(id, options).await?;
    if purge {
        api.purged().add(Arc::clone(&found.record.job), index, api.clock.now());
    }
    let answer =
        change::deregister_response(index, evaluation_ids::evaluation_id(id, index), unwritten);
    Ok(reply::with_index(index, reply::json(&params, &answer)?))
}

/// The present state of a job.
pub(super) fn current_job(api: &Api, params: &Params, id: &str) -> Result<JobView, RequestFailure> {
    find_job(api, params, id).value
}

/// The id of the job whose lists are requested. In the namespace `default` the job must exist; in
/// another one an unknown job has empty lists, as in Nomad.
pub(super) fn listed_job_id(api: &Api, params: &Params, id: &str) -> Result<JobId, RequestFailure> {
    let id = params.job_id(id)?;
    let is_there = id.namespace() != NAMESPACE || api.agent.control().job(&id).is_some();
    is_there.then_some(id).ok_or(RequestFailure::NotThere("job"))
}

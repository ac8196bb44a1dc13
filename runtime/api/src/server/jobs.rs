//! Jobs: registered, looked at, planned, stopped.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use serde::de::IgnoredAny;
use serde_json::Value;
use tokio::runtime::Handle;

use super::body;
use super::error::Failure;
use super::evaluations;
use super::index::Reading;
use super::json::change::{self, warnings_text};
use super::json::job::{self, Seen, full, waits_for};
use super::json::{REGION, diff};
use super::params::{Asked, Params};
use super::reply;
use super::router::{Api, Shared};
use super::wait::{self, Found};
use ostler_agent::{
    AgentHandle, JobOptions, JobView, Planning, RegisterOptions, StopOptions, Stopped,
};
use ostler_jobspec::{FileDiagnostic, Inputs, JobBody, Parsed, Syntax, nomad_json};
use ostler_model::access::Level;
use ostler_model::clock;
use ostler_model::ids::{JobId, NAMESPACE, Namespace};
use ostler_model::job::Job;
use ostler_model::limits::{API_COMPUTING_WALL_MAX, API_START_WAIT};
use ostler_model::saved::{JobOrigin, JobRecord};
use ostler_model::wanted::Awaited;
use ostler_trace::{Registration, TraceParent};
use ostler_wire::{
    EvalOptions, EvaluateRequest, JobDiff, JobRequest, JobVersions, ParseRequest, Registered,
    Validated,
};

/// Said of a text in the syntax of Nomad before 1.0.
const HCL_V1: &str =
    "hclv1: Ostler reads HCL2, as Nomad does since 1.0; send the file without hclv1";

/// A body that arrived whole, or not.
pub(super) type Body = Result<Bytes, BytesRejection>;

/// The bytes of a body, within the limit.
pub(super) fn bytes(body: Body) -> Result<Bytes, Failure> {
    body.map_err(|rejection| {
        if rejection.status() == axum::http::StatusCode::PAYLOAD_TOO_LARGE {
            Failure::BodyTooLarge
        } else {
            Failure::BodyLost(rejection.body_text())
        }
    })
}

/// The job of a body, what stands beside it, and what is accepted of it and not done.
struct Given {
    job: Job,
    meant: JobOptions,
    /// Only if the job is at this index.
    expected: Option<u64>,
    /// A new version even if nothing of it changed.
    rerun: bool,
    /// What differs is to be said.
    diff: bool,
    warnings: Vec<String>,
}

/// What each request acts on of what stands beside its job.
const OF_REGISTRATION: &[&str] =
    &["Region", "Namespace", "EnforceIndex", "JobModifyIndex", "PreserveCounts", "Rerun"];
const OF_PLAN: &[&str] = &["Region", "Namespace", "Diff", "PreserveCounts"];
const OF_VALIDATION: &[&str] = &["Region", "Namespace"];

/// A body, and what is acted on of what stands in it beside the job.
type Whole = (Bytes, &'static [&'static str]);

async fn job_of(api: &Api, params: &Params, (bytes, acted_on): Whole) -> Result<Given, Failure> {
    let read = api.computing.run(params.access().caller(), move |_| {
        let request = ostler_jobspec::read_request(&bytes, acted_on).map_err(|diagnostics| {
            let text = std::str::from_utf8(&bytes).unwrap_or_default();
            Failure::BadJob(diagnostics.render(text, false))
        })?;
        // Whatever else stands there was told or refused where the job was read.
        let beside: JobRequest<IgnoredAny> =
            serde_json::from_slice(&bytes).map_err(Failure::BadBody)?;
        Ok::<_, Failure>((request, beside))
    });
    let (JobBody { parsed, stop }, beside) = read.await??;
    let Parsed { mut job, warnings, .. } = parsed;
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
    // The first that names one, as in Nomad: the query, the request, the job.
    let of_request = namespace.as_deref().filter(|named| !named.is_empty());
    if let Some(namespace) = params.text("namespace").or(of_request) {
        let namespace =
            Namespace::new(namespace).map_err(|_| Failure::other_namespace(namespace))?;
        let id = JobId::within(&namespace, job.id.as_str());
        job.id = id.map_err(|error| Failure::BadJob(error.to_string()))?;
    }
    if let Some(other) = region.as_deref()
        && !matches!(other, "" | REGION)
    {
        return Err(Failure::OtherRegion(other.chars().take(64).collect()));
    }
    let warnings = warnings.iter().map(FileDiagnostic::in_words).collect();
    let meant = JobOptions { stopped: stop, keeps_counts: preserve_counts.unwrap_or(false) };
    let enforced = enforce_index.unwrap_or(false);
    let expected = enforced.then_some(job_modify_index.unwrap_or(0));
    let (rerun, diff) = (rerun.unwrap_or(false), diff.unwrap_or(false));
    Ok(Given { job, meant, expected, rerun, diff, warnings })
}

/// As [`job_of`], for somebody who may change it: its namespace may stand in the body alone.
async fn job_to_change(api: &Api, params: &Params, whole: Whole) -> Result<Given, Failure> {
    let given = job_of(api, params, whole).await?;
    params.access().require(Level::Submit, given.job.namespace())?;
    Ok(given)
}

/// The same for a path that names the job too.
async fn job_named(api: &Api, params: &Params, id: &str, whole: Whole) -> Result<Given, Failure> {
    let given = job_to_change(api, params, whole).await?;
    let path = given.job.id.beside(id).map_err(|_| Failure::NotThere("job"))?;
    match given.job.id == path {
        true => Ok(given),
        false => Err(Failure::OtherJob { path, body: given.job.id }),
    }
}

/// A job and the index of its last change, those of its allocations and of its deployment included. Without the job the
/// index is that of the list, so that one can wait for a job to come.
fn look(api: &Api, params: &Params, id: &str) -> Found<JobView> {
    let found = params.job_id(id).and_then(|id| api.agent.job(&id).ok_or(Failure::NotThere("job")));
    match found {
        Ok(job) => {
            let deployment = job.deployment.as_ref().map_or(0, |newest| newest.modify_index);
            Found { index: job.modify_index.max(deployment), value: Ok(job) }
        }
        Err(error) => Found { index: look_at_all(api).index, value: Err(error) },
    }
}

fn look_at_all(api: &Api) -> Found<Vec<JobView>> {
    let before = api.agent.index();
    let jobs = api.agent.jobs();
    let after = api.agent.index();
    let ids: BTreeSet<JobId> = jobs.iter().map(|job| job.record.job.id.clone()).collect();
    let newest = jobs.iter().map(|job| job.modify_index).max().unwrap_or(0);
    let index = api.seen_jobs().index(Reading { before, after, ids, newest });
    Found { index, value: Ok(jobs) }
}

/// `GET /v1/jobs`
pub(super) async fn list(State(api): Shared, params: Params) -> Result<Response, Failure> {
    let (look, shape) = (|| look_at_all(&api), params.clone());
    wait::answer_whole(&api, &params, look, move |jobs| {
        let params = shape;
        let wanted = |job: &JobView| {
            let job = &job.record.job;
            job.id.as_str().starts_with(params.prefix()) && params.means_namespace(job.namespace())
        };
        let mut jobs: Vec<_> = jobs.iter().filter(|job| wanted(job)).collect();
        let name = |job: &&JobView| params.name_of(&job.record.job.id);
        // Those of one namespace come in this order.
        if params.means_all_namespaces() {
            jobs.sort_by_cached_key(name);
        }
        let (jobs, next) = params.page(jobs, name)?;
        let jobs: Vec<_> = jobs.into_iter().map(|job| (job, waits_for(job))).collect();
        let stubs: Vec<_> =
            jobs.iter().map(|(job, waits_for)| job::stub(Seen::new(job, waits_for))).collect();
        reply::page(&params, &stubs, next.as_deref())
    })
    .await
}

/// `PUT /v1/jobs`
pub(super) async fn register(
    State(api): Shared,
    params: Params,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let given = job_to_change(&api, &params, (bytes(body)?, OF_REGISTRATION)).await?;
    take(&api, &params, &headers, given).await
}

/// `PUT /v1/job/ID`
pub(super) async fn update(
    Asked { api, id, params }: Asked,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let given = job_named(&api, &params, &id, (bytes(body)?, OF_REGISTRATION)).await?;
    take(&api, &params, &headers, given).await
}

/// While plugins are loaded, those of the job are waited for a while: only they know what is right in
/// its tasks' configurations. What does not come by then is waited for by the allocations.
async fn drivers(api: &Api, job: &Job) {
    let _late = clock::timeout(API_START_WAIT, api.agent.drivers_looked_for(job)).await;
}

/// The header by which a request says in which trace it is.
const TRACEPARENT: &str = "traceparent";

pub(super) fn trace_parent(headers: &HeaderMap) -> Option<TraceParent> {
    TraceParent::parse(headers.get(TRACEPARENT)?.to_str().ok()?)
}

async fn take(
    api: &Api,
    params: &Params,
    headers: &HeaderMap,
    given: Given,
) -> Result<Response, Failure> {
    let Given { job, meant, expected, rerun, diff: _, warnings } = given;
    let mut here = api.agent.not_as_written(&job);
    here.extend(api.agent.counts_out_of_range(&job, meant));
    let (name, namespace) = (job.id.as_str(), job.namespace());
    let registration = Registration::begin(trace_parent(headers), name, namespace, "api");
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
        drivers(api, &job).await;
        let done = api.agent.register(job, options).await;
        tracing::debug!(job = %id, taken = done.is_ok(), "job registered");
        done
    };
    let mut registered = registration.run(registering).await?;
    registered.warnings.extend(here);
    let index = registered.answer_index();
    let evaluation = evaluations::of_registration(&id, &registered);
    registration.done(registered.version, index, Some(&evaluation));
    let answer = change::registered(registered, index, evaluation, warnings);
    Ok(reply::at_index(index, reply::json(params, &answer)?))
}

/// `PUT /v1/jobs/parse`
pub(super) async fn parse(
    State(api): Shared,
    params: Params,
    body: Body,
) -> Result<Response, Failure> {
    // What comes back always has its defaults.
    let ParseRequest { job_hcl: text, canonicalize: _, variables, hcl_v1 } =
        body::read(&params, body)?;
    if hcl_v1 {
        return Err(Failure::BadJob(HCL_V1.to_owned()));
    }
    let mut inputs = Inputs::default();
    if let Some(variables) = variables.filter(|text| !text.is_empty()) {
        inputs.add_file("Variables", variables).map_err(Failure::BadJob)?;
    }
    let read = api.computing.run(params.access().caller(), move |wanted| {
        inputs.wanted = wanted.clone();
        let syntax = Some(Syntax::Hcl);
        let read = ostler_jobspec::read_with(text.as_bytes(), Path::new(""), syntax, &inputs);
        read.map_err(|diagnostics| Failure::BadJob(diagnostics.render(&text, false)))
    });
    let job = read.await??.job;
    let caller = params.access().caller();
    api.computing.answer(caller, move || reply::json(&params, &job::parsed(&job))).await
}

/// `PUT /v1/validate/job`
pub(super) async fn validate(
    State(api): Shared,
    params: Params,
    body: Body,
) -> Result<Response, Failure> {
    let (mut warnings, mut agent_warnings, mut config_problems) = Default::default();
    let whole = (bytes(body)?, OF_VALIDATION);
    let problems: Vec<String> = match job_of(&api, &params, whole).await {
        Ok(given) => {
            drivers(&api, &given.job).await;
            (warnings, agent_warnings) = (given.warnings, api.agent.without_driver(&given.job));
            agent_warnings.extend(api.agent.not_as_written(&given.job));
            let (agent, job) = (api.agent.clone(), given.job);
            let checked = api.computing.run(params.access().caller(), move |_| agent.check(&job));
            config_problems = checked.await?;
            config_problems.iter().map(ToString::to_string).collect()
        }
        Err(Failure::BadJob(text)) => vec![text],
        Err(other) => return Err(other),
    };
    warnings.extend_from_slice(&agent_warnings);
    let answer = Validated {
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

/// Answer a query of one job.
pub(super) async fn shown(
    api: &Api,
    params: &Params,
    id: &str,
    show: impl FnOnce(JobView) -> Result<Response, Failure>,
) -> Result<Response, Failure> {
    wait::answer(api, params, || look(api, params, id), show).await
}

/// `GET /v1/job/ID`
pub(super) async fn read(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    let shape = params.clone();
    let show = move |job: JobView| reply::json(&shape, &full(Seen::new(&job, &waits_for(&job))));
    wait::answer_whole(&api, &params, || look(&api, &params, &id), show).await
}

/// `GET /v1/job/ID/summary`
pub(super) async fn summary(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    let show = |job: JobView| reply::json(&params, &job::summary(Seen::new(&job, "")));
    shown(&api, &params, &id, show).await
}

/// `GET /v1/job/ID/versions`: those that are kept, newest first.
pub(super) async fn versions(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    let diffs = params.flag("diffs")?;
    let found = wait::found(&api, &params, || look(&api, &params, &id)).await?;
    let job = match found.value {
        Ok(job) => job,
        Err(failure) => return Ok(reply::read_at(found.index, failure.into_response())),
    };
    let earlier = api.agent.versions(&job.record.job.id);
    let diffs = match diffs {
        false => None,
        true => {
            let (earlier, newest) = (earlier.clone(), Arc::clone(&job.record));
            let compare = move |wanted: &Awaited| between(&earlier, &newest, wanted);
            Some(api.computing.run(params.access().caller(), compare).await?)
        }
    };
    let of_job = api.agent.alloc_refs(|alloc| alloc.job.id == job.record.job.id);
    let live = of_job.iter().filter(|one| !one.handle.state().borrow().client_status.terminal());
    let live: BTreeSet<u64> = live.map(|alloc| alloc.allocation.job_version).collect();
    let (caller, index) = (params.access().caller(), found.index);
    let write = move || {
        let waits = waits_for(&job);
        let newest = Seen::new(&job, &waits);
        let runs = |record: &JobRecord| live.contains(&record.version);
        let earlier = earlier.iter().rev();
        let earlier = earlier.map(|record| full(newest.earlier(record, runs(record))));
        let versions = std::iter::once(full(newest)).chain(earlier).collect();
        let index = job.record.modify_index;
        let answer = JobVersions { versions, diffs, index, last_contact: 0, known_leader: true };
        reply::json(&params, &answer)
    };
    Ok(reply::read_at(index, api.computing.answer(caller, write).await?))
}

/// What each version but the first changed, newest first, while that is wanted. `earlier`: the oldest first.
fn between(
    earlier: &[Arc<JobRecord>],
    newest: &Arc<JobRecord>,
    wanted: &Awaited,
) -> Vec<JobDiff<'static>> {
    let all = earlier.iter().chain([newest]).map(|record| &record.job);
    let texts = all.take_while(|_| !wanted.is_given_up());
    let texts: Vec<_> = texts.map(|job| (job.id.as_str(), nomad_json(job))).collect();
    let pairs = texts.iter().zip(texts.iter().skip(1)).take_while(|_| !wanted.is_given_up());
    let each = pairs.map(|((_, old), (id, new))| diff::job(id, Some(old), new, &|_| None));
    let mut each: Vec<_> = each.collect();
    each.reverse();
    each
}

/// `PUT /v1/job/ID/plan`
pub(super) async fn plan(
    Asked { api, id, params }: Asked,
    body: Body,
) -> Result<Response, Failure> {
    let given = job_named(&api, &params, &id, (bytes(body)?, OF_PLAN)).await?;
    let Given { job, meant, expected: _, rerun: _, diff, warnings } = given;
    drivers(&api, &job).await;
    let (agent, job) = (api.agent.clone(), Arc::new(job));
    let planned = Arc::clone(&job);
    let runtime = Handle::current();
    let compute = move |_: &Awaited| {
        let planning = seen(&runtime, agent.clone(), planned)?;
        Ok::<_, Failure>(agent.plan_with(&planning, meant)?)
    };
    let mut plan = api.computing.run(params.access().caller(), compute).await??;
    plan.warnings.extend(api.agent.not_as_written(&job));
    plan.warnings.extend(api.agent.counts_out_of_range(&job, meant));
    let (index, node) = (plan.job_modify_index, api.agent.node());
    let diff = match diff {
        false => None,
        true => {
            let (known, groups) = (plan.known.clone(), plan.groups.clone());
            let compare = move |_: &Awaited| {
                let (old, new) = compared(known.as_deref(), &job, meant);
                let of_group = |name: &str| {
                    let mut groups = groups.iter();
                    groups.find(|(group, _)| group.as_str() == name).map(|(_, plan)| plan.clone())
                };
                diff::job(job.id.as_str(), old.as_ref(), &new, &of_group)
            };
            Some(api.computing.run(params.access().caller(), compare).await?)
        }
    };
    let caller = params.access().caller();
    let write =
        move || reply::json(&params, &change::plan(&plan, &node.datacenter, diff, &warnings));
    Ok(reply::at_index(index, api.computing.answer(caller, write).await?))
}

/// What the node knows that decides about a job, copied by a thread that is not behind others: the node waits for
/// the copy. Asked for by who computes with it, so that few copies are there at once.
fn seen(runtime: &Handle, agent: AgentHandle, job: Arc<Job>) -> Result<Planning, Failure> {
    let (copy, copied) = sync_channel(1);
    // Not from this thread: who begins a thread gives it its own priority.
    drop(runtime.spawn(async move {
        if let Ok(planning) = clock::blocking(move || agent.planning(job)).await {
            // An error means that nobody waits any more.
            let _gone = copy.send(planning);
        }
    }));
    let failed = |_| Failure::Internal("what the node knows could not be looked at".to_owned());
    copied.recv_timeout(API_COMPUTING_WALL_MAX).map_err(failed)
}

/// A job as it is known and as it is meant, to be compared. One that was stopped would run again unless it
/// is given as stopped.
fn compared(known: Option<&JobRecord>, job: &Job, meant: JobOptions) -> (Option<Value>, Value) {
    let job = meant.of(job, known);
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

/// `PUT /v1/job/ID/evaluate`: whatever waits is looked at again at each change anyway. What failed gets its
/// successors at once where that is asked.
pub(super) async fn evaluate(
    Asked { api, id, params }: Asked,
    body: Body,
) -> Result<Response, Failure> {
    let EvaluateRequest { job_id, eval_options } = body::read(&params, body)?;
    body::as_path(&id, &job_id)?;
    let EvalOptions { force_reschedule } = eval_options;
    let found = look(&api, &params, &id).value?;
    let record = &found.record;
    let placed = match force_reschedule {
        true => api.agent.reschedule(&record.job.id).await?.index,
        false => None,
    };
    let index = placed.unwrap_or_else(|| api.agent.index());
    let answer = Registered {
        eval_id: match placed {
            Some(index) => evaluations::id(&record.job.id, index),
            None => evaluations::of_nothing(&record.job.id, record.job_modify_index),
        },
        eval_create_index: placed.unwrap_or(record.job_modify_index),
        job_modify_index: record.job_modify_index,
        index,
        known_leader: true,
        ..Registered::default()
    };
    Ok(reply::at_index(index, reply::json(&params, &answer)?))
}

/// `DELETE /v1/job/ID`
pub(super) async fn stop(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    let options = StopOptions {
        purge: params.flag("purge")?,
        skip_shutdown_delay: params.flag("no_shutdown_delay")?,
        reason: String::new(),
    };
    let found = look(&api, &params, &id).value?;
    let (id, purge) = (&found.record.job.id, options.purge);
    let Stopped { index, unwritten } = api.agent.deregister(id, options).await?;
    if purge {
        api.purged().add(Arc::clone(&found.record.job), index, api.clock.now());
    }
    let answer = change::deregistered(index, evaluations::id(id, index), unwritten);
    Ok(reply::at_index(index, reply::json(&params, &answer)?))
}

/// A job as it is now.
pub(super) fn found(api: &Api, params: &Params, id: &str) -> Result<JobView, Failure> {
    look(api, params, id).value
}

/// The job whose lists are asked for. Where another namespace is named one that is not there has empty
/// ones, as in Nomad; else it is an error.
pub(super) fn known(api: &Api, params: &Params, id: &str) -> Result<JobId, Failure> {
    let id = params.job_id(id)?;
    let is_there = id.namespace() != NAMESPACE || api.agent.job(&id).is_some();
    is_there.then_some(id).ok_or(Failure::NotThere("job"))
}

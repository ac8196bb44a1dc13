//! Turns visible changes into events; see [`event_cache`](super::event_cache).

use serde::Serialize;
use serde_json::{Value, json};

use super::evaluation_ids::evaluation_id;
use super::evaluations;
use super::event_cache::{RenderedEvent, Topic};
use super::json::alloc::{AllocJsonInput as SeenAlloc, full as full_alloc};
use super::json::deployment::deployment as shown;
use super::json::job::{JobJsonInput as SeenJob, full as full_job, waits_for};
use super::nodes;
use super::state::Api;
use ostler_agent::{ChangeSubject, NotedChange};
use ostler_model::alloc::{Allocation, DesiredStatus};
use ostler_model::ids::{AllocId, JobId};
use ostler_model::scheduling::NodeEventKind;

/// The events of a change.
pub(super) fn render_change(api: &Api, change: &NotedChange) -> Vec<RenderedEvent> {
    let index = change.index;
    match &change.of {
        ChangeSubject::Job(id, stopped) => job_events(api, id, *stopped, index),
        ChangeSubject::Alloc(id) => alloc_event(api, *id, index).into_iter().collect(),
        ChangeSubject::Node(kind) => node_event(api, *kind, index).into_iter().collect(),
        ChangeSubject::Deployment(job, id) => {
            deployment_event(api, job, id, index).into_iter().collect()
        }
    }
}

/// The events of a change of a job: one of the job, one of its evaluation.
fn job_events(api: &Api, id: &JobId, stopped: bool, index: u64) -> Vec<RenderedEvent> {
    let kind = if stopped { "JobDeregistered" } else { "JobRegistered" };
    let job = api.agent.control().job(id).map_or(Value::Null, |view| {
        let waits = waits_for(&view);
        to_json(&full_job(SeenJob::new(&view, &waits)))
    });
    let (key, namespace) = (id.as_str().to_owned(), id.namespace());
    let job = RenderedEvent::new(
        (Topic::Job, kind),
        key.clone(),
        (namespace, Vec::new()),
        index,
        &json!({ "Job": job }),
    );
    let evaluation = evaluations::change_json(api, id, index).and_then(|found| {
        let (own, payload) = (evaluation_id(id, index), json!({ "Evaluation": found }));
        RenderedEvent::new((Topic::Evaluation, kind), own, (namespace, vec![key]), index, &payload)
    });
    job.into_iter().chain(evaluation).collect()
}

fn alloc_event(api: &Api, id: AllocId, index: u64) -> Option<RenderedEvent> {
    let view = api.agent.control().alloc(id)?;
    let node = api.agent.node();
    let alloc = &view.allocation;
    let mut filter_keys = vec![alloc.job.id.as_str().to_owned()];
    filter_keys.extend(alloc.deployment_id().map(str::to_owned));
    let kind = alloc_event_kind(alloc, index);
    let mut payload = to_json(&full_alloc(SeenAlloc::new(&view, &node)));
    if let Some(job) = payload.get_mut("Job") {
        // The job has events of its own.
        *job = Value::Null;
    }
    let of = (alloc.job.namespace(), filter_keys);
    let payload = json!({ "Allocation": payload });
    RenderedEvent::new((Topic::Allocation, kind), id.to_string(), of, index, &payload)
}

/// The type of the event of an allocation: that it was told to stop, or anything else, such as its end.
fn alloc_event_kind(alloc: &Allocation, index: u64) -> &'static str {
    match alloc.desired {
        DesiredStatus::Stop if alloc.modify_index == index => "AllocationUpdateDesiredStatus",
        DesiredStatus::Stop | DesiredStatus::Run => "AllocationUpdated",
    }
}

fn node_event(api: &Api, kind: NodeEventKind, index: u64) -> Option<RenderedEvent> {
    let kind = match kind {
        NodeEventKind::Registered => "NodeRegistration",
        NodeEventKind::Ineligible | NodeEventKind::Eligible => "NodeEligibility",
        NodeEventKind::DrainSet
        | NodeEventKind::DrainUpdated
        | NodeEventKind::DrainDisabled
        | NodeEventKind::DrainComplete => "NodeDrain",
    };
    let (key, payload) =
        (api.agent.node().id.to_string(), json!({ "Node": nodes::node_json(api) }));
    RenderedEvent::new((Topic::Node, kind), key, ("", Vec::new()), index, &payload)
}

fn deployment_event(api: &Api, job: &JobId, id: &str, index: u64) -> Option<RenderedEvent> {
    let all = api.agent.control().deployments();
    let (of, one) = all.iter().find(|(_, one)| *one.id == *id)?;
    let keys = (job.namespace(), vec![job.as_str().to_owned()]);
    let payload = json!({ "Deployment": shown(of, one) });
    RenderedEvent::new(
        (Topic::Deployment, "DeploymentStatusUpdate"),
        id.to_owned(),
        keys,
        index,
        &payload,
    )
}

/// A value as JSON; `null` if it cannot be written.
fn to_json<T: Serialize>(shown: &T) -> Value {
    serde_json::to_value(shown).unwrap_or_default()
}

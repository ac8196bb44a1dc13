//! Turns visible changes into events, once for all clients that follow events.
//!
//! ```text
//! a stream ─ change at a position ─► EventCache ─ there? ─┬─ yes ─► its events, shared
//! another  ──────────────────────────┘                    └─ no ──► read ─► JSON ─► kept while there is room
//! ```
//! A change is read and written as JSON once for all streams that need it at about the same time,
//! so that of fifty streams forty-nine only copy bytes. The events of the newest changes are kept.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use serde::Serialize;
use serde_json::{Value, json};

use super::evaluations;
use super::json::alloc::{AllocJsonInput as SeenAlloc, full as full_alloc};
use super::json::deployment::deployment as shown;
use super::json::job::{JobJsonInput as SeenJob, full as full_job, waits_for};
use super::nodes;
use super::router::Api;
use ostler_agent::{ChangeSubject, NotedChange};
use ostler_model::alloc::{Allocation, DesiredStatus};
use ostler_model::ids::{AllocId, JobId};
use ostler_model::limits::API_EVENTS_RENDERED_BYTES_MAX;
use ostler_model::scheduling::NodeEventKind;

/// The kinds of objects that have events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Topic {
    Job,
    Allocation,
    Evaluation,
    Deployment,
    Node,
}

/// One event: the fields that clients choose it by, and its JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RenderedEvent {
    pub topic: Topic,
    pub key: String,
    /// The namespace of the object; empty if it is in none.
    pub namespace: String,
    pub filter_keys: Vec<String>,
    pub index: u64,
    /// The JSON of Nomad's `Event`.
    json: String,
}

/// Nomad's `Event`.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct EventJson<'a> {
    topic: Topic,
    #[serde(rename = "Type")]
    kind: &'static str,
    key: &'a str,
    namespace: &'a str,
    filter_keys: &'a [String],
    index: u64,
    payload: &'a Value,
}

impl RenderedEvent {
    /// An event. Clients can also choose it by its filter keys. None if it cannot be written as
    /// JSON.
    fn new(
        (topic, kind): (Topic, &'static str),
        key: String,
        (namespace, filter_keys): (&str, Vec<String>),
        index: u64,
        payload: &Value,
    ) -> Option<Self> {
        let whole = EventJson {
            topic,
            kind,
            key: &key,
            namespace,
            filter_keys: &filter_keys,
            index,
            payload,
        };
        let json = serde_json::to_string(&whole).ok()?;
        Some(Self { topic, key, namespace: namespace.to_owned(), filter_keys, index, json })
    }
}

/// One line of a stream, with events of the same index; none if there are no events.
pub(super) fn event_line(events: &[&RenderedEvent]) -> Option<Bytes> {
    let first = events.first()?;
    let texts: Vec<&str> = events.iter().map(|event| event.json.as_str()).collect();
    let text = format!("{{\"Index\":{},\"Events\":[{}]}}\n", first.index, texts.join(","));
    Some(text.into())
}

/// A cache of the events of the newest changes that a stream has read.
#[derive(Debug, Default)]
pub(super) struct EventCache(Mutex<EventCacheInner>);

#[derive(Debug, Default)]
struct EventCacheInner {
    events: BTreeMap<u64, Arc<[RenderedEvent]>>,
    bytes: usize,
}

impl EventCache {
    /// The events of the change at this position, from the cache if they are there.
    pub(super) fn events_of_change(
        &self,
        api: &Api,
        position: u64,
        change: &NotedChange,
    ) -> Arc<[RenderedEvent]> {
        let kept = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(events) = kept().events.get(&position) {
            return Arc::clone(events);
        }
        // The lock is not held here, so two streams that come at once both render the change.
        let events: Arc<[RenderedEvent]> = render_change(api, change).into();
        kept().keep(position, Arc::clone(&events));
        events
    }
}

fn events_size(events: &[RenderedEvent]) -> usize {
    let one = |event: &RenderedEvent| size_of::<RenderedEvent>() + event.json.len();
    events.iter().map(one).sum()
}

impl EventCacheInner {
    /// Add the events of a change; the oldest ones make room for it.
    fn keep(&mut self, position: u64, events: Arc<[RenderedEvent]>) {
        self.bytes += events_size(&events);
        if let Some(before) = self.events.insert(position, events) {
            self.bytes -= events_size(&before);
        }
        while self.bytes > API_EVENTS_RENDERED_BYTES_MAX
            && let Some((_, oldest)) = self.events.pop_first()
        {
            self.bytes -= events_size(&oldest);
        }
    }
}

fn render_change(api: &Api, change: &NotedChange) -> Vec<RenderedEvent> {
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
        let (own, payload) =
            (evaluations::evaluation_id(id, index), json!({ "Evaluation": found }));
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

/// The type of the event of an allocation: that it was told to stop, or anything else, such as its
/// end.
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

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    pub(in super::super) fn event(topic: Topic, key: &str, filter_keys: &[&str]) -> RenderedEvent {
        let keys = filter_keys.iter().map(|key| (*key).to_owned()).collect();
        let of = ("default", keys);
        RenderedEvent::new((topic, "JobRegistered"), key.to_owned(), of, 7, &Value::Null).unwrap()
    }

    #[test]
    fn an_event_has_the_names_that_nomad_gives_its_members() {
        let (one, other) = (event(Topic::Job, "web", &[]), event(Topic::Job, "db", &["x"]));
        let text = event_line(&[&one, &other]).unwrap();
        let wanted = r#"{"Index":7,"Events":[{"Topic":"Job","Type":"JobRegistered","Key":"web","Namespace":"default","FilterKeys":[],"Index":7,"Payload":null},{"Topic":"Job","Type":"JobRegistered","Key":"db","Namespace":"default","FilterKeys":["x"],"Index":7,"Payload":null}]}"#;
        assert_eq!(text, format!("{wanted}\n"));
        assert_eq!(event_line(&[]), None);
    }

    #[test]
    fn the_newest_events_are_kept_and_no_more_of_them_than_there_is_room_for() {
        let mut kept = EventCacheInner::default();
        let big = || -> Arc<[RenderedEvent]> {
            let text = "x".repeat(API_EVENTS_RENDERED_BYTES_MAX / 4);
            [event(Topic::Job, "web", &[&text])].into()
        };
        for position in [7, 8, 9, 10, 5] {
            kept.keep(position, big());
        }
        assert_eq!(kept.events.keys().copied().collect::<Vec<_>>(), [8, 9, 10]);
        kept.keep(10, big());
        assert_eq!(
            kept.bytes,
            kept.events.values().map(|events| events_size(events)).sum::<usize>()
        );
        assert!(kept.bytes <= API_EVENTS_RENDERED_BYTES_MAX);
    }
}

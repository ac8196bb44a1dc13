//! What a visible change is as an event, for all who follow events.
//!
//! ```text
//! a stream ─ change at a position ─► Rendered ─ there? ─┬─ yes ─► its events, shared
//! another  ──────────────────────────┘                  └─ no ──► look ─► JSON ─► kept while there is room
//! ```
//! A change is looked at and written as JSON once for all streams that read it at about the same time: of fifty
//! streams forty-nine only copy bytes. The newest changes are kept.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use serde::Serialize;
use serde_json::{Value, json};

use super::evaluations;
use super::json::alloc::{Seen as SeenAlloc, full as full_alloc};
use super::json::deployment::deployment as shown;
use super::json::job::{Seen as SeenJob, full as full_job, waits_for};
use super::nodes;
use super::router::Api;
use ostler_agent::{ChangeOf, NotedChange};
use ostler_model::alloc::{Allocation, DesiredStatus};
use ostler_model::ids::{AllocId, JobId};
use ostler_model::limits::API_EVENTS_RENDERED_BYTES_MAX;
use ostler_model::scheduling::NodeEventKind;

/// What there are events of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Topic {
    Job,
    Allocation,
    Evaluation,
    Deployment,
    Node,
}

/// What there is to say of a change: what it is chosen by, and its JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub topic: Topic,
    pub key: String,
    /// Empty: in none.
    pub namespace: String,
    pub filter_keys: Vec<String>,
    pub index: u64,
    /// `Event`.
    json: String,
}

/// `Event`
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Whole<'a> {
    topic: Topic,
    #[serde(rename = "Type")]
    kind: &'static str,
    key: &'a str,
    namespace: &'a str,
    filter_keys: &'a [String],
    index: u64,
    payload: &'a Value,
}

impl Event {
    /// Filter keys are what it is also chosen by. None where it cannot be written.
    fn new(
        (topic, kind): (Topic, &'static str),
        key: String,
        (namespace, filter_keys): (&str, Vec<String>),
        index: u64,
        payload: &Value,
    ) -> Option<Self> {
        let whole =
            Whole { topic, kind, key: &key, namespace, filter_keys: &filter_keys, index, payload };
        let json = serde_json::to_string(&whole).ok()?;
        Some(Self { topic, key, namespace: namespace.to_owned(), filter_keys, index, json })
    }
}

/// What is written as one line: events of the same index; none of no events.
pub(super) fn line(events: &[&Event]) -> Option<Bytes> {
    let first = events.first()?;
    let texts: Vec<&str> = events.iter().map(|event| event.json.as_str()).collect();
    let text = format!("{{\"Index\":{},\"Events\":[{}]}}\n", first.index, texts.join(","));
    Some(text.into())
}

/// Events of the newest changes that somebody read, by the position of the change.
#[derive(Debug, Default)]
pub(super) struct Rendered(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    events: BTreeMap<u64, Arc<[Event]>>,
    bytes: usize,
}

impl Rendered {
    /// The events of a change at this position.
    pub(super) fn of(&self, api: &Api, position: u64, change: &NotedChange) -> Arc<[Event]> {
        let kept = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(events) = kept().events.get(&position) {
            return Arc::clone(events);
        }
        // Without the lock: two that come at once both look.
        let events: Arc<[Event]> = render(api, change).into();
        kept().keep(position, Arc::clone(&events));
        events
    }
}

fn size(events: &[Event]) -> usize {
    let one = |event: &Event| size_of::<Event>() + event.json.len();
    events.iter().map(one).sum()
}

impl Kept {
    /// Older ones go for newer ones.
    fn keep(&mut self, position: u64, events: Arc<[Event]>) {
        self.bytes += size(&events);
        if let Some(before) = self.events.insert(position, events) {
            self.bytes -= size(&before);
        }
        while self.bytes > API_EVENTS_RENDERED_BYTES_MAX
            && let Some((_, oldest)) = self.events.pop_first()
        {
            self.bytes -= size(&oldest);
        }
    }
}

fn render(api: &Api, change: &NotedChange) -> Vec<Event> {
    let index = change.index;
    match &change.of {
        ChangeOf::Job(id, stopped) => of_job(api, id, *stopped, index),
        ChangeOf::Alloc(id) => of_alloc(api, *id, index).into_iter().collect(),
        ChangeOf::Node(kind) => of_node(api, *kind, index).into_iter().collect(),
        ChangeOf::Deployment(job, id) => of_deployment(api, job, id, index).into_iter().collect(),
    }
}

/// A job, and the evaluation of its change.
fn of_job(api: &Api, id: &JobId, stopped: bool, index: u64) -> Vec<Event> {
    let kind = if stopped { "JobDeregistered" } else { "JobRegistered" };
    let job = api.agent.job(id).map_or(Value::Null, |view| {
        let waits = waits_for(&view);
        value(&full_job(SeenJob::new(&view, &waits)))
    });
    let (key, namespace) = (id.as_str().to_owned(), id.namespace());
    let job = Event::new(
        (Topic::Job, kind),
        key.clone(),
        (namespace, Vec::new()),
        index,
        &json!({ "Job": job }),
    );
    let evaluation = evaluations::of_change(api, id, index).and_then(|found| {
        let (own, payload) = (evaluations::id(id, index), json!({ "Evaluation": found }));
        Event::new((Topic::Evaluation, kind), own, (namespace, vec![key]), index, &payload)
    });
    job.into_iter().chain(evaluation).collect()
}

fn of_alloc(api: &Api, id: AllocId, index: u64) -> Option<Event> {
    let view = api.agent.alloc(id)?;
    let node = api.agent.node();
    let alloc = &view.allocation;
    let mut filter_keys = vec![alloc.job.id.as_str().to_owned()];
    filter_keys.extend(alloc.deployment_id().map(str::to_owned));
    let kind = kind_of(alloc, index);
    let mut payload = value(&full_alloc(SeenAlloc::new(&view, &node)));
    if let Some(job) = payload.get_mut("Job") {
        // The job has events of its own.
        *job = Value::Null;
    }
    let of = (alloc.job.namespace(), filter_keys);
    let payload = json!({ "Allocation": payload });
    Event::new((Topic::Allocation, kind), id.to_string(), of, index, &payload)
}

/// What a change of an allocation is called: that it was told to stop, or anything else, its end as well.
fn kind_of(alloc: &Allocation, index: u64) -> &'static str {
    match alloc.desired {
        DesiredStatus::Stop if alloc.modify_index == index => "AllocationUpdateDesiredStatus",
        DesiredStatus::Stop | DesiredStatus::Run => "AllocationUpdated",
    }
}

fn of_node(api: &Api, kind: NodeEventKind, index: u64) -> Option<Event> {
    let kind = match kind {
        NodeEventKind::Registered => "NodeRegistration",
        NodeEventKind::Ineligible | NodeEventKind::Eligible => "NodeEligibility",
        NodeEventKind::DrainSet
        | NodeEventKind::DrainUpdated
        | NodeEventKind::DrainDisabled
        | NodeEventKind::DrainComplete => "NodeDrain",
    };
    let (key, payload) = (api.agent.node().id.to_string(), json!({ "Node": nodes::shown(api) }));
    Event::new((Topic::Node, kind), key, ("", Vec::new()), index, &payload)
}

fn of_deployment(api: &Api, job: &JobId, id: &str, index: u64) -> Option<Event> {
    let all = api.agent.deployments();
    let (of, one) = all.iter().find(|(_, one)| *one.id == *id)?;
    let keys = (job.namespace(), vec![job.as_str().to_owned()]);
    let payload = json!({ "Deployment": shown(of, one) });
    Event::new((Topic::Deployment, "DeploymentStatusUpdate"), id.to_owned(), keys, index, &payload)
}

/// As JSON; what cannot be is nothing.
fn value<T: Serialize>(shown: &T) -> Value {
    serde_json::to_value(shown).unwrap_or_default()
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    pub(in super::super) fn event(topic: Topic, key: &str, filter_keys: &[&str]) -> Event {
        let keys = filter_keys.iter().map(|key| (*key).to_owned()).collect();
        let of = ("default", keys);
        Event::new((topic, "JobRegistered"), key.to_owned(), of, 7, &Value::Null).unwrap()
    }

    #[test]
    fn an_event_has_the_names_that_nomad_gives_its_members() {
        let (one, other) = (event(Topic::Job, "web", &[]), event(Topic::Job, "db", &["x"]));
        let text = line(&[&one, &other]).unwrap();
        let wanted = r#"{"Index":7,"Events":[{"Topic":"Job","Type":"JobRegistered","Key":"web","Namespace":"default","FilterKeys":[],"Index":7,"Payload":null},{"Topic":"Job","Type":"JobRegistered","Key":"db","Namespace":"default","FilterKeys":["x"],"Index":7,"Payload":null}]}"#;
        assert_eq!(text, format!("{wanted}\n"));
        assert_eq!(line(&[]), None);
    }

    #[test]
    fn the_newest_events_are_kept_and_no_more_of_them_than_there_is_room_for() {
        let mut kept = Kept::default();
        let big = || -> Arc<[Event]> {
            let text = "x".repeat(API_EVENTS_RENDERED_BYTES_MAX / 4);
            [event(Topic::Job, "web", &[&text])].into()
        };
        for position in [7, 8, 9, 10, 5] {
            kept.keep(position, big());
        }
        assert_eq!(kept.events.keys().copied().collect::<Vec<_>>(), [8, 9, 10]);
        kept.keep(10, big());
        assert_eq!(kept.bytes, kept.events.values().map(|events| size(events)).sum::<usize>());
        assert!(kept.bytes <= API_EVENTS_RENDERED_BYTES_MAX);
    }
}

//! `GET /v1/event/stream`: every visible change of jobs, allocations, evaluations and deployments.
//!
//! ```text
//! AgentHandle::changes_from(position) ─► NotedChange ─► events of the topics asked for ─► {"Index", "Events"}
//!        ▲ position of ?index=              │ what is there now                            a line per index
//!        └──────── changes() grows ◄────────┘                                              {} in silence
//! ```
//! A change has its event with what is there when it is read, which may be newer than the change. Of what
//! is gone by then there is the key alone. A follower that is slower than the changes for so long that they
//! are kept no longer loses its stream: it has to look at everything again.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::error::Failure;
use super::evaluations;
use super::json::alloc::{Seen as SeenAlloc, full as full_alloc};
use super::json::deployment::deployment as shown;
use super::json::job::{Seen as SeenJob, full as full_job, waits_for};
use super::logs::place;
use super::nodes;
use super::params::Params;
use super::reply;
use super::router::{Api, Shared};
use super::wait::{self, Grown};
use ostler_agent::{ChangeOf, NotedChange};
use ostler_model::access::Level;
use ostler_model::alloc::DesiredStatus;
use ostler_model::ids::{AllocId, JobId};
use ostler_model::limits::API_TOPICS_MAX;
use ostler_model::scheduling::NodeEventKind;

/// Changes that are looked at in one go.
const AT_ONCE: usize = 64;

/// What there are events of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum Topic {
    Job,
    Allocation,
    Evaluation,
    Deployment,
    Node,
}

/// A topic, all of them unless one is named; and a key, all of them unless one is named.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    topic: Option<Topic>,
    key: Option<String>,
}

impl Wanted {
    /// `TOPIC`, `TOPIC:KEY`, `*`, each part perhaps `*`.
    fn parse(text: &str) -> Result<Self, Failure> {
        let (topic, key) = text.split_once(':').unwrap_or((text, "*"));
        let topic = match topic {
            "*" => None,
            "Job" => Some(Topic::Job),
            "Allocation" | "Alloc" => Some(Topic::Allocation),
            "Evaluation" | "Eval" => Some(Topic::Evaluation),
            "Deployment" => Some(Topic::Deployment),
            "Node" => Some(Topic::Node),
            other => {
                let known = "Job, Allocation, Evaluation, Deployment, Node or *";
                return Err(Failure::bad_param("topic", other, known));
            }
        };
        let key = Some(key.to_owned()).filter(|key| key != "*" && !key.is_empty());
        Ok(Self { topic, key })
    }

    fn matches(&self, event: &Event) -> bool {
        let topic = self.topic.is_none_or(|topic| topic == event.topic);
        let is = |key: &String| event.key == *key || event.filter_keys.contains(key);
        topic && self.key.as_ref().is_none_or(is)
    }
}

/// `Event`
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Event {
    topic: Topic,
    #[serde(rename = "Type")]
    kind: &'static str,
    key: String,
    namespace: String,
    filter_keys: Vec<String>,
    index: u64,
    payload: Value,
}

/// What is written as one line.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Line {
    index: u64,
    events: Vec<Event>,
}

/// `GET /v1/event/stream`
pub(super) async fn read(
    State(api): Shared,
    params: Params,
    RawQuery(query): RawQuery,
) -> Result<Response, Failure> {
    let index = params.number("index")?.unwrap_or(0);
    let wanted = topics(query.as_deref().unwrap_or_default())?;
    let place = place(&api)?;
    let (grown, position) = (api.agent.changes(), api.agent.change_position(index));
    let first = VecDeque::from([Bytes::from_static(b"{}\n")]);
    let stream = Stream { api, params, wanted, grown, position, lines: first, _place: place };
    let body = Body::from_stream(stream::unfold(stream, |mut stream| async {
        Some((stream.line().await?, stream))
    }));
    Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
}

/// Every `topic` of the query, which may be there several times.
fn topics(query: &str) -> Result<Vec<Wanted>, Failure> {
    let pairs = form_urlencoded::parse(query.as_bytes());
    let named = pairs.filter(|(key, _)| key == "topic").take(API_TOPICS_MAX);
    let mut wanted: Vec<Wanted> =
        named.map(|(_, text)| Wanted::parse(&text)).collect::<Result<_, _>>()?;
    if wanted.is_empty() {
        wanted.push(Wanted { topic: None, key: None });
    }
    Ok(wanted)
}

struct Stream {
    api: Arc<Api>,
    params: Params,
    wanted: Vec<Wanted>,
    grown: watch::Receiver<u64>,
    position: u64,
    /// Read, and not written yet.
    lines: VecDeque<Bytes>,
    /// Free again when the stream is dropped.
    _place: OwnedSemaphorePermit,
}

impl Stream {
    /// The next line, or a sign of life; none when the agent leaves, or changes were missed.
    async fn line(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Some(Ok(line));
            }
            // What comes while it looks wakes it again.
            self.grown.mark_unchanged();
            let seen = self.api.agent.changes_from(self.position, AT_ONCE);
            if seen.missed > 0 {
                let text = format!(
                    "{} events came faster than they were read and are gone; begin anew",
                    seen.missed
                );
                return Some(Err(io::Error::other(text)));
            }
            self.position = seen.position;
            if !seen.changes.is_empty() {
                match self.lines_of(&seen.changes) {
                    Ok(lines) => self.lines.extend(lines),
                    Err(error) => return Some(Err(error)),
                }
                continue;
            }
            if let Grown::Not = wait::grown(&self.api, &mut self.grown).await? {
                return Some(Ok(Bytes::from_static(b"{}\n")));
            }
        }
    }

    /// A line for each index.
    fn lines_of(&self, changes: &[NotedChange]) -> io::Result<Vec<Bytes>> {
        let mut lines: Vec<Line> = Vec::new();
        let events = changes.iter().flat_map(|change| self.events_of(change));
        for event in events.filter(|event| self.wanted.iter().any(|one| one.matches(event))) {
            match lines.last_mut().filter(|line| line.index == event.index) {
                Some(line) => line.events.push(event),
                None => lines.push(Line { index: event.index, events: vec![event] }),
            }
        }
        lines.iter().map(reply::line).collect()
    }

    fn events_of(&self, change: &NotedChange) -> Vec<Event> {
        let events = match &change.of {
            ChangeOf::Job(id, stopped) => self.of_job(id, *stopped, change.index),
            ChangeOf::Alloc(id) => self.of_alloc(*id, change.index).into_iter().collect(),
            // The node is in no namespace.
            // Of no namespace.
            ChangeOf::Node(_) if !self.params.access().allow_everywhere(Level::Read) => Vec::new(),
            ChangeOf::Node(kind) => return vec![self.of_node(*kind, change.index)],
            ChangeOf::Deployment(job, id) => {
                self.of_deployment(job, id, change.index).into_iter().collect()
            }
        };
        let here = |event: &Event| self.params.means_namespace(&event.namespace);
        events.into_iter().filter(here).collect()
    }

    /// A job, and the evaluation of its change.
    fn of_job(&self, id: &JobId, stopped: bool, index: u64) -> Vec<Event> {
        let found = self.api.agent.job(id);
        let kind = if stopped { "JobDeregistered" } else { "JobRegistered" };
        let job = found.map_or(Value::Null, |view| {
            let waits = waits_for(&view);
            value(&full_job(SeenJob::new(&view, &waits)))
        });
        let event = |topic, key, filter_keys, payload| Event {
            topic,
            kind,
            key,
            namespace: id.namespace().to_owned(),
            filter_keys,
            index,
            payload,
        };
        let job = event(Topic::Job, id.as_str().to_owned(), Vec::new(), json!({ "Job": job }));
        let found = evaluations::of_change(&self.api, id, index);
        let of_evaluation = found.map(|found| {
            let (keys, payload) = (vec![id.as_str().to_owned()], json!({ "Evaluation": found }));
            event(Topic::Evaluation, evaluations::id(id, index), keys, payload)
        });
        [job].into_iter().chain(of_evaluation).collect()
    }

    fn of_alloc(&self, id: AllocId, index: u64) -> Option<Event> {
        let view = self.api.agent.alloc(id)?;
        let node = self.api.agent.node();
        let alloc = &view.allocation;
        let mut filter_keys = vec![alloc.job.id.as_str().to_owned()];
        filter_keys.extend(alloc.deployment_id().map(str::to_owned));
        let kind = match alloc.desired {
            DesiredStatus::Stop => "AllocationUpdateDesiredStatus",
            DesiredStatus::Run => "AllocationUpdated",
        };
        let mut payload = value(&full_alloc(SeenAlloc::new(&view, &node)));
        if let Some(job) = payload.get_mut("Job") {
            // The job has events of its own.
            *job = Value::Null;
        }
        Some(Event {
            topic: Topic::Allocation,
            kind,
            key: id.to_string(),
            namespace: alloc.job.namespace().to_owned(),
            filter_keys,
            index,
            payload: json!({ "Allocation": payload }),
        })
    }

    fn of_node(&self, kind: NodeEventKind, index: u64) -> Event {
        Event {
            topic: Topic::Node,
            kind: match kind {
                NodeEventKind::Registered => "NodeRegistration",
                NodeEventKind::Ineligible | NodeEventKind::Eligible => "NodeEligibility",
                NodeEventKind::DrainSet
                | NodeEventKind::DrainUpdated
                | NodeEventKind::DrainDisabled
                | NodeEventKind::DrainComplete => "NodeDrain",
            },
            key: self.api.agent.node().id.to_string(),
            namespace: String::new(),
            filter_keys: Vec::new(),
            index,
            payload: json!({ "Node": nodes::shown(&self.api) }),
        }
    }

    fn of_deployment(&self, job: &JobId, id: &str, index: u64) -> Option<Event> {
        let all = self.api.agent.deployments();
        let (of, one) = all.iter().find(|(_, one)| *one.id == *id)?;
        Some(Event {
            topic: Topic::Deployment,
            kind: "DeploymentStatusUpdate",
            key: id.to_owned(),
            namespace: job.namespace().to_owned(),
            filter_keys: vec![job.as_str().to_owned()],
            index,
            payload: json!({ "Deployment": shown(of, one) }),
        })
    }
}

/// As JSON; what cannot be is nothing.
fn value<T: Serialize>(shown: &T) -> Value {
    serde_json::to_value(shown).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn event(topic: Topic, key: &str, filter_keys: &[&str]) -> Event {
        Event {
            topic,
            kind: "JobRegistered",
            key: key.to_owned(),
            namespace: "default".to_owned(),
            filter_keys: filter_keys.iter().map(|key| (*key).to_owned()).collect(),
            index: 7,
            payload: Value::Null,
        }
    }

    #[test]
    fn topics_and_keys_choose_events() {
        let (job, alloc) =
            (event(Topic::Job, "web", &[]), event(Topic::Allocation, "a1", &["web"]));
        let chosen = |query: &str| {
            let wanted = topics(query).unwrap();
            [&job, &alloc].map(|event| wanted.iter().any(|one| one.matches(event)))
        };
        assert_eq!(chosen("index=0"), [true, true]);
        assert_eq!(chosen("topic=*"), [true, true]);
        assert_eq!(chosen("topic=*:web"), [true, true], "by a key to filter by");
        assert_eq!(chosen("topic=Job"), [true, false]);
        assert_eq!(chosen("topic=Job:db"), [false, false]);
        assert_eq!(chosen("topic=Job:db&topic=Allocation%3Aweb"), [false, true]);
        let error = topics("topic=Weather").unwrap_err().to_string();
        assert!(error.contains("Weather") && error.contains("Allocation"), "{error}");
    }

    #[test]
    fn an_event_has_the_names_that_nomad_gives_its_members() {
        let line = Line { index: 7, events: vec![event(Topic::Job, "web", &[])] };
        let text = serde_json::to_string(&line).unwrap();
        let wanted = r#"{"Index":7,"Events":[{"Topic":"Job","Type":"JobRegistered","Key":"web","Namespace":"default","FilterKeys":[],"Index":7,"Payload":null}]}"#;
        assert_eq!(text, wanted);
    }
}

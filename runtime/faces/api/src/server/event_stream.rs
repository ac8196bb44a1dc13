//! `GET /v1/event/stream`: every visible change of jobs, allocations, evaluations and deployments.
//!
//! ```text
//! ControlHandle::changes_from(position) ─► NotedChange ─► events of the topics asked for ─► {"Index", "Events"}
//!        ▲ position of ?index=              │ what is there now                            a line per index
//!        └──────── changes() grows ◄────────┘                                              {} in silence
//! ```
//! With `live=true` the stream also has the lines of [`live`], each as `{"Live": …}`, so that a web
//! page needs one stream only.
//!
//! An event shows the object as it is when the change is first read, which may be newer than the
//! change. If the object is gone by then, the event has only the key. A client that is so slow that
//! it misses changes loses its stream, and has to read everything again.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use futures_util::future;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use serde_json::json;
use tokio::sync::watch;

use super::error::RequestFailure;
use super::event_cache::{RenderedEvent, Topic, event_line};
use super::event_render::render_change;
use super::live::{self, LineFraming};
use super::logs::take_place;
use super::params::Params;
use super::reply;
use super::shares::Share;
use super::state::{Api, ApiState};
use super::wait::{self, LookOutcome, WaitOutcome};
use ostler_agent::{ChangeSubject, NotedChange};
use ostler_model::access::AccessLevel;
use ostler_model::limits::API_TOPICS_MAX;

/// The number of changes that are read in one go.
const AT_ONCE: usize = 64;

/// A filter for events by topic and by key; none stands for all.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TopicFilter {
    topic: Option<Topic>,
    key: Option<String>,
}

impl TopicFilter {
    /// Parse `TOPIC`, `TOPIC:KEY` or `*`; each part may be `*`.
    fn parse(text: &str) -> Result<Self, RequestFailure> {
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
                return Err(RequestFailure::bad_param("topic", other, known));
            }
        };
        let key = Some(key.to_owned()).filter(|key| key != "*" && !key.is_empty());
        Ok(Self { topic, key })
    }

    fn matches(&self, event: &RenderedEvent) -> bool {
        let topic = self.topic.is_none_or(|topic| topic == event.topic);
        let is = |key: &String| event.key == *key || event.filter_keys.contains(key);
        topic && self.key.as_ref().is_none_or(is)
    }
}

/// `GET /v1/event/stream`
pub(super) async fn read(
    State(api): ApiState,
    params: Params,
    RawQuery(query): RawQuery,
) -> Result<Response, RequestFailure> {
    let index = params.number("index")?.unwrap_or(0);
    let wanted = topics(query.as_deref().unwrap_or_default())?;
    let place = take_place(&api, &params)?;
    let (grown, position) =
        (api.agent.control().changes(), api.agent.control().change_position(index));
    let first = VecDeque::from([Bytes::from_static(b"{}\n")]);
    let beside = params.flag("live")?.then(|| node_lines(&api, &params));
    let stream =
        EventLineStream { api, params, wanted, grown, position, lines: first, _place: place };
    let events =
        stream::unfold(stream, |mut stream| async { Some((stream.next_line().await?, stream)) });
    let body = match beside {
        Some(node) => Body::from_stream(stream::select(events, node)),
        None => Body::from_stream(events),
    };
    Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
}

/// The lines about the node for `live=true`. A client that may not read in all namespaces gets one
/// line that says so.
fn node_lines(api: &Arc<Api>, params: &Params) -> BoxStream<'static, io::Result<Bytes>> {
    if params.access().allow_everywhere(AccessLevel::Read) {
        return live::live_lines(Arc::clone(api), LineFraming::Events).boxed();
    }
    let why = "seeing events of the node needs a token with the policy read in all namespaces";
    let line = reply::line(&json!({ "Live": { "refused": why } }));
    stream::once(future::ready(line)).boxed()
}

/// Every `topic` in the query; it may occur several times.
fn topics(query: &str) -> Result<Vec<TopicFilter>, RequestFailure> {
    let pairs = form_urlencoded::parse(query.as_bytes());
    let named = pairs.filter(|(key, _)| key == "topic").take(API_TOPICS_MAX);
    let mut wanted: Vec<TopicFilter> =
        named.map(|(_, text)| TopicFilter::parse(&text)).collect::<Result<_, _>>()?;
    if wanted.is_empty() {
        wanted.push(TopicFilter { topic: None, key: None });
    }
    Ok(wanted)
}

struct EventLineStream {
    api: Arc<Api>,
    params: Params,
    wanted: Vec<TopicFilter>,
    grown: watch::Receiver<u64>,
    position: u64,
    /// Lines that were read and not sent yet.
    lines: VecDeque<Bytes>,
    /// Its place, which is free again when the stream is dropped.
    _place: Share,
}

impl EventLineStream {
    /// Wait for the next line, or a sign of life; none when the agent leaves. An error if changes
    /// were missed.
    async fn next_line(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Some(Ok(line));
            }
            // A change that comes while this one reads wakes it again.
            self.grown.mark_unchanged();
            match wait::look_in_parts(|| self.next_part()).await {
                Some(Ok(lines)) => {
                    self.lines.extend(lines);
                    continue;
                }
                Some(Err(error)) => return Some(Err(error)),
                None => {}
            }
            if let WaitOutcome::Not = wait::wait_for_more(&self.api, &mut self.grown).await? {
                return Some(Ok(Bytes::from_static(b"{}\n")));
            }
        }
    }

    /// Read the next changes as lines.
    fn next_part(&mut self) -> LookOutcome<io::Result<Vec<Bytes>>> {
        let seen = self.api.agent.control().changes_from(self.position, AT_ONCE);
        if seen.missed > 0 {
            let text = format!(
                "{} events came faster than they were read and were dropped; start again",
                seen.missed
            );
            return LookOutcome::Tell(Err(io::Error::other(text)));
        }
        self.position = seen.position;
        if seen.changes.is_empty() {
            return LookOutcome::End;
        }
        let read = u64::try_from(seen.changes.len()).unwrap_or(u64::MAX);
        let lines = self.lines_of(seen.position.saturating_sub(read), &seen.changes);
        if lines.is_empty() { LookOutcome::Passed } else { LookOutcome::Tell(Ok(lines)) }
    }

    /// The lines of these changes, one for each index. The first change is at `position`.
    fn lines_of(&self, position: u64, changes: &[NotedChange]) -> Vec<Bytes> {
        let of = (position..).zip(changes).filter(|(_, change)| self.may_have(&change.of));
        let rendered = of.map(|(at, change)| {
            let render = || render_change(&self.api, change);
            self.api.rendered.events_of_change(at, render)
        });
        let rendered: Vec<Arc<[RenderedEvent]>> = rendered.collect();
        let all = rendered.iter().flat_map(|events| events.iter());
        let told: Vec<&RenderedEvent> = all.filter(|event| self.tells(event)).collect();
        told.chunk_by(|one, next| one.index == next.index).filter_map(event_line).collect()
    }

    /// Whether the client asked for any of these topics.
    fn wants(&self, topics: &[Topic]) -> bool {
        let of = |one: &TopicFilter| one.topic.is_none_or(|topic| topics.contains(&topic));
        self.wanted.iter().any(of)
    }

    /// Whether the change may have an event that the client asked for, so that others are not
    /// rendered first.
    fn may_have(&self, change: &ChangeSubject) -> bool {
        match change {
            ChangeSubject::Job(..) => self.wants(&[Topic::Job, Topic::Evaluation]),
            ChangeSubject::Alloc(_) => self.wants(&[Topic::Allocation]),
            ChangeSubject::Deployment(..) => self.wants(&[Topic::Deployment]),
            ChangeSubject::Node(_) => self.wants(&[Topic::Node]),
        }
    }

    /// Whether the client asked for the event and may see it.
    fn tells(&self, event: &RenderedEvent) -> bool {
        let seen = match event.topic {
            // The node is in no namespace.
            Topic::Node => self.params.access().allow_everywhere(AccessLevel::Read),
            _ => self.params.includes_namespace(&event.namespace),
        };
        seen && self.wanted.iter().any(|one| one.matches(event))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn topics_and_keys_choose_events() {
        let (job, alloc) = (
            RenderedEvent::of_test(Topic::Job, "web", &[]),
            RenderedEvent::of_test(Topic::Allocation, "a1", &["web"]),
        );
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
}

//! `GET /v1/event/stream`: every visible change of jobs, allocations, evaluations and deployments.
//!
//! ```text
//! AgentHandle::changes_from(position) ─► NotedChange ─► events of the topics asked for ─► {"Index", "Events"}
//!        ▲ position of ?index=              │ what is there now                            a line per index
//!        └──────── changes() grows ◄────────┘                                              {} in silence
//! ```
//! With `live=true` the lines of [`live`] come between them, each as `{"Live": …}`: one stream for a page.
//!
//! A change has its event with what is there when it is first read, which may be newer than the change. Of what
//! is gone by then there is the key alone. A follower that is slower than the changes for so long that they
//! are kept no longer loses its stream: it has to look at everything again.

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

use super::error::Failure;
use super::event_render::{Event, Topic, line};
use super::live::{self, Beside};
use super::logs::place;
use super::params::Params;
use super::reply;
use super::router::{Api, Shared};
use super::shares::Share;
use super::wait::{self, Grown, Part};
use ostler_agent::{ChangeOf, NotedChange};
use ostler_model::access::Level;
use ostler_model::limits::API_TOPICS_MAX;

/// Changes that are looked at in one go.
const AT_ONCE: usize = 64;

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

/// `GET /v1/event/stream`
pub(super) async fn read(
    State(api): Shared,
    params: Params,
    RawQuery(query): RawQuery,
) -> Result<Response, Failure> {
    let index = params.number("index")?.unwrap_or(0);
    let wanted = topics(query.as_deref().unwrap_or_default())?;
    let place = place(&api, &params)?;
    let (grown, position) = (api.agent.changes(), api.agent.change_position(index));
    let first = VecDeque::from([Bytes::from_static(b"{}\n")]);
    let beside = params.flag("live")?.then(|| node(&api, &params));
    let stream = Stream { api, params, wanted, grown, position, lines: first, _place: place };
    let events =
        stream::unfold(stream, |mut stream| async { Some((stream.line().await?, stream)) });
    let body = match beside {
        Some(node) => Body::from_stream(stream::select(events, node)),
        None => Body::from_stream(events),
    };
    Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
}

/// The lines about the node, for `live=true`. Who may not read in all namespaces gets one that says so.
fn node(api: &Arc<Api>, params: &Params) -> BoxStream<'static, io::Result<Bytes>> {
    if params.access().allow_everywhere(Level::Read) {
        return live::moments(Arc::clone(api), Beside::Events).boxed();
    }
    let why = "to see the node needs a token with the policy read in all namespaces";
    let line = reply::line(&json!({ "Live": { "refused": why } }));
    stream::once(future::ready(line)).boxed()
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
    _place: Share,
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
            match wait::in_parts(|| self.part()).await {
                Some(Ok(lines)) => {
                    self.lines.extend(lines);
                    continue;
                }
                Some(Err(error)) => return Some(Err(error)),
                None => {}
            }
            if let Grown::Not = wait::grown(&self.api, &mut self.grown).await? {
                return Some(Ok(Bytes::from_static(b"{}\n")));
            }
        }
    }

    /// The lines of the next changes.
    fn part(&mut self) -> Part<io::Result<Vec<Bytes>>> {
        let seen = self.api.agent.changes_from(self.position, AT_ONCE);
        if seen.missed > 0 {
            let text = format!(
                "{} events came faster than they were read and are gone; begin anew",
                seen.missed
            );
            return Part::Tell(Err(io::Error::other(text)));
        }
        self.position = seen.position;
        if seen.changes.is_empty() {
            return Part::End;
        }
        let read = u64::try_from(seen.changes.len()).unwrap_or(u64::MAX);
        let lines = self.lines_of(seen.position.saturating_sub(read), &seen.changes);
        if lines.is_empty() { Part::Passed } else { Part::Tell(Ok(lines)) }
    }

    /// A line for each index. The first of the changes is at `position`.
    fn lines_of(&self, position: u64, changes: &[NotedChange]) -> Vec<Bytes> {
        let of = (position..).zip(changes).filter(|(_, change)| self.may_have(&change.of));
        let rendered = of.map(|(at, change)| self.api.rendered.of(&self.api, at, change));
        let rendered: Vec<Arc<[Event]>> = rendered.collect();
        let all = rendered.iter().flat_map(|events| events.iter());
        let told: Vec<&Event> = all.filter(|event| self.tells(event)).collect();
        told.chunk_by(|one, next| one.index == next.index).filter_map(line).collect()
    }

    /// Is any of these topics asked for?
    fn wants(&self, topics: &[Topic]) -> bool {
        let of = |one: &Wanted| one.topic.is_none_or(|topic| topics.contains(&topic));
        self.wanted.iter().any(of)
    }

    /// What nobody asked for is not put together first.
    fn may_have(&self, change: &ChangeOf) -> bool {
        match change {
            ChangeOf::Job(..) => self.wants(&[Topic::Job, Topic::Evaluation]),
            ChangeOf::Alloc(_) => self.wants(&[Topic::Allocation]),
            ChangeOf::Deployment(..) => self.wants(&[Topic::Deployment]),
            ChangeOf::Node(_) => self.wants(&[Topic::Node]),
        }
    }

    /// Is it asked for, and may it be seen?
    fn tells(&self, event: &Event) -> bool {
        let seen = match event.topic {
            // The node is in no namespace.
            Topic::Node => self.params.access().allow_everywhere(Level::Read),
            _ => self.params.means_namespace(&event.namespace),
        };
        seen && self.wanted.iter().any(|one| one.matches(event))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::super::event_render::tests::event;
    use super::*;

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
}

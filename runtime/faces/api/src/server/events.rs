//! `GET /v1/ostler/events`: what happened on the node. Repetitions of the same event are counted in
//! one entry. With `follow`, each event is a line of JSON as it happens.
//!
//! ```text
//! AgentHandle::events(wanted) ─► answer {"events", "position", "missed"}
//!        ▲ after=position             │ follow: lines, {} in silence
//!        └──── events_grown() ◄───────┘
//! ```

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use futures_util::stream;
use tokio::sync::watch;

use super::error::RequestFailure;
use super::logs::take_place;
use super::params::Params;
use super::reply;
use super::shares::Share;
use super::state::{Api, ApiState};
use super::wait::{self, WaitOutcome};
use ostler_agent::{EventTopic, EventsFilter, KeptEvent};
use ostler_model::access::AccessLevel;
use ostler_model::time::Timestamp;

/// `GET /v1/ostler/events`
pub(super) async fn read(State(api): ApiState, params: Params) -> Result<Response, RequestFailure> {
    let wanted = read_filter(&params)?;
    if !params.flag("follow")? {
        let mut seen = api.agent.events(&wanted);
        seen.events.retain(|event| is_visible(&params, event));
        let caller = params.access().caller();
        return api.computing.answer(caller, move || reply::json(&params, &seen)).await;
    }
    let (place, grown) = (take_place(&api, &params)?, api.agent.events_growth());
    let first = VecDeque::from([Bytes::from_static(b"{}\n")]);
    let follower = EventFollower { api, params, wanted, grown, lines: first, _place: place };
    let body = Body::from_stream(stream::unfold(follower, |mut follower| async {
        Some((follower.next_line().await?, follower))
    }));
    Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
}

/// Whether the event is in a requested namespace that may be seen, or is about the node, which the
/// client may see.
fn is_visible(params: &Params, event: &KeptEvent) -> bool {
    match &*event.what.namespace {
        "" => params.access().allow_everywhere(AccessLevel::Read),
        namespace => params.includes_namespace(namespace),
    }
}

fn read_filter(params: &Params) -> Result<EventsFilter, RequestFailure> {
    let text = |key: &str| params.text(key).filter(|text| !text.is_empty()).map(str::to_owned);
    Ok(EventsFilter {
        after: params.number("after")?.unwrap_or(0),
        since: params.number("since")?.map(Timestamp::from_nanos),
        topic: params.text("topic").map(topic).transpose()?,
        job: text("job"),
        alloc: text("alloc"),
        task: text("task"),
        name: text("name"),
        trouble: params.flag("trouble")?,
    })
}

fn topic(given: &str) -> Result<EventTopic, RequestFailure> {
    use EventTopic::{Allocation, Deployment, Device, Job, Node, Plugin, Task};
    let all = [Node, Job, Allocation, Task, Deployment, Plugin, Device];
    let known = "node, job, allocation, task, deployment, plugin or device";
    let found = all.into_iter().find(|topic| topic.as_str() == given);
    found.ok_or_else(|| RequestFailure::bad_param("topic", given, known))
}

struct EventFollower {
    api: Arc<Api>,
    params: Params,
    wanted: EventsFilter,
    grown: watch::Receiver<u64>,
    /// Lines that were read and not sent yet.
    lines: VecDeque<Bytes>,
    /// Its place, which is free again when the stream is dropped.
    _place: Share,
}

impl EventFollower {
    /// Wait for the next line, or a sign of life; none when the agent leaves.
    async fn next_line(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Some(Ok(line));
            }
            // An event that comes while this one reads wakes it again.
            self.grown.mark_unchanged();
            tokio::task::yield_now().await;
            let seen = self.api.agent.events(&self.wanted);
            self.wanted.after = seen.position;
            if seen.missed {
                self.lines.push_back(Bytes::from_static(b"{\"missed\":true}\n"));
            }
            for event in seen.events.iter().filter(|event| is_visible(&self.params, event)) {
                match reply::line(event) {
                    Ok(line) => self.lines.push_back(line),
                    Err(error) => return Some(Err(error)),
                }
            }
            if !self.lines.is_empty() {
                continue;
            }
            if let WaitOutcome::Not = wait::wait_for_more(&self.api, &mut self.grown).await? {
                return Some(Ok(Bytes::from_static(b"{}\n")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_topic_is_one_that_there_is() {
        assert_eq!(topic("plugin").unwrap(), EventTopic::Plugin);
        let error = topic("plug").unwrap_err().to_string();
        assert!(error.contains("deployment"), "{error}");
    }
}

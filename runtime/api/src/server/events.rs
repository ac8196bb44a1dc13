//! `GET /v1/ostler/events`: what happened on the node, the same event again and again counted in one; with `follow`
//! a line of JSON for each as it happens.
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

use super::error::Failure;
use super::logs::place;
use super::params::Params;
use super::reply;
use super::router::{Api, Shared};
use super::shares::Share;
use super::wait::{self, Grown};
use ostler_agent::{EventTopic, EventsWanted, KeptEvent};
use ostler_model::access::Level;
use ostler_model::time::Timestamp;

/// `GET /v1/ostler/events`
pub(super) async fn read(State(api): Shared, params: Params) -> Result<Response, Failure> {
    let wanted = wanted(&params)?;
    if !params.flag("follow")? {
        let mut seen = api.agent.events(&wanted);
        seen.events.retain(|event| visible(&params, event));
        let caller = params.access().caller();
        return api.computing.answer(caller, move || reply::json(&params, &seen)).await;
    }
    let (place, grown) = (place(&api, &params)?, api.agent.events_grown());
    let first = VecDeque::from([Bytes::from_static(b"{}\n")]);
    let follower = Follower { api, params, wanted, grown, lines: first, _place: place };
    let body = Body::from_stream(stream::unfold(follower, |mut follower| async {
        Some((follower.line().await?, follower))
    }));
    Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
}

/// Of a namespace that is asked for and may be seen, or of the node, for who may see that.
fn visible(params: &Params, event: &KeptEvent) -> bool {
    match &*event.what.namespace {
        "" => params.access().allow_everywhere(Level::Read),
        namespace => params.means_namespace(namespace),
    }
}

fn wanted(params: &Params) -> Result<EventsWanted, Failure> {
    let text = |key: &str| params.text(key).filter(|text| !text.is_empty()).map(str::to_owned);
    Ok(EventsWanted {
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

fn topic(given: &str) -> Result<EventTopic, Failure> {
    use EventTopic::{Allocation, Deployment, Device, Job, Node, Plugin, Task};
    let all = [Node, Job, Allocation, Task, Deployment, Plugin, Device];
    let known = "node, job, allocation, task, deployment, plugin or device";
    let found = all.into_iter().find(|topic| topic.as_str() == given);
    found.ok_or_else(|| Failure::bad_param("topic", given, known))
}

struct Follower {
    api: Arc<Api>,
    params: Params,
    wanted: EventsWanted,
    grown: watch::Receiver<u64>,
    /// Read, and not written yet.
    lines: VecDeque<Bytes>,
    /// Free again when the stream is dropped.
    _place: Share,
}

impl Follower {
    /// The next line, or a sign of life; none when the agent leaves.
    async fn line(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Some(Ok(line));
            }
            // What comes while it looks wakes it again.
            self.grown.mark_unchanged();
            tokio::task::yield_now().await;
            let seen = self.api.agent.events(&self.wanted);
            self.wanted.after = seen.position;
            if seen.missed {
                self.lines.push_back(Bytes::from_static(b"{\"missed\":true}\n"));
            }
            for event in seen.events.iter().filter(|event| visible(&self.params, event)) {
                match reply::line(event) {
                    Ok(line) => self.lines.push_back(line),
                    Err(error) => return Some(Err(error)),
                }
            }
            if !self.lines.is_empty() {
                continue;
            }
            if let Grown::Not = wait::grown(&self.api, &mut self.grown).await? {
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

//! `GET /v1/ostler/live`: how the node is from moment to moment: what it uses, its devices with their holders
//! and measurements, its plugins, and which allocations are gone. A line of JSON for each moment at which
//! something changed, with what changed alone; the first has everything.
//!
//! ```text
//! a stream ─ each API_LIVE_PACE ─► Looks ─ older than the pace? ─► look: machine, devices, plugins, ids
//! another  ─────────────────────────┘        └─ no: what is there, shared
//!     └─► Line::between(what it was told last, now) ─► nothing: silence, a sign of life at times
//!                                                   └► {"use": …, "devices": {KEY: group or null}, …}
//! ```
//! Nothing is looked at while nobody listens, and once for all who do. Changes of jobs, allocations, evaluations
//! and deployments are in the event stream, which has these lines as well for who asks it for them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use futures_util::stream::{self, Stream as FutureStream, StreamExt as _};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::error::Failure;
use super::host;
use super::logs::place;
use super::nodes;
use super::params::Params;
use super::reply;
use super::router::{Api, Shared};
use ostler_agent::{ChangeOf, DeviceGroupReport, PluginStatusReport};
use ostler_model::clock::{self, Stopwatch};
use ostler_model::ids::AllocId;
use ostler_model::limits::{API_LIVE_GONE_MAX, API_LIVE_PACE, API_LIVE_SIGN_PERIOD};
use ostler_node::usage::{CoreShare, HostUsage};

/// Processors whose use is told each; of more, only all together.
const CORES_MAX: usize = 256;
/// Changes that are looked at in one go.
const CHANGES_AT_ONCE: usize = 64;

/// The last look, for all who listen.
#[derive(Default)]
pub(super) struct Looks(Mutex<Option<(Stopwatch, Arc<Seen>)>>);

/// What there was at one moment.
#[derive(Debug, Default)]
struct Seen {
    /// The node as lists have it.
    node: Value,
    /// What the machine uses.
    used: Value,
    devices: BTreeMap<String, DeviceGroupReport>,
    plugins: BTreeMap<String, PluginStatusReport>,
    allocs: BTreeSet<AllocId>,
}

/// Allocations that no look has seen, as they came and went between two: their events are out already.
#[derive(Default)]
struct Short {
    gone: BTreeSet<AllocId>,
    /// Changes were missed: there may be others.
    missed: bool,
}

/// What is written as one line: what is not there did not change.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a Value>,
    #[serde(rename = "use", skip_serializing_if = "Option::is_none")]
    used: Option<&'a Value>,
    /// By group; null: it is gone.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    devices: BTreeMap<&'a str, Option<&'a DeviceGroupReport>>,
    /// By block and source; null: it is gone.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    plugins: BTreeMap<&'a str, Option<&'a PluginStatusReport>>,
    /// Allocations that were collected.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gone: Vec<AllocId>,
    /// More than [`API_LIVE_GONE_MAX`] were: whoever keeps a list reads it again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    read_again: bool,
}

impl<'a> Line<'a> {
    /// What of `now` differs from what was told; everything where nothing was.
    /// `short`: allocations that came and went since.
    fn between(told: Option<&'a Seen>, now: &'a Seen, short: Short) -> Self {
        let other = |before: Option<&Value>, now: &'a Value| (before != Some(now)).then_some(now);
        let Short { mut gone, missed } = short;
        gone.extend(told.into_iter().flat_map(|told| told.allocs.difference(&now.allocs)));
        let read_again = missed || gone.len() > API_LIVE_GONE_MAX;
        let gone = gone.into_iter().take(API_LIVE_GONE_MAX).collect();
        Self {
            node: other(told.map(|told| &told.node), &now.node),
            used: other(told.map(|told| &told.used), &now.used),
            devices: changed(told.map(|told| &told.devices), &now.devices),
            plugins: changed(told.map(|told| &told.plugins), &now.plugins),
            gone,
            read_again,
        }
    }

    fn is_empty(&self) -> bool {
        let Self { node, used, devices, plugins, gone, read_again } = self;
        let lists = devices.is_empty() && plugins.is_empty() && gone.is_empty();
        node.is_none() && used.is_none() && lists && !read_again
    }
}

/// The entries that are new or other ones, and nothing for each that is gone.
fn changed<'a, T: PartialEq>(
    before: Option<&'a BTreeMap<String, T>>,
    now: &'a BTreeMap<String, T>,
) -> BTreeMap<&'a str, Option<&'a T>> {
    let was = |key: &String| before.and_then(|before| before.get(key));
    let other = now.iter().filter(|(key, value)| was(key) != Some(value));
    let gone = before.into_iter().flat_map(BTreeMap::keys).filter(|key| !now.contains_key(*key));
    let other = other.map(|(key, value)| (key.as_str(), Some(value)));
    other.chain(gone.map(|key| (key.as_str(), None))).collect()
}

/// `GET /v1/ostler/live`
pub(super) async fn read(State(api): Shared, params: Params) -> Result<Response, Failure> {
    let place = place(&api, &params)?;
    // The place is free again when the stream is dropped.
    let held = moments(api, Beside::Nothing).inspect(move |_| _ = &place);
    let body = Body::from_stream(held);
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

/// The lines, until the agent leaves.
pub(super) fn moments(
    api: Arc<Api>,
    beside: Beside,
) -> impl FutureStream<Item = io::Result<Bytes>> + Send {
    let position = api.agent.change_position(api.agent.index());
    let stream = Stream { api, position, told: None, beside };
    stream::unfold(stream, |mut stream| async { Some((stream.line().await?, stream)) })
}

/// What else is in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beside {
    Nothing,
    /// Lines with events: one of these is the member `Live` of its own.
    Events,
}

struct Stream {
    api: Arc<Api>,
    /// In the changes.
    position: u64,
    told: Option<Arc<Seen>>,
    beside: Beside,
}

impl Stream {
    /// What changed since the last question and is not there any more.
    async fn short(&mut self) -> Short {
        let mut short = Short::default();
        loop {
            tokio::task::yield_now().await;
            let seen = self.api.agent.changes_from(self.position, CHANGES_AT_ONCE);
            self.position = seen.position;
            short.missed |= seen.missed > 0;
            if seen.changes.is_empty() {
                return short;
            }
            let allocs = seen.changes.iter().filter_map(|change| match &change.of {
                ChangeOf::Alloc(id) => Some(*id),
                _ => None,
            });
            short.gone.extend(allocs.filter(|id| self.api.agent.alloc(*id).is_none()));
        }
    }

    /// The next line, or a sign of life; none when the agent leaves.
    async fn line(&mut self) -> Option<io::Result<Bytes>> {
        let silent = Stopwatch::start();
        let leaving = self.api.leaving.clone();
        loop {
            if self.told.is_some() {
                leaving.run_until_cancelled(clock::sleep(API_LIVE_PACE)).await?;
            }
            let now = match leaving.run_until_cancelled(look(&self.api)).await? {
                Ok(now) => now,
                Err(failure) => return Some(Err(io::Error::other(failure.to_string()))),
            };
            let short = self.short().await;
            let line = Line::between(self.told.as_deref(), &now, short);
            let text = (!line.is_empty()).then(|| match self.beside {
                Beside::Nothing => reply::line(&line),
                Beside::Events => reply::line(&BTreeMap::from([("Live", &line)])),
            });
            self.told = Some(now);
            match text {
                Some(text) => return Some(text),
                None if silent.elapsed() >= API_LIVE_SIGN_PERIOD => {
                    return Some(Ok(Bytes::from_static(b"{}\n")));
                }
                None => {}
            }
        }
    }
}

/// What there is, not older than about the pace.
async fn look(api: &Api) -> Result<Arc<Seen>, Failure> {
    let mut last = api.live.0.lock().await;
    // Streams of the same pace do not look in turns.
    if let Some((at, seen)) = &*last
        && at.elapsed() < API_LIVE_PACE * 9 / 10
    {
        return Ok(Arc::clone(seen));
    }
    let (usage, shares, _) = host::look(api).await?;
    let devices = api.agent.devices().into_iter().map(|group| (group.group.to_string(), group));
    let plugins = api.agent.plugins_status().into_iter();
    let seen = Arc::new(Seen {
        node: nodes::own(api),
        used: used(&usage, &shares),
        devices: devices.collect(),
        plugins: plugins.map(|one| (format!("{} {}", one.block, one.source), one)).collect(),
        allocs: api.agent.alloc_ids(),
    });
    *last = Some((Stopwatch::start(), Arc::clone(&seen)));
    Ok(seen)
}

/// Rounded to what is shown, so that a machine at rest says nothing: per cent of processors, bytes in MiB.
fn used(usage: &HostUsage, shares: &[CoreShare]) -> Value {
    let mib = |bytes: u64| bytes / ostler_model::limits::MIB;
    let busy = |share: &CoreShare| share.busy.round();
    let cores = u32::try_from(shares.len()).unwrap_or(u32::MAX).max(1);
    let all = shares.iter().map(|share| share.busy).sum::<f64>() / f64::from(cores);
    let each: Vec<f64> = shares.iter().take(CORES_MAX).map(busy).collect();
    let disks: Vec<Value> = usage
        .disks
        .iter()
        .map(|disk| {
            let at = disk.mountpoint.to_string_lossy();
            json!({ "mountpoint": at, "size_mb": mib(disk.size), "used_mb": mib(disk.used) })
        })
        .collect();
    json!({
        "cpu_percent": (all * 10.0).round() / 10.0,
        "cores_percent": each,
        "memory_total_mb": mib(usage.memory.total),
        "memory_available_mb": mib(usage.memory.available),
        "disks": disks,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn seen(cpu: u32, allocs: &[u128]) -> Seen {
        let allocs = allocs.iter().map(|id| AllocId::new(uuid::Uuid::from_u128(*id))).collect();
        Seen {
            node: json!({ "Name": "edge" }),
            used: json!({ "cpu": cpu }),
            allocs,
            ..Seen::default()
        }
    }

    fn said(told: Option<&Seen>, now: &Seen) -> Value {
        serde_json::from_slice(&reply::line(&Line::between(told, now, Short::default())).unwrap())
            .unwrap()
    }

    #[test]
    fn the_first_line_has_everything_and_later_ones_what_changed() {
        let (first, second) = (seen(1, &[1, 2]), seen(2, &[2, 3]));
        let all = json!({ "node": { "Name": "edge" }, "use": { "cpu": 1 } });
        assert_eq!(said(None, &first), all);
        let more = seen(1, &[1, 2, 3]);
        let line = Line::between(Some(&first), &more, Short::default());
        assert!(line.is_empty(), "new ones have events");
        let gone = "00000000-0000-0000-0000-000000000001";
        assert_eq!(said(Some(&first), &second), json!({ "use": { "cpu": 2 }, "gone": [gone] }));
    }

    #[test]
    fn when_more_allocations_went_than_are_named_the_reader_is_told_to_read_again() {
        let many: Vec<u128> = (0..=u128::try_from(API_LIVE_GONE_MAX).unwrap()).collect();
        let line = said(Some(&seen(1, &many)), &seen(1, &[]));
        assert_eq!(line["gone"].as_array().unwrap().len(), API_LIVE_GONE_MAX);
        assert_eq!(line["read_again"], true);
    }

    #[test]
    fn an_allocation_that_came_and_went_between_two_looks_is_gone_too() {
        let (seen, id) = (seen(1, &[1]), AllocId::new(uuid::Uuid::from_u128(7)));
        let short = Short { gone: BTreeSet::from([id]), missed: false };
        assert_eq!(Line::between(Some(&seen), &seen, short).gone, [id]);
        let short = Short { missed: true, ..Short::default() };
        assert!(Line::between(Some(&seen), &seen, short).read_again);
    }

    #[test]
    fn an_entry_that_went_is_null_and_one_that_stayed_is_not_said() {
        let of = |pairs: &[(&str, u8)]| -> BTreeMap<String, u8> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect()
        };
        let (before, now) =
            (of(&[("a", 1), ("b", 1), ("c", 1)]), of(&[("a", 1), ("b", 2), ("d", 1)]));
        let wanted = [("b", Some(&2)), ("c", None), ("d", Some(&1))];
        assert_eq!(changed(Some(&before), &now), BTreeMap::from(wanted));
        assert_eq!(changed(None, &now).len(), 3);
    }
}

//! `GET /v1/ostler/live`: the state of the node from moment to moment: what it uses, its devices
//! with their holders and measurements, its plugins, and which allocations are gone. There is a
//! line of JSON for each moment at which something changed. It has only what changed; the first
//! line has everything.
//!
//! ```text
//! a stream ─ each API_LIVE_PACE ─► LiveSnapshotCache ─┬─ older than the pace ─► read machine, devices, plugins, ids
//! another  ─────────────────────────┘                 └─ else ─► the snapshot, shared
//!     └─► LiveLine::from_snapshots(last one sent, now) ─┬─ the same ─► silence, a sign of life at times
//!                                                       └─ else ─► {"use": …, "devices": {KEY: group or null}, …}
//! ```
//! Nothing is read while nobody listens, and each reading is shared by all listeners. Changes of
//! jobs, allocations, evaluations and deployments are in the event stream, which also has these
//! lines for clients that ask for them.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use futures_util::stream::{self, Stream as FutureStream, StreamExt as _};
use serde_json::{Value, json};

use super::error::RequestFailure;
use super::host;
use super::live_snapshot::{LiveLine, LiveSnapshot, ShortLivedAllocs};
use super::logs::take_place;
use super::nodes;
use super::params::Params;
use super::reply;
use super::state::{Api, ApiState};
use ostler_agent::ChangeSubject;
use ostler_model::clock::{self, Stopwatch};
use ostler_model::limits::{API_LIVE_PACE, API_LIVE_SIGN_PERIOD};
use ostler_node::usage::{CoreShare, HostUsage};

/// The most cores whose use is reported one by one; the use of all together is always reported.
const CORES_MAX: usize = 256;
/// The number of changes that are read in one go.
const CHANGES_AT_ONCE: usize = 64;

/// `GET /v1/ostler/live`
pub(super) async fn read(State(api): ApiState, params: Params) -> Result<Response, RequestFailure> {
    let place = take_place(&api, &params)?;
    // The closure keeps the place until the stream is dropped.
    let held = live_lines(api, LineFraming::Nothing).inspect(move |_| _ = &place);
    let body = Body::from_stream(held);
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], body).into_response())
}

/// A stream of the lines, until the agent leaves.
pub(super) fn live_lines(
    api: Arc<Api>,
    beside: LineFraming,
) -> impl FutureStream<Item = io::Result<Bytes>> + Send {
    let position = api.agent.control().change_position(api.agent.control().index());
    let stream = LiveStream { api, position, told: None, beside };
    stream::unfold(stream, |mut stream| async { Some((stream.next_line().await?, stream)) })
}

/// How the lines stand in the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineFraming {
    Nothing,
    /// The stream also has lines with events. Each line of this module is an object with the one
    /// member `Live`.
    Events,
}

struct LiveStream {
    api: Arc<Api>,
    /// The position in the changes up to which they were read.
    position: u64,
    told: Option<Arc<LiveSnapshot>>,
    beside: LineFraming,
}

impl LiveStream {
    /// Find the allocations that changed since the last call and are not there any more.
    async fn find_short_lived(&mut self) -> ShortLivedAllocs {
        let mut short = ShortLivedAllocs::default();
        loop {
            tokio::task::yield_now().await;
            let seen = self.api.agent.control().changes_from(self.position, CHANGES_AT_ONCE);
            self.position = seen.position;
            short.missed |= seen.missed > 0;
            if seen.changes.is_empty() {
                return short;
            }
            let allocs = seen.changes.iter().filter_map(|change| match &change.of {
                ChangeSubject::Alloc(id) => Some(*id),
                _ => None,
            });
            short.gone.extend(allocs.filter(|id| self.api.agent.control().alloc(*id).is_none()));
        }
    }

    /// Wait for the next line, or a sign of life; none when the agent leaves.
    async fn next_line(&mut self) -> Option<io::Result<Bytes>> {
        let silent = Stopwatch::start();
        let leaving = self.api.leaving.clone();
        loop {
            if self.told.is_some() {
                leaving.run_until_cancelled(clock::sleep(API_LIVE_PACE)).await?;
            }
            let now = match leaving.run_until_cancelled(take_snapshot(&self.api)).await? {
                Ok(now) => now,
                Err(failure) => return Some(Err(io::Error::other(failure.to_string()))),
            };
            let short = self.find_short_lived().await;
            let line = LiveLine::from_snapshots(self.told.as_deref(), &now, short);
            let text = (!line.is_empty()).then(|| match self.beside {
                LineFraming::Nothing => reply::line(&line),
                LineFraming::Events => reply::line(&BTreeMap::from([("Live", &line)])),
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

/// A snapshot that is not much older than the pace.
async fn take_snapshot(api: &Api) -> Result<Arc<LiveSnapshot>, RequestFailure> {
    let mut last = api.live.0.lock().await;
    // The margin keeps streams of the same pace from taking snapshots in turns.
    if let Some((at, seen)) = &*last
        && at.elapsed() < API_LIVE_PACE * 9 / 10
    {
        return Ok(Arc::clone(seen));
    }
    let (usage, shares, _) = host::measure_usage(api).await?;
    let devices = api.agent.devices().into_iter().map(|group| (group.group.to_string(), group));
    let plugins = api.agent.plugins_status().into_iter();
    let seen = Arc::new(LiveSnapshot {
        node: nodes::node_stub_json(api),
        used: usage_json(&usage, &shares),
        devices: devices.collect(),
        plugins: plugins.map(|one| (format!("{} {}", one.block, one.source), one)).collect(),
        allocs: api.agent.control().alloc_ids(),
    });
    *last = Some((Stopwatch::start(), Arc::clone(&seen)));
    Ok(seen)
}

/// The use of the machine as JSON. It is rounded to what is shown, so that an idle machine sends no
/// lines: per cent of processors, bytes in MiB.
fn usage_json(usage: &HostUsage, shares: &[CoreShare]) -> Value {
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

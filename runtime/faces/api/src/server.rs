//! The agent over HTTP, on a unix socket and perhaps TCP: Nomad's paths, JSON shapes, headers and units.
//!
//! ```text
//! socket: who, how many ─► router ─ access, deadline ─► jobs allocs client logs fs nodes agent
//!                                                          │ params   ▲ json: shapes from views
//!                                                          ▼          │
//!                          wait: has this result changed? ─► AgentHandle ─► views
//! ```
//! Nothing here makes decisions: requests are read, bounded and handed to [`AgentHandle`], and its
//! answers are put into the shapes. Each connection is one tokio task; when a client hangs up, the
//! task is dropped with all that it holds. What else is remembered, such as the last measurement of
//! processor time and the scaling events, is in `state`.
//!
//! The paths under `/v1/ostler/` are Ostler's own. An evaluation is a name for a change that is
//! complete at once, so that Nomad's tools can go on.

mod access;
mod admit;
mod agent;
mod allocs;
mod blocked;
mod body;
mod client;
mod compute_pool;
mod connection;
mod debug;
mod deployments;
mod drain;
mod error;
mod evaluated_change;
mod evaluation_ids;
mod evaluations;
mod event_cache;
mod event_render;
mod event_stream;
mod events;
mod exec;
mod exec_frames;
mod fs;
mod fs_stream;
mod guarded_body;
mod gzip;
mod handlers;
mod host;
mod hosts;
mod index;
mod jobs;
mod json;
mod listen;
mod live;
mod live_snapshot;
mod logs;
mod metrics;
mod metrics_own;
mod metrics_text;
mod monitor;
mod namespaces;
mod node_state;
mod nodes;
mod params;
mod places;
mod plugins;
mod reply;
mod router;
mod samples;
mod scaling;
mod scaling_history;
mod search;
mod servers;
mod services;
mod sessions;
mod shares;
mod snapshot;
mod socket;
mod state;
mod stub_render;
mod tls;
mod tokens;
mod ui;
mod variables;
mod wait;
mod websocket;

use tokio_util::sync::CancellationToken;

pub use exec_frames::exec_frame;
pub use listen::{ApiError, ListenOptions, TcpListenOptions};
use ostler_agent::AgentHandle;
pub use socket::ApiServer;
pub use tls::{ApiTls, ApiTlsError, ApiTlsFiles};

/// Serve `agent` until `shutdown` or [`ApiServer::stop`]. An existing socket is replaced, because
/// the caller holds the data directory. Needs a tokio runtime.
///
/// # Errors
/// When the path is too long, or the socket or the port cannot be used.
pub fn serve(
    agent: AgentHandle,
    faces: ListenOptions<'_>,
    shutdown: CancellationToken,
) -> Result<ApiServer, ApiError> {
    // A child token, so that stopping the API stops nothing else.
    let leaving = shutdown.child_token();
    let hosts = faces.tcp.as_ref().map(|face| face.hosts.clone()).unwrap_or_default();
    let api = state::Api::new(agent, faces.tokens.clone(), hosts, leaving.clone());
    let sessions = api.sessions.tasks.clone();
    socket::start_on_threads(router::router(api), faces, leaving, sessions)
}

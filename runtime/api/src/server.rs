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
//! task is dropped with all that it holds. The only other state is the last reading of the lists
//! (`index`) and of processor time (for percentages), and the scaling events (`scaling`).
//!
//! The paths under `/v1/ostler/` are Ostler's own. An evaluation is a name for a change that is
//! complete at once, so that Nomad's tools can go on.

mod access;
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
mod evaluations;
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
mod live;
mod logs;
mod metrics;
mod metrics_own;
mod metrics_text;
mod monitor;
mod namespaces;
mod nodes;
mod params;
mod places;
mod plugins;
mod reply;
mod router;
mod scaling;
mod search;
mod servers;
mod services;
mod shares;
mod snapshot;
mod socket;
mod stub_render;
mod tls;
mod tokens;
mod ui;
mod variables;
mod wait;
mod websocket;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use tokio_util::sync::CancellationToken;

pub use exec_frames::exec_frame;
use ostler_access::Tokens;
use ostler_agent::AgentHandle;
pub use socket::ApiServer;
pub use tls::{ApiTls, ApiTlsError, ApiTlsFiles};

/// Why the API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The path of the socket is longer than the kernel allows.
    #[error(
        "the path of the API's socket, {}, has {length} bytes; a socket's path has at most {}: \
         give a shorter --data-dir",
        socket.display(), socket::SOCKET_PATH_BYTES_MAX
    )]
    PathTooLong {
        /// The path of the socket.
        socket: PathBuf,
        /// The length of the path, bytes.
        length: usize,
    },
    /// The socket cannot be created.
    #[error(
        "cannot listen on {} ({step}): {source}; check that the data directory can be written and \
         supports sockets",
        socket.display()
    )]
    Socket {
        /// The path of the socket.
        socket: PathBuf,
        /// The step that failed.
        step: &'static str,
        /// The error of the kernel.
        #[source]
        source: std::io::Error,
    },
    /// The TCP port cannot be used.
    #[error(
        "cannot listen on {at} over TCP: {source}; choose another in ports {{ http = … }} or addresses {{ http = … }}"
    )]
    Tcp {
        /// The address and the port.
        at: String,
        /// The error of the kernel.
        #[source]
        source: std::io::Error,
    },
}

/// How the API is reached over TCP.
#[derive(Debug)]
pub struct TcpListenOptions {
    /// The address and port on which it listens.
    pub at: SocketAddr,
    /// The certificate and key, if it has TLS.
    pub tls: Option<ApiTls>,
    /// The names by which requests may address it, besides IP addresses and `localhost`.
    pub hosts: Vec<String>,
}

/// Where the API listens, and which tokens count.
#[derive(Debug)]
pub struct ListenOptions<'a> {
    /// The path of the socket, which only the agent's user can use.
    pub socket: &'a Path,
    /// How it is reached over TCP, if it is.
    pub tcp: Option<TcpListenOptions>,
    /// The tokens, which say who may do what.
    pub tokens: Tokens,
}

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
    let api = router::Api::new(agent, faces.tokens.clone(), hosts, leaving.clone());
    let sessions = api.sessions.tasks.clone();
    socket::start(router::router(api), faces, leaving, sessions)
}

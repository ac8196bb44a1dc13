//! The agent over HTTP, on a unix socket and perhaps TCP: Nomad's paths, JSON shapes, headers and units.
//!
//! ```text
//! socket: who, how many ─► router ─ access, deadline ─► jobs allocs client logs fs nodes agent
//!                                                          │ params   ▲ json: shapes from views
//!                                                          ▼          │
//!                          wait: has this result changed? ─► AgentHandle ─► views
//! ```
//! Nothing here decides anything: requests are read, bounded and handed to
//! [`AgentHandle`], its answers are put into the shapes. Each connection
//! is one tokio task; a client that hangs up drops it with all it holds. There is no other state
//! than what was last seen of the tables (`index`) and of processor time (for percentages), and what
//! was asked of the counts of groups (`scaling`).
//!
//! What is Ostler's own is under `/v1/ostler/`. What a node without a cluster cannot have
//! (deployments) is answered with empty lists, and an evaluation is a name for a change that is
//! complete at once, so that Nomad's tools go on. Of a job only the newest version is kept: that is
//! all `/v1/job/ID/versions` has, and there is no way back to an older one but its file.

mod access;
mod agent;
mod allocs;
mod blocked;
mod body;
mod client;
mod computing;
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
mod guarded;
mod gzip;
mod host;
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
    /// The kernel takes no such long path.
    #[error(
        "the path of the API's socket, {}, has {length} bytes; a socket's path has at most {}: \
         give a shorter --data-dir",
        socket.display(), socket::SOCKET_PATH_BYTES_MAX
    )]
    PathTooLong {
        /// The path.
        socket: PathBuf,
        /// Its length, bytes.
        length: usize,
    },
    /// The socket cannot be made.
    #[error(
        "cannot listen on {} ({step}): {source}; check that the data directory can be written and \
         supports sockets",
        socket.display()
    )]
    Socket {
        /// The path.
        socket: PathBuf,
        /// What was being done.
        step: &'static str,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
    /// The port cannot be had.
    #[error(
        "cannot listen on {at} over TCP: {source}; choose another in ports {{ http = … }} or addresses {{ http = … }}"
    )]
    Tcp {
        /// Where.
        at: String,
        /// What the kernel said.
        #[source]
        source: std::io::Error,
    },
}

/// How the API is reached over TCP.
#[derive(Debug)]
pub struct TcpFace {
    /// Where it listens.
    pub at: SocketAddr,
    /// With TLS?
    pub tls: Option<ApiTls>,
    /// Names by which it may be asked for, beside addresses and `localhost`.
    pub hosts: Vec<String>,
}

/// Where an API is, and whose tokens count.
#[derive(Debug)]
pub struct Faces<'a> {
    /// The socket that only the agent's user can use.
    pub socket: &'a Path,
    /// Over TCP, where that is wanted.
    pub tcp: Option<TcpFace>,
    /// Who may do what.
    pub tokens: Tokens,
}

/// Serve `agent` until `shutdown` or [`ApiServer::stop`]. A socket at that path is replaced: the caller holds
/// the data directory. Needs a tokio runtime.
///
/// # Errors
/// When the path is too long, or the socket or the port cannot be had.
pub fn serve(
    agent: AgentHandle,
    faces: Faces<'_>,
    shutdown: CancellationToken,
) -> Result<ApiServer, ApiError> {
    // A child, so that stopping the API stops nothing else.
    let leaving = shutdown.child_token();
    let hosts = faces.tcp.as_ref().map(|face| face.hosts.clone()).unwrap_or_default();
    let api = router::Api::new(agent, faces.tokens.clone(), hosts, leaving.clone());
    let sessions = api.sessions.tasks.clone();
    socket::start(router::router(api), faces, leaving, sessions)
}

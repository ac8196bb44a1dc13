//! The agent's HTTP API on a unix socket, and perhaps TCP: Nomad's paths, JSON shapes, headers and units.
//!
//! [`server`] answers for an agent in this process. [`client`] asks the agent of another process,
//! and knows nothing of agents but this API. The bodies of both are the types of `ostler-wire`.
//! Neither makes decisions of its own. Start with [`server::serve`], then `server/router.rs`.

pub mod agent_log;
pub mod client;
pub mod request;
pub mod routes;
pub mod server;
mod table;
mod websocket;

/// The name of the socket in the data directory.
pub const SOCKET_NAME: &str = "ostler.sock";

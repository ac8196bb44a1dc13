//! The agent's HTTP API on a unix socket, and perhaps TCP: Nomad's paths, JSON shapes, headers and units.
//!
//! [`server`] answers for an agent of this process; [`client`] asks the agent of another one, and knows
//! nothing of agents but this API. The bodies of both are the types of `ostler-wire`. Neither decides
//! anything. Start with [`server::serve`], then `server/router.rs`.

pub mod agent_log;
pub mod client;
mod duplex;
pub mod server;
mod websocket;

/// Name of the socket in the data directory.
pub const SOCKET_NAME: &str = "ostler.sock";

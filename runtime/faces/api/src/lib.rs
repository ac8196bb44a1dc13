//! The agent's HTTP API on a unix socket, and perhaps TCP: Nomad's paths, JSON shapes, headers and units.
//!
//! [`server`] answers for an agent in this process. [`client`] asks the agent of another process. Both follow from
//! one table of routes (`table.rs`), and their bodies are the types that it names, most of them of `ostler-wire`.
//! Neither makes decisions of its own.
//! Start with `table.rs`, then [`server::serve`] and `server/router.rs`.

pub mod agent_log;
pub mod client;
#[cfg(test)]
mod openapi_tests;
pub mod request;
pub mod routes;
pub mod server;
#[cfg(test)]
mod shapes_tests;
mod table;
mod websocket;

/// The name of the socket in the data directory.
pub const SOCKET_NAME: &str = "ostler.sock";

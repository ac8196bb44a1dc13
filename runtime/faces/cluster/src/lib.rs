//! A client node of Nomad's servers: the wire protocol, the decisions, and the loops. The agent is
//! behind the trait [`ClusterNode`](client::ClusterNode).
//!
//! ```text
//! join_check ─► dial ([TLS]) ─► session (yamux) ─ streams ─► caller ─► rpc (calls) ─ values ─► msgpack
//!      └─► servers: the calls, with types ──────────────────────▲
//! ```
//! Start with [`Session`](session::Session).

mod access;
pub mod assigned_allocs;
pub mod caller;
pub mod client;
mod credentials;
pub mod dial;
mod disconnect;
pub mod fuzz;
pub mod join_check;
pub mod msgpack;
mod node_events;
pub mod previous;
pub mod reports;
pub mod rpc;
pub mod servers;
pub mod session;
pub mod tls;
pub mod tls_nodes;
pub mod updates;
pub mod wanted_allocs;

pub use credentials::NodeStanding;

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
#[path = "pinned_tests.rs"]
mod pinned_tests;
#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]
#[path = "recorded_tests.rs"]
mod recorded_tests;

//! An agent as a client node of Nomad's servers.
//!
//! ```text
//! session (yamux) ─ streams ─► caller ─► rpc (calls) ─ values ─► msgpack
//! ```
//! Start with [`Session`](session::Session).

pub mod caller;
pub mod go_time;
pub mod msgpack;
pub mod rpc;
pub mod session;

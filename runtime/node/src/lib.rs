//! This machine, as jobs and people see it.
//!
//! ```text
//! refresh ── host facts ────┐
//! driver manager ── drivers ┼─► Node::update ─► equal? ─ yes ─► nothing
//! device manager ── devices ┘                     │ no
//!                                                 ▼
//!                       current(): Arc<NodeView> ─► admission, API, CLI, task environment
//!                       changes(): once per burst ─► blocked placements, state records
//! ```
//! [`NodeView`] is a plain snapshot; [`Node`] publishes it; [`constraint`] decides whether a
//! condition of a job holds on it; [`watch`] hears what changes on the machine.
//! Knows no plugin: drivers and devices are told to it. Start with [`Node`].

pub mod constraint;
pub mod fingerprint;
pub mod host_networks;
pub mod id;
mod publish;
pub mod refresh;
pub mod usage;
pub mod version;
mod view;
pub mod watch;

pub use id::{NodeId, NodeIdError, keep_standing, node_secret, standing};
pub use publish::{Node, NodeChanges};
pub use view::{DriverView, HostNetworkView, NodeCores, NodeResources, NodeView};

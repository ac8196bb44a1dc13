//! This machine, as jobs and people see it.
//!
//! ```text
//! refresh ── host facts ────┐
//! driver manager ── drivers ┼─► NodePublisher::update ─► equal? ─ yes ─► nothing
//! device manager ── devices ┘                              │ no
//!                                                          ▼
//!                       current(): Arc<NodeView> ─► admission, API, CLI, task environment
//!                       changes(): once per burst ─► blocked placements, state records
//! ```
//! [`NodeView`] is a plain snapshot; [`NodePublisher`] publishes it; [`constraint`] decides whether a
//! condition of a job holds on it; [`watch`] waits for changes on the machine. The crate knows no
//! plugin: drivers and devices are reported to it. Start with [`NodePublisher`].

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

pub use id::{NodeId, NodeIdError, keep_standing, load_standing, node_secret};
pub use publish::{NodeChanges, NodePublisher};
pub use view::{DriverView, HostNetworkView, NodeCores, NodeTotals, NodeView};

//! The node: which jobs it has, what of them runs, and what each allocation holds.
//!
//! ```text
//! requests, owners of allocations, the store, devices ─► Event ─► machine::step (pure) ─► Effect
//!         ▲                                                                                 │
//!         └──────────────────────────── owner (one task) ◄──────────────────────────────────┘
//! ```
//! May not: know plugins, the sandbox or the API; decide anything outside of `machine`.
//!
//! Start reading at `machine.rs` (events and effects), then `machine/change.rs` (the way of a
//! change) and `owner.rs` (who carries effects out).

pub mod acknowledged;
pub mod admission;
mod change_log;
pub mod deployments;
pub mod ended;
mod error;
pub mod gc;
mod handle;
pub mod held;
pub mod machine;
pub mod namespaces;
pub mod node_drain;
mod owner;
pub mod ports;
mod proposal;
pub mod reconcile;
pub mod recorded;
mod reschedule;
pub mod scaling;
mod tables;
pub mod unowned;
pub mod variables;
pub mod views;

pub use admission::{DeviceExplanation, NoDriver, no_driver};
pub use change_log::{ChangeOf, ChangesSeen, NotedChange};
pub use error::{AllocError, ConfigProblem, SubmitError};
pub use handle::{ControlHandle, Planning};
pub use owner::{ControlOptions, spawn};
pub use tables::{AllocEntry, AllocVerdict, JobEntry, PlacedBy, Tables};
pub use views::{
    AllocRef, AllocView, Assigned, BlockedPlacement, Collected, Deployed, GroupCounts, GroupPlan,
    JobOptions, JobStatus, JobView, PlaceCounts, Plan, RegisterOptions, Registered, Stage,
    StopOptions, Stopped,
};

/// The driver without isolation, which an operator must switch on.
pub const RAW_EXEC: &str = "raw_exec";

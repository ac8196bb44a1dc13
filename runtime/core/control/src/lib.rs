//! The node: which jobs it has, what of them runs, and what each allocation holds.
//!
//! ```text
//! requests, owners of allocations, the store, devices ─► ControlEvent ─► Machine::step (pure)
//!       ▲                                                                      │ ControlEffect
//!       └──────────────────── owner (one task) ◄───────────────────────────────┘
//! ```
//! The crate knows neither plugins nor the sandbox nor the API, and decides nothing outside of
//! `machine`.
//!
//! Start reading at `machine.rs` (events and effects), then `machine/change.rs` (the way of a
//! change) and `owner.rs` (which carries effects out).

pub mod acknowledgement;
pub mod admission;
mod change_log;
pub mod deployments;
pub mod ended_places;
mod error;
pub mod gc;
mod handle;
mod ledger_book;
pub mod machine;
pub mod namespaces;
pub mod node_drain;
pub mod node_records;
pub mod orphan_dirs;
mod owner;
pub mod ports;
mod proposal;
pub mod reconcile;
mod reschedule;
pub mod scaling;
mod tables;
pub mod unowned_runs;
pub mod variables;
pub mod views;

pub use admission::{DeviceExplanation, NoDriver, no_driver};
pub use change_log::{ChangeBatch, ChangeSubject, NotedChange};
pub use error::{AllocError, SubmitError, TaskConfigProblem};
pub use handle::{ControlHandle, PlanSnapshot};
pub use owner::{ControlOptions, ControlQueue, spawn};
pub use tables::{AllocEntry, AllocVerdict, JobEntry, NodeTables, PlacedBy};
pub use views::{
    AgentStage, AllocRef, AllocView, AssignOutcome, BlockedPlacement, CollectOutcome,
    DeploymentOutcome, GroupCounts, GroupPlan, JobOptions, JobPlan, JobStatus, JobView,
    PlaceCounts, RegisterOptions, RegisterOutcome, StopOptions, StopOutcome,
};

/// The driver without isolation, which an operator must switch on.
pub const RAW_EXEC: &str = "raw_exec";

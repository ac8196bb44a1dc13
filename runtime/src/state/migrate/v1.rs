//! Layouts of schema 1, frozen: only those that a later schema changes.
//!
//! The order of the fields is the layout. Never edit one that was released.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A unit variant by its number, less than `N`: what the number meant is for the living model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub(super) struct Variant<const N: u32>(u32);

/// A number that no variant had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{found} is no variant: there are {of}")]
pub(super) struct NoVariant {
    found: u32,
    of: u32,
}

impl<const N: u32> TryFrom<u32> for Variant<N> {
    type Error = NoVariant;

    fn try_from(found: u32) -> Result<Self, NoVariant> {
        if found < N { Ok(Self(found)) } else { Err(NoVariant { found, of: N }) }
    }
}

impl<const N: u32> From<Variant<N>> for u32 {
    fn from(variant: Variant<N>) -> Self {
        variant.0
    }
}

/// Nanoseconds since 1970.
pub(super) type Timestamp = u64;
/// Pending, running, dead.
pub(super) type TaskStatus = Variant<3>;
/// Pending, running, complete, failed.
pub(super) type ClientStatus = Variant<4>;
/// Twenty kinds, from received to waiting for the shutdown delay.
pub(super) type EventKind = Variant<20>;

/// Record `TaskState`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TaskState {
    pub status: TaskStatus,
    pub failed: bool,
    pub restarts: u64,
    pub last_restart: Option<Timestamp>,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub last_exit: Option<ExitResult>,
    pub events: Vec<TaskEvent>,
}

/// Part of [`TaskState`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ExitResult {
    pub exit_code: i32,
    pub signal: u32,
    pub oom_killed: bool,
    pub error: Option<String>,
}

/// Part of [`TaskState`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TaskEvent {
    pub kind: EventKind,
    pub time: Timestamp,
    pub message: String,
    pub details: BTreeMap<String, String>,
    pub fails_task: bool,
}

/// Record `AllocState`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AllocState {
    pub client_status: ClientStatus,
    pub client_description: String,
    pub tasks: BTreeMap<String, TaskState>,
}

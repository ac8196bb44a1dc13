//! Schema 2: a task's state counts its events, so that listeners can tell a gap; an allocation's
//! state no longer repeats those of its tasks.
//!
//! Frozen; see [`super::v1`].

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::v1::{self, ClientStatus, ExitResult, TaskEvent, TaskStatus, Timestamp};
use super::{CodecError, Kind, read, write};

mod alloc;

pub(super) use alloc::*;

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
    pub events_total: u64,
}

/// Record `AllocState`. The tasks went: each has a record of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AllocState {
    pub client_status: ClientStatus,
    pub client_description: String,
}

/// Record `TaskLocal`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TaskLocal {
    pub run: Option<RunRecord>,
    pub tracker: RestartTracker,
    pub run_complete: bool,
}

/// Part of [`TaskLocal`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RunRecord {
    pub id: String,
    pub identities: Vec<ProcessIdentity>,
    pub started: Option<StartedRecord>,
}

/// Part of [`RunRecord`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProcessIdentity {
    pub pid: u32,
    pub start_ticks: u64,
    pub boot_id: String,
    pub cgroup: Option<PathBuf>,
}

/// Part of [`RunRecord`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StartedRecord {
    pub handle: DriverHandle,
    pub workload: Workload,
}

/// Part of [`StartedRecord`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DriverHandle {
    pub plugin: String,
    pub version: u32,
    pub data: Vec<u8>,
}

/// Part of [`StartedRecord`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Workload {
    Process(String),
    WasmTask(String),
    Poll(u64),
}

/// Part of [`TaskLocal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RestartTracker {
    pub count: u32,
    pub window_start: Timestamp,
}

/// The step from schema 1.
pub(super) fn from_v1(kind: Kind, body: &[u8]) -> Result<Option<Vec<u8>>, CodecError> {
    match kind {
        Kind::TaskState => write(&TaskState::from(read::<v1::TaskState>(body)?)),
        Kind::AllocState => write(&AllocState::from(read::<v1::AllocState>(body)?)),
        // Unchanged, or not there in schema 1.
        _ => Ok(None),
    }
}

impl From<v1::TaskState> for TaskState {
    fn from(old: v1::TaskState) -> Self {
        let v1::TaskState {
            status,
            failed,
            restarts,
            last_restart,
            started_at,
            finished_at,
            last_exit,
            events,
        } = old;
        // How many came before those that were kept was not recorded.
        let events_total = u64::try_from(events.len()).unwrap_or(u64::MAX);
        Self {
            status,
            failed,
            restarts,
            last_restart,
            started_at,
            finished_at,
            last_exit,
            events,
            events_total,
        }
    }
}

impl From<v1::AllocState> for AllocState {
    fn from(old: v1::AllocState) -> Self {
        let v1::AllocState { client_status, client_description, tasks: _ } = old;
        Self { client_status, client_description }
    }
}

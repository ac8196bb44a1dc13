//! Schema 2: a task's state counts its events, so that listeners can tell a gap; an allocation's
//! state no longer repeats those of its tasks.
//!
//! Frozen; see [`super::v1`].

use serde::{Deserialize, Serialize};

use super::v1::{self, ClientStatus, ExitResult, TaskEvent, TaskStatus, Timestamp};
use super::{CodecError, Kind, read, write};

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

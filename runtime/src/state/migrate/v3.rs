//! Schema 3: jobs, allocations and tasks with what the whole life of an allocation needs: kept data,
//! health, services, predecessors, supervisors of processes, restart delays that outlive the agent.
//!
//! What schema 2 had no place for gets the value that means "as it was": what a job has
//! today that does not ask for it.
//!
//! Schema 3 is the newest, so its allocations are those of the living model and nothing is copied.
//! Records of tasks belong to a module this one may not know, so their layout is here; a test
//! compares it with the living one.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::v1::Timestamp;
use super::v2::{self, RestartTracker, StartedRecord};
use super::{CodecError, Kind, read, write};
use crate::model::alloc::Allocation;
use crate::model::saved::SavedAllocState;

mod alloc;

/// Whoever raises the schema has to freeze, as layouts of schema 3, what `alloc` makes: this step
/// must go on to write schema 3 when the living model has gone on.
const _: () = assert!(super::SCHEMA == 3, "freeze the layouts of schema 3 before it is raised");

/// Record `TaskLocal`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TaskLocal {
    pub run: Option<RunRecord>,
    pub tracker: RestartTracker,
    pub run_complete: bool,
    pub delayed_until: Option<Timestamp>,
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
    pub supervisor: Option<SupervisorIdentity>,
}

/// Part of [`ProcessIdentity`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SupervisorIdentity {
    pub pid: u32,
    pub start_ticks: u64,
}

/// The step from schema 2.
pub(super) fn from_v2(kind: Kind, body: &[u8]) -> Result<Option<Vec<u8>>, CodecError> {
    match kind {
        Kind::Alloc => write(&Allocation::from(read::<v2::Alloc>(body)?)),
        Kind::AllocState => write(&SavedAllocState::from(read::<v2::AllocState>(body)?)),
        Kind::TaskLocal => write(&TaskLocal::from(read::<v2::TaskLocal>(body)?)),
        // Unchanged (new kinds of events follow the old ones), or not there in schema 2.
        _ => Ok(None),
    }
}

impl From<v2::AllocState> for SavedAllocState {
    fn from(old: v2::AllocState) -> Self {
        let v2::AllocState { client_status, client_description } = old;
        Self {
            client_status: alloc::client_status(client_status),
            client_description,
            // A status that did not come from the tasks was not told apart.
            forced: false,
            // Not recorded: cleaning up a second time finds nothing to do.
            finished: false,
        }
    }
}

impl From<v2::TaskLocal> for TaskLocal {
    fn from(old: v2::TaskLocal) -> Self {
        let v2::TaskLocal { run, tracker, run_complete } = old;
        Self { run: run.map(RunRecord::from), tracker, run_complete, delayed_until: None }
    }
}

impl From<v2::RunRecord> for RunRecord {
    fn from(old: v2::RunRecord) -> Self {
        let v2::RunRecord { id, identities, started } = old;
        let identities = identities.into_iter().map(ProcessIdentity::from).collect();
        Self { id, identities, started }
    }
}

impl From<v2::ProcessIdentity> for ProcessIdentity {
    fn from(old: v2::ProcessIdentity) -> Self {
        let v2::ProcessIdentity { pid, start_ticks, boot_id, cgroup } = old;
        // Every process was a child of the agent itself.
        Self { pid, start_ticks, boot_id, cgroup, supervisor: None }
    }
}

//! What is to be done with the runs that are found alive. Pure.
//!
//! ```text
//!   its supervisor is in the record of a task that gets an owner ──────────────► Owned
//!   its allocation gets an owner, the task's own run does not live, and the note
//!   of the run says what an owner needs ───────────────────────────────────────► Adopt
//!   anything else ─────────────────────────────────────────────────────────────► Hold, with the reason
//! ```
//! A file that is as new as it was left knows every run: then all are [`RunDecision::Owned`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use ostler_control::recorded::KnownAlloc;
use ostler_lifecycle::task::handle::RunRecord;
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::ports::SupervisorIdentity;
use ostler_process::live::LiveRun;

/// What is to be done with a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunDecision {
    /// Nothing: its allocation's owner owns it again.
    Owned,
    /// Enter it as the run of its task; its allocation's owner does the rest.
    Adopt(RunRecord),
    /// Leave it alone, and start nothing in its place.
    Hold(Why),
}

/// Why a run is not owned again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// No such allocation.
    Unknown,
    /// Its allocation or its task is over.
    Over,
    /// Another run of its task is on record or found, and lives.
    Another,
    /// What an owner needs is not kept beside it.
    NoNote,
    /// Nothing says where it belongs.
    Nameless,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "the state file does not know its allocation",
            Self::Over => "by the state file it is over",
            Self::Another => "another run of its task lives too",
            Self::NoNote => {
                "the state file does not know the run, and what is needed to own it is not kept"
            }
            Self::Nameless => "nothing says which job it is of",
        })
    }
}

/// See the module: one verdict for each of `live`, in their order.
#[must_use]
pub fn decide(live: &[LiveRun], known: &BTreeMap<AllocId, KnownAlloc>) -> Vec<RunDecision> {
    let on_record = supervisors_on_record(known);
    let mut living: BTreeMap<(AllocId, &TaskName), usize> = BTreeMap::new();
    for place in live.iter().filter_map(|run| run.place.as_ref()) {
        let count = living.entry((place.alloc, &place.task)).or_default();
        *count = count.saturating_add(1);
    }
    let alone = |run: &LiveRun| {
        run.place.as_ref().is_some_and(|place| living.get(&(place.alloc, &place.task)) == Some(&1))
    };
    live.iter()
        .map(|run| {
            let SupervisorIdentity { pid, start_ticks } = run.supervisor;
            if on_record.contains(&(pid, start_ticks)) {
                return RunDecision::Owned;
            }
            strange(run, known, alone(run)).map_or_else(RunDecision::Hold, RunDecision::Adopt)
        })
        .collect()
}

/// Allocations with a run that is on record and lives.
#[must_use]
pub fn owned(live: &[LiveRun], known: &BTreeMap<AllocId, KnownAlloc>) -> BTreeSet<AllocId> {
    let live: BTreeSet<(u32, u64)> =
        live.iter().map(|run| (run.supervisor.pid, run.supervisor.start_ticks)).collect();
    let lives = |alloc: &KnownAlloc| {
        let runs = alloc.tasks.values().filter_map(|task| task.run.as_ref());
        let supervised = runs.flat_map(|run| &run.identities);
        let mut supervisors = supervised.filter_map(|identity| identity.supervisor);
        supervisors.any(|who| live.contains(&(who.pid, who.start_ticks)))
    };
    known.iter().filter(|(_, alloc)| alloc.owned && lives(alloc)).map(|(id, _)| *id).collect()
}

/// Supervisors in the records of tasks that get an owner. Their boot is compared by whoever found
/// them alive: one of another boot is not.
fn supervisors_on_record(known: &BTreeMap<AllocId, KnownAlloc>) -> BTreeSet<(u32, u64)> {
    let tasks = known.values().filter(|alloc| alloc.owned).flat_map(|alloc| alloc.tasks.values());
    let identities = tasks.filter_map(|task| task.run.as_ref()).flat_map(|run| &run.identities);
    let supervisors = identities.filter_map(|identity| identity.supervisor);
    supervisors.map(|who| (who.pid, who.start_ticks)).collect()
}

fn strange(
    run: &LiveRun,
    known: &BTreeMap<AllocId, KnownAlloc>,
    alone: bool,
) -> Result<RunRecord, Why> {
    let place = run.place.as_ref().ok_or(Why::Nameless)?;
    let alloc = known.get(&place.alloc).ok_or(Why::Unknown)?;
    let task = alloc.tasks.get(&place.task).ok_or(Why::Unknown)?;
    if !alloc.owned || task.ended {
        return Err(Why::Over);
    }
    if !alone {
        return Err(Why::Another);
    }
    let record = run.record.as_ref().ok_or(Why::NoNote)?;
    let record: RunRecord = serde_json::from_value(record.clone()).map_err(|_| Why::NoNote)?;
    let its_own = record.identities.iter().any(|one| one.supervisor == Some(run.supervisor));
    if its_own && record.started.is_some() { Ok(record) } else { Err(Why::NoNote) }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;

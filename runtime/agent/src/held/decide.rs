//! What is to be done with the runs that are found alive. Pure.
//!
//! ```text
//!   it works for another data directory ───────────────────────────────────────► Hold
//!   its supervisor, or the run itself where workers have it, is in the record
//!   of a task that gets an owner ──────────────────────────────────────────────► Owned
//!   its allocation gets an owner, the task's own run does not live, and the note
//!   of the run says what an owner needs ───────────────────────────────────────► Adopt
//!   anything else ─────────────────────────────────────────────────────────────► Hold, with the reason
//! ```
//! A file that is as new as it was left knows every run: then all are [`RunDecision::Owned`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::alive::Alive;
use ostler_control::recorded::KnownAlloc;
use ostler_lifecycle::task::handle::RunRecord;
use ostler_model::ids::{AllocId, RunId, TaskName};
use ostler_model::ports::SupervisorIdentity;
use ostler_model::task::Workload;

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
    /// It works for another data directory.
    Elsewhere,
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
            Self::Elsewhere => {
                "it works for another data directory, of which this one is a copy or which was moved \
                 here as one"
            }
        })
    }
}

/// See the module: one verdict for each of `live`, in their order.
#[must_use]
pub fn decide(live: &[Alive], known: &BTreeMap<AllocId, KnownAlloc>) -> Vec<RunDecision> {
    let on_record = OnRecord::of_owned(known);
    let mut living: BTreeMap<(AllocId, &TaskName), usize> = BTreeMap::new();
    for place in live.iter().filter_map(Alive::place) {
        let count = living.entry((place.alloc, &place.task)).or_default();
        *count = count.saturating_add(1);
    }
    let alone = |run: &Alive| {
        run.place().is_some_and(|place| living.get(&(place.alloc, &place.task)) == Some(&1))
    };
    live.iter()
        .map(|run| {
            if run.is_elsewhere() {
                return RunDecision::Hold(Why::Elsewhere);
            }
            if on_record.has(run) {
                return RunDecision::Owned;
            }
            strange(run, known, alone(run)).map_or_else(RunDecision::Hold, RunDecision::Adopt)
        })
        .collect()
}

/// Allocations with a run that is on record and lives.
#[must_use]
pub fn owned(live: &[Alive], known: &BTreeMap<AllocId, KnownAlloc>) -> BTreeSet<AllocId> {
    let mut supervisors: BTreeSet<(u32, u64)> = BTreeSet::new();
    let mut runs: BTreeSet<&RunId> = BTreeSet::new();
    for run in live.iter().filter(|run| !run.is_elsewhere()) {
        match run {
            Alive::Native(run) => {
                supervisors.insert((run.supervisor.pid, run.supervisor.start_ticks));
            }
            Alive::Wasm(run) => runs.extend(run.run.as_ref()),
        }
    }
    let lives = |alloc: &KnownAlloc| {
        alloc.tasks.values().filter_map(|task| task.run.as_ref()).any(|run| {
            let mut own = run.identities.iter().filter_map(|identity| identity.supervisor);
            own.any(|who| supervisors.contains(&(who.pid, who.start_ticks)))
                || (is_wasm(run) && runs.contains(&run.id))
        })
    };
    known.iter().filter(|(_, alloc)| alloc.owned && lives(alloc)).map(|(id, _)| *id).collect()
}

/// What records of tasks name runs that live by.
#[derive(Default)]
struct OnRecord<'a> {
    /// Their boot is compared by whoever found them alive: one of another boot is not.
    supervisors: BTreeSet<(u32, u64)>,
    /// Runs of WASM tasks.
    runs: BTreeSet<&'a RunId>,
}

impl<'a> OnRecord<'a> {
    /// Of allocations that get an owner.
    fn of_owned(known: &'a BTreeMap<AllocId, KnownAlloc>) -> Self {
        let mut this = Self::default();
        let tasks =
            known.values().filter(|alloc| alloc.owned).flat_map(|alloc| alloc.tasks.values());
        for run in tasks.filter_map(|task| task.run.as_ref()) {
            let supervisors = run.identities.iter().filter_map(|identity| identity.supervisor);
            this.supervisors.extend(supervisors.map(|who| (who.pid, who.start_ticks)));
            if is_wasm(run) {
                this.runs.insert(&run.id);
            }
        }
        this
    }

    fn has(&self, run: &Alive) -> bool {
        match run {
            Alive::Native(run) => {
                let SupervisorIdentity { pid, start_ticks } = run.supervisor;
                self.supervisors.contains(&(pid, start_ticks))
            }
            Alive::Wasm(run) => run.run.as_ref().is_some_and(|run| self.runs.contains(run)),
        }
    }
}

/// Is it the record of a run whose task a worker has?
pub(super) fn is_wasm(run: &RunRecord) -> bool {
    run.started.as_ref().is_some_and(|one| matches!(one.workload, Workload::WasmTask(_)))
}

/// Does a note say of this run what an owner needs?
fn is_its_own(run: &Alive, record: &RunRecord) -> bool {
    match run {
        Alive::Native(run) => {
            let mut supervisors = record.identities.iter().map(|identity| identity.supervisor);
            record.started.is_some() && supervisors.any(|one| one == Some(run.supervisor))
        }
        Alive::Wasm(run) => is_wasm(record) && run.run.as_ref() == Some(&record.id),
    }
}

fn strange(
    run: &Alive,
    known: &BTreeMap<AllocId, KnownAlloc>,
    alone: bool,
) -> Result<RunRecord, Why> {
    let place = run.place().ok_or(Why::Nameless)?;
    let alloc = known.get(&place.alloc).ok_or(Why::Unknown)?;
    let task = alloc.tasks.get(&place.task).ok_or(Why::Unknown)?;
    if !alloc.owned || task.ended {
        return Err(Why::Over);
    }
    if !alone {
        return Err(Why::Another);
    }
    let record = run.record().ok_or(Why::NoNote)?;
    let record: RunRecord = serde_json::from_value(record.clone()).map_err(|_| Why::NoNote)?;
    if is_its_own(run, &record) { Ok(record) } else { Err(Why::NoNote) }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;

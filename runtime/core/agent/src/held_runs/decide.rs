//! Decides what is done with the runs that are found alive. Pure.
//!
//! ```text
//!   it works for another data directory ───────────────────────────────────────► Hold
//!   its supervisor, or the run itself where workers have it, is in the record
//!   of a task that gets an owner ──────────────────────────────────────────────► Owned
//!   its allocation gets an owner, the task's own run does not live, and the note
//!   of the run says what an owner needs ───────────────────────────────────────► Adopt
//!   anything else ─────────────────────────────────────────────────────────────► Hold, with the reason
//! ```
//! A state file that is as new as it was left knows every run; then each one is
//! [`RunDecision::Owned`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::alive::AliveRun;
use ostler_control::node_records::KnownAlloc;
use ostler_lifecycle::task::handle::RunRecord;
use ostler_model::ids::{AllocId, RunId, TaskName};
use ostler_model::ports::SupervisorIdentity;
use ostler_model::task::Workload;

/// What is done with a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunDecision {
    /// Nothing is done: the owner of its allocation owns it again.
    Owned,
    /// It is entered as the run of its task, and the owner of its allocation does the rest.
    Adopt(RunRecord),
    /// It is left alone, and nothing is started in its place.
    Hold(HoldReason),
}

/// Why a run is not owned again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HoldReason {
    /// There is no such allocation.
    Unknown,
    /// Its allocation or its task is over.
    Over,
    /// Another run of its task is on record or was found, and is alive.
    Another,
    /// What an owner needs to know is not kept beside it.
    NoNote,
    /// Nothing says where it belongs.
    Nameless,
    /// It works for another data directory.
    Elsewhere,
}

impl fmt::Display for HoldReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "the state file does not know its allocation",
            Self::Over => "the state file says that it is over",
            Self::Another => "another run of its task is alive too",
            Self::NoNote => {
                "the state file does not know the run, and what is needed to take it over was not kept"
            }
            Self::Nameless => "nothing says which job it belongs to",
            Self::Elsewhere => {
                "it belongs to another data directory, and this one is a copy of that"
            }
        })
    }
}

/// Decide what is done with each run of `live`, in their order. See the module.
#[must_use]
pub fn decide(live: &[AliveRun], known: &BTreeMap<AllocId, KnownAlloc>) -> Vec<RunDecision> {
    let on_record = RecordedRuns::from_owned_allocs(known);
    let mut living: BTreeMap<(AllocId, &TaskName), usize> = BTreeMap::new();
    for place in live.iter().filter_map(AliveRun::place) {
        let count = living.entry((place.alloc, &place.task)).or_default();
        *count = count.saturating_add(1);
    }
    let alone = |run: &AliveRun| {
        run.place().is_some_and(|place| living.get(&(place.alloc, &place.task)) == Some(&1))
    };
    live.iter()
        .map(|run| {
            if run.is_elsewhere() {
                return RunDecision::Hold(HoldReason::Elsewhere);
            }
            if on_record.contains(run) {
                return RunDecision::Owned;
            }
            adopt_unrecorded(run, known, alone(run))
                .map_or_else(RunDecision::Hold, RunDecision::Adopt)
        })
        .collect()
}

/// The allocations with a run that is on record and alive.
#[must_use]
pub fn owned_allocs(live: &[AliveRun], known: &BTreeMap<AllocId, KnownAlloc>) -> BTreeSet<AllocId> {
    let mut supervisors: BTreeSet<(u32, u64)> = BTreeSet::new();
    let mut runs: BTreeSet<&RunId> = BTreeSet::new();
    for run in live.iter().filter(|run| !run.is_elsewhere()) {
        match run {
            AliveRun::Native(run) => {
                supervisors.insert((run.supervisor.pid, run.supervisor.start_ticks));
            }
            AliveRun::Wasm(run) => runs.extend(run.run.as_ref()),
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

/// The identities by which the records of tasks name their runs.
#[derive(Default)]
struct RecordedRuns<'a> {
    /// Pid and start time of each supervisor. Whoever found a run alive has compared the boot
    /// already, so a run of another boot is not there.
    supervisors: BTreeSet<(u32, u64)>,
    /// The ids of runs of WASM tasks.
    runs: BTreeSet<&'a RunId>,
}

impl<'a> RecordedRuns<'a> {
    /// The identities in the records of allocations that get an owner.
    fn from_owned_allocs(known: &'a BTreeMap<AllocId, KnownAlloc>) -> Self {
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

    fn contains(&self, run: &AliveRun) -> bool {
        match run {
            AliveRun::Native(run) => {
                let SupervisorIdentity { pid, start_ticks } = run.supervisor;
                self.supervisors.contains(&(pid, start_ticks))
            }
            AliveRun::Wasm(run) => run.run.as_ref().is_some_and(|run| self.runs.contains(run)),
        }
    }
}

/// Whether this is the record of a run whose task is in a worker.
pub(super) fn is_wasm(run: &RunRecord) -> bool {
    run.started.as_ref().is_some_and(|one| matches!(one.workload, Workload::WasmTask(_)))
}

/// Whether a note says of this run what an owner needs to know.
fn is_own_record(run: &AliveRun, record: &RunRecord) -> bool {
    match run {
        AliveRun::Native(run) => {
            let mut supervisors = record.identities.iter().map(|identity| identity.supervisor);
            record.started.is_some() && supervisors.any(|one| one == Some(run.supervisor))
        }
        AliveRun::Wasm(run) => is_wasm(record) && run.run.as_ref() == Some(&record.id),
    }
}

fn adopt_unrecorded(
    run: &AliveRun,
    known: &BTreeMap<AllocId, KnownAlloc>,
    alone: bool,
) -> Result<RunRecord, HoldReason> {
    let place = run.place().ok_or(HoldReason::Nameless)?;
    let alloc = known.get(&place.alloc).ok_or(HoldReason::Unknown)?;
    let task = alloc.tasks.get(&place.task).ok_or(HoldReason::Unknown)?;
    if !alloc.owned || task.ended {
        return Err(HoldReason::Over);
    }
    if !alone {
        return Err(HoldReason::Another);
    }
    let record = run.record().ok_or(HoldReason::NoNote)?;
    let record: RunRecord =
        serde_json::from_value(record.clone()).map_err(|_| HoldReason::NoNote)?;
    if is_own_record(run, &record) { Ok(record) } else { Err(HoldReason::NoNote) }
}

#[cfg(test)]
#[path = "decide_tests.rs"]
mod tests;

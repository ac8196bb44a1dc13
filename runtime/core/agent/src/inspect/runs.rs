//! Finds the runs that are alive while no agent runs.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use serde::Serialize;

use super::super::held_runs::alive::{AliveRun, WasmRun};
use super::super::held_runs::decide::HoldReason;
use super::super::held_runs::{self, EndRunError, HeldRun};
use super::{InspectError, STATE_FILE};
use ostler_lifecycle::task::handle::LocalState;
use ostler_model::ids::RunId;
use ostler_model::limits::KILL_GRACE;
use ostler_process::live;
use ostler_state::inspect::Inspection;
use ostler_state::keys::KeyPrefix;
use ostler_state::{DataDirReading, RecordKey};

/// A run that is alive, and whether the state file knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FoundRun {
    /// The description of the run, with the command that ends it.
    #[serde(flatten)]
    pub run: HeldRun,
    /// Whether the state file knows the run.
    pub on_record: bool,
}

/// Every run of a data directory that is alive.
///
/// # Errors
/// When an agent runs there, or the runs cannot be found. A state file that cannot be read counts
/// as one that knows no run.
pub fn runs(dir: &Path) -> Result<Vec<FoundRun>, InspectError> {
    let path = dir.join(STATE_FILE);
    let _claim = DataDirReading::acquire(dir)
        .map_err(|error| InspectError::from_lock_error(&path, error))?;
    let file = if path.is_file() { Inspection::open(&path).ok() } else { None };
    find_runs(dir, file.as_ref())
}

/// The same as [`runs`], for a caller that has claimed the directory and opened the file.
pub(super) fn find_runs(
    dir: &Path,
    file: Option<&Inspection>,
) -> Result<Vec<FoundRun>, InspectError> {
    let known = file.map(recorded_ids).transpose()?.unwrap_or_default();
    let live = find_alive(dir)?;
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let found = live.iter().map(|run| {
        let on_record = !run.is_elsewhere() && known.contains(run);
        let reason = if on_record {
            "on record: the next agent takes it over".to_owned()
        } else if run.is_elsewhere() {
            HoldReason::Elsewhere.to_string()
        } else {
            "the state file does not know it".to_owned()
        };
        FoundRun { run: HeldRun::from_run(run, reason, &dir), on_record }
    });
    Ok(found.collect())
}

/// The runs that are alive below supervisors and in workers.
fn find_alive(dir: &Path) -> Result<Vec<AliveRun>, InspectError> {
    let exits = dir.join("exits");
    let native = live::find_live_runs(&exits).map_err(InspectError::Runs)?;
    let noted = live::read_notes(&exits).map_err(InspectError::Runs)?;
    let workers = ostler_worker::find_tasks(dir).map_err(InspectError::Workers)?;
    let mut runs: Vec<AliveRun> = native.into_iter().map(AliveRun::Native).collect();
    let wasm = held_runs::find_wasm_runs(workers, &noted, &BTreeMap::new());
    runs.extend(wasm.map_err(|error| InspectError::Workers(io::Error::other(error)))?);
    Ok(runs)
}

/// The identities by which a state file knows its runs.
#[derive(Default)]
struct RecordedIds {
    /// Pid and start time of each supervisor.
    supervisors: BTreeSet<(u32, u64)>,
    /// The ids of runs of WASM tasks.
    wasm: BTreeSet<RunId>,
}

impl RecordedIds {
    fn contains(&self, run: &AliveRun) -> bool {
        match run {
            AliveRun::Native(run) => {
                self.supervisors.contains(&(run.supervisor.pid, run.supervisor.start_ticks))
            }
            AliveRun::Wasm(run) => run.run.as_ref().is_some_and(|run| self.wasm.contains(run)),
        }
    }
}

fn recorded_ids(file: &Inspection) -> Result<RecordedIds, InspectError> {
    let mut known = RecordedIds::default();
    let look = &mut |entry: &ostler_state::inspect::InspectedRecord<'_>| {
        if matches!(entry.key(), Some(RecordKey::TaskLocal(..)))
            && let Ok(LocalState { run: Some(run), .. }) = entry.decode()
        {
            let supervisors = run.identities.iter().filter_map(|identity| identity.supervisor);
            known.supervisors.extend(supervisors.map(|who| (who.pid, who.start_ticks)));
            if run.identities.is_empty() {
                known.wasm.insert(run.id);
            }
        }
        ControlFlow::Continue(())
    };
    file.scan(&KeyPrefix::Allocs, look).map_err(InspectError::from_state_error)?;
    Ok(known)
}

/// End a run of a data directory whose agent does not run.
///
/// # Errors
/// When an agent runs there, there is no such run, or it does not end.
pub async fn end_run(dir: &Path, name: &str) -> Result<HeldRun, InspectError> {
    let path = dir.join(STATE_FILE);
    let _claim = DataDirReading::acquire(dir)
        .map_err(|error| InspectError::from_lock_error(&path, error))?;
    let live = find_alive(dir)?;
    let named = |run: &&AliveRun| run.name() == name;
    let run =
        live.iter().find(named).ok_or_else(|| EndRunError::Unknown { name: name.to_owned() })?;
    let refused = |source| EndRunError::Refused { name: name.to_owned(), source };
    match run {
        AliveRun::Native(run) => run.end(KILL_GRACE).await.map_err(refused)?,
        AliveRun::Wasm(WasmRun { run: Some(run), elsewhere: false, .. }) => {
            ostler_worker::end_run(dir, run, KILL_GRACE).map_err(refused).map(drop)?;
        }
        AliveRun::Wasm(run) => run.end_worker(KILL_GRACE).await.map_err(refused)?,
    }
    Ok(HeldRun::from_run(run, "ended".to_owned(), dir))
}

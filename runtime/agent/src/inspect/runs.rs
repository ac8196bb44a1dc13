//! Runs that live while no agent runs.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use serde::Serialize;

use super::super::held::alive::{Alive, WasmRun};
use super::super::held::decide::Why;
use super::super::held::{self, EndRunError, HeldRun};
use super::{InspectError, STATE_FILE};
use ostler_lifecycle::task::handle::LocalState;
use ostler_model::ids::RunId;
use ostler_model::limits::KILL_GRACE;
use ostler_process::live;
use ostler_state::inspect::Inspection;
use ostler_state::keys::Prefix;
use ostler_state::{DataDirReading, Key};

/// A run that lives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FoundRun {
    /// The run.
    #[serde(flatten)]
    pub run: HeldRun,
    /// The state file knows it.
    pub on_record: bool,
}

/// Every run of a data directory that lives.
///
/// # Errors
/// When an agent runs there, or what lives cannot be looked at. A state file that cannot be read knows
/// none.
pub fn runs(dir: &Path) -> Result<Vec<FoundRun>, InspectError> {
    let path = dir.join(STATE_FILE);
    let _claim = DataDirReading::acquire(dir).map_err(|error| InspectError::lock(&path, error))?;
    let file = if path.is_file() { Inspection::open(&path).ok() } else { None };
    found(dir, file.as_ref())
}

/// As [`runs`], for whoever has claimed the directory and opened the file.
pub(super) fn found(dir: &Path, file: Option<&Inspection>) -> Result<Vec<FoundRun>, InspectError> {
    let known = file.map(on_record).transpose()?.unwrap_or_default();
    let live = alive(dir)?;
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let found = live.iter().map(|run| {
        let on_record = !run.is_elsewhere() && known.has(run);
        let reason = match on_record {
            true => "on record: the next agent owns it".to_owned(),
            false if run.is_elsewhere() => Why::Elsewhere.to_string(),
            false => "the state file does not know it".to_owned(),
        };
        FoundRun { run: HeldRun::of(run, reason, &dir), on_record }
    });
    Ok(found.collect())
}

/// What lives, below supervisors and in workers.
fn alive(dir: &Path) -> Result<Vec<Alive>, InspectError> {
    let exits = dir.join("exits");
    let native = live::find(&exits).map_err(InspectError::Runs)?;
    let noted = live::noted(&exits).map_err(InspectError::Runs)?;
    let workers = ostler_worker::look(dir).map_err(InspectError::Workers)?;
    let mut runs: Vec<Alive> = native.into_iter().map(Alive::Native).collect();
    let wasm = held::wasm(workers, &noted, &BTreeMap::new());
    runs.extend(wasm.map_err(|error| InspectError::Workers(io::Error::other(error)))?);
    Ok(runs)
}

/// What a state file knows runs by.
#[derive(Default)]
struct Known {
    /// Pids and start times of supervisors.
    supervisors: BTreeSet<(u32, u64)>,
    /// Runs of WASM tasks.
    wasm: BTreeSet<RunId>,
}

impl Known {
    fn has(&self, run: &Alive) -> bool {
        match run {
            Alive::Native(run) => {
                self.supervisors.contains(&(run.supervisor.pid, run.supervisor.start_ticks))
            }
            Alive::Wasm(run) => run.run.as_ref().is_some_and(|run| self.wasm.contains(run)),
        }
    }
}

fn on_record(file: &Inspection) -> Result<Known, InspectError> {
    let mut known = Known::default();
    let look = &mut |entry: &ostler_state::inspect::Entry<'_>| {
        if matches!(entry.key(), Some(Key::TaskLocal(..)))
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
    file.scan(&Prefix::Allocs, look).map_err(InspectError::state)?;
    Ok(known)
}

/// End a run of a data directory whose agent does not run.
///
/// # Errors
/// When an agent runs there, there is no such run, or it does not end.
pub async fn end_run(dir: &Path, name: &str) -> Result<HeldRun, InspectError> {
    let path = dir.join(STATE_FILE);
    let _claim = DataDirReading::acquire(dir).map_err(|error| InspectError::lock(&path, error))?;
    let live = alive(dir)?;
    let named = |run: &&Alive| run.name() == name;
    let run =
        live.iter().find(named).ok_or_else(|| EndRunError::Unknown { name: name.to_owned() })?;
    let refused = |source| EndRunError::Refused { name: name.to_owned(), source };
    match run {
        Alive::Native(run) => run.end(KILL_GRACE).await.map_err(refused)?,
        Alive::Wasm(WasmRun { run: Some(run), elsewhere: false, .. }) => {
            ostler_worker::end_run(dir, run, KILL_GRACE).map_err(refused).map(drop)?;
        }
        Alive::Wasm(run) => run.end_worker(KILL_GRACE).await.map_err(refused)?,
    }
    Ok(HeldRun::of(run, "ended".to_owned(), dir))
}

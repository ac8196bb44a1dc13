//! Runs that live while no agent runs.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;

use serde::Serialize;

use super::super::{EndRunError, HeldRun};
use super::{InspectError, STATE_FILE};
use ostler_lifecycle::task::handle::LocalState;
use ostler_model::limits::KILL_GRACE;
use ostler_process::live::{self, LiveRun};
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
    let live = live::find(&dir.join("exits")).map_err(InspectError::Runs)?;
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let found = live.iter().map(|run| {
        let on_record = known.contains(&(run.supervisor.pid, run.supervisor.start_ticks));
        let reason = match on_record {
            true => "on record: the next agent owns it",
            false => "the state file does not know it",
        };
        FoundRun { run: HeldRun::of(run, reason.to_owned(), &dir), on_record }
    });
    Ok(found.collect())
}

/// Pids and start times of the supervisors on record.
fn on_record(file: &Inspection) -> Result<BTreeSet<(u32, u64)>, InspectError> {
    let mut known = BTreeSet::new();
    let look = &mut |entry: &ostler_state::inspect::Entry<'_>| {
        if matches!(entry.key(), Some(Key::TaskLocal(..)))
            && let Ok(LocalState { run: Some(run), .. }) = entry.decode()
        {
            let supervisors = run.identities.iter().filter_map(|identity| identity.supervisor);
            known.extend(supervisors.map(|who| (who.pid, who.start_ticks)));
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
pub async fn end_run(dir: &Path, supervisor: u32) -> Result<HeldRun, InspectError> {
    let path = dir.join(STATE_FILE);
    let _claim = DataDirReading::acquire(dir).map_err(|error| InspectError::lock(&path, error))?;
    let live = live::find(&dir.join("exits")).map_err(InspectError::Runs)?;
    let named = |run: &&LiveRun| run.supervisor.pid == supervisor;
    let run = live.iter().find(named).ok_or(EndRunError::Unknown { supervisor })?;
    let ended = run.end(KILL_GRACE).await;
    ended.map_err(|source| EndRunError::Refused { supervisor, source })?;
    Ok(HeldRun::of(run, "ended".to_owned(), dir))
}

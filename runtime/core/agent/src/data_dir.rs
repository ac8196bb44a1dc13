//! What an agent finds and creates in its data directory before it runs anything.
//!
//! ```text
//! prepare ─► claim ─ nobody else has it ─► open_state ─► live_runs ─► unowned_dirs
//!              └─ held by one that just ended: waited for          (nothing is removed yet)
//! ```

use std::path::{Path, PathBuf};

use super::held_runs::LiveRuns;
use super::inspect::STATE_FILE;
use super::{AgentError, OpenState};
use ostler_control::node_records::NodeRecords;
use ostler_control::orphan_dirs::{self, OrphanDirs};
use ostler_model::clock::{self, Stopwatch};
use ostler_model::limits::{DATA_DIR_LOCK_POLL, DATA_DIR_LOCK_WALL_MAX};
use ostler_model::time::Timestamp;
use ostler_state::{Age, DataDirLock, LockError, OpenReport, StateStore, durable};
use ostler_worker::FoundTasks;

/// Claim the directory.
pub(super) async fn claim(data_dir: &Path) -> Result<DataDirLock, LockError> {
    let waited = Stopwatch::start();
    loop {
        match DataDirLock::acquire(data_dir) {
            Err(LockError::InUse { pid: None, .. })
                if waited.elapsed() < DATA_DIR_LOCK_WALL_MAX =>
            {
                clock::sleep(DATA_DIR_LOCK_POLL).await;
            }
            claimed => return claimed,
        }
    }
}

/// Create the directory for this user alone, or close one that others may enter, and make its path
/// absolute. If it was closed, a sentence about that is returned too.
pub(super) fn prepare(path: &Path) -> Result<(PathBuf, Option<String>), AgentError> {
    let failed = |source| match path.ancestors().find(|path| path.exists()) {
        Some(file) if !file.is_dir() => {
            AgentError::DataDirIsFile { path: path.to_owned(), file: file.to_owned() }
        }
        _ => AgentError::DataDir { path: path.to_owned(), source },
    };
    durable::make_dirs(path, 0o700).map_err(failed)?;
    let closed = ostler_state::make_private(path)?.map(|mode| {
        format!(
            "data directory {} was open to other users of the node (mode {mode:04o}); it is closed now (mode 0700)",
            path.display()
        )
    });
    Ok((path.canonicalize().map_err(failed)?, closed))
}

/// On a fresh data directory, create the directory that the built-in `files` plugin is granted,
/// with one file in it, so that there is a device to try requests with. An existing directory is
/// left as it is.
pub(super) fn seed_devices(data_dir: &Path) -> Result<(), AgentError> {
    const SAMPLE: &str = "Every file in this directory is a device of the group \
                          ostler/file/files.\nThis one is here so that there is something to assign; \
                          put your own files here\nand remove it when you like.\n";
    let dir = data_dir.join("devices");
    let failed = |source| AgentError::DataDir { path: dir.clone(), source };
    match std::fs::create_dir(&dir) {
        Ok(()) => std::fs::write(dir.join("sample"), SAMPLE).map_err(failed),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

/// Open the state store, and add notices about what opening it changed.
pub(super) async fn open_state(
    data_dir: &Path,
    open: OpenState,
    notices: &mut Vec<String>,
) -> Result<StateStore, AgentError> {
    let path = data_dir.join(STATE_FILE);
    let opened = tokio::task::spawn_blocking(move || open(&path));
    let state = opened.await.map_err(|_| AgentError::GivenUp("opening the state"))??;
    if let Some(migrated) = &state.open_report().migrated {
        let copy = migrated.backup.as_ref().map(|path| format!("; a copy is {}", path.display()));
        notices.push(format!(
            "the state was migrated from schema {} to {}{}",
            migrated.from,
            migrated.to,
            copy.unwrap_or_default()
        ));
    }
    for bad in &state.open_report().quarantined {
        notices.push(format!("state record {} was put aside: {}", bad.key, bad.cause));
    }
    Ok(state)
}

/// Find the runs that are alive and compare them with what is on record.
pub(super) async fn live_runs(
    data_dir: &Path,
    mut found: NodeRecords,
    workers: FoundTasks,
    lacks: bool,
    now: Timestamp,
) -> Result<(LiveRuns, NodeRecords), AgentError> {
    let dir = data_dir.to_owned();
    let looked = tokio::task::spawn_blocking(move || {
        LiveRuns::find(&dir, &mut found, workers, lacks, now).map(|live| (live, found))
    });
    let looked = looked.await.map_err(|_| AgentError::GivenUp("looking for runs that live"))?;
    looked.map_err(AgentError::Processes)
}

/// The notice about a state file that lacks acknowledged changes; `None` if it lacks none.
pub(super) fn lag_notice(opened: &OpenReport, data_dir: &Path) -> Option<String> {
    let path = data_dir.join(STATE_FILE);
    let path = path.display();
    let what = match opened.age {
        Age::Older { commits } => format!(
            "state file {path} is older than what was acknowledged here: it lacks the last \
             {commits} change(s)"
        ),
        Age::Gone { commits } => format!(
            "state file {path} was missing and has been created anew: the previous one held {commits} change(s)"
        ),
        Age::Newest if opened.repaired => {
            format!("state file {path} was inconsistent: its last change may be missing")
        }
        Age::Newest if opened.foreign_journal => {
            format!("the journal beside state file {path} belongs to another state file")
        }
        Age::Newest => return None,
    };
    let aside = opened.journal_aside.as_ref().map_or_else(String::new, |aside| {
        format!("; its journal is kept as {}, and not all of it could be applied", aside.display())
    });
    Some(format!(
        "{what}{aside}; jobs and allocations are restored as the file has them, runs that it does not know are \
         held back, and no directory or exit record that it does not know is removed: compare `ostler job \
         status` with what should run, and see `ostler state runs`"
    ))
}

/// Directories of allocations without a record. They are read before anything is placed.
pub(super) async fn unowned_dirs(
    data_dir: &Path,
    found: &NodeRecords,
    live: &LiveRuns,
    state: &StateStore,
) -> Result<OrphanDirs, AgentError> {
    if live.has_nameless() {
        tracing::warn!(
            "directories of allocations without a record stay: a run is alive, and nothing says which \
             allocation it belongs to"
        );
        return Ok(OrphanDirs::default());
    }
    let mut recorded = found.recorded_ids();
    recorded.extend(live.allocs());
    let (root, state) = (data_dir.join("allocs"), state.clone());
    let found =
        tokio::task::spawn_blocking(move || orphan_dirs::find_orphan_dirs(root, &recorded, &state))
            .await;
    found.map_err(|_| AgentError::GivenUp("reading the directories of allocations"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_nobody_who_lives_has_is_waited_for_a_moment() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_owned();
        // This is what a process does that an agent was starting when it was killed.
        let other = std::fs::File::create(path.join("agent.lock")).unwrap();
        other.lock().unwrap();
        let begun = path.clone();
        let claimed = tokio::spawn(async move { claim(&begun).await.map(drop) });
        clock::sleep(DATA_DIR_LOCK_WALL_MAX / 2).await;
        assert!(!claimed.is_finished());
        other.unlock().unwrap();
        claimed.await.unwrap().unwrap();
        // The lock file names this process, which lives, as the last owner.
        other.set_len(0).unwrap();
        other.lock().unwrap();
        assert!(matches!(claim(&path).await, Err(LockError::InUse { pid: None, .. })));
    }
}

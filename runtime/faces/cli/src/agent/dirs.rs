//! The directories of an agent: for its data, and for its socket.
//!
//! ```text
//! --data-dir ─► data_dir of the configuration ─► memory
//!        └──────────┬────────────┘                 └ HOME/in-memory: allocations, logs; goes with the agent
//!                DIR: state, allocations, socket     HOME: socket, lock
//! ```
//! `HOME` is what `--socket-dir` names, else the directory where commands look for an agent when none is named.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::start::{AgentStartError, absolute_path, user_code_dir};
use ostler_agent::{AgentMode, DataDirLock, LockError, STATE_FILE};
use ostler_api::SOCKET_NAME;
use ostler_api::client::default_data_dir;
use ostler_model::causes;
use ostler_model::config::AgentConfig;

/// Directory of an agent without a data directory, in the default one.
const IN_MEMORY: &str = "in-memory";

/// The directories of an agent, and whether their content outlives it.
#[derive(Debug)]
pub(super) struct AgentDirs {
    /// Allocations, logs, and the state unless that is in memory.
    pub(super) data_dir: PathBuf,
    /// Where commands find the agent.
    pub(super) socket_dir: PathBuf,
    /// Whether tasks and state outlive the agent.
    pub(super) mode: AgentMode,
    /// The lock on the directory of the socket, where the data of an agent in memory lies below it.
    home: Option<DataDirLock>,
}

impl AgentDirs {
    /// The data directory of the command line, else of the configuration. Without either, the state
    /// is kept in memory.
    ///
    /// # Errors
    /// When a directory cannot be used, or when the default directory has the state of an earlier
    /// agent that kept its jobs.
    pub(super) fn from_config(
        given: Option<PathBuf>,
        socket_dir: Option<PathBuf>,
        config: &AgentConfig,
    ) -> Result<Self, AgentStartError> {
        match (given.or_else(|| config.data_dir.clone()), socket_dir) {
            (Some(dir), Some(_)) => Err(AgentStartError::Agent(format!(
                "--socket-dir is for an agent without a data directory, and the configuration names {}, where \
                 the socket is; leave one of them out",
                dir.display()
            ))),
            (Some(dir), None) => {
                let dir = absolute_path(dir)?;
                let mode = AgentMode::Durable;
                Ok(Self { data_dir: dir.clone(), socket_dir: dir, mode, home: None })
            }
            (None, Some(home)) => Self::in_memory(&absolute_path(home)?),
            (None, None) => {
                let home = default_data_dir().ok_or_else(|| {
                    AgentStartError::Agent(
                        "no data directory is given and there is no home directory for a socket; \
                         give --socket-dir DIR, or --data-dir DIR"
                            .to_owned(),
                    )
                })?;
                Self::in_memory(&home)
            }
        }
    }

    fn in_memory(home: &Path) -> Result<Self, AgentStartError> {
        let refused = |error: &dyn std::error::Error| AgentStartError::Agent(causes::chain(error));
        let mut lock = DataDirLock::acquire(home).map_err(|error| match error {
            LockError::InUse { pid, .. } => AgentStartError::Agent(in_use_message(home, pid)),
            error => refused(&error),
        })?;
        lock.note_serving().map_err(|error| refused(&error))?;
        let state = home.join(STATE_FILE);
        if state.exists() {
            return Err(AgentStartError::Agent(format!(
                "no data directory is given, and {} is the state of an agent that kept its jobs: to go \
                 on with them, give --data-dir {}; to begin with none, move that file away",
                state.display(),
                home.display()
            )));
        }
        let data_dir = home.join(IN_MEMORY);
        // A killed agent leaves this directory behind. Its tasks ended with it.
        ensure_removed(&data_dir).map_err(|error| {
            AgentStartError::Agent(format!(
                "{}, which an earlier agent left, cannot be removed: {error}; remove it, or give \
                 --data-dir DIR",
                data_dir.display()
            ))
        })?;
        let (socket_dir, mode) = (home.to_owned(), AgentMode::InMemory);
        Ok(Self { data_dir, socket_dir, mode, home: Some(lock) })
    }

    /// Write into the lock file that the agent ends, for commands that look for its socket.
    pub(super) fn announce_end(&self) {
        if let Some(Err(error)) = self.home.as_ref().map(DataDirLock::note_ending) {
            tracing::debug!(%error, "the lock file could not be marked with the agent's shutdown");
        }
    }

    /// The directory for compiled code that outlives the data directory; `None` where the code lies
    /// in the data directory.
    pub(super) fn code_dir(&self) -> Option<PathBuf> {
        self.home.as_ref().and_then(|_| user_code_dir())
    }
}

impl Drop for AgentDirs {
    fn drop(&mut self) {
        if self.home.is_none() {
            return;
        }
        if let Err(error) = ensure_removed(&self.data_dir) {
            let path = self.data_dir.display();
            tracing::warn!(%path, %error, "the directory of the agent stays; the next one removes it");
        }
    }
}

/// The message for a socket directory that another process uses, though this agent would keep
/// nothing in it.
fn in_use_message(home: &Path, pid: Option<u32>) -> String {
    let (socket, home) = (home.join(SOCKET_NAME), home.display());
    let owner = pid
        .map_or_else(|| "another process".to_owned(), |pid| format!("another agent (pid {pid})"));
    format!(
        "{home} is in use by {owner}, and this one would answer there, too, at {}: ask that one, or stop it, or \
         have this one answer elsewhere with --socket-dir DIR (commands find it with --data-dir DIR)",
        socket.display()
    )
}

fn ensure_removed(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use super::*;

    fn refusal(home: &Path) -> String {
        match AgentDirs::in_memory(home) {
            Err(AgentStartError::Agent(why)) => why,
            other => panic!("{:?}", other.is_ok()),
        }
    }

    #[test]
    fn a_named_directory_keeps_jobs_and_the_command_line_comes_before_the_configuration() {
        let config = AgentConfig { data_dir: Some("/configured".into()), ..Default::default() };
        let named = |given: Option<&str>| {
            AgentDirs::from_config(given.map(PathBuf::from), None, &config).ok().unwrap()
        };
        for (given, dir) in [(Some("/given"), "/given"), (None, "/configured")] {
            let place = named(given);
            assert_eq!((&*place.data_dir, place.mode), (Path::new(dir), AgentMode::Durable));
            assert_eq!(place.socket_dir, place.data_dir);
        }
    }

    #[test]
    fn without_a_directory_what_an_earlier_agent_left_is_removed_and_so_is_what_this_one_leaves() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("agent.lock"), "").unwrap();
        let left = home.path().join("in-memory/allocs/one");
        fs::create_dir_all(&left).unwrap();
        let place = AgentDirs::in_memory(home.path()).ok().unwrap();
        assert!(!left.exists());
        assert_eq!((&*place.socket_dir, place.mode), (home.path(), AgentMode::InMemory));
        let second = refusal(home.path());
        let pid = std::process::id();
        let told = format!("{} is in use by another agent (pid {pid})", home.path().display());
        assert!(second.starts_with(&told) && second.contains("--socket-dir DIR"), "{second}");
        fs::create_dir_all(&place.data_dir).unwrap();
        let dir = place.data_dir.clone();
        drop(place);
        assert!(!dir.exists());
    }

    #[test]
    fn the_place_of_an_agent_in_memory_can_be_named_and_not_beside_a_data_directory() {
        let home = tempfile::tempdir().unwrap();
        let named = || Some(home.path().to_owned());
        let place = AgentDirs::from_config(None, named(), &AgentConfig::default()).ok().unwrap();
        assert_eq!((&*place.socket_dir, place.mode), (home.path(), AgentMode::InMemory));
        drop(place);
        let config = AgentConfig { data_dir: Some("/configured".into()), ..Default::default() };
        match AgentDirs::from_config(None, named(), &config) {
            Err(AgentStartError::Agent(why)) => assert!(why.contains("/configured"), "{why}"),
            other => panic!("{:?}", other.is_ok()),
        }
    }

    #[test]
    fn a_state_that_was_kept_is_not_passed_over() {
        let home = tempfile::tempdir().unwrap();
        let state = home.path().join(STATE_FILE);
        fs::write(&state, "kept").unwrap();
        let refused = refusal(home.path());
        assert!(refused.contains("give --data-dir"), "{refused}");
        assert_eq!(fs::read(&state).unwrap(), b"kept");
    }
}

//! From arguments to a running agent.

use std::path::{Path, PathBuf};

use super::args::AgentArgs;
use super::exit::Exit;
use super::input::{self, InputError};
use super::output;
use super::traces;
use ostler_agent::{Agent, AgentError, AgentHandle, AgentMode, AgentOptions, Holder, LockError};
use ostler_model::causes;
use ostler_model::clock::{self, Clock};
use ostler_model::config::AgentConfig;
use ostler_model::rng::Rng;
use ostler_trace::Sending;
use std::time::Duration;

/// How long an agent that leaves may take; what it holds is then the kernel's to clean up.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(10);
/// Begin of the names of temporary data directories.
const TEMPORARY_PREFIX: &str = "ostler-";

/// Whose data directory is used when none is given on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fallback {
    /// The configuration's, else a temporary one.
    Configured,
    /// A temporary one: the configuration's may be in use by an agent that runs.
    Temporary,
}

/// Why no agent runs.
#[derive(Debug)]
pub(super) enum StartError {
    /// The configuration is wrong.
    Input(InputError),
    /// The agent did not start.
    Agent(String),
}

impl StartError {
    /// How the program ends on it.
    pub(super) const fn exit(&self) -> Exit {
        match self {
            Self::Input(_) => Exit::Input,
            Self::Agent(_) => Exit::Agent,
        }
    }
}

/// An agent and the directory it lives in.
pub(super) struct Session {
    /// The agent.
    pub agent: AgentHandle,
    /// A notice about the directory, for the user.
    pub notice: Option<String>,
    temporary: Option<tempfile::TempDir>,
    traces: Option<Sending>,
}

impl Session {
    /// Start an agent for this command alone. Its native tasks end with it.
    pub(super) async fn start(args: &AgentArgs, fallback: Fallback) -> Result<Self, StartError> {
        Self::start_with(args, fallback, |_| {}).await
    }

    /// As [`Session::start`], with a change of what is configured.
    pub(super) async fn start_with(
        args: &AgentArgs,
        fallback: Fallback,
        change: impl FnOnce(&mut AgentConfig),
    ) -> Result<Self, StartError> {
        let mut config = input::config(args.config.as_deref()).map_err(StartError::Input)?;
        change(&mut config);
        if let Some(dir) = &args.plugin_dir {
            config.plugin_dir = Some(absolute(dir.clone())?);
        }
        let (data_dir, temporary) = data_dir(args, &config, fallback)?;
        let mut session = Self::start_in(&data_dir, temporary, &config).await;
        let mut notice = None;
        if let Err(AgentError::Lock(LockError::InUse { dir, .. })) = &session
            && let Some(holder) = Agent::holder(dir).filter(|it| may_do_without(*it, fallback))
        {
            let (dir, pid) = (dir.display(), holder.pid);
            notice = Some(format!(
                "the data directory {dir} is in use by another agent (pid {pid}): this command has a \
                 temporary one of its own"
            ));
            let made = temporary_dir()?;
            let path = made.path().to_owned();
            session = Self::start_in(&path, Some(made), &config).await;
        }
        let session = session.map_err(|error| StartError::Agent(causes::chain(&error)))?;
        let traces = traces::begin(&config.telemetry).map_err(StartError::Agent)?;
        Ok(Self { notice, traces, ..session })
    }

    /// As [`Session::start`], for a command that has no other place to tell the notice.
    pub(super) async fn start_and_say(
        args: &AgentArgs,
        fallback: Fallback,
    ) -> Result<Self, StartError> {
        let session = Self::start(args, fallback).await?;
        if let Some(notice) = &session.notice {
            output::say(notice);
        }
        Ok(session)
    }

    async fn start_in(
        data_dir: &Path,
        temporary: Option<tempfile::TempDir>,
        config: &AgentConfig,
    ) -> Result<Self, AgentError> {
        let options = AgentOptions {
            data_dir: data_dir.to_owned(),
            socket_dir: None,
            config: config.clone(),
            mode: AgentMode::Embedded,
            compiler: None,
            code_dir: temporary.as_ref().and_then(|_| user_code_dir()),
            clock: Clock::system(),
            rng: Rng::system(),
            other_nodes: None,
        };
        let agent = Agent::start(options).await?;
        Ok(Self { agent, notice: None, temporary, traces: None })
    }

    /// End the agent and remove a temporary data directory.
    pub(super) async fn end(self) {
        let Self { agent, temporary, traces, .. } = self;
        if clock::timeout(SHUTDOWN_WAIT, agent.shutdown()).await.is_none() {
            tracing::warn!("the agent did not end in time; it is left as it is");
        }
        drop(agent);
        traces::end(traces).await;
        if let Some(dir) = temporary {
            let path = dir.path().to_owned();
            if let Err(error) = dir.close() {
                tracing::warn!(path = %path.display(), %error, "the temporary directory stays");
            }
        }
    }
}

fn data_dir(
    args: &AgentArgs,
    config: &AgentConfig,
    fallback: Fallback,
) -> Result<(PathBuf, Option<tempfile::TempDir>), StartError> {
    let configured = config.data_dir.clone().filter(|_| fallback == Fallback::Configured);
    if let Some(dir) = args.data_dir.clone().or(configured) {
        return Ok((absolute(dir)?, None));
    }
    let dir = temporary_dir()?;
    Ok((dir.path().to_owned(), Some(dir)))
}

fn temporary_dir() -> Result<tempfile::TempDir, StartError> {
    private_temporary_dir().map_err(|error| {
        let parent = std::env::temp_dir();
        let parent = parent.display();
        StartError::Agent(format!(
            "cannot make a temporary data directory in {parent}: {error}; give one with --data-dir"
        ))
    })
}

/// A temporary directory that other users of the node cannot enter: what is made in it may be any user's.
pub(super) fn private_temporary_dir() -> std::io::Result<tempfile::TempDir> {
    use std::os::unix::fs::PermissionsExt as _;
    let owner_alone = std::fs::Permissions::from_mode(0o700);
    tempfile::Builder::new().prefix(TEMPORARY_PREFIX).permissions(owner_alone).tempdir()
}

/// A command that only looks keeps nothing, and needs no directory but for the time. What a job
/// leaves is to be found in the directory that was named, unless that can never be: an agent serves
/// in it.
fn may_do_without(holder: Holder, fallback: Fallback) -> bool {
    holder.serves || fallback == Fallback::Temporary
}

/// Where a user's compiled code outlives temporary data directories, so that the second run does
/// not compile again. `None` when the user has no such place; the agent's own serves then.
pub(super) fn user_code_dir() -> Option<PathBuf> {
    use std::os::unix::fs::DirBuilderExt as _;
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    let dir = caches.join("ostler/code");
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).ok()?;
    Some(dir)
}

/// `path` from the root on.
pub(super) fn absolute(path: PathBuf) -> Result<PathBuf, StartError> {
    std::path::absolute(&path).map_err(|error| {
        StartError::Agent(format!("cannot use the directory {}: {error}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn the_command_line_comes_before_the_configuration_and_a_temporary_directory_last() {
        let config = AgentConfig { data_dir: Some("/configured".into()), ..Default::default() };
        let given = AgentArgs { data_dir: Some("/given".into()), ..Default::default() };
        let none = AgentArgs::default();
        let chosen = |args: &AgentArgs, config: &AgentConfig, fallback| {
            data_dir(args, config, fallback).unwrap_or_else(|_| (PathBuf::new(), None))
        };
        for fallback in [Fallback::Configured, Fallback::Temporary] {
            assert_eq!(chosen(&given, &config, fallback).0, PathBuf::from("/given"));
        }
        let (path, temporary) = chosen(&none, &config, Fallback::Configured);
        assert_eq!((path, temporary.is_some()), (PathBuf::from("/configured"), false));
        let (path, temporary) = chosen(&none, &config, Fallback::Temporary);
        assert_eq!(path, temporary.unwrap().path());
        assert!(!path.exists(), "removed with its owner");
    }
}

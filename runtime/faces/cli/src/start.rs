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

/// How long the end of an agent may take. After that the kernel cleans up what it holds.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(10);
/// Prefix of the names of temporary data directories.
const TEMPORARY_PREFIX: &str = "ostler-";

/// Which data directory is used when the command line names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fallback {
    /// The directory of the configuration, else a temporary one.
    Configured,
    /// A temporary one: a running agent may be using the directory of the configuration.
    Temporary,
}

/// Why an agent could not be started.
#[derive(Debug)]
pub(super) enum AgentStartError {
    /// The configuration cannot be used.
    Input(InputError),
    /// The agent did not start; the text says why.
    Agent(String),
}

impl AgentStartError {
    /// The exit code of a program that ends with this error.
    pub(super) const fn exit(&self) -> Exit {
        match self {
            Self::Input(_) => Exit::Input,
            Self::Agent(_) => Exit::Agent,
        }
    }
}

/// An agent that was started for a command, and its temporary directory, if it has one.
pub(super) struct AgentSession {
    /// The running agent.
    pub agent: AgentHandle,
    /// A notice about the data directory, for the user.
    pub notice: Option<String>,
    temporary: Option<tempfile::TempDir>,
    traces: Option<Sending>,
}

impl AgentSession {
    /// Start an agent for this command alone. Its native tasks end when it ends.
    pub(super) async fn start(
        args: &AgentArgs,
        fallback: Fallback,
    ) -> Result<Self, AgentStartError> {
        Self::start_with(args, fallback, |_| {}).await
    }

    /// As [`AgentSession::start`], with a change of the configuration.
    pub(super) async fn start_with(
        args: &AgentArgs,
        fallback: Fallback,
        change: impl FnOnce(&mut AgentConfig),
    ) -> Result<Self, AgentStartError> {
        let mut config =
            input::read_config(args.config.as_deref()).map_err(AgentStartError::Input)?;
        change(&mut config);
        if let Some(dir) = &args.plugin_dir {
            config.plugin_dir = Some(absolute_path(dir.clone())?);
        }
        let (data_dir, temporary) = data_dir(args, &config, fallback)?;
        let mut session = Self::start_in(&data_dir, temporary, &config).await;
        let mut notice = None;
        if let Err(AgentError::Lock(LockError::InUse { dir, .. })) = &session
            && let Some(holder) = Agent::holder(dir).filter(|it| can_use_temporary(*it, fallback))
        {
            let (dir, pid) = (dir.display(), holder.pid);
            notice = Some(format!(
                "the data directory {dir} is in use by another agent (pid {pid}): this command uses a temporary one"
            ));
            let made = temporary_dir()?;
            let path = made.path().to_owned();
            session = Self::start_in(&path, Some(made), &config).await;
        }
        let session = session.map_err(|error| AgentStartError::Agent(causes::chain(&error)))?;
        let traces = traces::start_traces(&config.telemetry).map_err(AgentStartError::Agent)?;
        Ok(Self { notice, traces, ..session })
    }

    /// As [`AgentSession::start`], for a command that has no other place for the notice: it is
    /// printed here.
    pub(super) async fn start_and_say(
        args: &AgentArgs,
        fallback: Fallback,
    ) -> Result<Self, AgentStartError> {
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
        traces::end_traces(traces).await;
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
) -> Result<(PathBuf, Option<tempfile::TempDir>), AgentStartError> {
    let configured = config.data_dir.clone().filter(|_| fallback == Fallback::Configured);
    if let Some(dir) = args.data_dir.clone().or(configured) {
        return Ok((absolute_path(dir)?, None));
    }
    let dir = temporary_dir()?;
    Ok((dir.path().to_owned(), Some(dir)))
}

fn temporary_dir() -> Result<tempfile::TempDir, AgentStartError> {
    private_temporary_dir().map_err(|error| {
        let parent = std::env::temp_dir();
        let parent = parent.display();
        AgentStartError::Agent(format!(
            "cannot make a temporary data directory in {parent}: {error}; give one with --data-dir"
        ))
    })
}

/// Make a temporary directory that other users of the node cannot enter: the files in it may be
/// open to everybody.
pub(super) fn private_temporary_dir() -> std::io::Result<tempfile::TempDir> {
    use std::os::unix::fs::PermissionsExt as _;
    let owner_alone = std::fs::Permissions::from_mode(0o700);
    tempfile::Builder::new().prefix(TEMPORARY_PREFIX).permissions(owner_alone).tempdir()
}

/// May a command use a temporary directory while another process has the data directory? A command
/// that only looks keeps nothing, so it may. What a job leaves must be found in the directory that
/// was named, so a job may not, unless an agent serves there and the job could never run in it.
fn can_use_temporary(holder: Holder, fallback: Fallback) -> bool {
    holder.serves || fallback == Fallback::Temporary
}

/// The directory of the user for compiled code, which outlives temporary data directories, so that
/// the second run does not compile again. `None` when the user has no such place; the agent uses
/// its data directory then.
pub(super) fn user_code_dir() -> Option<PathBuf> {
    use std::os::unix::fs::DirBuilderExt as _;
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    let dir = caches.join("ostler/code");
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).ok()?;
    Some(dir)
}

/// Make a path absolute.
pub(super) fn absolute_path(path: PathBuf) -> Result<PathBuf, AgentStartError> {
    std::path::absolute(&path).map_err(|error| {
        AgentStartError::Agent(format!("cannot use the directory {}: {error}", path.display()))
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

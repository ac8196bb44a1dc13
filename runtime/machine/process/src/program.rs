//! Running a granted program to completion with bounded output and time.

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};

use crate::descriptors;
use ostler_model::limits::COMMAND_OUTPUT_BYTES_MAX;

/// How a program ended, and what it printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutput {
    /// Exit code of one that ended by itself.
    pub exit_code: Option<i32>,
    /// Signal that killed it.
    pub signal: Option<u32>,
    /// The beginning of its standard output, at most [`COMMAND_OUTPUT_BYTES_MAX`] bytes.
    pub stdout: Vec<u8>,
    /// The beginning of its standard error, at most [`COMMAND_OUTPUT_BYTES_MAX`] bytes.
    pub stderr: Vec<u8>,
    /// The program printed more than is kept.
    pub truncated: bool,
}

/// Why a program did not complete.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandFailure {
    /// There is no such program; the text names it.
    #[error("{0}")]
    NotFound(String),
    /// It was killed at its deadline.
    #[error("the command did not end in time")]
    TimedOut,
    /// It could not be started or waited for; the text says why.
    #[error("{0}")]
    Failed(String),
}

/// A program to run, with its environment and input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramStart {
    /// Absolute path of the program.
    pub program: PathBuf,
    /// Arguments after the program's name.
    pub args: Vec<String>,
    /// The whole environment: nothing is inherited.
    pub env: Vec<(String, String)>,
    /// Bytes that the program reads from its standard input.
    pub input: Vec<u8>,
}

/// Run `program` with `args`, an empty environment and no input, for at most `wall`. Dropping the
/// future kills it.
///
/// # Errors
/// See [`CommandFailure`].
pub async fn run(
    program: PathBuf,
    args: Vec<String>,
    wall: Duration,
) -> Result<CommandOutput, CommandFailure> {
    run_with(ProgramStart { program, args, env: Vec::new(), input: Vec::new() }, wall).await
}

/// As [`run`], with an environment and input.
///
/// # Errors
/// See [`CommandFailure`].
pub async fn run_with(
    start: ProgramStart,
    wall: Duration,
) -> Result<CommandOutput, CommandFailure> {
    let ProgramStart { program, args, env, input } = start;
    #[expect(clippy::disallowed_methods, reason = "host is where processes are started")]
    let mut command = std::process::Command::new(&program);
    descriptors::restore_limit(&mut command);
    let mut command = tokio::process::Command::from(command);
    command
        .args(&args)
        .env_clear()
        .envs(env)
        .current_dir("/")
        .stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            CommandFailure::NotFound(format!("{} is not there", program.display()))
        }
        _ => CommandFailure::Failed(format!("cannot start {}: {error}", program.display())),
    })?;
    let mut group = ProcessGroup::from_child(&child);
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let work = async {
        let fed = async {
            if let Some(mut stdin) = stdin {
                // A program may end well without reading its input.
                let _closed = stdin.write_all(&input).await;
            }
        };
        // The leader is reaped last: as long as it is not, its group id is nobody else's.
        let ((), out, err) = tokio::join!(fed, read_bounded(stdout), read_bounded(stderr));
        (out, err, child.wait().await)
    };
    let Some((out, err, status)) = ostler_model::clock::timeout(wall, work).await else {
        return Err(CommandFailure::TimedOut);
    };
    group.mark_reaped();
    let status = status.map_err(|e| CommandFailure::Failed(format!("cannot wait: {e}")))?;
    Ok(CommandOutput {
        exit_code: status.code(),
        signal: status.signal().and_then(|s| u32::try_from(s).ok()),
        truncated: out.1 || err.1,
        stdout: out.0,
        stderr: err.0,
    })
}

/// The process group of a command: killed, descendants included, when the command is given up.
struct ProcessGroup(Option<rustix::process::Pid>);

impl ProcessGroup {
    fn from_child(child: &tokio::process::Child) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Self(id.and_then(rustix::process::Pid::from_raw))
    }

    fn mark_reaped(&mut self) {
        self.0 = None;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // An empty group is what is wanted.
            let _gone = rustix::process::kill_process_group(leader, rustix::process::Signal::KILL);
        }
    }
}

/// Read a pipe to its end. Returns the beginning, and whether more came than is kept.
async fn read_bounded(pipe: Option<impl AsyncRead + Unpin>) -> (Vec<u8>, bool) {
    let Some(mut pipe) = pipe else { return (Vec::new(), false) };
    let (mut kept, mut truncated) = (Vec::new(), false);
    let mut buffer = vec![0; 16 * 1024];
    loop {
        match pipe.read(&mut buffer).await {
            Ok(0) | Err(_) => return (kept, truncated),
            Ok(read) => {
                let room = COMMAND_OUTPUT_BYTES_MAX.saturating_sub(kept.len());
                truncated |= read > room;
                kept.extend_from_slice(buffer.get(..read.min(room)).unwrap_or_default());
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    async fn sh(script: &str, wall: Duration) -> Result<CommandOutput, CommandFailure> {
        run("/bin/sh".into(), vec!["-c".into(), script.into()], wall).await
    }

    #[tokio::test]
    async fn a_command_runs_with_an_empty_environment_and_its_code_and_output_come_back() {
        let output = sh("echo out; echo err >&2; /usr/bin/env; exit 3", Duration::from_secs(10));
        let output = output.await.unwrap();
        assert_eq!(output.exit_code, Some(3));
        assert_eq!(output.stderr, b"err\n");
        let stdout = String::from_utf8(output.stdout).unwrap();
        assert!(stdout.starts_with("out\n") && !stdout.contains("HOME="), "{stdout}");
    }

    #[tokio::test]
    async fn a_command_that_hangs_ends_at_its_deadline_with_its_descendants() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {}; wait", file.display());
        let result = sh(&script, Duration::from_millis(500)).await;
        assert_eq!(result, Err(CommandFailure::TimedOut));
        let pid = std::fs::read_to_string(&file).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        let alive = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
        let watch = ostler_model::clock::Stopwatch::start();
        while alive() {
            assert!(watch.elapsed() < Duration::from_secs(10), "{stat} is still there");
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn output_beyond_the_limit_is_dropped_and_said_to_be() {
        let output = sh("head -c 3000000 /dev/zero", Duration::from_secs(10)).await.unwrap();
        assert_eq!(output.stdout.len(), COMMAND_OUTPUT_BYTES_MAX);
        assert!(output.truncated);
    }

    #[tokio::test]
    async fn a_program_that_is_not_there_is_not_found() {
        let result = run("/no/such".into(), vec![], Duration::from_secs(1)).await;
        assert!(matches!(result, Err(CommandFailure::NotFound(_))));
    }
}

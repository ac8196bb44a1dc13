//! A held process on its way to its first instruction.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::unix::pipe;

use super::child::{REPORT_BYTES, REPORT_TEXT_BYTES_MAX, Step};
use super::error::ProcessError;
use super::supervise::{GIVE_UP, GO};
use super::{EXEC_WAIT_MAX, Process, ProcessSpec};
use ostler_model::clock;
use ostler_model::task::RawExit;

/// The right to let a held process go. Dropped without that, it ends without running.
#[derive(Debug)]
pub(super) struct Held {
    go: Go,
    /// Closed by the exec, or tells which step failed.
    status: pipe::Receiver,
    /// For errors.
    command: String,
    program: Program,
    cwd: PathBuf,
}

/// What is run, for errors.
#[derive(Debug)]
pub(super) struct Program {
    /// The file, or the first that it may be.
    pub path: PathBuf,
    /// All that it may be.
    pub looked_for: String,
}

/// The agent's end of the go pipe.
#[derive(Debug)]
pub(super) struct Go(Option<OwnedFd>);

impl Go {
    pub(super) const fn new(end: OwnedFd) -> Self {
        Self(Some(end))
    }

    fn say(mut self, byte: u8) -> Result<(), rustix::io::Errno> {
        self.0.take().map_or(Ok(()), |go| rustix::io::write(&go, &[byte]).map(drop))
    }
}

impl Drop for Go {
    /// Given up. An agent that dies says nothing: that is how a supervisor tells one from the other.
    fn drop(&mut self) {
        if let Some(go) = self.0.take() {
            let _gone = rustix::io::write(&go, &[GIVE_UP]);
        }
    }
}

impl Held {
    pub(super) fn new(
        go: Go,
        status: pipe::Receiver,
        spec: &ProcessSpec,
        program: Program,
    ) -> Self {
        Self { go, status, command: spec.command.clone(), program, cwd: spec.cwd.clone() }
    }

    /// Let it go; ends when the program runs.
    pub(super) async fn release(mut self) -> Result<(), ProcessError> {
        let said = self.go.say(GO);
        match clock::timeout(EXEC_WAIT_MAX, read_report(&mut self.status)).await {
            // One that ended before has said why, unless it was killed.
            Some(Ok(None)) => {
                said.map_err(|errno| ProcessError::system("telling the process to go on", errno))
            }
            Some(Ok(Some(report))) => Err(self.program.failed(self.command, self.cwd, report)),
            Some(Err(source)) => Err(ProcessError::system("reading the start report", source)),
            None => Err(ProcessError::Start {
                command: self.command,
                step: Step::Exec.name(),
                source: io::ErrorKind::TimedOut.into(),
            }),
        }
    }

    /// Why it has ended before it was let go, when it said so.
    pub(super) async fn reported(mut self) -> Option<ProcessError> {
        let report = clock::timeout(EXEC_WAIT_MAX, read_report(&mut self.status)).await;
        let report = report?.ok()??;
        Some(self.program.failed(self.command, self.cwd, report))
    }
}

/// Let several go; the first error, after each that failed was ended.
pub(super) async fn release_all(held: Vec<(Arc<Process>, Held)>) -> Result<(), ProcessError> {
    let mut first = Ok(());
    for (process, held) in held {
        if let Err(error) = held.release().await {
            process.kill();
            gone(&process).await;
            first = first.and(Err(error));
        }
    }
    first
}

/// Wait until a killed process is gone, for a while.
pub(super) async fn gone(process: &Process) {
    let mut exit = process.exit.clone();
    let gone = exit.wait_for(Option::<RawExit>::is_some);
    if clock::timeout(ostler_model::limits::KILL_GRACE, gone).await.is_none() {
        tracing::warn!("a process that was not started has not ended after its kill");
    }
}

/// What a child says when it does not get to its program.
pub(super) struct Report {
    step: Option<Step>,
    source: io::Error,
    /// What it was about.
    text: String,
}

/// `None`: the pipe closed on exec. Otherwise the child's report.
pub(super) async fn read_report(status: &mut pipe::Receiver) -> io::Result<Option<Report>> {
    use tokio::io::AsyncReadExt as _;
    let mut bytes = Vec::new();
    let most = (REPORT_BYTES + REPORT_TEXT_BYTES_MAX) as u64;
    status.take(most).read_to_end(&mut bytes).await?;
    let Some((begin, text)) = bytes.split_first_chunk() else { return Ok(None) };
    let (step, source) = Step::from_report(*begin);
    Ok(Some(Report { step, source, text: String::from_utf8_lossy(text).into_owned() }))
}

impl Program {
    pub(super) fn failed(self, command: String, cwd: PathBuf, report: Report) -> ProcessError {
        let Report { step, source, text } = report;
        let path = if text.is_empty() { self.path } else { PathBuf::from(&text) };
        match (step, source.raw_os_error()) {
            (Some(Step::Program), _) => {
                ProcessError::CommandNotFound { command, looked_for: self.looked_for }
            }
            (Some(Step::Isolate), errno) => ProcessError::Isolation {
                step: text,
                source: errno.filter(|errno| *errno != 0).map(io::Error::from_raw_os_error),
            },
            (Some(Step::Exec), Some(libc::EACCES)) => {
                let reason = "the task's user may not execute it".to_owned();
                ProcessError::NotExecutable { path, reason }
            }
            (Some(Step::Exec), Some(libc::ENOEXEC)) => {
                let reason =
                    "it is neither a program of this machine nor a script that begins with #!";
                ProcessError::NotExecutable { path, reason: reason.to_owned() }
            }
            (Some(Step::Exec), Some(libc::ENOENT)) => {
                let reason = "its interpreter does not exist (see its first line)".to_owned();
                ProcessError::NotExecutable { path, reason }
            }
            (Some(Step::Directory), _) => {
                ProcessError::WorkingDirectory { path: cwd, reason: source.to_string() }
            }
            (step, _) => ProcessError::Start {
                command,
                step: step.map_or("an unknown step", Step::name),
                source,
            },
        }
    }
}

//! A held process on its way to its first instruction.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::unix::pipe;

use super::child::{REPORT_BYTES, Step};
use super::error::ProcessError;
use super::supervise::{GIVE_UP, GO};
use super::{EXEC_WAIT_MAX, Process, ProcessSpec};
use crate::clock;
use crate::model::task::RawExit;

/// The right to let a held process go. Dropped without that, it ends without running.
#[derive(Debug)]
pub(super) struct Held {
    go: Go,
    /// Closed by the exec, or tells which step failed.
    status: pipe::Receiver,
    /// For errors.
    command: String,
    program: PathBuf,
    cwd: PathBuf,
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
        program: PathBuf,
    ) -> Self {
        Self { go, status, command: spec.command.clone(), program, cwd: spec.cwd.clone() }
    }

    /// Let it go; ends when the program runs.
    pub(super) async fn release(mut self) -> Result<(), ProcessError> {
        self.go
            .say(GO)
            .map_err(|errno| ProcessError::system("telling the process to go on", errno))?;
        match clock::timeout(EXEC_WAIT_MAX, read_report(&mut self.status)).await {
            Some(Ok(None)) => Ok(()),
            Some(Ok(Some(report))) => {
                Err(failed_step(self.command, self.cwd, self.program, report))
            }
            Some(Err(source)) => Err(ProcessError::system("reading the start report", source)),
            None => Err(ProcessError::Start {
                command: self.command,
                step: Step::Exec.name(),
                source: io::ErrorKind::TimedOut.into(),
            }),
        }
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
    if clock::timeout(crate::limits::KILL_GRACE, gone).await.is_none() {
        tracing::warn!("a process that was not started has not ended after its kill");
    }
}

/// `None`: the pipe closed on exec. Otherwise the child's report.
async fn read_report(status: &mut pipe::Receiver) -> io::Result<Option<[u8; REPORT_BYTES]>> {
    use tokio::io::AsyncReadExt as _;
    let mut report = [0; REPORT_BYTES];
    match status.read_exact(&mut report).await {
        Ok(_) => Ok(Some(report)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

fn failed_step(
    command: String,
    cwd: PathBuf,
    path: PathBuf,
    report: [u8; REPORT_BYTES],
) -> ProcessError {
    let (step, source) = Step::from_report(report);
    match (step, source.raw_os_error()) {
        (Some(Step::Exec), Some(libc::EACCES)) => {
            let reason = "the task's user may not execute it".to_owned();
            ProcessError::NotExecutable { path, reason }
        }
        (Some(Step::Exec), Some(libc::ENOEXEC)) => {
            let reason = "it is neither a program of this machine nor a script that begins with #!";
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

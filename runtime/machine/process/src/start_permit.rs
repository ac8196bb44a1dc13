//! A held process on its way to its first instruction.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::unix::pipe;

use super::child::{ChildStep, REPORT_BYTES, REPORT_TEXT_BYTES_MAX};
use super::error::ProcessError;
use super::supervise::{GIVE_UP, GO};
use super::{EXEC_WAIT_MAX, HostProcess, ProcessSpec};
use ostler_model::clock;
use ostler_model::task::RawExit;

/// The right to let a held process go. When it is dropped unused, the process ends without running.
#[derive(Debug)]
pub(super) struct StartPermit {
    go: GoPipe,
    /// Closed by the exec, or tells which step failed.
    status: pipe::Receiver,
    /// The command as it was given, for errors.
    command: String,
    program: Program,
    cwd: PathBuf,
}

/// The program that is run, for errors.
#[derive(Debug)]
pub(super) struct Program {
    /// Path of the file, or the first path that it may have.
    pub path: PathBuf,
    /// All paths that the file may have, comma separated.
    pub looked_for: String,
}

/// The agent's end of the go pipe.
#[derive(Debug)]
pub(super) struct GoPipe(Option<OwnedFd>);

impl GoPipe {
    pub(super) const fn new(end: OwnedFd) -> Self {
        Self(Some(end))
    }

    fn send_byte(mut self, byte: u8) -> Result<(), rustix::io::Errno> {
        self.0.take().map_or(Ok(()), |go| rustix::io::write(&go, &[byte]).map(drop))
    }
}

impl Drop for GoPipe {
    /// Tell the supervisor that the start is given up. An agent that dies sends nothing; by that
    /// the supervisor tells the two cases apart.
    fn drop(&mut self) {
        if let Some(go) = self.0.take() {
            let _gone = rustix::io::write(&go, &[GIVE_UP]);
        }
    }
}

impl StartPermit {
    pub(super) fn new(
        go: GoPipe,
        status: pipe::Receiver,
        spec: &ProcessSpec,
        program: Program,
    ) -> Self {
        Self { go, status, command: spec.command.clone(), program, cwd: spec.cwd.clone() }
    }

    /// Let the process go. Returns when the program runs.
    pub(super) async fn release(mut self) -> Result<(), ProcessError> {
        let said = self.go.send_byte(GO);
        match clock::timeout(EXEC_WAIT_MAX, read_report(&mut self.status)).await {
            // A process that ended before has reported why, unless it was killed.
            Some(Ok(None)) => {
                said.map_err(|errno| ProcessError::system("telling the process to go on", errno))
            }
            Some(Ok(Some(report))) => Err(self.program.start_error(self.command, self.cwd, report)),
            Some(Err(source)) => Err(ProcessError::system("reading the start report", source)),
            None => Err(ProcessError::Start {
                command: self.command,
                step: ChildStep::Exec.name(),
                source: io::ErrorKind::TimedOut.into(),
            }),
        }
    }

    /// Why the process has ended before it was let go; `None` when it did not report that.
    pub(super) async fn read_failure(mut self) -> Option<ProcessError> {
        let report = clock::timeout(EXEC_WAIT_MAX, read_report(&mut self.status)).await;
        let report = report?.ok()??;
        Some(self.program.start_error(self.command, self.cwd, report))
    }
}

/// Let several processes go. Those that fail are ended; the first error is returned.
pub(super) async fn release_all(
    held: Vec<(Arc<HostProcess>, StartPermit)>,
) -> Result<(), ProcessError> {
    let mut first = Ok(());
    for (process, held) in held {
        if let Err(error) = held.release().await {
            process.kill();
            wait_until_gone(&process).await;
            first = first.and(Err(error));
        }
    }
    first
}

/// Wait until a killed process is gone, for at most the grace period of a kill.
pub(super) async fn wait_until_gone(process: &HostProcess) {
    let mut exit = process.exit.clone();
    let gone = exit.wait_for(Option::<RawExit>::is_some);
    if clock::timeout(ostler_model::limits::KILL_GRACE, gone).await.is_none() {
        tracing::warn!("a process that was not started has not ended after its kill");
    }
}

/// What a child reports when it does not get to its program.
pub(super) struct StartReport {
    step: Option<ChildStep>,
    source: io::Error,
    /// What the failed step was about: a path, for example.
    text: String,
}

/// The child's report; `None` when the exec closed the pipe.
pub(super) async fn read_report(status: &mut pipe::Receiver) -> io::Result<Option<StartReport>> {
    use tokio::io::AsyncReadExt as _;
    let mut bytes = Vec::new();
    let most = (REPORT_BYTES + REPORT_TEXT_BYTES_MAX) as u64;
    status.take(most).read_to_end(&mut bytes).await?;
    let Some((begin, text)) = bytes.split_first_chunk() else { return Ok(None) };
    let (step, source) = ChildStep::from_report(*begin);
    Ok(Some(StartReport { step, source, text: String::from_utf8_lossy(text).into_owned() }))
}

impl Program {
    pub(super) fn start_error(
        self,
        command: String,
        cwd: PathBuf,
        report: StartReport,
    ) -> ProcessError {
        let StartReport { step, source, text } = report;
        let path = if text.is_empty() { self.path } else { PathBuf::from(&text) };
        match (step, source.raw_os_error()) {
            (Some(ChildStep::Program), _) => {
                ProcessError::CommandNotFound { command, looked_for: self.looked_for }
            }
            (Some(ChildStep::Isolate), errno) => ProcessError::Isolation {
                step: text,
                source: errno.filter(|errno| *errno != 0).map(io::Error::from_raw_os_error),
            },
            (Some(ChildStep::Exec), Some(libc::EACCES)) => {
                let reason = "the task's user may not execute it".to_owned();
                ProcessError::NotExecutable { path, reason }
            }
            (Some(ChildStep::Exec), Some(libc::ENOEXEC)) => {
                let reason =
                    "it is neither a program of this machine nor a script that begins with #!";
                ProcessError::NotExecutable { path, reason: reason.to_owned() }
            }
            (Some(ChildStep::Exec), Some(libc::ENOENT)) => {
                let reason = "its interpreter does not exist (see its first line)".to_owned();
                ProcessError::NotExecutable { path, reason }
            }
            (Some(ChildStep::Directory), _) => {
                ProcessError::WorkingDirectory { path: cwd, reason: source.to_string() }
            }
            (step, _) => ProcessError::Start {
                command,
                step: step.map_or("an unknown step", ChildStep::name),
                source,
            },
        }
    }
}

//! The start of a process, step by step. Every step that fails, and every await at which the
//! caller gives up, kills the child and forgets it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::process::Pid;
use tokio::net::unix::pipe;
use tokio::sync::watch;

use super::cgroup::{CgroupStatus, Leaf};
use super::child::{self, Forked, Plan, REPORT_BYTES, Step};
use super::command::{self, Texts};
use super::error::ProcessError;
use super::{
    EXEC_WAIT_MAX, Process, ProcessHost, ProcessSpec, RECORD_WAIT_MAX, WORKLOADS_PER_RUN_MAX,
    cgroup, identity, reap, user,
};
use crate::clock;
use crate::driver::api::ByteSink;
use crate::logs::pump::pump;
use crate::model::ids::RunId;

/// Start a process; its id once the program runs.
pub(super) async fn start(host: ProcessHost, spec: ProcessSpec) -> Result<String, ProcessError> {
    check_room(&host, &spec.run_id)?;
    let prepared = prepare(&host, &spec).await?;
    let Ends { stdout, stderr, go, status } = prepared.ends;
    let (stdout, stderr, mut status) = (receiver(stdout)?, receiver(stderr)?, receiver(status)?);

    let forked = host.inner.spawner.fork(prepared.plan).await.ok_or(ProcessError::Stopped)?;
    let forked = forked.map_err(|source| ProcessError::system("forking", source))?;
    let process = Held::identify(&host, &spec, forked).await?;
    let mut started = register(&host, &spec, process, stdout, stderr)?;

    if let Err(error) = record(&spec, &started.process).await {
        // Closed without a word: the child ends by itself even if it cannot be killed.
        drop(go);
        return Err(started.abandon(error).await);
    }
    if let Err(errno) = rustix::io::write(&go, b"g") {
        let error = ProcessError::system("telling the process to go on", errno);
        return Err(started.abandon(error).await);
    }
    drop(go);
    match clock::timeout(EXEC_WAIT_MAX, read_report(&mut status)).await {
        Some(Ok(None)) => {}
        Some(Ok(Some(report))) => {
            let error = failed_step(&spec, prepared.program, report);
            return Err(started.abandon(error).await);
        }
        Some(Err(source)) => {
            let error = ProcessError::system("reading the start report", source);
            return Err(started.abandon(error).await);
        }
        None => {
            let error = ProcessError::Start {
                command: spec.command,
                step: Step::Exec.name(),
                source: io::ErrorKind::TimedOut.into(),
            };
            return Err(started.abandon(error).await);
        }
    }
    started.armed = false;
    Ok(started.process.id())
}

fn check_room(host: &ProcessHost, run: &RunId) -> Result<(), ProcessError> {
    let count = host.table().get(run).map_or(0, std::collections::HashMap::len);
    if count >= WORKLOADS_PER_RUN_MAX {
        return Err(ProcessError::TooMany { run: run.to_string(), limit: WORKLOADS_PER_RUN_MAX });
    }
    Ok(())
}

/// The agent's ends of the pipes.
struct Ends {
    stdout: OwnedFd,
    stderr: OwnedFd,
    go: OwnedFd,
    status: OwnedFd,
}

struct Prepared {
    plan: Plan,
    ends: Ends,
    program: PathBuf,
}

/// Everything that can be found wrong before a process exists. Reads directories and asks name
/// services, so it runs where blocking is allowed.
async fn prepare(host: &ProcessHost, spec: &ProcessSpec) -> Result<Prepared, ProcessError> {
    let (command, args, env) = (spec.command.clone(), spec.args.clone(), spec.env.clone());
    let (cwd, user, kill_with_agent) =
        (spec.cwd.clone(), spec.user.clone(), host.inner.kill_with_agent);
    let prepared = tokio::task::spawn_blocking(move || {
        command::check_cwd(&cwd)?;
        let program = command::resolve(&command, &cwd, &env)?;
        let texts = Texts::new(&program, &command, &args, &env, &cwd)?;
        let ids = user.as_deref().map(user::resolve).transpose()?.flatten();
        let piped =
            || child::pipe().map_err(|source| ProcessError::system("making a pipe", source));
        let (stdout, stdout_child) = piped()?;
        let (stderr, stderr_child) = piped()?;
        let (go_child, go) = piped()?;
        let (status, status_child) = piped()?;
        let stdin = child::dev_null()
            .map_err(|source| ProcessError::system("opening /dev/null", source))?;
        let plan = Plan {
            texts,
            ids,
            kill_with_agent,
            stdin,
            stdout: stdout_child,
            stderr: stderr_child,
            go: go_child,
            status: status_child,
        };
        Ok(Prepared { plan, ends: Ends { stdout, stderr, go, status }, program })
    });
    prepared.await.unwrap_or(Err(ProcessError::Stopped))
}

fn receiver(end: OwnedFd) -> Result<pipe::Receiver, ProcessError> {
    pipe::Receiver::from_owned_fd(end)
        .map_err(|source| ProcessError::system("watching a pipe", source))
}

/// A held child whose identity is known and which sits in its cgroup.
struct Held {
    forked: Forked,
    identity: crate::driver::api::ProcessIdentity,
    leaf: Option<Leaf>,
}

impl Held {
    async fn identify(
        host: &ProcessHost,
        spec: &ProcessSpec,
        forked: Forked,
    ) -> Result<Self, ProcessError> {
        let cgroups = host.inner.cgroups.clone();
        let (run, cpu_mhz, memory) = (spec.run_id.clone(), spec.cpu_mhz, spec.memory_bytes_max);
        // Moving into a cgroup can wait for the kernel: not on the control threads.
        let held = tokio::task::spawn_blocking(move || {
            let pid = forked.pid().map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs());
            let mut identity = identity::read(pid)
                .map_err(|source| ProcessError::system("reading the start time", source))?;
            let leaf = enclose(&cgroups, &run, &identity, cpu_mhz, memory)?;
            identity.cgroup = leaf.as_ref().map(|leaf| leaf.path().to_owned());
            Ok(Self { forked, identity, leaf })
        });
        held.await.unwrap_or(Err(ProcessError::Stopped))
    }
}

/// Put a held child into a cgroup of its own, where there are cgroups. Failing to is an error: the
/// task would run without the limits this node says it has.
fn enclose(
    cgroups: &CgroupStatus,
    run: &RunId,
    identity: &crate::driver::api::ProcessIdentity,
    cpu_mhz: u32,
    memory_bytes_max: u64,
) -> Result<Option<Leaf>, ProcessError> {
    let name = cgroup::leaf_name(run.as_str(), identity);
    let failed = |source| ProcessError::system("making the cgroup of a task", source);
    let leaf = Leaf::create(cgroups, &name, cpu_mhz, memory_bytes_max).map_err(failed)?;
    if let Some(leaf) = &leaf
        && let Err(source) = leaf.add(identity.pid)
    {
        leaf.remove();
        return Err(failed(source));
    }
    Ok(leaf)
}

/// A process in the table that is not yet the caller's: killed and forgotten on drop.
struct Started {
    host: ProcessHost,
    run: RunId,
    process: Arc<Process>,
    armed: bool,
}

impl Started {
    /// Kill it, wait until it is gone, and hand the error on.
    async fn abandon(self, error: ProcessError) -> ProcessError {
        let mut exit = self.process.exit.clone();
        drop(self);
        let gone = exit.wait_for(Option::is_some);
        if clock::timeout(crate::limits::KILL_GRACE, gone).await.is_none() {
            tracing::warn!("a process that was not started has not ended after its kill");
        }
        error
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        self.process.kill();
        let mut table = self.host.table();
        if let Some(processes) = table.get_mut(&self.run) {
            processes.remove(&self.process.id());
            if processes.is_empty() {
                table.remove(&self.run);
            }
        }
    }
}

fn register(
    host: &ProcessHost,
    spec: &ProcessSpec,
    held: Held,
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
) -> Result<Started, ProcessError> {
    let (pid, pidfd): (Pid, OwnedFd) = held.forked.into_parts().ok_or(ProcessError::Stopped)?;
    let (exit_sender, exit) = watch::channel(None);
    let process = Arc::new(Process {
        identity: held.identity,
        pid,
        pidfd,
        leaf: held.leaf,
        reaped: std::sync::Mutex::new(false),
        exit,
    });
    let pumps = [
        tokio::spawn(pumped(stdout, Arc::clone(&spec.stdout))),
        tokio::spawn(pumped(stderr, Arc::clone(&spec.stderr))),
    ];
    tokio::spawn(reap::reap(Arc::clone(&process), pumps, exit_sender, host.inner.clock.clone()));
    host.table().entry(spec.run_id.clone()).or_default().insert(process.id(), Arc::clone(&process));
    Ok(Started { host: host.clone(), run: spec.run_id.clone(), process, armed: true })
}

async fn pumped(pipe: pipe::Receiver, sink: Arc<dyn ByteSink>) {
    if let Err(error) = pump(pipe, sink).await {
        tracing::warn!(%error, "reading the output of a task failed");
    }
}

async fn record(spec: &ProcessSpec, process: &Process) -> Result<(), ProcessError> {
    let recorded = (spec.record_identity)(process.identity.clone());
    let reason = match clock::timeout(RECORD_WAIT_MAX, recorded).await {
        Some(Ok(())) => return Ok(()),
        Some(Err(reason)) => reason,
        None => format!("no answer within {} s", RECORD_WAIT_MAX.as_secs()),
    };
    Err(ProcessError::NotRecorded { reason })
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

fn failed_step(spec: &ProcessSpec, path: PathBuf, report: [u8; REPORT_BYTES]) -> ProcessError {
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
            ProcessError::WorkingDirectory { path: spec.cwd.clone(), reason: source.to_string() }
        }
        (step, _) => ProcessError::Start {
            command: spec.command.clone(),
            step: step.map_or("an unknown step", Step::name),
            source,
        },
    }
}

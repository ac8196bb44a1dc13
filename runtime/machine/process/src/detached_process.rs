//! A process that goes on without the agent, and that a later agent finds again.
//!
//! ```text
//! agent ── fork, exec ─► own session, only descriptors 0, 1 and 2, no environment
//!   │ ◄─ pidfd readable ── its end; how, of one that this agent started
//!   x
//! next agent ── pid and start time ─► the same pidfd, or none when it is gone
//! ```
//! Unlike a supervisor ([`super::supervise`]), such a process is not forked by a zygote: there are
//! few of them, and each is a program of its own from its first instruction.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, WaitId, WaitIdOptions, WaitIdStatus, getrlimit,
    pidfd_open, pidfd_send_signal, setrlimit, waitid,
};
use tokio::io::unix::AsyncFd;

use super::cgroup::WorkerCgroup;
use super::{ProcessHost, child, identity, signals};

/// What to start.
#[derive(Debug)]
pub struct DetachedSpec<'a> {
    /// The program; `/proc/self/exe` is this one, also after its file was replaced.
    pub program: &'a Path,
    /// Its first argument, which tells the program what to be.
    pub argument: &'a str,
    /// Its second argument, for people who look at lists of processes: the directory that it
    /// works in.
    pub place: &'a Path,
    /// What lists of processes show in place of the program.
    pub name: &'a str,
    /// Its standard input: the first connection to it.
    pub stdin: OwnedFd,
    /// Its standard error: a file, because pipes of the agent end with the agent.
    pub stderr: File,
    /// The cgroup that it is in from its first instruction on.
    pub cgroup: Option<&'a WorkerCgroup>,
}

/// A process that goes on without the agent. Keep this value until the process has ended: one that
/// this agent started stays a zombie until [`DetachedProcess::wait_for_end`] has returned its end.
#[derive(Debug)]
pub struct DetachedProcess {
    /// The process id. It may name another process once this one was reaped.
    pub pid: u32,
    /// Start time in the kernel's ticks. Together with the pid it names one process of a boot
    /// for ever.
    pub start_ticks: u64,
    pidfd: OwnedFd,
    how: OnceLock<ProcessEnd>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessEnd {
    /// It ended by itself, with this exit code.
    Exited(i32),
    /// The signal of this number killed it.
    Killed(u32),
    /// Another agent started it, and the kernel tells the end to the parent only.
    Unknown,
}

impl std::fmt::Display for ProcessEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "ended with exit code {code}"),
            Self::Killed(signal) => match signals::name(*signal) {
                Some(name) => write!(f, "killed by signal {signal} (SIG{name})"),
                None => write!(f, "killed by signal {signal}"),
            },
            Self::Unknown => {
                f.write_str("ended; how is not known, an earlier agent had started it")
            }
        }
    }
}

/// Start a process that goes on without the agent. This blocks until the program is executed.
///
/// # Errors
/// When the program cannot be executed or not be put into its cgroup; nothing is left running.
pub fn start_detached(spec: DetachedSpec<'_>) -> io::Result<DetachedProcess> {
    #[expect(clippy::disallowed_methods, reason = "host is where processes are started")]
    let mut command = std::process::Command::new(spec.program);
    command.arg0(spec.name).arg(spec.argument).arg(spec.place).env_clear().current_dir("/");
    command.stdin(spec.stdin).stdout(Stdio::null()).stderr(spec.stderr);
    let procs = spec.cgroup.map(WorkerCgroup::open_procs).transpose()?;
    // Not the soft limit that tasks get: this process has the files of thousands of tasks open.
    let files = getrlimit(Resource::Nofile).maximum;
    let prepare = move || {
        if let Some(procs) = &procs {
            rustix::io::write(procs, b"0")?;
        }
        setrlimit(Resource::Nofile, Rlimit { current: files, maximum: files })?;
        // SAFETY: this runs in the child, before its program.
        unsafe { child::begin_detached() }
    };
    // SAFETY: between fork and exec only system calls are made; nothing is allocated.
    unsafe { command.pre_exec(prepare) };
    let mut started = command.spawn()?;
    // Nobody else reaps our children, so the pid is still this child's.
    let known = || {
        let pid = i32::try_from(started.id()).ok().and_then(Pid::from_raw);
        let pidfd = pidfd_open(pid.ok_or(io::ErrorKind::InvalidData)?, PidfdFlags::empty())?;
        let start_ticks = identity::start_ticks(started.id())?;
        Ok(DetachedProcess { pid: started.id(), start_ticks, pidfd, how: OnceLock::new() })
    };
    known().inspect_err(|_: &io::Error| {
        let _gone = started.kill();
        let _reaped = started.wait();
    })
}

impl DetachedProcess {
    /// The process of an earlier agent; `None` when it has ended. The caller has compared the
    /// boot id.
    ///
    /// # Errors
    /// When the process cannot be looked up.
    pub fn open_existing(pid: u32, start_ticks: u64) -> io::Result<Option<Self>> {
        let found = identity::open_same(pid, start_ticks)?;
        let found = found.filter(|pidfd| !identity::has_ended(pidfd));
        Ok(found.map(|pidfd| Self { pid, start_ticks, pidfd, how: OnceLock::new() }))
    }

    /// Wait until the process has ended, and reap it. Every call returns the end; a call may be
    /// dropped and repeated.
    ///
    /// # Errors
    /// When the system has no room to wait for one more process.
    pub async fn wait_for_end(&self) -> io::Result<ProcessEnd> {
        if let Some(how) = self.how.get() {
            return Ok(*how);
        }
        // A copy: the event loop takes a descriptor once, and several may wait.
        let copy = self.pidfd.try_clone()?;
        // SAFETY: the descriptor is owned by the event and closed with it.
        let event =
            unsafe { AsyncFd::register_with_interest(copy, tokio::io::Interest::READABLE) }?;
        event.readable().await?.retain_ready();
        Ok(*self.how.get_or_init(|| self.reap()))
    }

    fn reap(&self) -> ProcessEnd {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let status = waitid(WaitId::PidFd(self.pidfd.as_fd()), options);
        let how = |status: WaitIdStatus| match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => ProcessEnd::Exited(code),
            (None, Some(signal)) => ProcessEnd::Killed(signal.unsigned_abs()),
            (None, None) => ProcessEnd::Unknown,
        };
        // A process that is no child of this one was started by another agent.
        status.ok().flatten().map_or(ProcessEnd::Unknown, how)
    }

    /// Kill the process. Returns before it is gone.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn kill(&self) -> io::Result<()> {
        match pidfd_send_signal(&self.pidfd, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether it runs the very file that this process runs; `false` too when that cannot be seen.
    /// Two builds are two files, whatever their path: a file that was replaced keeps its inode
    /// while it runs.
    #[must_use]
    pub fn has_same_program(&self) -> bool {
        let of =
            |meta: Metadata| (meta.dev(), meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec());
        let theirs = std::fs::metadata(format!("/proc/{}/exe", self.pid)).map(of);
        let ours = std::fs::metadata("/proc/self/exe").map(of);
        // Asked last: what was seen is then of this process, not of the next owner of its pid.
        !identity::has_ended(&self.pidfd)
            && matches!((theirs, ours), (Ok(theirs), Ok(ours)) if theirs == ours)
    }
}

impl ProcessHost {
    /// Make the cgroup of a worker, which bounds its memory and its threads. `None` where there are
    /// no cgroups; [`Self::cgroup_status`] says why, and which limits this node cannot enforce.
    ///
    /// # Errors
    /// When the cgroup or a limit cannot be written; nothing is left then.
    pub fn create_worker_cgroup(
        &self,
        name: &str,
        memory_bytes: Option<u64>,
        threads_max: u32,
    ) -> io::Result<Option<WorkerCgroup>> {
        WorkerCgroup::create(&self.inner.cgroups, name, memory_bytes, threads_max)
    }

    /// The cgroup that an earlier agent made for a worker which still runs.
    ///
    /// # Errors
    /// When the cgroup of the worker cannot be read.
    pub fn find_worker_cgroup(&self, worker: &DetachedProcess) -> io::Result<Option<WorkerCgroup>> {
        WorkerCgroup::find_by_pid(&self.inner.cgroups, worker.pid)
    }
}

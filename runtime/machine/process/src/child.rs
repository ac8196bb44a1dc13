//! Fork, hold, exec.
//!
//! ```text
//! agent (spawner thread)              child
//!   fork ───────────────────────────► own session, signals reset, only its five descriptors open
//!   pid, start time, cgroup           read(go) … blocked
//!   record identity durably               │
//!   write(go) ──────────────────────► user, directory, execve ──► user code
//!   read(status) ◄── end of file: exec done; or which step failed and errno
//!
//!   agent dies ─► go closes ────────► end of file: exit, no user code has run
//! ```
//! Not `std::process::Command`: its `spawn` returns only after exec, so a held child would block
//! the thread and every start would wait for the durable write of the one before it.
//!
//! All forks happen on one thread that lives as long as the process host: the kernel sends the
//! parent-death signal when the *thread* that forked ends. That thread blocks all signals, so that
//! no handler of the agent can run in a child.

#[path = "child_steps.rs"]
mod steps;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::sys::signal::SigSet;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};
use tokio::sync::{mpsc, oneshot};

use self::steps::STATUS_FD;
pub(super) use self::steps::{
    ChildImage, REPORT_BYTES, REPORT_TEXT_BYTES_MAX, begin_detached, begin_session, close_from_but,
    die_with, die_with_parent, report_text, report_text_to, unprotect, unprotect_in, wait_for_go,
};
use super::cgroup;
use super::command::Texts;
use super::user::Ids;

/// Forks waiting for the spawner thread.
const QUEUE_MAX: usize = 64;

/// What the child needs. It is made before the fork, after which nothing may be allocated.
pub(super) struct ChildPlan {
    pub texts: Texts,
    pub ids: Option<Ids>,
    /// The cgroup it is forked into.
    pub cgroup: Option<OwnedFd>,
    pub kill_with_agent: bool,
    pub stdin: OwnedFd,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
    pub go: OwnedFd,
    pub status: OwnedFd,
}

/// A child that waits for its go. Killed and reaped when dropped without [`HeldChild::into_parts`].
pub(super) struct HeldChild {
    parts: Option<(Pid, OwnedFd)>,
}

impl HeldChild {
    /// Take a child that nobody has reaped, so that its pid is still its own. The child is killed
    /// when no pidfd of it can be opened.
    pub(super) fn from_pid(pid: Pid) -> io::Result<Self> {
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Self { parts: Some((pid, pidfd)) }),
            Err(error) => {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
                let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
                Err(error.into())
            }
        }
    }

    pub(super) fn pid(&self) -> Option<Pid> {
        self.parts.as_ref().map(|(pid, _)| *pid)
    }

    pub(super) fn into_parts(mut self) -> Option<(Pid, OwnedFd)> {
        self.parts.take()
    }
}

impl Drop for HeldChild {
    fn drop(&mut self) {
        if let Some((_, pidfd)) = self.parts.take() {
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
        }
    }
}

/// Steps that can fail in the child; the discriminant goes over the status pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum ChildStep {
    Descriptors = 1,
    Session,
    Directory,
    Groups,
    User,
    Exec,
    Isolate,
    Program,
}

impl ChildStep {
    /// Read a report of the child.
    pub(super) fn from_report(report: [u8; REPORT_BYTES]) -> (Option<Self>, io::Error) {
        let [step, errno @ ..] = report;
        let step = [
            Self::Descriptors,
            Self::Session,
            Self::Directory,
            Self::Groups,
            Self::User,
            Self::Exec,
            Self::Isolate,
            Self::Program,
        ]
        .into_iter()
        .find(|known| *known as u8 == step);
        (step, io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Descriptors => "setting up its descriptors",
            Self::Session => "making its session",
            Self::Directory => "entering its working directory",
            Self::Groups => "setting its groups",
            Self::User => "switching its user",
            Self::Exec => "executing the program",
            Self::Isolate => "isolating it",
            Self::Program => "looking for its program",
        }
    }
}

struct ForkRequest {
    plan: ChildPlan,
    reply: oneshot::Sender<io::Result<HeldChild>>,
}

/// The thread that forks. It ends when the last clone of this is dropped; with
/// `kill_with_agent`, its children then die.
#[derive(Clone, Debug)]
pub(super) struct Spawner {
    jobs: mpsc::Sender<ForkRequest>,
}

impl Spawner {
    /// Start the thread.
    pub(super) fn start() -> io::Result<Self> {
        let (jobs, mut queue) = mpsc::channel::<ForkRequest>(QUEUE_MAX);
        std::thread::Builder::new().name("spawner".to_owned()).spawn(move || {
            block_signals();
            while let Some(job) = queue.blocking_recv() {
                // A start that was given up meanwhile needs no fork.
                if job.reply.is_closed() {
                    continue;
                }
                let forked = fork(&job.plan);
                drop(job.plan);
                // The send fails when the start was given up; dropping the answer kills the child.
                drop(job.reply.send(forked));
            }
        })?;
        Ok(Self { jobs })
    }

    /// Fork a child that waits for its go. `None` when the thread is gone.
    pub(super) async fn fork(&self, plan: ChildPlan) -> Option<io::Result<HeldChild>> {
        let (reply, answer) = oneshot::channel();
        self.jobs.send(ForkRequest { plan, reply }).await.ok()?;
        answer.await.ok()
    }
}

/// Block all signals in the calling thread.
pub(super) fn block_signals() {
    let _cannot_fail = SigSet::all().thread_set_mask();
}

/// Fork a child that waits for its go.
pub(super) fn fork(plan: &ChildPlan) -> io::Result<HeldChild> {
    let laid = ChildImage::new(plan)?;
    let agent = rustix::process::getpid();
    // SAFETY: the child calls only async-signal-safe functions (see `child`) and never returns;
    // everything it reads was made above.
    let (pid, inside) = unsafe { fork_in(plan.cgroup.as_ref(), ForkKind::Own)? };
    if pid == 0 {
        // SAFETY: we are the only thread of a fresh child; `laid` points into `plan`, which is alive.
        unsafe { run_child(plan, &laid, agent) }
    }
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?;
    let forked = HeldChild::from_pid(pid)?;
    match &plan.cgroup {
        Some(cgroup) if !inside => cgroup::move_into(cgroup, pid)?,
        _ => {}
    }
    Ok(forked)
}

/// Fork into a cgroup, where that is possible. Returns the pid, which is 0 in the child, and
/// whether the child is in the cgroup.
///
/// # Safety
/// As for `fork`. The C library does not know of a sibling that is forked, so this is only for a
/// process with one thread.
pub(super) unsafe fn fork_in(
    cgroup: Option<&OwnedFd>,
    whose: ForkKind,
) -> io::Result<(libc::pid_t, bool)> {
    // SAFETY: as the caller says.
    let (pid, inside) = unsafe {
        match cgroup.map(|cgroup| fork_into(cgroup, whose)) {
            Some(pid) if pid >= 0 => (pid, true),
            // A kernel before 5.7, or a sandbox that does not let us.
            _ => (fork_plainly(whose), cgroup.is_none()),
        }
    };
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok((pid, inside)) }
}

/// Which process becomes the parent of the child.
#[derive(Clone, Copy)]
pub(super) enum ForkKind {
    /// This process.
    Own,
    /// The parent of this process.
    Sibling,
}

/// Fork without changing the cgroup. Returns a negative number when the kernel refuses.
///
/// # Safety
/// As for [`fork_in`].
unsafe fn fork_plainly(whose: ForkKind) -> libc::pid_t {
    // SAFETY: as the caller says; without CLONE_VM the child has its own memory and goes on on a copy
    // of this stack.
    let pid = unsafe {
        match whose {
            ForkKind::Own => return libc::fork(),
            ForkKind::Sibling => {
                libc::syscall(libc::SYS_clone, libc::CLONE_PARENT | libc::SIGCHLD, 0, 0, 0, 0)
            }
        }
    };
    libc::pid_t::try_from(pid).unwrap_or(-1)
}

/// The kernel's `clone_args`, as far as needed (version 2, Linux 5.7).
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// Fork into a cgroup. Returns as `fork` does; a negative number when the kernel refuses.
///
/// # Safety
/// As for `fork`. The C library does not know of this fork, so the child may not even take
/// its locks.
unsafe fn fork_into(cgroup: &OwnedFd, whose: ForkKind) -> libc::pid_t {
    const CLONE_INTO_CGROUP: u64 = 1 << 33;
    let Ok(cgroup) = u64::try_from(cgroup.as_raw_fd()) else { return -1 };
    let (flags, exit_signal) = match whose {
        ForkKind::Own => (0, libc::SIGCHLD.unsigned_abs()),
        // A sibling signals its parent as its caller does.
        ForkKind::Sibling => (libc::CLONE_PARENT.unsigned_abs(), 0),
    };
    let args = CloneArgs {
        flags: CLONE_INTO_CGROUP | u64::from(flags),
        exit_signal: u64::from(exit_signal),
        cgroup,
        ..CloneArgs::default()
    };
    // SAFETY: `args` is live and of the size given; without CLONE_VM the child has its own memory.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>()) };
    libc::pid_t::try_from(pid).unwrap_or(-1)
}

/// Run the child from its fork to its exec. No allocation, no locks, no panics.
///
/// # Safety
/// Only in a process fresh from fork; `laid` is of `plan`.
unsafe fn run_child(plan: &ChildPlan, laid: &ChildImage, agent: Pid) -> ! {
    // SAFETY: system calls over plain numbers, over pointers to live locals, and over C strings of
    // the plan. All are async-signal-safe.
    unsafe {
        laid.place_descriptors();
        if plan.kill_with_agent {
            die_with(Some(agent));
        }
        begin_session();

        wait_for_go();

        if libc::chdir(plan.texts.cwd.as_ptr()) < 0 {
            steps::report(STATUS_FD, ChildStep::Directory);
        }
        if let Some(ids) = &plan.ids {
            // Not through the C library, which would look for the threads of the parent.
            if libc::syscall(libc::SYS_setgroups, ids.groups.len(), ids.groups.as_ptr()) < 0
                || libc::syscall(libc::SYS_setgid, ids.gid) < 0
            {
                steps::report(STATUS_FD, ChildStep::Groups);
            }
            if libc::syscall(libc::SYS_setuid, ids.uid) < 0 {
                steps::report(STATUS_FD, ChildStep::User);
            }
            // Changing the user clears the parent-death signal.
            if plan.kill_with_agent {
                die_with(Some(agent));
            }
        }
        laid.execute(&plan.texts.program);
        steps::report(STATUS_FD, ChildStep::Exec)
    }
}

/// A pipe, both ends closed on exec: (read end, write end).
pub(super) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}

/// `/dev/null` for reading.
pub(super) fn dev_null() -> io::Result<OwnedFd> {
    Ok(std::fs::File::open("/dev/null")?.into())
}

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

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};
use tokio::sync::{mpsc, oneshot};

use super::cgroup;
use super::command::Texts;
use super::user::Ids;

/// Forks waiting for the spawner thread.
const QUEUE_MAX: usize = 64;
/// Descriptor numbers of the child below this are laid out anew; the agent's copies lie above.
const LOWEST_PARENT_FD: RawFd = 10;
const GO_FD: RawFd = 3;
const STATUS_FD: RawFd = 4;
/// Bytes of a failure report: step, then errno.
pub(super) const REPORT_BYTES: usize = 5;

/// What the child needs, made before the fork: after it nothing may be allocated.
pub(super) struct Plan {
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

/// A child that waits for its go. Killed and reaped when dropped without [`Forked::into_parts`].
pub(super) struct Forked {
    parts: Option<(Pid, OwnedFd)>,
}

impl Forked {
    pub(super) fn pid(&self) -> Option<Pid> {
        self.parts.as_ref().map(|(pid, _)| *pid)
    }

    pub(super) fn into_parts(mut self) -> Option<(Pid, OwnedFd)> {
        self.parts.take()
    }
}

impl Drop for Forked {
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
pub(super) enum Step {
    Descriptors = 1,
    Session,
    Directory,
    Groups,
    User,
    Exec,
}

impl Step {
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
        }
    }
}

struct Job {
    plan: Plan,
    reply: oneshot::Sender<io::Result<Forked>>,
}

/// The thread that forks. It ends when the last clone of this is dropped; with
/// `kill_with_agent`, its children then die.
#[derive(Clone, Debug)]
pub(super) struct Spawner {
    jobs: mpsc::Sender<Job>,
}

impl Spawner {
    /// Start the thread.
    pub(super) fn start() -> io::Result<Self> {
        let (jobs, mut queue) = mpsc::channel::<Job>(QUEUE_MAX);
        std::thread::Builder::new().name("spawner".to_owned()).spawn(move || {
            block_signals();
            while let Some(job) = queue.blocking_recv() {
                // A start that was given up meanwhile is not forked at all.
                if job.reply.is_closed() {
                    continue;
                }
                let forked = fork(&job.plan);
                drop(job.plan);
                // Refused when given up: dropping the answer kills the child.
                drop(job.reply.send(forked));
            }
        })?;
        Ok(Self { jobs })
    }

    /// Fork a child that waits for its go. `None` when the thread is gone.
    pub(super) async fn fork(&self, plan: Plan) -> Option<io::Result<Forked>> {
        let (reply, answer) = oneshot::channel();
        self.jobs.send(Job { plan, reply }).await.ok()?;
        answer.await.ok()
    }
}

/// Block all signals in the calling thread.
pub(super) fn block_signals() {
    // SAFETY: the set is initialised by sigfillset before it is read.
    unsafe {
        let mut all = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
    }
}

/// A copy of `fd` with a number the child's own layout does not use.
fn above(fd: &OwnedFd) -> io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(fd, LOWEST_PARENT_FD)?)
}

/// Fork a child that waits for its go.
pub(super) fn fork(plan: &Plan) -> io::Result<Forked> {
    let fds = [
        above(&plan.stdin)?,
        above(&plan.stdout)?,
        above(&plan.stderr)?,
        above(&plan.go)?,
        above(&plan.status)?,
    ];
    let layout = fds.each_ref().map(AsRawFd::as_raw_fd);
    let argv = pointers(&plan.texts.argv);
    let env = pointers(&plan.texts.env);
    // SAFETY: getpid has no preconditions.
    let agent = unsafe { libc::getpid() };
    // SAFETY: the child calls only async-signal-safe functions (see `child`) and never returns;
    // everything it reads was made above.
    let (pid, inside) = unsafe {
        match plan.cgroup.as_ref().map(|cgroup| fork_into(cgroup)) {
            Some(pid) if pid >= 0 => (pid, true),
            // A kernel before 5.7, or a sandbox that does not let us.
            _ => (libc::fork(), plan.cgroup.is_none()),
        }
    };
    if pid == 0 {
        // SAFETY: we are the only thread of a fresh child; `argv` and `env` end with null and
        // point into `plan`, which is alive.
        unsafe { child(plan, layout, &argv, &env, agent) }
    }
    let pid = Pid::from_raw(pid).filter(|_| pid > 0).ok_or_else(io::Error::last_os_error)?;
    // Nobody else reaps our children, so the pid is still this child's.
    let forked = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => Forked { parts: Some((pid, pidfd)) },
        Err(error) => {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
            let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
            return Err(error.into());
        }
    };
    match &plan.cgroup {
        Some(cgroup) if !inside => cgroup::move_into(cgroup, pid)?,
        _ => {}
    }
    Ok(forked)
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

/// Fork into a cgroup: as `fork`, negative when the kernel refuses.
///
/// # Safety
/// As for `fork`; the C library does not hear of it, so the child may not even take its locks.
unsafe fn fork_into(cgroup: &OwnedFd) -> libc::pid_t {
    const CLONE_INTO_CGROUP: u64 = 1 << 33;
    let Ok(cgroup) = u64::try_from(cgroup.as_raw_fd()) else { return -1 };
    let args = CloneArgs {
        flags: CLONE_INTO_CGROUP,
        exit_signal: u64::from(libc::SIGCHLD.unsigned_abs()),
        cgroup,
        ..CloneArgs::default()
    };
    // SAFETY: `args` is live and of the size given; without CLONE_VM the child has its own memory.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>()) };
    libc::pid_t::try_from(pid).unwrap_or(-1)
}

fn pointers(texts: &[CString]) -> Vec<*const libc::c_char> {
    texts.iter().map(|text| text.as_ptr()).chain(std::iter::once(std::ptr::null())).collect()
}

/// The child between fork and exec. No allocation, no locks, no panics.
///
/// # Safety
/// Only in a process fresh from fork; `argv` and `env` must end with a null pointer and all other
/// pointers must be valid C strings.
unsafe fn child(
    plan: &Plan,
    layout: [RawFd; 5],
    argv: &[*const libc::c_char],
    env: &[*const libc::c_char],
    agent: libc::pid_t,
) -> ! {
    // SAFETY: system calls over plain numbers, over pointers to live locals, and over the C
    // strings the caller vouches for. All are async-signal-safe.
    unsafe {
        for (target, source) in (0..).zip(layout) {
            if libc::dup2(source, target) < 0 {
                // The status pipe may not be in place yet: report where it is now.
                let [.., status] = layout;
                report(status, Step::Descriptors);
            }
        }
        libc::fcntl(GO_FD, libc::F_SETFD, libc::FD_CLOEXEC);
        libc::fcntl(STATUS_FD, libc::F_SETFD, libc::FD_CLOEXEC);
        // At once, not at exec: a held child must not keep the go pipes of others open.
        close_from(STATUS_FD + 1);
        if plan.kill_with_agent {
            die_with(agent);
        }
        if libc::setsid() < 0 {
            report(STATUS_FD, Step::Session);
        }
        reset_signals();
        libc::umask(0o022);

        wait_for_go();

        if libc::chdir(plan.texts.cwd.as_ptr()) < 0 {
            report(STATUS_FD, Step::Directory);
        }
        if let Some(ids) = &plan.ids {
            // Not through the C library, which would look for the threads of the parent.
            if libc::syscall(libc::SYS_setgroups, ids.groups.len(), ids.groups.as_ptr()) < 0
                || libc::syscall(libc::SYS_setgid, ids.gid) < 0
            {
                report(STATUS_FD, Step::Groups);
            }
            if libc::syscall(libc::SYS_setuid, ids.uid) < 0 {
                report(STATUS_FD, Step::User);
            }
            // Changing the user clears the parent-death signal.
            if plan.kill_with_agent {
                die_with(agent);
            }
        }
        libc::execve(plan.texts.program.as_ptr(), argv.as_ptr(), env.as_ptr());
        report(STATUS_FD, Step::Exec)
    }
}

/// Die when the agent dies; and now, when it died before this was set.
///
/// # Safety
/// Only in the child.
unsafe fn die_with(agent: libc::pid_t) {
    // SAFETY: system calls over plain numbers.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != agent {
            libc::_exit(127);
        }
    }
}

/// Block until the agent says go; leave when it is gone.
///
/// # Safety
/// Only in the child.
unsafe fn wait_for_go() {
    let mut byte = 0_u8;
    loop {
        // SAFETY: one byte is read into a live local.
        let got = unsafe { libc::read(GO_FD, (&raw mut byte).cast(), 1) };
        if got == 1 && byte == super::supervise::GO {
            return;
        }
        let interrupted = got < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EINTR);
        if !interrupted {
            // SAFETY: ends this process without running anything of the agent's.
            unsafe { libc::_exit(127) }
        }
    }
}

/// # Safety
/// Only in the child: closes every descriptor from `lowest` on.
unsafe fn close_from(lowest: RawFd) {
    // SAFETY: system calls over plain numbers; the limit is a live local.
    unsafe {
        if libc::syscall(libc::SYS_close_range, lowest, u32::MAX, 0) == 0 {
            return;
        }
        // Before Linux 5.9.
        let mut limit = std::mem::zeroed::<libc::rlimit>();
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        let end = limit.rlim_cur.min(65_536) as RawFd;
        for fd in lowest..end {
            libc::close(fd);
        }
    }
}

/// Close every descriptor from `lowest` on, except `but`.
///
/// # Safety
/// Nobody may own or use what is closed.
pub(super) unsafe fn close_from_but(lowest: RawFd, but: RawFd) {
    // SAFETY: as the caller says; duplicates of descriptors are owned by nobody.
    unsafe {
        if lowest < but {
            libc::syscall(libc::SYS_close_range, lowest, but - 1, 0);
        }
        close_from(but.max(lowest - 1) + 1);
    }
}

/// # Safety
/// Only in the child: default action for every signal, none blocked.
unsafe fn reset_signals() {
    // SAFETY: the action and the set are plain data, initialised before use; numbers that cannot
    // be changed are refused by the kernel without harm.
    unsafe {
        // The kernel's own structure; all zero is the default action. Not through the C library,
        // which keeps two signals to itself, and those may be inherited as ignored.
        let action = [0_u64; 8];
        for signal in 1..=64_i32 {
            let none = std::ptr::null_mut::<u64>();
            libc::syscall(libc::SYS_rt_sigaction, signal, action.as_ptr(), none, 8_usize);
        }
        let mut none = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// Tell the agent which step failed and end.
///
/// # Safety
/// Only in the child.
unsafe fn report(fd: RawFd, step: Step) -> ! {
    let [a, b, c, d] = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO).to_ne_bytes();
    let text = [step as u8, a, b, c, d];
    // SAFETY: writes a live local; a pipe takes five bytes whole.
    unsafe {
        libc::write(fd, text.as_ptr().cast(), text.len());
        libc::_exit(127)
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

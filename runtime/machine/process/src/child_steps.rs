//! What a process does between its fork and its program, step by step.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use super::{ChildPlan, ChildStep};

/// Descriptor numbers of the child below this are laid out anew; the agent's copies lie above.
const LOWEST_PARENT_FD: RawFd = 10;
const GO_FD: RawFd = 3;
pub(super) const STATUS_FD: RawFd = 4;
/// Bytes of a failure report before its text: step, then errno.
pub(in super::super) const REPORT_BYTES: usize = 5;
/// Most bytes of that text.
pub(in super::super) const REPORT_TEXT_BYTES_MAX: usize = 512;

/// The child's descriptors and the pointers to its texts, made before the fork.
pub(in super::super) struct ChildImage {
    fds: [OwnedFd; 5],
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
}

impl ChildImage {
    /// Points into `plan`, which is to outlive it.
    pub(in super::super) fn new(plan: &ChildPlan) -> io::Result<Self> {
        let fds = [
            dup_above(&plan.stdin)?,
            dup_above(&plan.stdout)?,
            dup_above(&plan.stderr)?,
            dup_above(&plan.go)?,
            dup_above(&plan.status)?,
        ];
        Ok(Self { fds, argv: pointers(&plan.texts.argv), env: pointers(&plan.texts.env) })
    }

    /// Put the five descriptors in their places and close all others.
    ///
    /// # Safety
    /// Only in a process fresh from fork, which has nothing else that it still needs.
    pub(in super::super) unsafe fn place_descriptors(&self) {
        // SAFETY: system calls over plain numbers.
        unsafe {
            for (target, source) in (0..).zip(&self.fds) {
                if libc::dup2(source.as_raw_fd(), target) < 0 {
                    // The status pipe may not be in place yet: report where it is now.
                    let [.., status] = &self.fds;
                    report(status.as_raw_fd(), ChildStep::Descriptors);
                }
            }
            libc::fcntl(GO_FD, libc::F_SETFD, libc::FD_CLOEXEC);
            libc::fcntl(STATUS_FD, libc::F_SETFD, libc::FD_CLOEXEC);
            // At once, not at exec: a held child must not keep the go pipes of others open.
            close_from(STATUS_FD + 1);
        }
    }

    /// Run a program in this process. Returns only on failure, with the reason.
    pub(in super::super) fn execute(&self, program: &CStr) -> io::Error {
        // SAFETY: both lists end with null and point into the plan, which is alive.
        unsafe { libc::execve(program.as_ptr(), self.argv.as_ptr(), self.env.as_ptr()) };
        io::Error::last_os_error()
    }
}

/// A copy of `fd` under a number that the child's own layout does not use.
fn dup_above(fd: &OwnedFd) -> io::Result<OwnedFd> {
    Ok(rustix::io::fcntl_dupfd_cloexec(fd, LOWEST_PARENT_FD)?)
}

fn pointers(texts: &[CString]) -> Vec<*const libc::c_char> {
    texts.iter().map(|text| text.as_ptr()).chain(std::iter::once(std::ptr::null())).collect()
}

/// Give this process a session and a group of its own, with default signals and the usual file
/// mode mask.
///
/// # Safety
/// Only in the child.
pub(in super::super) unsafe fn begin_session() {
    // SAFETY: system calls over plain numbers.
    unsafe {
        if libc::setsid() < 0 {
            report(STATUS_FD, ChildStep::Session);
        }
        unprotect();
        reset_signals();
        libc::umask(0o022);
    }
}

/// Take off the protection from the kernel's memory killer that the agent may have. What the
/// agent starts for tasks may be killed for want of memory, and must be where the task's own
/// limit is reached.
///
/// # Safety
/// Only in the child.
pub(in super::super) unsafe fn unprotect() {
    // SAFETY: as the caller says.
    unsafe { unprotect_by(libc::AT_FDCWD, c"/proc/self/oom_score_adj") }
}

/// As [`unprotect`], where `/proc` is not at its path but open.
///
/// # Safety
/// Only in the child.
pub(in super::super) unsafe fn unprotect_in(proc: &OwnedFd) {
    // SAFETY: as the caller says.
    unsafe { unprotect_by(proc.as_raw_fd(), c"self/oom_score_adj") }
}

unsafe fn unprotect_by(dir: RawFd, score: &CStr) {
    // SAFETY: system calls over plain numbers and constant texts.
    unsafe {
        let file = libc::openat(dir, score.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        // Where the score may not be changed, a process that is killed sooner than others stays so.
        if file >= 0 {
            libc::write(file, c"0".as_ptr().cast(), 1);
            libc::close(file);
        }
    }
}

/// As [`begin_session`], for a process that goes on without the agent. Only its first three
/// descriptors reach its program.
///
/// # Safety
/// Only in the child.
pub(in super::super) unsafe fn begin_detached() -> io::Result<()> {
    /// Descriptors are closed by the exec and not before, because the process that forked learns of
    /// errors through one of them.
    const ON_EXEC: libc::c_uint = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: system calls over plain numbers.
    unsafe {
        if libc::setsid() < 0 {
            return Err(io::Error::last_os_error());
        }
        // Refused before Linux 5.11; there too everything of ours is closed by the exec.
        libc::syscall(libc::SYS_close_range, 3, u32::MAX, ON_EXEC);
        unprotect();
        reset_signals();
        libc::umask(0o022);
    }
    Ok(())
}

/// Die when the process that forked this one dies. A change of user clears this setting.
pub(in super::super) fn die_with_parent() {
    let _cannot_fail = set_parent_process_death_signal(Some(Signal::KILL));
}

/// Die when the parent dies, or at once where it died before this was set.
///
/// # Safety
/// Only in the child.
pub(in super::super) unsafe fn die_with(parent: Option<Pid>) {
    die_with_parent();
    if parent.is_some() && getppid() != parent {
        // SAFETY: ends this process without running anything of its parent's.
        unsafe { libc::_exit(127) }
    }
}

/// Block until the agent says go. Ends the process when the agent is gone.
///
/// # Safety
/// Only in the child.
pub(in super::super) unsafe fn wait_for_go() {
    let mut byte = 0_u8;
    loop {
        // SAFETY: one byte is read into a live local.
        let got = unsafe { libc::read(GO_FD, (&raw mut byte).cast(), 1) };
        if got == 1 && byte == super::super::supervise::GO {
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
/// No code may own or use the descriptors that are closed.
pub(in super::super) unsafe fn close_from_but(lowest: RawFd, but: RawFd) {
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
pub(super) unsafe fn report(fd: RawFd, step: ChildStep) -> ! {
    let [a, b, c, d] = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO).to_ne_bytes();
    let text = [step as u8, a, b, c, d];
    // SAFETY: writes a live local; a pipe takes five bytes whole.
    unsafe {
        libc::write(fd, text.as_ptr().cast(), text.len());
        libc::_exit(127)
    }
}

/// As [`report`], for a step of more than one system call, with a text of what it was about.
pub(in super::super) fn report_text(step: ChildStep, error: &io::Error, about: &str) -> ! {
    report_text_to(STATUS_FD, step, error, about)
}

/// As [`report_text`], before the descriptors are in their places.
pub(in super::super) fn report_text_to(
    status: RawFd,
    step: ChildStep,
    error: &io::Error,
    about: &str,
) -> ! {
    // An error without a number of the kernel is sent as text.
    let text = match error.raw_os_error() {
        Some(_) => about.to_owned(),
        None => format!("{about}: {error}"),
    };
    let errno = error.raw_os_error().unwrap_or(0);
    let text = text.bytes().take(REPORT_TEXT_BYTES_MAX);
    let all: Vec<u8> = std::iter::once(step as u8).chain(errno.to_ne_bytes()).chain(text).collect();
    // SAFETY: writes a live local; a pipe takes so few bytes whole.
    unsafe {
        libc::write(status, all.as_ptr().cast(), all.len());
        libc::_exit(127)
    }
}

//! The children of a shim: its task, and every orphan among the task's descendants.

use std::fs;
use std::mem::MaybeUninit;
use std::path::Path;

use rustix::process::Pid;

use crate::identity;
use ostler_model::clock::{Clock, Timestamp};

/// How a child ended.
#[derive(Clone, Copy)]
pub(super) struct ChildExit {
    pub exit_code: Option<i32>,
    pub signal: Option<u32>,
    pub at: Timestamp,
}

/// A child that has ended and is not reaped yet, with how it ended; `None` when there is none.
pub(super) fn find_ended_child() -> Option<(Pid, ChildExit)> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let what = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: writes into a live local, which is zero before and so is valid also when nothing
    // was written.
    let (pid, code, status) = unsafe {
        if libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), what) != 0 {
            return None;
        }
        let info = info.assume_init();
        (info.si_pid(), info.si_code, info.si_status())
    };
    let (exit_code, signal) = match code {
        libc::CLD_EXITED => (Some(status), None),
        _ => (None, u32::try_from(status).ok()),
    };
    Some((Pid::from_raw(pid)?, ChildExit { exit_code, signal, at: Clock::system().now() }))
}

/// Reap a child if it has ended.
pub(super) fn reap(pid: Pid) {
    let _still_running = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG);
}

/// Pids of all children of this process, adopted ones included.
pub(super) fn children() -> Vec<Pid> {
    let pid = |text: &str| text.parse().ok().and_then(Pid::from_raw);
    if let Ok(text) = fs::read_to_string("/proc/thread-self/children") {
        return text.split_ascii_whitespace().filter_map(pid).collect();
    }
    // Kernels without `CONFIG_PROC_CHILDREN`.
    let own = std::process::id();
    let all = fs::read_dir(Path::new("/proc")).into_iter().flatten().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str().and_then(pid));
    numbers.filter(|pid| identity::parent_of(*pid) == Some(own)).collect()
}

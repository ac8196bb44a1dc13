//! The least that a supervised program costs: a supervisor is forked, which forks, executes and waits.

use std::ffi::CString;
use std::ptr;
use std::time::Duration;

use rustix::process::{Pid, WaitOptions, waitpid};

/// Processor time of all children that ended so far.
fn children() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills a value of this type that is alive.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    let of = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.unsigned_abs())
            + Duration::from_micros(time.tv_usec.unsigned_abs())
    };
    of(usage.ru_utime) + of(usage.ru_stime)
}

/// Have `program` run `count` times, one after the other, each below a supervisor of its own. Returns
/// the processor time of all of them and of this thread.
///
/// # Panics
/// When the system refuses a process.
#[must_use]
pub fn fork_supervised(program: &str, count: u64) -> Duration {
    let path = CString::new(program).expect("a path");
    let arguments = [path.as_ptr(), ptr::null()];
    let (before, own) = (children(), crate::cost::cpu());
    for _ in 0..count {
        // SAFETY: between fork and exec the children call nothing but fork, execv, waitpid and _exit.
        let supervisor = unsafe { libc::fork() };
        assert!(supervisor >= 0, "fork");
        if supervisor == 0 {
            // SAFETY: as above.
            unsafe {
                let task = libc::fork();
                if task == 0 {
                    libc::execv(path.as_ptr(), arguments.as_ptr());
                    libc::_exit(127);
                }
                let mut status = 0;
                libc::waitpid(task, &raw mut status, 0);
                libc::_exit(0);
            }
        }
        let supervisor = Pid::from_raw(supervisor).expect("a process");
        waitpid(Some(supervisor), WaitOptions::empty()).expect("the supervisor ends");
    }
    (children() - before) + (crate::cost::cpu() - own)
}

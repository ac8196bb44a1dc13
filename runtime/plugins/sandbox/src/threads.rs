//! Sets which of the agent's threads go first.
//!
//! ```text
//!  control thread    nice -10 where that is allowed: timers, owner tasks, quick calls
//!  calls             as the agent was started, batch: never instead of one that just woke them
//!  busy guests       nice 5, batch
//!  everything else   as the agent was started
//! ```
//! Niceness alone is not enough. A guest that slept is owed time. So it may take the core from the
//! control thread that wakes it, in the middle of a neighbour's call, and keep it for its time
//! slice. A call of 45 µs then took as long as the attacker's, 2 ms (bench `containment`).
//!
//! Nothing that a control thread starts inherits its priority: see
//! `SCHED_RESET_ON_FORK` in sched(7).

use std::io;
use std::mem::size_of;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::{Builder, Runtime};

use ostler_model::limits::{CONTROL_NICE, GUEST_NICE};

/// The runtime that decides for an agent, or for a worker: one thread for all owners, timers and
/// connections to plugins' tasks, which goes before all others where that is allowed. A step that
/// hands its work to the next one wakes nobody. What may take long is on other threads.
///
/// # Errors
/// When a thread cannot be started.
pub fn control_runtime() -> io::Result<Runtime> {
    let started = AtomicBool::new(false);
    Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("ostler-control")
        .on_thread_start(move || {
            // The first thread is the one that decides. Later threads wait for files and names.
            if !started.swap(true, Ordering::Relaxed) {
                go_first();
            }
        })
        .enable_all()
        .build()
}

/// Put this thread before the others, unless whoever started the agent chose its niceness. This
/// needs a privilege; without it nothing changes.
fn go_first() {
    if niceness() == 0 {
        let reset = libc::SCHED_FLAG_RESET_ON_FORK.unsigned_abs();
        let _refused = set(libc::SCHED_OTHER, u64::from(reset), CONTROL_NICE);
    }
}

/// Put this thread behind the others, because it runs guests: `busy` ones, or short calls. Such a
/// thread never takes the core from the thread that just woke it.
pub fn go_behind(busy: bool) {
    let nice = if busy { GUEST_NICE } else { niceness() };
    // Lowering cannot be refused. If it were, guests would only have too high a priority.
    let _refused = set(libc::SCHED_BATCH, 0, nice);
}

fn niceness() -> i32 {
    rustix::process::getpriority_process(Some(rustix::thread::gettid())).unwrap_or(0)
}

/// Set policy, flags and niceness of this thread; on Linux they belong to a thread.
fn set(policy: i32, flags: u64, nice: i32) -> io::Result<()> {
    let attributes = libc::sched_attr {
        size: u32::try_from(size_of::<libc::sched_attr>()).unwrap_or(0),
        sched_policy: policy.unsigned_abs(),
        sched_flags: flags,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // The function of the C library is not used, because musl refuses it.
    // SAFETY: zero is this thread; the kernel reads `size` bytes of a value that is alive.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]
mod tests {
    use super::*;

    /// Niceness and policy of the calling thread: fields 19 and 41 of its stat file.
    fn place() -> (i32, i32) {
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        (fields.get(16).unwrap().parse().unwrap(), fields.get(38).unwrap().parse().unwrap())
    }

    /// May this test raise a thread's priority as a control thread does?
    fn privileged() -> bool {
        let raised = std::thread::spawn(|| {
            go_first();
            place().0 == CONTROL_NICE
        });
        raised.join().unwrap()
    }

    #[test]
    fn a_thread_that_computes_for_guests_is_behind_the_others_and_wakes_without_taking_a_core() {
        let place = std::thread::spawn(|| {
            go_behind(false);
            let short = place();
            go_behind(true);
            (short, place())
        });
        let (short, busy) = place.join().unwrap();
        assert_eq!(short.1, libc::SCHED_BATCH);
        assert_eq!(busy, (GUEST_NICE, libc::SCHED_BATCH));
    }

    #[test]
    fn control_threads_go_first_and_what_they_start_does_not() {
        if !privileged() {
            return;
        }
        let runtime = control_runtime().unwrap();
        let (worker, thread, process) = runtime
            .block_on(runtime.spawn(async {
                let worker = place();
                let thread = tokio::task::spawn_blocking(place).await.unwrap();
                let stat = std::process::Command::new("cat").arg("/proc/self/stat").output();
                (worker, thread, String::from_utf8(stat.unwrap().stdout).unwrap())
            }))
            .unwrap();
        assert_eq!(worker.0, CONTROL_NICE);
        assert_eq!(thread.0, 0, "a thread of the pool for files");
        let process: Vec<&str> = process.rsplit_once(')').unwrap().1.split(' ').collect();
        assert_eq!(process.get(17), Some(&"0"), "a child");
    }
}

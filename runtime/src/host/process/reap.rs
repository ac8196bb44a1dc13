//! From the end of the leader to the exit the runner sees.
//!
//! ```text
//! leader exits (zombie) ─► drain pipes, at most DRAIN_GRACE ─► kill group and cgroup
//!     ─► last output ─► read memory events ─► reap ─► remove cgroup ─► publish the exit
//! ```
//! The zombie keeps the pid and the group id from being used again until the group was killed.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, WaitId, WaitIdOptions, WaitIdStatus, pidfd_send_signal, waitid};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::error::{ProcessError, chain};
use super::supervise::record::Records;
use super::{DRAIN_GRACE, LAST_OUTPUT_WAIT, Process, ProcessHost, Reach, lock};
use crate::clock::{self, Clock};
use crate::model::ids::RunId;
use crate::model::task::RawExit;

/// Why an exit is not known; the tasks' events show it.
const SUPERVISOR_LOST: &str = "the exit is not known: the supervisor of the process was killed";
/// How often, and how many times, removing a cgroup is tried while its last members die.
const REMOVE_INTERVAL: Duration = Duration::from_millis(5);
const REMOVE_ATTEMPTS: usize = 200;

/// The pidfd as the event loop takes it.
struct ExitEvent(Arc<Process>);

impl AsRawFd for ExitEvent {
    fn as_raw_fd(&self) -> RawFd {
        // None of a process that is gone: refused by the event loop, and never waited for.
        self.0.pidfd().map_or(-1, AsRawFd::as_raw_fd)
    }
}

impl Process {
    /// The process whose end is waited for.
    fn pidfd(&self) -> Option<&OwnedFd> {
        match &self.reach {
            Reach::Child { pidfd, .. } | Reach::Supervisor { pidfd, .. } => Some(pidfd),
            Reach::Gone => None,
        }
    }
}

/// Wait for the process, end what it left, publish its exit.
pub(super) async fn reap(
    process: Arc<Process>,
    mut pumps: [JoinHandle<()>; 2],
    exit: watch::Sender<Option<RawExit>>,
    clock: Clock,
) {
    let ended = leader_exit(&process).await;
    let finished_at = clock.now();
    drain(&mut pumps, DRAIN_GRACE).await;
    process.kill();
    drain(&mut pumps, LAST_OUTPUT_WAIT).await;
    for pump in &pumps {
        pump.abort();
    }
    let oom_killed = process.leaf.as_ref().is_some_and(super::Leaf::saw_oom_kill);
    free_pid(&process);
    remove_cgroup(&process).await;
    let mut raw = raw_exit(ended);
    raw.oom_killed = oom_killed;
    raw.finished_at = finished_at;
    exit.send_replace(Some(raw));
}

/// Wait for the supervisor of a process, and publish the exit it left.
pub(super) async fn watch_over(
    host: ProcessHost,
    run: RunId,
    process: Arc<Process>,
    records: Records,
    exit: watch::Sender<Option<RawExit>>,
) {
    if let Err(error) = ended(&process).await {
        tracing::warn!(%error, pid = process.identity.pid, "waiting for a supervisor failed");
    }
    let (reading, key) = (Arc::clone(&process), run.clone());
    let read = tokio::task::spawn_blocking(move || {
        let identity = &reading.identity;
        records.read(&key, identity.pid, identity.start_ticks)
    });
    let read = read.await.map_err(|_| ProcessError::Stopped);
    let raw = match read.and_then(|read| Ok(read?)) {
        Ok(Some(record)) => {
            record.complain();
            record.into_exit()
        }
        unknown => {
            process.end_without_supervisor();
            RawExit { finished_at: host.inner.clock.now(), ..supervisor_lost(unknown.err()) }
        }
    };
    remove_cgroup(&process).await;
    exit.send_replace(Some(raw));
    // Whichever comes second, this or the forgetting, sees the other.
    if process.forgotten.load(Ordering::SeqCst) {
        host.remove_record(&run, &process);
    }
}

/// The exit of a process whose supervisor left no record.
pub(super) fn supervisor_lost(why: Option<ProcessError>) -> RawExit {
    let error = match why {
        None => SUPERVISOR_LOST.to_owned(),
        Some(error) => format!("{SUPERVISOR_LOST}: {}", chain(&error)),
    };
    RawExit { error: Some(error), ..RawExit::default() }
}

impl Process {
    /// Kill what a supervisor that was killed has left: the task dies with it by itself, its group
    /// does not.
    fn end_without_supervisor(&self) {
        /// `PIDFD_SIGNAL_PROCESS_GROUP`, since Linux 6.9.
        const GROUP: libc::c_uint = 1 << 2;
        if let Reach::Supervisor { task: Some(task), .. } = &self.reach {
            // SAFETY: a system call over plain numbers; without `siginfo`. A pidfd means its group
            // for as long as it is open, whoever else has the number.
            let sent = unsafe {
                let none = std::ptr::null::<libc::siginfo_t>();
                let (task, kill) = (task.as_raw_fd(), libc::SIGKILL);
                libc::syscall(libc::SYS_pidfd_send_signal, task, kill, none, GROUP)
            };
            if sent != 0 {
                let _gone = pidfd_send_signal(task, Signal::KILL);
            }
        }
        if let Some(leaf) = &self.leaf {
            leaf.kill();
        }
    }
}

/// Status of the leader, left a zombie.
async fn leader_exit(process: &Arc<Process>) -> io::Result<Option<WaitIdStatus>> {
    ended(process).await?;
    let Some(pidfd) = process.pidfd() else { return Ok(None) };
    Ok(waitid(
        WaitId::PidFd(pidfd.as_fd()),
        WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG,
    )?)
}

/// Wait until the process of the pidfd has ended.
async fn ended(process: &Arc<Process>) -> io::Result<()> {
    let pidfd = ExitEvent(Arc::clone(process));
    // SAFETY: the descriptor is owned by the process that `ExitEvent` holds, never changes, and is
    // not closed before it.
    let event = unsafe { AsyncFd::register_with_interest(pidfd, tokio::io::Interest::READABLE) };
    match event {
        Ok(event) => {
            event.readable().await?.retain_ready();
            Ok(())
        }
        Err(error) => {
            // No room in the event loop: spend a thread rather than lose the exit.
            tracing::warn!(%error, "waiting for a process on a thread of its own");
            let process = Arc::clone(process);
            let waited = tokio::task::spawn_blocking(move || {
                let Some(pidfd) = process.pidfd() else { return Ok(0) };
                let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
                rustix::io::retry_on_intr(|| poll(&mut fds, None))
            });
            waited.await.map_err(io::Error::other)??;
            Ok(())
        }
    }
}

/// Wait for both pumps, together at most `grace`.
async fn drain(pumps: &mut [JoinHandle<()>; 2], grace: Duration) {
    let [stdout, stderr] = pumps;
    let both = async {
        // A finished handle must not be polled again.
        if !stdout.is_finished() {
            drop((&mut *stdout).await);
        }
        if !stderr.is_finished() {
            drop((&mut *stderr).await);
        }
    };
    // Over time: whoever still holds the pipe is killed next.
    let _in_time = clock::timeout(grace, both).await;
}

/// Reap the zombie. From here on the pid may be another's.
fn free_pid(process: &Process) {
    let Reach::Child { pidfd, reaped, .. } = &process.reach else { return };
    let mut reaped = lock(reaped);
    let waited =
        waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    if let Err(errno) = waited {
        tracing::warn!(pid = process.identity.pid, %errno, "reaping a process failed");
    }
    *reaped = true;
}

async fn remove_cgroup(process: &Process) {
    let Some(leaf) = &process.leaf else { return };
    for _ in 0..REMOVE_ATTEMPTS {
        if leaf.remove() {
            return;
        }
        leaf.kill();
        clock::sleep(REMOVE_INTERVAL).await;
    }
    tracing::warn!(cgroup = %leaf.path().display(), "a task's cgroup cannot be removed: something inside does not die");
}

fn raw_exit(ended: io::Result<Option<WaitIdStatus>>) -> RawExit {
    let status = match ended {
        Ok(Some(status)) => status,
        Ok(None) => return lost("the kernel gave no status".to_owned()),
        Err(error) => return lost(error.to_string()),
    };
    RawExit {
        exit_code: status.exit_status(),
        signal: status.terminating_signal().and_then(|signal| u32::try_from(signal).ok()),
        ..RawExit::default()
    }
}

fn lost(reason: String) -> RawExit {
    RawExit {
        error: Some(format!("the exit of the process was lost: {reason}")),
        ..RawExit::default()
    }
}

//! From the end of the leader to the exit the runner sees.
//!
//! ```text
//! leader exits (zombie) ─► drain pipes, at most DRAIN_GRACE ─► kill group and cgroup
//!     ─► last output ─► read memory events ─► reap ─► remove cgroup ─► publish the exit
//! ```
//! The zombie keeps the pid and the group id from being used again until the group was killed.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{WaitId, WaitIdOptions, WaitIdStatus, waitid};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::{DRAIN_GRACE, Process};
use crate::clock::{self, Clock};
use crate::model::task::RawExit;

/// How long output already in the pipes may take after everything was killed.
const LAST_OUTPUT_WAIT: Duration = Duration::from_millis(500);
/// How often, and how many times, removing a cgroup is tried while its last members die.
const REMOVE_INTERVAL: Duration = Duration::from_millis(5);
const REMOVE_ATTEMPTS: usize = 200;

/// The pidfd as the event loop takes it.
struct ExitEvent(Arc<Process>);

impl AsRawFd for ExitEvent {
    fn as_raw_fd(&self) -> RawFd {
        self.0.pidfd.as_raw_fd()
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

/// Status of the leader, left a zombie.
async fn leader_exit(process: &Arc<Process>) -> io::Result<Option<WaitIdStatus>> {
    let pidfd = ExitEvent(Arc::clone(process));
    // SAFETY: the descriptor is owned by the process that `ExitEvent` holds, never changes, and is
    // not closed before it.
    let event = unsafe { AsyncFd::register_with_interest(pidfd, tokio::io::Interest::READABLE) };
    match event {
        Ok(event) => {
            event.readable().await?.retain_ready();
            Ok(waitid(
                WaitId::PidFd(process.pidfd.as_fd()),
                WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG,
            )?)
        }
        Err(error) => {
            // No room in the event loop: spend a thread rather than lose the exit.
            tracing::warn!(%error, "waiting for a process on a thread of its own");
            let process = Arc::clone(process);
            let waited = tokio::task::spawn_blocking(move || {
                waitid(
                    WaitId::PidFd(process.pidfd.as_fd()),
                    WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
                )
            });
            Ok(waited.await.map_err(io::Error::other)??)
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
    let mut reaped = process.reaped();
    let waited =
        waitid(WaitId::PidFd(process.pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
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

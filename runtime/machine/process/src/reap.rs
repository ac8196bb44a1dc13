//! From the end of the leader to the exit the runner sees.
//!
//! ```text
//! leader exits (zombie) ─► drain pipes, at most DRAIN_GRACE ─► kill group and cgroup, until they
//!     are gone ─► last output ─► read memory events ─► reap ─► remove cgroup ─► publish the exit
//! ```
//! The zombie keeps the pid and the group id from being used again until the group is gone. An exit
//! is published when every descendant of the process has ended, so nothing that is started next
//! runs beside it. Descendants that take long to end are logged, and named by the task runner that
//! waits.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, WaitId, WaitIdOptions, WaitIdStatus, pidfd_send_signal, waitid};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::cgroup::Leaf;
use super::leftovers::{self, Certainty, RemainingProcess};
use super::{DRAIN_GRACE, HostProcess, LAST_OUTPUT_WAIT, SignalTarget, lock};
use ostler_model::clock::{self, Clock, Stopwatch};
use ostler_model::ids::RunId;
use ostler_model::limits::KILL_GRACE;
use ostler_model::task::RawExit;

/// Shortest and longest pause before killed processes are looked for again.
const LOOK_PAUSE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(2)..=Duration::from_secs(1);
/// Pause between attempts to remove a cgroup while its last members die, and how many attempts
/// there are.
const REMOVE_INTERVAL: Duration = Duration::from_millis(5);
const REMOVE_ATTEMPTS: usize = 200;

/// Which process's end is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitTarget {
    /// The supervisor where there is one, otherwise the process itself.
    Watched,
    /// The task below a supervisor.
    Task,
}

/// The pidfd as the event loop takes it.
struct ExitEvent(Arc<HostProcess>, WaitTarget);

impl AsRawFd for ExitEvent {
    fn as_raw_fd(&self) -> RawFd {
        // A process that is gone has no pidfd; the event loop refuses -1.
        self.0.pidfd(self.1).map_or(-1, AsRawFd::as_raw_fd)
    }
}

impl HostProcess {
    /// Pidfd of the process whose end is waited for.
    pub(super) fn pidfd(&self, whose: WaitTarget) -> Option<&OwnedFd> {
        match (&self.reach, whose) {
            (
                SignalTarget::Child { pidfd, .. } | SignalTarget::Supervisor { pidfd, .. },
                WaitTarget::Watched,
            ) => Some(pidfd),
            (SignalTarget::Supervisor { task, .. }, WaitTarget::Task) => task.as_ref(),
            (SignalTarget::Child { .. } | SignalTarget::Gone, _) => None,
        }
    }
}

/// Wait for the process, end what it left, publish its exit.
pub(super) async fn reap(
    process: Arc<HostProcess>,
    mut pumps: [JoinHandle<()>; 2],
    exit: watch::Sender<Option<RawExit>>,
    clock: Clock,
) {
    let ended = leader_exit(&process).await;
    let finished_at = clock.now();
    drain_pumps(&mut pumps, DRAIN_GRACE).await;
    process.kill();
    drain_pumps(&mut pumps, LAST_OUTPUT_WAIT).await;
    for pump in &pumps {
        pump.abort();
    }
    kill_until_gone(&process, || group_of_zombie(&process)).await;
    let oom_killed = process.leaf.as_ref().is_some_and(super::Leaf::saw_oom_kill);
    free_pid(&process);
    remove_cgroup(&process).await;
    let mut raw = raw_exit(ended);
    raw.oom_killed = oom_killed;
    raw.finished_at = finished_at;
    exit.send_replace(Some(raw));
}

impl HostProcess {
    /// Kill what a killed supervisor has left. The task dies with its supervisor; the task's group
    /// does not.
    pub(super) fn end_without_supervisor(&self) {
        /// `PIDFD_SIGNAL_PROCESS_GROUP`, since Linux 6.9.
        const GROUP: libc::c_uint = 1 << 2;
        if let SignalTarget::Supervisor { task: Some(task), .. } = &self.reach {
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

/// Wait until `look` finds no living process that certainly belongs to the process, and nothing
/// is in its cgroup. Processes that it finds are killed again and again. Returns what the last
/// look found.
pub(super) async fn kill_until_gone<F>(
    process: &Arc<HostProcess>,
    look: impl Fn() -> F,
) -> Vec<RemainingProcess>
where
    F: Future<Output = io::Result<Vec<RemainingProcess>>>,
{
    let (watch, mut pause) = (Stopwatch::start(), *LOOK_PAUSE.start());
    let mut said = false;
    loop {
        let found = look().await;
        let populated = process.leaf.as_ref().is_some_and(super::Leaf::is_populated);
        match &found {
            Ok(left) if !populated && left.iter().all(|left| !left.certain) => {
                return found.unwrap_or_default();
            }
            Ok(left) => leftovers::kill_certain(left),
            Err(_) => {}
        }
        if let Some(leaf) = process.leaf.as_ref().filter(|_| populated) {
            leaf.kill();
        }
        if watch.elapsed() > KILL_GRACE && !std::mem::replace(&mut said, true) {
            let left = match found {
                Ok(left) => left.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
                Err(error) => error.to_string(),
            };
            tracing::warn!(
                pid = process.identity.pid,
                left,
                "what a task left does not end; the task is not over before it has"
            );
        }
        clock::sleep(pause).await;
        pause = pause.saturating_mul(2).min(*LOOK_PAUSE.end());
    }
}

/// The living members of the group of a leader that is a zombie, and so still has its pid.
async fn group_of_zombie(process: &Arc<HostProcess>) -> io::Result<Vec<RemainingProcess>> {
    if process.leaf.is_some() {
        // All of its processes are in the cgroup.
        return Ok(Vec::new());
    }
    let pid = process.identity.pid;
    let looked = tokio::task::spawn_blocking(move || leftovers::group_members(pid));
    looked.await.map_err(io::Error::other)?
}

/// The processes that are left of a process which a supervisor watched over.
pub(super) async fn find_leftovers(
    run: &RunId,
    process: &Arc<HostProcess>,
    known: Certainty,
) -> io::Result<Vec<RemainingProcess>> {
    let (run, process) = (run.clone(), Arc::clone(process));
    let looked = tokio::task::spawn_blocking(move || {
        leftovers::find_remaining(&run, &process.identity, known)
    });
    looked.await.map_err(io::Error::other)?
}

/// Wait for the end of the leader and return its status. The leader stays a zombie.
async fn leader_exit(process: &Arc<HostProcess>) -> io::Result<Option<WaitIdStatus>> {
    wait_for_end(process, WaitTarget::Watched).await?;
    let Some(pidfd) = process.pidfd(WaitTarget::Watched) else { return Ok(None) };
    Ok(waitid(
        WaitId::PidFd(pidfd.as_fd()),
        WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG,
    )?)
}

/// Wait until the process of the pidfd has ended.
pub(super) async fn wait_for_end(process: &Arc<HostProcess>, whose: WaitTarget) -> io::Result<()> {
    let pidfd = ExitEvent(Arc::clone(process), whose);
    // SAFETY: the descriptor is owned by the process that `ExitEvent` holds, never changes, and is
    // not closed before it.
    let event = unsafe { AsyncFd::register_with_interest(pidfd, tokio::io::Interest::READABLE) };
    match event {
        Ok(event) => {
            event.readable().await?.retain_ready();
            Ok(())
        }
        Err(error) => {
            // The event loop has no room: wait on a thread rather than lose the exit.
            tracing::warn!(%error, "waiting for a process on a thread of its own");
            let process = Arc::clone(process);
            let waited = tokio::task::spawn_blocking(move || {
                let Some(pidfd) = process.pidfd(whose) else { return Ok(0) };
                let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
                rustix::io::retry_on_intr(|| poll(&mut fds, None))
            });
            waited.await.map_err(io::Error::other)??;
            Ok(())
        }
    }
}

/// Wait for both pumps, together at most `grace`.
async fn drain_pumps(pumps: &mut [JoinHandle<()>; 2], grace: Duration) {
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
    // After that time, processes that still hold the pipe are killed next.
    let _in_time = clock::timeout(grace, both).await;
}

/// Reap the zombie. From here on the pid may name another process.
fn free_pid(process: &HostProcess) {
    let SignalTarget::Child { pidfd, reaped, .. } = &process.reach else { return };
    let mut reaped = lock(reaped);
    let waited =
        waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    if let Err(errno) = waited {
        tracing::warn!(pid = process.identity.pid, %errno, "reaping a process failed");
    }
    *reaped = true;
}

pub(super) async fn remove_cgroup(process: &HostProcess) {
    if let Some(leaf) = &process.leaf {
        remove_leaf(leaf).await;
    }
}

/// Remove a cgroup whose process has ended, and kill what it left in there.
pub(super) async fn remove_leaf(leaf: &Leaf) {
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
        Ok(None) => return lost_raw_exit("the kernel gave no status".to_owned()),
        Err(error) => return lost_raw_exit(error.to_string()),
    };
    RawExit {
        exit_code: status.exit_status(),
        signal: status.terminating_signal().and_then(|signal| u32::try_from(signal).ok()),
        ..RawExit::default()
    }
}

fn lost_raw_exit(reason: String) -> RawExit {
    RawExit {
        error: Some(format!("the exit of the process was lost: {reason}")),
        ..RawExit::default()
    }
}

//! The agent's watch over a supervised process: from the supervisor's end to the exit the runner sees.
//!
//! ```text
//! supervisor ended ── record ───────────────────────────────────────► its exit
//!                 └── none ─► what it left is killed until it is gone ─► an exit with an error text
//! task ended, supervisor there ── it cannot write its record and keeps it ─► read from there
//!                              ├── something the task started is left ─────► waited for
//!                              └── nothing is, for long: it hangs ─────────► killed
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;

use super::error::ProcessError;
use super::leftovers::{self, Certainty, RemainingProcess};
use super::reap::{WaitTarget, find_leftovers, kill_until_gone, remove_cgroup, wait_for_end};
use super::supervise::record::{self, ExitRecord, ExitRecordError, ExitRecords};
use super::{HostProcess, ProcessHost, identity};
use ostler_model::causes::chain;
use ostler_model::clock::{self, Stopwatch};
use ostler_model::disk_work::run_disk_work;
use ostler_model::ids::RunId;
use ostler_model::limits::{EXIT_READ_WALL_MAX, KILL_GRACE};
use ostler_model::task::RawExit;

/// Why an exit is not known, as the task's events show it: the supervisor was killed.
const SUPERVISOR_LOST: &str =
    "the exit status is unknown: the supervisor of the process was killed";
/// Why an exit is not known where the directory of records is gone.
const RECORDS_REMOVED: &str =
    "the exit status is unknown: the directory of exit records was removed";
/// Shortest and longest pause before a record that cannot be read now is looked for again.
const LOOK_PAUSE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(10);

/// Pauses that double, from the shortest to the longest of [`LOOK_PAUSE`].
struct BackoffPauses(Duration);

impl BackoffPauses {
    const fn new() -> Self {
        Self(*LOOK_PAUSE.start())
    }

    fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = pause.saturating_mul(2).min(*LOOK_PAUSE.end());
        pause
    }
}

/// Wait for the supervisor of a process, and publish the exit it left.
pub(super) async fn watch_over(
    host: ProcessHost,
    run: RunId,
    process: Arc<HostProcess>,
    records: ExitRecords,
    exit: watch::Sender<Option<RawExit>>,
) {
    let found = match wait_until_over(&run, &process).await {
        Some(kept) => Ok(Some(kept)),
        None => read_disk_record(&run, &process, &records).await,
    };
    let raw = match found {
        Ok(Some(record)) => {
            record.complain();
            record.into_exit()
        }
        missing => {
            process.end_without_supervisor();
            wait_lost_exit(
                &host,
                &run,
                &process,
                Certainty::Now,
                missing.err().map(ProcessError::from),
            )
            .await
        }
    };
    publish(&host, &run, &process, raw, &exit).await;
}

/// Own what the killed supervisor of an earlier agent's process left, until all of that has ended.
pub(super) async fn end_leftovers(
    host: ProcessHost,
    run: RunId,
    process: Arc<HostProcess>,
    why: Option<ProcessError>,
    exit: watch::Sender<Option<RawExit>>,
) {
    let raw = wait_lost_exit(&host, &run, &process, Certainty::Recorded, why).await;
    publish(&host, &run, &process, raw, &exit).await;
}

/// End what a supervisor without a record left, and return the exit of its process.
async fn wait_lost_exit(
    host: &ProcessHost,
    run: &RunId,
    process: &Arc<HostProcess>,
    known: Certainty,
    why: Option<ProcessError>,
) -> RawExit {
    let left = kill_until_gone(process, || find_leftovers(run, process, known)).await;
    host.lost_exit(why, &left)
}

async fn publish(
    host: &ProcessHost,
    run: &RunId,
    process: &HostProcess,
    raw: RawExit,
    exit: &watch::Sender<Option<RawExit>>,
) {
    remove_cgroup(process).await;
    exit.send_replace(Some(raw));
    // Of this and the forgetting, whichever comes second sees the other.
    if process.forgotten.load(Ordering::SeqCst) {
        host.remove_record(run, process);
        process.dismiss();
    }
}

/// Wait until the supervisor has ended. Returns its record where it keeps one in memory, because it
/// cannot write it to the disk.
async fn wait_until_over(run: &RunId, process: &Arc<HostProcess>) -> Option<ExitRecord> {
    let supervisor = async {
        match wait_for_end(process, WaitTarget::Watched).await {
            Ok(()) => process.unwatched.store(true, Ordering::SeqCst),
            Err(error) => {
                let pid = process.identity.pid;
                tracing::warn!(%error, pid, "waiting for a supervisor failed");
            }
        }
    };
    tokio::pin!(supervisor);
    tokio::select! {
        biased;
        () = &mut supervisor => return None,
        () = wait_task_end(process) => {}
    }
    let (watch, mut pauses, mut said) = (Stopwatch::start(), BackoffPauses::new(), false);
    loop {
        if clock::timeout(pauses.next(), &mut supervisor).await.is_some() {
            return None;
        }
        if let Some(record) = read_kept_record(run, process).await {
            tracing::warn!(%run, "a supervisor cannot write the exit of its task and keeps it; look at the data directory's disk");
            return Some(record);
        }
        if watch.elapsed() <= KILL_GRACE {
            continue;
        }
        match find_leftovers(run, process, Certainty::Now).await {
            // Nothing is left that the supervisor could wait for.
            Ok(left) if left.is_empty() && !waits_in_kernel(process) => {
                tracing::warn!(%run, "a supervisor does not end after its task and is killed: it hangs");
                process.dismiss();
            }
            left if !std::mem::replace(&mut said, true) => {
                let left: Vec<String> =
                    left.unwrap_or_default().iter().map(ToString::to_string).collect();
                tracing::warn!(%run, left = left.join(", "), "a task has ended, what it started has not; it is over when that is");
            }
            _ => {}
        }
    }
}

/// Whether the supervisor is in uninterruptible sleep: it then writes to a disk that does not
/// answer now.
fn waits_in_kernel(process: &HostProcess) -> bool {
    let stat =
        process.identity.supervisor.and_then(|who| identity::stat_of(who.pid).ok().flatten());
    stat.is_some_and(|stat| stat.state == b'D')
}

/// Wait until the task below a supervisor has ended.
async fn wait_task_end(process: &Arc<HostProcess>) {
    if process.pidfd(WaitTarget::Task).is_some()
        && let Err(error) = wait_for_end(process, WaitTarget::Task).await
    {
        tracing::debug!(%error, pid = process.identity.pid, "waiting for a task failed");
    }
}

/// The record that the supervisor keeps in memory.
async fn read_kept_record(run: &RunId, process: &HostProcess) -> Option<ExitRecord> {
    let supervisor = process.identity.supervisor?;
    let run = run.clone();
    let read = move || {
        let same = || identity::open_same(supervisor.pid, supervisor.start_ticks);
        // While the pidfd is open, the pid names the supervisor and no other process.
        let _held = same().ok().flatten()?;
        record::read_from_supervisor(supervisor.pid, run.as_str())
    };
    tokio::task::spawn_blocking(read).await.ok().flatten()
}

/// The record on the disk. A record that cannot be read now is tried again for a while: a shortage
/// of descriptors, for example, says nothing about the exit.
async fn read_disk_record(
    run: &RunId,
    process: &HostProcess,
    records: &ExitRecords,
) -> Result<Option<ExitRecord>, ExitRecordError> {
    let (watch, mut pauses) = (Stopwatch::start(), BackoffPauses::new());
    loop {
        let (records, key, identity) = (records.clone(), run.clone(), process.identity.clone());
        let read = run_disk_work(move || records.read(&key, identity.pid, identity.start_ticks));
        match read.await.unwrap_or(Ok(None)) {
            Err(error @ ExitRecordError::Directory { .. })
                if watch.elapsed() < EXIT_READ_WALL_MAX =>
            {
                tracing::warn!(%run, error = chain(&error), "an exit record cannot be read now");
                clock::sleep(pauses.next()).await;
            }
            read => return read,
        }
    }
}

impl ProcessHost {
    /// The exit of a process whose supervisor left no record that can be read. `left` are processes
    /// that may belong to it and were left alone.
    pub(super) fn lost_exit(
        &self,
        why: Option<ProcessError>,
        left: &[RemainingProcess],
    ) -> RawExit {
        let removed = self.line().is_some_and(|line| line.records().is_removed());
        let mut text = match why {
            Some(error) => format!("the exit status is unknown: {}", chain(&error)),
            None if removed => RECORDS_REMOVED.to_owned(),
            None => SUPERVISOR_LOST.to_owned(),
        };
        if let Some(others) = leftovers::describe_uncertain(left) {
            text.push_str("; ");
            text.push_str(&others);
        }
        let finished_at = self.inner.clock.now();
        RawExit { error: Some(text), finished_at, ..RawExit::default() }
    }
}

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

use super::error::{ProcessError, chain};
use super::left::{self, Certainty, RemainingProcess};
use super::reap::{Whose, ended, gone, left_of, remove_cgroup};
use super::supervise::record::{self, ExitRecord, ExitRecordError, Records};
use super::{Process, ProcessHost, identity};
use ostler_model::clock::{self, Stopwatch};
use ostler_model::ids::RunId;
use ostler_model::limits::{EXIT_READ_WALL_MAX, KILL_GRACE};
use ostler_model::task::RawExit;

/// Why an exit is not known; the tasks' events show it.
const SUPERVISOR_LOST: &str = "the exit is not known: the supervisor of the process was killed";
/// The same when nobody can tell what became of the supervisor.
const RECORDS_REMOVED: &str = "the exit is not known: the directory of exit records was removed";
/// How soon, and how often at least, a record that cannot be had now is looked for again.
const LOOK_PAUSE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(10);

/// Pauses that double.
struct Pauses(Duration);

impl Pauses {
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
    process: Arc<Process>,
    records: Records,
    exit: watch::Sender<Option<RawExit>>,
) {
    let found = match until_over(&run, &process).await {
        Some(kept) => Ok(Some(kept)),
        None => read(&run, &process, &records).await,
    };
    let raw = match found {
        Ok(Some(record)) => {
            record.complain();
            record.into_exit()
        }
        missing => {
            process.end_without_supervisor();
            lost(&host, &run, &process, Certainty::Now, missing.err().map(ProcessError::from)).await
        }
    };
    publish(&host, &run, &process, raw, &exit).await;
}

/// Own what the killed supervisor of an earlier agent's process left, until it has ended.
pub(super) async fn end_left(
    host: ProcessHost,
    run: RunId,
    process: Arc<Process>,
    why: Option<ProcessError>,
    exit: watch::Sender<Option<RawExit>>,
) {
    let raw = lost(&host, &run, &process, Certainty::Recorded, why).await;
    publish(&host, &run, &process, raw, &exit).await;
}

/// The exit of a process whose supervisor left no record, once nothing is left of it.
async fn lost(
    host: &ProcessHost,
    run: &RunId,
    process: &Arc<Process>,
    known: Certainty,
    why: Option<ProcessError>,
) -> RawExit {
    let left = gone(process, || left_of(run, process, known)).await;
    host.lost_exit(why, &left)
}

async fn publish(
    host: &ProcessHost,
    run: &RunId,
    process: &Process,
    raw: RawExit,
    exit: &watch::Sender<Option<RawExit>>,
) {
    remove_cgroup(process).await;
    exit.send_replace(Some(raw));
    // Whichever comes second, this or the forgetting, sees the other.
    if process.forgotten.load(Ordering::SeqCst) {
        host.remove_record(run, process);
        process.dismiss();
    }
}

/// Wait until the supervisor has ended; or until it keeps the exit because it cannot write it down.
async fn until_over(run: &RunId, process: &Arc<Process>) -> Option<ExitRecord> {
    let supervisor = async {
        if let Err(error) = ended(process, Whose::Watched).await {
            tracing::warn!(%error, pid = process.identity.pid, "waiting for a supervisor failed");
        }
    };
    tokio::pin!(supervisor);
    tokio::select! {
        biased;
        () = &mut supervisor => return None,
        () = task_ended(process) => {}
    }
    let (watch, mut pauses, mut said) = (Stopwatch::start(), Pauses::new(), false);
    loop {
        if clock::timeout(pauses.next(), &mut supervisor).await.is_some() {
            return None;
        }
        if let Some(record) = kept(run, process).await {
            tracing::warn!(%run, "a supervisor cannot write the exit of its task and keeps it; look at the data directory's disk");
            return Some(record);
        }
        if watch.elapsed() <= KILL_GRACE {
            continue;
        }
        match left_of(run, process, Certainty::Now).await {
            // Nothing is left that it could wait for.
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

/// Is the supervisor in uninterruptible sleep? Then it writes to a disk that does not answer now.
fn waits_in_kernel(process: &Process) -> bool {
    let stat =
        process.identity.supervisor.and_then(|who| identity::stat_of(who.pid).ok().flatten());
    stat.is_some_and(|stat| stat.state == b'D')
}

/// Wait until the task below a supervisor has ended; at once when it had before.
async fn task_ended(process: &Arc<Process>) {
    if process.pidfd(Whose::Task).is_some()
        && let Err(error) = ended(process, Whose::Task).await
    {
        tracing::debug!(%error, pid = process.identity.pid, "waiting for a task failed");
    }
}

/// The record that the supervisor keeps in memory.
async fn kept(run: &RunId, process: &Process) -> Option<ExitRecord> {
    let supervisor = process.identity.supervisor?;
    let run = run.clone();
    let read = move || {
        let same = || identity::open_same(supervisor.pid, supervisor.start_ticks);
        // Held open meanwhile: the number means the supervisor until it is read.
        let _held = same().ok().flatten()?;
        record::kept(supervisor.pid, run.as_str())
    };
    tokio::task::spawn_blocking(read).await.ok().flatten()
}

/// The record on the disk. One that cannot be read now is tried again for a while: that no descriptor
/// is left says nothing about the exit.
async fn read(
    run: &RunId,
    process: &Process,
    records: &Records,
) -> Result<Option<ExitRecord>, ExitRecordError> {
    let (watch, mut pauses) = (Stopwatch::start(), Pauses::new());
    loop {
        let (records, key, identity) = (records.clone(), run.clone(), process.identity.clone());
        let read = tokio::task::spawn_blocking(move || {
            records.read(&key, identity.pid, identity.start_ticks)
        });
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
    /// The exit of a process whose supervisor left no record that can be read. `left`: what may be of
    /// it and was not touched.
    pub(super) fn lost_exit(
        &self,
        why: Option<ProcessError>,
        left: &[RemainingProcess],
    ) -> RawExit {
        let removed = self.line().is_some_and(|line| line.records().is_removed());
        let mut text = match why {
            Some(error) => format!("the exit is not known: {}", chain(&error)),
            None if removed => RECORDS_REMOVED.to_owned(),
            None => SUPERVISOR_LOST.to_owned(),
        };
        if let Some(others) = left::uncertain(left) {
            text.push_str("; ");
            text.push_str(&others);
        }
        let finished_at = self.inner.clock.now();
        RawExit { error: Some(text), finished_at, ..RawExit::default() }
    }
}

//! Garbage collection: allocations that are over keep their directory, for their logs, until room
//! or numbers ask for it.
//!
//! ```text
//!  interval ─────────────┐
//!  poke: one is over ────┤► owner (one tokio task) ─► choice (pure) ─► destroy ─► measure ─┐
//!  collect: on demand ───┘        ▲                                                        │
//!                                 └────────────────────────────────────────────────────────┘
//! ```
//! [`choice`] decides; this acts. The file system is measured again only when a removal is complete
//! and, where the file system frees late, made to catch up: so no more goes than is needed. Nobody
//! is held up by it: [`GcHandle::poke`] never blocks, and a removal that hangs is given up for now
//! after [`GC_DESTROY_WALL_MAX`].
//!
//! Of the ledger (reference §1.14, §2.11):
//! - H45 (#25123), collection blocked the client's loop: it has its own task, and
//!   `a_destroy_that_hangs_holds_up_neither_who_pokes_nor_the_end_of_the_agent`.
//! - L13, the look before anything is freed: `one_is_removed_when_one_is_enough_however_slow…`.
//! - #3421, one cannot be collected alone: `on_demand_one_goes_or_all_do`.

pub mod choice;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use self::choice::{Candidate, Crowd, FsUse, GcPolicy, GcReason, GcState, GcStep};
use ostler_model::clock;
use ostler_model::ids::AllocId;
use ostler_model::limits::{
    GC_DESTROY_WALL_MAX, GC_INTERVAL_MIN, GC_MEASURE_WALL_MAX, GC_REQUESTS_QUEUE_MAX,
};
use ostler_model::ports::BoxFuture;

/// The allocations, as far as collecting them goes.
pub trait Garbage: Send + Sync + 'static {
    /// Those that are over and that nobody waits for: an allocation whose data a successor still
    /// takes is none of them. Cheap.
    fn candidates(&self) -> Vec<Candidate>;

    /// How many there are besides. Cheap.
    fn live(&self) -> usize;

    /// Remove directory and records of one; complete when it is gone. Idempotent.
    ///
    /// The error says why it is not gone, for people.
    fn destroy(&self, id: AllocId) -> BoxFuture<'static, Result<(), String>>;
}

/// Tells how full the file system is.
pub trait Gauge: Send + Sync + 'static {
    /// Measure; may block. `settle`: something was removed, and what it freed should be seen.
    ///
    /// # Errors
    /// When the operating system does not tell.
    fn measure(&self, settle: bool) -> io::Result<FsUse>;
}

/// The file system that holds a directory.
#[derive(Clone, Debug)]
pub struct FsGauge {
    /// The directory.
    pub root: PathBuf,
}

impl Gauge for FsGauge {
    fn measure(&self, settle: bool) -> io::Result<FsUse> {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&self.root, flags, Mode::empty())?;
        if settle {
            // Some file systems (btrfs, xfs) free what was unlinked later, in the background. A
            // look too early would have the next allocation removed for nothing.
            rustix::fs::syncfs(&root)?;
        }
        let stat = rustix::fs::fstatvfs(&root)?;
        // As df does: what is kept for root is neither used nor free for us.
        let disk_used = stat.f_blocks.saturating_sub(stat.f_bfree);
        let inodes_used = stat.f_files.saturating_sub(stat.f_ffree);
        Ok(FsUse {
            disk_used,
            disk_total: disk_used.saturating_add(stat.f_bavail),
            inodes_used,
            inodes_total: if stat.f_files == 0 {
                0
            } else {
                inodes_used.saturating_add(stat.f_favail)
            },
        })
    }
}

/// What became of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Gone, with directories and records; oldest first.
    pub allocs: Vec<AllocId>,
    /// Not gone, and why.
    pub failed: Vec<(AllocId, String)>,
}

/// Why a request was not even tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CollectError {
    /// There is nothing to collect by this id.
    #[error(
        "allocation {alloc} cannot be collected: it is not over, not here, or the data in it is \
         still being moved; stop it first"
    )]
    NotGarbage {
        /// Which.
        alloc: AllocId,
    },
    /// The agent is on its way out.
    #[error("the agent is stopping and collects nothing any more")]
    Stopping,
}

struct Ask {
    alloc: Option<AllocId>,
    reply: oneshot::Sender<Result<Removed, CollectError>>,
}

/// The way to the collector. Clones share it.
#[derive(Clone, Debug)]
pub struct GcHandle {
    wake: Arc<Notify>,
    asks: mpsc::Sender<Ask>,
}

impl GcHandle {
    /// Something changed (an allocation is over, or a new one came): look now. Never blocks; many
    /// pokes during one look are one more look.
    pub fn poke(&self) {
        self.wake.notify_one();
    }

    /// Remove one allocation that is over, or all of them, whatever the thresholds say. Complete
    /// when they are gone or have failed.
    ///
    /// # Errors
    /// See [`CollectError`]; failures of single allocations are in [`Removed::failed`].
    pub async fn collect(&self, alloc: Option<AllocId>) -> Result<Removed, CollectError> {
        let (reply, answer) = oneshot::channel();
        self.asks.send(Ask { alloc, reply }).await.map_err(|_| CollectError::Stopping)?;
        answer.await.map_err(|_| CollectError::Stopping)?
    }
}

/// Start the collector. It ends when `cancel` is cancelled, whatever it does, or when the last handle
/// goes; removals under way are then no longer waited for. Needs a tokio runtime.
#[must_use]
pub fn spawn(
    policy: GcPolicy,
    garbage: Arc<dyn Garbage>,
    gauge: Arc<dyn Gauge>,
    cancel: CancellationToken,
) -> (GcHandle, JoinHandle<()>) {
    let wake = Arc::new(Notify::new());
    let (asks, queue) = mpsc::channel(GC_REQUESTS_QUEUE_MAX);
    let owner = Owner { policy, garbage, gauge, state: GcState::default(), said: None };
    let woken = Arc::clone(&wake);
    let task = tokio::spawn(async move {
        // Every wait of the owner ends with this one.
        let _ = cancel.run_until_cancelled(owner.run(queue, &woken)).await;
    });
    (GcHandle { wake, asks }, task)
}

struct Owner {
    policy: GcPolicy,
    garbage: Arc<dyn Garbage>,
    gauge: Arc<dyn Gauge>,
    state: GcState,
    /// Whether the crowd that was last told of was great.
    said: Option<bool>,
}

impl Owner {
    async fn run(mut self, mut asks: mpsc::Receiver<Ask>, wake: &Notify) {
        let interval = self.policy.interval.max(GC_INTERVAL_MIN);
        let mut tick = Box::pin(clock::sleep(interval));
        loop {
            tokio::select! {
                ask = asks.recv() => match ask {
                    Some(ask) => self.answer(ask).await,
                    None => return,
                },
                () = wake.notified() => self.look().await,
                () = &mut tick => {
                    self.state.tick();
                    self.look().await;
                    tick = Box::pin(clock::sleep(interval));
                }
            }
        }
    }

    /// Remove what has to go.
    async fn look(&mut self) {
        let mut settle = false;
        loop {
            let measured = self.measure(settle).await;
            let (terminal, live) = (self.garbage.candidates(), self.garbage.live());
            match self.state.next(&self.policy, measured, &terminal, live) {
                GcStep::Done { crowd } => return self.tell(crowd),
                GcStep::Destroy { ids, reason } => {
                    self.destroy(ids, reason).await;
                    settle = true;
                }
            }
        }
    }

    async fn answer(&mut self, ask: Ask) {
        let mut candidates = self.garbage.candidates();
        candidates.sort_unstable_by_key(|candidate| (candidate.ended_at, candidate.id));
        let wanted = |candidate: &Candidate| ask.alloc.is_none_or(|alloc| alloc == candidate.id);
        let ids: Vec<AllocId> =
            candidates.into_iter().filter(wanted).map(|candidate| candidate.id).collect();
        let answer = match ask.alloc {
            Some(alloc) if ids.is_empty() => Err(CollectError::NotGarbage { alloc }),
            _ => Ok(self.destroy(ids, GcReason::Asked).await),
        };
        // Whoever asked may have left meanwhile.
        let _ = ask.reply.send(answer);
    }

    /// Remove allocations, `parallel` at a time, and wait for all of them.
    async fn destroy(&mut self, ids: Vec<AllocId>, reason: GcReason) -> Removed {
        let parallel = usize::try_from(self.policy.parallel.max(1)).unwrap_or(usize::MAX);
        let mut waiting = ids.iter().copied();
        let (mut running, mut names) = (JoinSet::new(), BTreeMap::new());
        let mut failed = BTreeMap::new();
        loop {
            while running.len() < parallel
                && let Some(id) = waiting.next()
            {
                let destroy = self.garbage.destroy(id);
                let task = running.spawn(clock::timeout(GC_DESTROY_WALL_MAX, destroy));
                names.insert(task.id(), id);
            }
            let Some(joined) = running.join_next_with_id().await else { break };
            let (task, outcome) = match joined {
                Ok((task, outcome)) => (task, outcome),
                Err(error) => (error.id(), Some(Err("its removal ended unexpectedly".to_owned()))),
            };
            let Some(id) = names.remove(&task) else { continue };
            let error = match outcome {
                Some(Ok(())) => {
                    self.state.destroyed(id);
                    tracing::info!(alloc = %id, %reason, "allocation collected");
                    continue;
                }
                Some(Err(error)) => {
                    self.state.failed(id);
                    error
                }
                None => {
                    self.state.hung(id);
                    format!("not done within {} s", GC_DESTROY_WALL_MAX.as_secs())
                }
            };
            tracing::warn!(alloc = %id, %reason, %error, "cannot collect the allocation");
            failed.insert(id, error);
        }
        let mut removed = Removed::default();
        for id in ids {
            match failed.remove(&id) {
                Some(error) => removed.failed.push((id, error)),
                None => removed.allocs.push(id),
            }
        }
        removed
    }

    async fn measure(&self, settle: bool) -> Option<FsUse> {
        let gauge = Arc::clone(&self.gauge);
        let measuring = tokio::task::spawn_blocking(move || gauge.measure(settle));
        match clock::timeout(GC_MEASURE_WALL_MAX, measuring).await {
            Some(Ok(Ok(measured))) => return Some(measured),
            Some(Ok(Err(error))) => tracing::warn!(%error, "cannot tell how full the disk is"),
            Some(Err(_)) => tracing::warn!("measuring the disk ended unexpectedly"),
            None => tracing::warn!(
                "the disk does not answer within {} s; allocations are collected by number only",
                GC_MEASURE_WALL_MAX.as_secs()
            ),
        }
        None
    }

    /// Say that there are too many, when that is new.
    fn tell(&mut self, crowd: Option<Crowd>) {
        let great = crowd.map(|crowd| crowd.is_great());
        if let Some(crowd) = crowd.filter(|_| self.said != great) {
            let Crowd { have, max } = crowd;
            let text = "more allocations than gc.max_allocs, and only those that are over can go";
            if crowd.is_great() {
                tracing::warn!(have, max, "{text}");
            } else {
                tracing::info!(have, max, "{text}");
            }
        }
        self.said = great;
    }
}

#[cfg(test)]
mod tests;

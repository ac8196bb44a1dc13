//! Records go to the store one batch after the other, in the order of decisions.
//!
//! ```text
//!   batch ─► queued in the store ─► its owners are made, and queue the intents of their tasks
//!         ─► one commit (beside the next batch) ─► Written
//! ```
//! A store that takes nothing holds up the batches, and nothing else of the node.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::{Done, Owner};
use crate::machine::{BatchId, ControlEvent, Wait, Write};
use ostler_model::alloc::Allocation;
use ostler_model::saved::AcknowledgedState;
use ostler_state::{Key, Prefix, Put, StateError, StateStore, WriteMark};

/// Records on their way to the store.
pub(super) struct Batch {
    pub(super) batch: BatchId,
    pub(super) writes: Vec<Write>,
    pub(super) own: Vec<Arc<Allocation>>,
    pub(super) wait: Wait,
}

/// A batch that the store has taken.
pub(super) struct Queued {
    batch: Batch,
    /// The point behind its records; none: all of them were durable already.
    result: Result<Option<WriteMark>, StateError>,
}

#[derive(Default)]
pub(super) struct Lane {
    waiting: VecDeque<Batch>,
    busy: bool,
}

impl Owner {
    pub(super) fn write(&mut self, batch: Batch) {
        self.lane.waiting.push_back(batch);
        self.next_batch();
    }

    fn next_batch(&mut self) {
        if self.lane.busy {
            return;
        }
        let Some(batch) = self.lane.waiting.pop_front() else { return };
        self.lane.busy = true;
        let state = self.shared.options.state.clone();
        self.running.push(Box::pin(async move {
            let result = queue(&state, &batch.writes).await;
            Done::Queued(Queued { batch, result })
        }));
    }

    /// A batch is in the queue of the store: whoever it is about may start.
    pub(super) fn queued(&mut self, queued: Queued) {
        let Queued { batch: Batch { batch, writes, own, wait }, result } = queued;
        let mark = match result {
            Ok(mark) => mark,
            Err(error) => {
                self.lane.busy = false;
                self.next_batch();
                return self.feed(ControlEvent::Written { batch, result: Err(error) });
            }
        };
        // What starts has put its intent behind these records: nothing else is worth waiting for.
        let wait = match wait {
            Wait::Commit { .. } if !own.is_empty() => Wait::Commit { linger: Duration::ZERO },
            wait => wait,
        };
        for alloc in own {
            let (alloc, result) = (alloc.id, self.make_owner(alloc));
            self.feed(ControlEvent::Owned { alloc, result });
        }
        let state = self.shared.options.state.clone();
        self.running.push(Box::pin(async move {
            let result = durable(&state, writes, wait, mark).await;
            Done::ControlEvent(ControlEvent::Written { batch, result })
        }));
        self.lane.busy = false;
        self.next_batch();
    }
}

/// Hand records to the store. The point behind them; none when all were durable already.
async fn queue(state: &StateStore, writes: &[Write]) -> Result<Option<WriteMark>, StateError> {
    let mut news = writes.is_empty();
    for write in writes {
        let put = match write {
            Write::Job(record) => {
                state.put_later(&Key::Job(record.job.id.clone()), &**record).await?
            }
            Write::Alloc(alloc) => state.put_later(&Key::Alloc(alloc.id), &**alloc).await?,
            Write::Assigned(alloc) => {
                let nothing = AcknowledgedState::default();
                state.put_later(&Key::AcknowledgedState(*alloc), &nothing).await?
            }
            Write::Ledger(ledger) => state.put_later(&Key::DeviceLedger, ledger).await?,
            Write::Scheduling(node) => state.put_later(&Key::NodeScheduling, &**node).await?,
            Write::Places(block, places) => {
                state.put_later(&Key::EndedPlaces(block.clone()), places).await?
            }
            Write::Deployments(job, known) => {
                state.put_later(&Key::JobDeployments(job.clone()), known).await?
            }
            Write::Versions(job, known) => {
                state.put_later(&Key::JobVersions(job.clone()), known).await?
            }
            Write::ForgetJob(_)
            | Write::ForgetPlaces(_)
            | Write::ForgetAlloc(_)
            | Write::ForgetDeployments(_)
            | Write::ForgetVersions(_) => Put::Queued,
        };
        news |= put == Put::Queued;
    }
    Ok(news.then(|| state.mark()))
}

/// Remove what is to go, and wait as long as is to be waited.
async fn durable(
    state: &StateStore,
    writes: Vec<Write>,
    wait: Wait,
    mark: Option<WriteMark>,
) -> Result<(), StateError> {
    let forgets = writes.iter().map(|write| forget(state, write));
    let forgotten = join_all(forgets).await;
    let removed = forgotten.into_iter().try_fold(false, |any, one| one.map(|one| any | one))?;
    match (wait, mark) {
        // A removal is durable when it returns, and so is what was queued before it.
        (Wait::Commit { linger }, Some(mark)) if !removed => state.durable_to(mark, linger).await,
        _ => Ok(()),
    }
}

/// Whether it is a removal; it is durable then.
async fn forget(state: &StateStore, write: &Write) -> Result<bool, StateError> {
    match write {
        Write::ForgetJob(job) => state.delete(&Key::Job(job.clone())).await?,
        Write::ForgetAlloc(alloc) => state.destroy_alloc(*alloc).await?,
        Write::ForgetPlaces(job) => state.delete_all(&Prefix::BesideJob(job.clone())).await?,
        Write::ForgetDeployments(job) => state.delete(&Key::JobDeployments(job.clone())).await?,
        Write::ForgetVersions(job) => state.delete(&Key::JobVersions(job.clone())).await?,
        Write::Job(_)
        | Write::Alloc(_)
        | Write::Assigned(_)
        | Write::Ledger(_)
        | Write::Scheduling(_)
        | Write::Places(..)
        | Write::Deployments(..)
        | Write::Versions(..) => return Ok(false),
    }
    Ok(true)
}

//! Writes records to the store, one batch after the other, in the order of the decisions.
//!
//! ```text
//!   batch ─► queued in the store ─► its owners are made, and queue the intents of their tasks
//!         ─► one commit (beside the next batch) ─► Written
//! ```
//! A store that accepts nothing holds up the batches, and nothing else of the node.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::{FutureOutcome, NodeOwner};
use crate::machine::{BatchId, ControlEvent, Write, WriteWait};
use ostler_model::alloc::Allocation;
use ostler_model::saved::AcknowledgedState;
use ostler_state::records::{
    AcknowledgedStateKey, AllocKey, DeviceLedgerKey, EndedPlacesKey, JobDeploymentsKey,
    JobRecordKey, JobVersionsKey, NodeSchedulingKey,
};
use ostler_state::{KeyPrefix, PutOutcome, RecordKey, StateError, StateStore, WriteMark};

/// Records on their way to the store, and what follows them.
pub(super) struct RecordBatch {
    pub(super) batch: BatchId,
    pub(super) writes: Vec<Write>,
    pub(super) own: Vec<Arc<Allocation>>,
    pub(super) wait: WriteWait,
}

/// A batch that is in the queue of the store.
pub(super) struct QueuedBatch {
    batch: RecordBatch,
    /// The point behind its records; `None`: all of them were durable already.
    result: Result<Option<WriteMark>, StateError>,
}

#[derive(Default)]
pub(super) struct BatchLane {
    waiting: VecDeque<RecordBatch>,
    busy: bool,
}

impl NodeOwner {
    pub(super) fn write(&mut self, batch: RecordBatch) {
        self.lane.waiting.push_back(batch);
        self.next_batch();
    }

    fn next_batch(&mut self) {
        if self.lane.busy {
            return;
        }
        let Some(batch) = self.lane.waiting.pop_front() else { return };
        self.lane.busy = true;
        let state = self.shared.options.node.state.clone();
        self.running.push(Box::pin(async move {
            let result = queue(&state, &batch.writes).await;
            FutureOutcome::Queued(QueuedBatch { batch, result })
        }));
    }

    /// A batch is in the queue of the store: the owners of its allocations may start.
    pub(super) fn finish_queue(&mut self, queued: QueuedBatch) {
        let QueuedBatch { batch: RecordBatch { batch, writes, own, wait }, result } = queued;
        let mark = match result {
            Ok(mark) => mark,
            Err(error) => {
                self.lane.busy = false;
                self.next_batch();
                return self.feed(ControlEvent::Written { batch, result: Err(error) });
            }
        };
        // What starts puts its intent behind these records, so nothing else is worth waiting for.
        let wait = match wait {
            WriteWait::Commit { .. } if !own.is_empty() => {
                WriteWait::Commit { linger: Duration::ZERO }
            }
            wait => wait,
        };
        for alloc in own {
            let (alloc, result) = (alloc.id, self.make_owner(alloc));
            self.feed(ControlEvent::Owned { alloc, result });
        }
        let state = self.shared.options.node.state.clone();
        self.running.push(Box::pin(async move {
            let result = make_durable(&state, writes, wait, mark).await;
            FutureOutcome::ControlEvent(ControlEvent::Written { batch, result })
        }));
        self.lane.busy = false;
        self.next_batch();
    }
}

/// Hand records to the store. Returns the point behind them; `None` when all were durable already.
async fn queue(state: &StateStore, writes: &[Write]) -> Result<Option<WriteMark>, StateError> {
    let mut news = writes.is_empty();
    for write in writes {
        let put = match write {
            Write::Job(record) => {
                state.put_later(&JobRecordKey::of(record.job.id.clone()), &**record).await?
            }
            Write::Alloc(alloc) => state.put_later(&AllocKey::of(alloc.id), &**alloc).await?,
            Write::Assigned(alloc) => {
                let nothing = AcknowledgedState::default();
                state.put_later(&AcknowledgedStateKey::of(*alloc), &nothing).await?
            }
            Write::Ledger(ledger) => state.put_later(&DeviceLedgerKey::of(), ledger).await?,
            Write::Scheduling(node) => state.put_later(&NodeSchedulingKey::of(), &**node).await?,
            Write::Places(block, places) => {
                state.put_later(&EndedPlacesKey::of(block.clone()), places).await?
            }
            Write::Deployments(job, known) => {
                state.put_later(&JobDeploymentsKey::of(job.clone()), known).await?
            }
            Write::Versions(job, known) => {
                state.put_later(&JobVersionsKey::of(job.clone()), known).await?
            }
            Write::ForgetJob(_)
            | Write::ForgetPlaces(_)
            | Write::ForgetAlloc(_)
            | Write::ForgetDeployments(_)
            | Write::ForgetVersions(_) => PutOutcome::Queued,
        };
        news |= put == PutOutcome::Queued;
    }
    Ok(news.then(|| state.mark()))
}

/// Remove records, and wait for the commit as the batch asks.
async fn make_durable(
    state: &StateStore,
    writes: Vec<Write>,
    wait: WriteWait,
    mark: Option<WriteMark>,
) -> Result<(), StateError> {
    let forgets = writes.iter().map(|write| forget(state, write));
    let forgotten = join_all(forgets).await;
    let removed = forgotten.into_iter().try_fold(false, |any, one| one.map(|one| any | one))?;
    match (wait, mark) {
        // A removal is durable when it returns, and so is what was queued before it.
        (WriteWait::Commit { linger }, Some(mark)) if !removed => {
            state.wait_durable_to(mark, linger).await
        }
        _ => Ok(()),
    }
}

/// Carry out a removal. Returns whether the write is one; it is durable then.
async fn forget(state: &StateStore, write: &Write) -> Result<bool, StateError> {
    match write {
        Write::ForgetJob(job) => state.delete(&RecordKey::Job(job.clone())).await?,
        Write::ForgetAlloc(alloc) => state.destroy_alloc(*alloc).await?,
        Write::ForgetPlaces(job) => state.delete_all(&KeyPrefix::BesideJob(job.clone())).await?,
        Write::ForgetDeployments(job) => {
            state.delete(&RecordKey::JobDeployments(job.clone())).await?
        }
        Write::ForgetVersions(job) => state.delete(&RecordKey::JobVersions(job.clone())).await?,
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

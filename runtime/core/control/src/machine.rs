//! The node as a pure machine: what follows from what happens. No clock, no I/O, no async.
//!
//! ```text
//! ControlEvent::Asked ─► turn of the job ─► decide ─► Write ─► Written ─► Answer (change, turn)
//!                                               │        └─ failed ─► revert ─► Answer (revert)
//!                                               └─ does not fit ─► blocked ─► Fill     (fill)
//! Reported over ─► ReleaseDevices ─► DevicesOwed ─► room ─► Fill                (allocs)
//! removal: Write places ─► Written ─► Remove ─► Removed ─► forgotten            (removal, collect)
//! Restore ─► Write, owners ─► Owned … ─► Fill ─► Answer                         (restore)
//! Schedule ─► Write ─► Answer; Reported, NodeDrain ─► stops of jobs             (node_drain)
//! Drain, Leave ─► Answer                                                        (leave)
//! ```
//! Changes of one job take turns, from the decision to the answer. Only what a stop ends is ended
//! before its turn (overtake). Everything else is decided when it happens. So each allocation that
//! a decision sees has an owner, made or about to be made, and nothing of another job waits for a
//! disk or a removal.

mod alarms;
mod allocs;
mod change;
mod collect;
mod decide;
mod leave;
mod node_drain;
mod overtake;
mod plan;
mod purge;
mod removal;
mod restore;
mod revert;
mod rollout;
#[cfg(test)]
mod tests;
mod turn;
mod types;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::change_log::NotedChange;
use crate::tables::NodeTables;
use ostler_device::ledger::DeviceLedger;
use ostler_model::ids::{AllocId, JobId};

use alarms::{Alarm, Alarms};
use collect::{AllocCollector, CollectRequest};
use leave::LeaveState;
use removal::Removals;
use restore::RestoreProgress;
use revert::Rewrite;
use turn::JobChanges;

pub use leave::LEAVE_WALL_MAX;
pub use types::{
    BatchId, ControlAnswer, ControlEffect, ControlEvent, ControlRequest, DecidedChange, JobAction,
    NotRemoved, RemovalLeft, RequestId, RestoredNode, World, Write, WriteWait,
};

/// What is to be done when a batch of records is written.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AfterWrite {
    /// The change of this job goes on.
    Change(JobId),
    /// The allocation may be removed: the end of its place is on record.
    Remove(AllocId),
    /// The request is answered.
    Answer(RequestId),
    /// The node is as it was asked to be; after a failure it is as before again.
    Scheduled(Box<node_drain::PendingNodeChange>),
    /// The records of these removed allocations are gone.
    Forgotten(std::collections::BTreeSet<AllocId>),
    /// The records of a restore are queued.
    Restored,
    /// Nothing is to be done. A failure is logged.
    Nothing,
}

/// The state of the node's machine. See the module.
#[derive(Debug)]
pub struct Machine {
    tables: NodeTables,
    turns: JobChanges,
    /// Batches that are being written.
    written: BTreeMap<BatchId, AfterWrite>,
    last_batch: BatchId,
    /// The device ledger that was queued last; `None`: the next one is written in any case.
    ledger: Option<DeviceLedger>,
    removals: Removals,
    collects: Vec<CollectRequest>,
    collector: Option<AllocCollector>,
    rewrites: BTreeMap<JobId, Rewrite>,
    restoring: Option<RestoreProgress>,
    leaving: LeaveState,
    alarms: Alarms,
    /// Waiting places are not tried before this uptime, because the write of one failed.
    fill_from: Duration,
    /// Jobs with a change that was taken back, which is not known to be durable yet.
    reverted: std::collections::BTreeSet<JobId>,
    /// Jobs that may still have something to be done.
    unfilled: std::collections::BTreeSet<JobId>,
}

impl Machine {
    /// A machine with these tables.
    #[must_use]
    pub fn new(tables: NodeTables) -> Self {
        Self {
            tables,
            turns: JobChanges::default(),
            written: BTreeMap::new(),
            last_batch: 0,
            ledger: None,
            removals: Removals::default(),
            collects: Vec::new(),
            collector: None,
            rewrites: BTreeMap::new(),
            restoring: None,
            leaving: LeaveState::default(),
            alarms: Alarms::default(),
            fill_from: Duration::ZERO,
            reverted: std::collections::BTreeSet::new(),
            unfilled: std::collections::BTreeSet::new(),
        }
    }

    /// The tables of everything the node knows.
    #[must_use]
    pub const fn tables(&self) -> &NodeTables {
        &self.tables
    }

    /// The visible changes since the last call.
    pub(crate) fn take_changes(&mut self) -> Vec<NotedChange> {
        self.tables.take_changes()
    }

    /// The uptime at which [`ControlEvent::Alarm`] is due; `None`: never.
    #[must_use]
    pub fn next_alarm(&self) -> Option<Duration> {
        self.alarms.next()
    }

    /// Is nothing under way: no change, no write, no removal?
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.turns.is_empty() && self.written.is_empty() && self.removals.is_empty()
    }

    /// Take an event. Returns what is to be done now, in order.
    #[must_use]
    pub fn step(&mut self, world: &World<'_>, event: ControlEvent) -> Vec<ControlEffect> {
        let mut out = Vec::new();
        match event {
            ControlEvent::Asked { request, ask } => {
                self.handle_request(world, request, ask, &mut out)
            }
            ControlEvent::AskerGone(request) => self.give_up_collect(request),
            ControlEvent::NodeChanged => self.wake(world),
            ControlEvent::Written { batch, result } => {
                self.finish_batch(world, batch, result, &mut out)
            }
            ControlEvent::Owned { alloc, result } => {
                self.handle_owner(world, alloc, result, &mut out)
            }
            ControlEvent::Reported { alloc, report } => {
                self.handle_report(world, alloc, report, &mut out)
            }
            ControlEvent::Removed { alloc, result } => {
                self.handle_removed(world, alloc, result, &mut out)
            }
            ControlEvent::DevicesOwed { alloc, owing } => {
                self.tables.admission.end_alloc(alloc, &owing);
                self.update_ledger(world, &mut out);
            }
            ControlEvent::DevicesReleased(holder) => {
                self.tables.admission.note_release(&holder);
                self.update_ledger(world, &mut out);
            }
            ControlEvent::Measured(fs) => self.take_measurement(fs, &mut out),
            ControlEvent::EndsTold(allocs) => {
                for id in allocs {
                    if let Some(entry) = self.tables.alloc_mut(id) {
                        entry.end_told = true;
                    }
                }
            }
            ControlEvent::RunEnded { name } => self.handle_run_end(world, &name, &mut out),
            ControlEvent::Alarm => {
                for alarm in self.alarms.due(world.uptime) {
                    self.handle_alarm(world, alarm, &mut out);
                }
            }
        }
        out
    }

    fn handle_request(
        &mut self,
        world: &World<'_>,
        request: RequestId,
        ask: ControlRequest,
        out: &mut Vec<ControlEffect>,
    ) {
        match ask {
            ControlRequest::Change { job, asked, skip_shutdown_delay } => {
                self.ask_change(world, job, asked, skip_shutdown_delay, Some(request), out);
            }
            ControlRequest::Collect(only) => self.ask_collect(world, request, only, out),
            ControlRequest::KeepDevices(holder) => {
                self.tables.admission.owe_devices(&holder);
                let writes = self.ledger_write().into_iter().collect();
                let wait = WriteWait::Commit { linger: Duration::ZERO };
                self.write(AfterWrite::Answer(request), writes, Vec::new(), wait, out);
            }
            ControlRequest::Restore(restored) => self.restore(world, request, *restored, out),
            ControlRequest::Ready(policy) => self.become_ready(world, request, policy, out),
            ControlRequest::SetGcPolicy(policy) => {
                self.change_gc_policy(world, request, policy, out)
            }
            ControlRequest::Probe => answer(request, ControlAnswer::Done, out),
            ControlRequest::Schedule(asked) => self.ask_node(world, request, asked, out),
            ControlRequest::Drain(deadline) => self.drain(world, request, deadline, out),
            ControlRequest::Leave => self.leave(world, request, out),
        }
    }

    fn handle_alarm(&mut self, world: &World<'_>, alarm: Alarm, out: &mut Vec<ControlEffect>) {
        match alarm {
            Alarm::Fill => self.fill(world, out),
            Alarm::Due(job) => self.look_again(world, job),
            Alarm::Collect => self.collect_tick(world, out),
            Alarm::CollectNow(request) => self.begin_collect(request, out),
            Alarm::Overdue(job) => self.answer_overdue(world, &job, out),
            Alarm::Rewrite(job) => self.rewrite(world, &job, out),
            Alarm::Forget => self.forget_again(out),
            Alarm::NodeDrain => self.node_drain(world, out),
            Alarm::Drained => self.pass_drain_deadline(world, out),
            Alarm::Left => self.answer_leave(out),
        }
    }

    fn finish_batch(
        &mut self,
        world: &World<'_>,
        batch: BatchId,
        result: Result<(), ostler_state::StateError>,
        out: &mut Vec<ControlEffect>,
    ) {
        match self.written.remove(&batch) {
            Some(AfterWrite::Change(job)) => self.finish_change_write(world, &job, result, out),
            Some(AfterWrite::Remove(alloc)) => self.place_written(world, alloc, result, out),
            Some(AfterWrite::Forgotten(allocs)) => self.finish_forget(world, allocs, result),
            Some(AfterWrite::Answer(request)) => {
                answer(request, ControlAnswer::Written(result), out)
            }
            Some(AfterWrite::Restored) => self.finish_restore_write(world, result, out),
            Some(AfterWrite::Scheduled(then)) => self.finish_schedule(world, *then, result, out),
            // The batch of a stop that was answered without it is not known any more.
            Some(AfterWrite::Nothing) | None => match result {
                Ok(()) | Err(ostler_state::StateError::Closed { .. }) => {}
                Err(error) => tracing::warn!(%error, "records are not written"),
            },
        }
    }

    /// Write records, and make owners of allocations.
    fn write(
        &mut self,
        then: AfterWrite,
        writes: Vec<Write>,
        own: Vec<std::sync::Arc<ostler_model::alloc::Allocation>>,
        wait: WriteWait,
        out: &mut Vec<ControlEffect>,
    ) -> BatchId {
        self.last_batch = self.last_batch.saturating_add(1);
        let batch = self.last_batch;
        self.written.insert(batch, then);
        out.push(ControlEffect::Write { batch, writes, own, wait });
        batch
    }

    /// The write of the device ledger, where it differs from the one queued last.
    fn ledger_write(&mut self) -> Option<Write> {
        let owed = self.tables.admission.owed_devices();
        if self.ledger.as_ref() == Some(&owed) {
            return None;
        }
        self.ledger = Some(owed.clone());
        Some(Write::Ledger(owed))
    }

    /// The devices held towards plugins changed. The record may lag: at worst a device counts as
    /// held by an allocation that is over, which the next start finds out.
    fn update_ledger(&mut self, world: &World<'_>, out: &mut Vec<ControlEffect>) {
        if let Some(write) = self.ledger_write() {
            self.write(AfterWrite::Nothing, vec![write], Vec::new(), WriteWait::No, out);
        }
        self.wake(world);
    }
}

fn answer(request: RequestId, answer: ControlAnswer, out: &mut Vec<ControlEffect>) {
    out.push(ControlEffect::Answer { request, answer: Box::new(answer) });
}

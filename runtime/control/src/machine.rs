//! The node as a pure machine: what follows from what happens. No clock, no I/O, no async.
//!
//! ```text
//!  Asked ──► turn of the job ──► decide ──► Write ──► Written ──► Answer        (change, turn)
//!                                   │         └─ failed ─► revert ─► Answer      (revert)
//!                                   └─ does not fit ─► blocked ─► Fill           (fill)
//!  Reported over ─► ReleaseDevices ─► DevicesOwed ─► room ─► Fill                (allocs)
//!  removal: Write places ─► Written ─► Remove ─► Removed ─► forgotten            (removal, collect)
//!  Restore ─► Write, owners ─► Owned … ─► Fill ─► Answer                         (restore)
//!  Schedule ─► Write ─► Answer; Reported, NodeDrain ─► stops of jobs             (node_drain)
//!  Drain, Leave ─► Answer                                                        (leave)
//! ```
//! Changes of one job take turns, from the decision to the answer; what a stop ends is ended before its
//! turn (overtake). Everything else is decided when it happens. So whoever decides next finds an owner, made or about to be made, for each allocation it
//! sees, and nothing of another job waits for a disk or a removal.

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
use crate::tables::Tables;
use ostler_device::ledger::DeviceLedger;
use ostler_model::ids::{AllocId, JobId};

use alarms::{Alarm, Alarms};
use collect::{Collect, Collector};
use leave::Leaving;
use removal::Removals;
use restore::Restoring;
use revert::Rewrite;
use turn::JobChanges;

pub use leave::LEAVE_WALL_MAX;
pub use types::{
    Answer, Ask, BatchId, Change, ControlEffect, ControlEvent, JobAction, NotRemoved, RemovalLeft,
    RequestId, RestoredNode, Wait, World, Write,
};

/// What is to be done when a batch is written.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AfterWrite {
    /// A change of a job goes on.
    Change(JobId),
    /// An allocation may be removed: how it ended is on record.
    Remove(AllocId),
    /// Whoever asked is answered.
    Answer(RequestId),
    /// The node is as asked; otherwise it is as before again.
    Scheduled(Box<node_drain::Scheduled>),
    /// Records of allocations that are gone are removed.
    Forgotten(std::collections::BTreeSet<AllocId>),
    /// What an earlier agent left is on record.
    Restored,
    /// Nothing; a failure is logged.
    Nothing,
}

/// See the module.
#[derive(Debug)]
pub struct Machine {
    tables: Tables,
    turns: JobChanges,
    /// Batches on their way.
    written: BTreeMap<BatchId, AfterWrite>,
    last_batch: BatchId,
    /// The device ledger that was queued last; none yet: it is written whatever it is.
    ledger: Option<DeviceLedger>,
    removals: Removals,
    collects: Vec<Collect>,
    collector: Option<Collector>,
    rewrites: BTreeMap<JobId, Rewrite>,
    restoring: Option<Restoring>,
    leaving: Leaving,
    alarms: Alarms,
    /// Places that wait are not looked at before: filling one failed.
    fill_from: Duration,
    /// Jobs of which a change was taken back, and that is not known to be durable.
    reverted: std::collections::BTreeSet<JobId>,
    /// Jobs of which what is left to do could not be written.
    unfilled: std::collections::BTreeSet<JobId>,
}

impl Machine {
    /// Over these tables.
    #[must_use]
    pub fn new(tables: Tables) -> Self {
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
            leaving: Leaving::default(),
            alarms: Alarms::default(),
            fill_from: Duration::ZERO,
            reverted: std::collections::BTreeSet::new(),
            unfilled: std::collections::BTreeSet::new(),
        }
    }

    /// What the node knows.
    #[must_use]
    pub const fn tables(&self) -> &Tables {
        &self.tables
    }

    /// What changed visibly since this was asked last.
    pub(crate) fn take_noted(&mut self) -> Vec<NotedChange> {
        self.tables.take_noted()
    }

    /// When [`ControlEvent::Alarm`] is due, as [`World::uptime`]; `None`: never.
    #[must_use]
    pub fn next_alarm(&self) -> Option<Duration> {
        self.alarms.next()
    }

    /// Nothing is under way: no change, no write, no removal.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.turns.is_empty() && self.written.is_empty() && self.removals.is_empty()
    }

    /// Take an event. What is to be done now, in order.
    #[must_use]
    pub fn step(&mut self, world: &World<'_>, event: ControlEvent) -> Vec<ControlEffect> {
        let mut out = Vec::new();
        match event {
            ControlEvent::Asked { request, ask } => self.asked(world, request, ask, &mut out),
            ControlEvent::AskerGone(request) => self.give_up_collect(request),
            ControlEvent::NodeChanged => self.wake(world),
            ControlEvent::Written { batch, result } => {
                self.batch_written(world, batch, result, &mut out)
            }
            ControlEvent::Owned { alloc, result } => self.owned(world, alloc, result, &mut out),
            ControlEvent::Reported { alloc, report } => {
                self.reported(world, alloc, report, &mut out)
            }
            ControlEvent::Removed { alloc, result } => self.removed(world, alloc, result, &mut out),
            ControlEvent::DevicesOwed { alloc, owing } => {
                self.tables.admission.end_alloc(alloc, &owing);
                self.devices_changed(world, &mut out);
            }
            ControlEvent::DevicesReleased(holder) => {
                self.tables.admission.devices_released(&holder);
                self.devices_changed(world, &mut out);
            }
            ControlEvent::Measured(fs) => self.measured(fs, &mut out),
            ControlEvent::EndsTold(allocs) => {
                for id in allocs {
                    if let Some(entry) = self.tables.alloc_mut(id) {
                        entry.end_told = true;
                    }
                }
            }
            ControlEvent::RunEnded { name } => self.run_ended(world, &name, &mut out),
            ControlEvent::Alarm => {
                for alarm in self.alarms.due(world.uptime) {
                    self.alarm(world, alarm, &mut out);
                }
            }
        }
        out
    }

    fn asked(
        &mut self,
        world: &World<'_>,
        request: RequestId,
        ask: Ask,
        out: &mut Vec<ControlEffect>,
    ) {
        match ask {
            Ask::Change { job, asked, skip_shutdown_delay } => {
                self.ask_change(world, job, asked, skip_shutdown_delay, Some(request), out);
            }
            Ask::Collect(only) => self.ask_collect(world, request, only, out),
            Ask::KeepDevices(holder) => {
                self.tables.admission.owe_devices(&holder);
                let writes = self.ledger_write().into_iter().collect();
                let wait = Wait::Commit { linger: Duration::ZERO };
                self.write(AfterWrite::Answer(request), writes, Vec::new(), wait, out);
            }
            Ask::Restore(restored) => self.restore(world, request, *restored, out),
            Ask::Ready(policy) => self.ready(world, request, policy, out),
            Ask::CollectBy(policy) => self.collect_by_another(world, request, policy, out),
            Ask::Probe => answer(request, Answer::Done, out),
            Ask::Schedule(asked) => self.ask_node(world, request, asked, out),
            Ask::Drain(deadline) => self.drain(world, request, deadline, out),
            Ask::Leave => self.leave(world, request, out),
        }
    }

    fn alarm(&mut self, world: &World<'_>, alarm: Alarm, out: &mut Vec<ControlEffect>) {
        match alarm {
            Alarm::Fill => self.fill(world, out),
            Alarm::Due(job) => self.look_again(world, job),
            Alarm::Collect => self.collect_tick(world, out),
            Alarm::CollectNow(request) => self.begin_collect(request, out),
            Alarm::Overdue(job) => self.overdue(world, &job, out),
            Alarm::Rewrite(job) => self.rewrite(world, &job, out),
            Alarm::Forget => self.forget_again(out),
            Alarm::NodeDrain => self.node_drain(world, out),
            Alarm::Drained => self.drain_ended(world, out),
            Alarm::Left => self.left(out),
        }
    }

    fn batch_written(
        &mut self,
        world: &World<'_>,
        batch: BatchId,
        result: Result<(), ostler_state::StateError>,
        out: &mut Vec<ControlEffect>,
    ) {
        match self.written.remove(&batch) {
            Some(AfterWrite::Change(job)) => self.change_written(world, &job, result, out),
            Some(AfterWrite::Remove(alloc)) => self.place_written(world, alloc, result, out),
            Some(AfterWrite::Forgotten(allocs)) => self.forgotten(world, allocs, result),
            Some(AfterWrite::Answer(request)) => answer(request, Answer::Written(result), out),
            Some(AfterWrite::Restored) => self.restored_written(world, result, out),
            Some(AfterWrite::Scheduled(then)) => self.scheduled(world, *then, result, out),
            // The batch of a stop that was answered without it is not known any more.
            Some(AfterWrite::Nothing) | None => match result {
                Ok(()) | Err(ostler_state::StateError::Closed { .. }) => {}
                Err(error) => tracing::warn!(%error, "records are not written"),
            },
        }
    }

    /// Write records and make owners.
    fn write(
        &mut self,
        then: AfterWrite,
        writes: Vec<Write>,
        own: Vec<std::sync::Arc<ostler_model::alloc::Allocation>>,
        wait: Wait,
        out: &mut Vec<ControlEffect>,
    ) -> BatchId {
        self.last_batch = self.last_batch.saturating_add(1);
        let batch = self.last_batch;
        self.written.insert(batch, then);
        out.push(ControlEffect::Write { batch, writes, own, wait });
        batch
    }

    /// The device ledger, when it is not as it was queued last.
    fn ledger_write(&mut self) -> Option<Write> {
        let owed = self.tables.admission.owed_devices();
        if self.ledger.as_ref() == Some(&owed) {
            return None;
        }
        self.ledger = Some(owed.clone());
        Some(Write::Ledger(owed))
    }

    /// What is held towards plugins changed. The record may lag: at worst a device counts as held by
    /// an allocation that is over, which the next start sees.
    fn devices_changed(&mut self, world: &World<'_>, out: &mut Vec<ControlEffect>) {
        if let Some(write) = self.ledger_write() {
            self.write(AfterWrite::Nothing, vec![write], Vec::new(), Wait::No, out);
        }
        self.wake(world);
    }
}

fn answer(request: RequestId, answer: Answer, out: &mut Vec<ControlEffect>) {
    out.push(ControlEffect::Answer { request, answer: Box::new(answer) });
}

//! Changes that come while their job is being changed, or that the disk does not write in time.
//!
//! ```text
//!   a stop: asked ─► owners told at once ─► its turn ─► decided, written ─► answered
//!                         └─ not in time ─► answered with a warning
//!   other:  asked ──────────────────────► its turn ─► decided, written ─► answered
//!             └─ not in time ─► refused      └─ not in time ─► an error: it is not known
//! ```
//! Ending a task needs neither a disk nor a turn. So no task runs on only because a change waits
//! for a disk that hangs, or for its own allocations to end. The rest of a stop (the job's record,
//! the places of a purge) is decided at its turn.

use std::sync::Arc;
use std::time::Duration;

use super::alarms::Alarm;
use super::decide::may_stop;
use super::revert::unrecorded_text;
use super::turn::{ChangePhase, WaitingChange, reply};
use super::types::{ControlEffect, DecidedChange, JobAction, World, Write, WriteWait};
use super::{AfterWrite, Machine};
use crate::SubmitError;
use crate::proposal::stopped_copy;
use crate::reconcile::reason;
use ostler_model::alloc::{Allocation, DesiredStatus};
use ostler_model::ids::{AllocId, JobId};
use ostler_model::limits::STATE_WRITE_WALL_MAX;

impl Machine {
    /// End now what a change will end, because the change is about to wait for its turn.
    pub(super) fn overtake(
        &mut self,
        world: &World<'_>,
        job: &JobId,
        waiting: &mut WaitingChange,
        out: &mut Vec<ControlEffect>,
    ) {
        let known = self.tables.jobs.get(job).map(|entry| &entry.record);
        let (ids, why) = match &waiting.asked {
            JobAction::Stop { origin, reason: why, .. } => {
                if !known.is_some_and(|known| may_stop(known, origin)) {
                    return;
                }
                let why = if why.is_empty() { reason::JOB_STOPPED } else { why };
                (self.tables.ids_of(job), why.to_owned())
            }
            JobAction::StopAlloc { alloc, reason } => (vec![*alloc], reason.clone()),
            JobAction::Version(..)
            | JobAction::Assign(_)
            | JobAction::Revert { .. }
            | JobAction::Stable { .. }
            | JobAction::Deployment(..)
            | JobAction::Reschedule
            | JobAction::Fill => return,
        };
        let index = self.tables.next_index();
        let (mut stopped, mut writes) = (Vec::new(), Vec::new());
        for id in ids {
            let Some(entry) = self.tables.alloc(id).filter(|entry| !entry.ended) else { continue };
            let mut alloc = Arc::clone(&entry.allocation);
            if alloc.desired == DesiredStatus::Run && !entry.client_status().is_terminal() {
                alloc = stopped_copy(&alloc, &why, index);
                self.tables.put_alloc(Arc::clone(&alloc), entry.placed_by, world.now);
                writes.push(Write::Alloc(Arc::clone(&alloc)));
            }
            // The owner may not have been told yet of a stop by the change under way.
            if alloc.desired == DesiredStatus::Stop {
                stopped.push(id);
                self.tell(&alloc, waiting.skip_shutdown_delay, out);
            }
        }
        if let JobAction::StopAlloc { alloc, .. } = &waiting.asked
            && stopped.contains(alloc)
        {
            // The stop is done; at its turn only the place is filled.
            waiting.asked = JobAction::Fill;
        }
        waiting.stopped_early = Some(stopped);
        if !writes.is_empty() {
            self.write(AfterWrite::Nothing, writes, Vec::new(), WriteWait::No, out);
        }
    }

    /// The copies of allocations that a stop ended before its turn, to be recorded with it.
    pub(super) fn overtaken_copies(
        &self,
        stopped: &[AllocId],
    ) -> Vec<(Arc<Allocation>, Arc<Allocation>)> {
        let known = stopped.iter().filter_map(|id| self.tables.alloc(*id));
        let stopped = known.map(|entry| &entry.allocation);
        let stopped = stopped.filter(|alloc| alloc.desired == DesiredStatus::Stop);
        stopped.map(|alloc| (Arc::clone(alloc), Arc::clone(alloc))).collect()
    }

    /// Answer in time whoever waits for a change of the job, also where the disk hangs.
    pub(super) fn answer_overdue(
        &mut self,
        world: &World<'_>,
        job: &JobId,
        out: &mut Vec<ControlEffect>,
    ) {
        let now = world.uptime;
        let Some(turn) = self.turns.get_mut(job) else { return };
        if turn.until <= now {
            turn.until = Duration::MAX;
            match (&turn.phase, turn.stops) {
                (ChangePhase::Committing, true) => self.answer_unwritten_stop(world, job, out),
                // Its stop is on record, or is written again.
                (ChangePhase::Forgetting | ChangePhase::Rewriting, _) | (_, true) => {
                    let (request, change) = (turn.request.take(), turn.change.clone());
                    if request.is_some() {
                        self.finish(world, request, Ok(change), out);
                    }
                }
                // The change goes on or is being taken back. The job shows what becomes of it.
                (_, false) => {
                    let job = job.clone();
                    reply(turn.request.take(), Err(SubmitError::Unanswered { job }), out);
                }
            }
        }
        for request in self.turns.take_overdue(job, now) {
            reply(Some(request), Err(SubmitError::Waited { job: job.clone() }), out);
        }
        self.answer_stops(world, job, out);
        let Some(turn) = self.turns.get_mut(job) else { return };
        let asked = turn.waiting.iter().filter(|waiting| waiting.request.is_some());
        let next = asked.map(|waiting| waiting.until).chain([turn.until]).min();
        if let Some(next) = next.filter(|next| *next < Duration::MAX) {
            self.alarms.set_by(Alarm::Overdue(job.clone()), next);
        }
    }

    /// Answer the stops that did not get their turn in time. Their allocations were told to stop.
    fn answer_stops(&mut self, world: &World<'_>, job: &JobId, out: &mut Vec<ControlEffect>) {
        let Some(turn) = self.turns.get_mut(job) else { return };
        let late = turn.waiting.iter_mut().filter(|waiting| waiting.until <= world.uptime);
        let requests: Vec<_> = late.filter_map(|waiting| waiting.request.take()).collect();
        let before = self.tables.jobs.get(job).map(|entry| Arc::clone(&entry.record));
        let why = format!("another change of the job was not done within {STATE_WRITE_WALL_MAX:?}");
        for request in requests {
            let (job, before) = (Some(job.clone()), before.clone());
            let (index, unwritten) = (self.tables.index(), Some(unrecorded_text(&why)));
            let change =
                DecidedChange { job, before, index, unwritten, ..DecidedChange::default() };
            self.finish(world, Some(request), Ok(change), out);
        }
    }
}

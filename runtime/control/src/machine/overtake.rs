//! A stop that comes while its job is being changed.
//!
//! ```text
//!   another change under way: asked ─► owners told at once ─► its turn ─► decided, written ─► answered
//!                                                 └─ not in time ─► answered with a warning
//! ```
//! Ending a task needs neither a disk nor a turn: a change that waits for a disk that hangs, or for what
//! it has placed to end, keeps nobody from it. What else the stop is (the job's record, the places of a
//! purge) is decided at its turn.

use std::sync::Arc;
use std::time::Duration;

use super::alarms::Alarm;
use super::decide::may_stop;
use super::revert::unrecorded;
use super::turn::Waiting;
use super::types::{Change, ControlEffect, JobAction, Wait, World, Write};
use super::{AfterWrite, Machine};
use crate::proposal::stopped_copy;
use crate::reconcile::reason;
use ostler_model::alloc::{Allocation, DesiredStatus};
use ostler_model::ids::{AllocId, JobId};
use ostler_model::limits::STATE_WRITE_WALL_MAX;

/// What a stop did before its turn.
#[derive(Debug)]
pub(super) struct EarlyStop {
    /// Allocations that are told to stop.
    pub(super) stopped: Vec<AllocId>,
    /// It is answered by then.
    until: Duration,
}

impl Machine {
    /// A change is about to wait for its turn: what it ends is ended now.
    pub(super) fn overtake(
        &mut self,
        world: &World<'_>,
        job: &JobId,
        waiting: &mut Waiting,
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
            JobAction::Version(..) | JobAction::Fill => return,
        };
        let index = self.tables.next_index();
        let (mut stopped, mut writes) = (Vec::new(), Vec::new());
        for id in ids {
            let Some(entry) = self.tables.alloc(id).filter(|entry| !entry.ended) else { continue };
            let mut alloc = Arc::clone(&entry.allocation);
            if alloc.desired == DesiredStatus::Run && !entry.client_status().terminal() {
                alloc = stopped_copy(&alloc, &why, index);
                self.tables.put_alloc(Arc::clone(&alloc), entry.registered, world.now);
                writes.push(Write::Alloc(Arc::clone(&alloc)));
            }
            // What the change under way stops may not have been told yet.
            if alloc.desired == DesiredStatus::Stop {
                stopped.push(id);
                self.tell(&alloc, waiting.skip_shutdown_delay, out);
            }
        }
        if let JobAction::StopAlloc { alloc, .. } = &waiting.asked
            && stopped.contains(alloc)
        {
            // What is left of it is to fill the place.
            waiting.asked = JobAction::Fill;
        }
        let until = world.uptime.saturating_add(STATE_WRITE_WALL_MAX);
        waiting.early_stop = Some(EarlyStop { stopped, until });
        self.alarms.set_by(Alarm::StopWaits(job.clone()), until);
        if !writes.is_empty() {
            self.write(AfterWrite::Nothing, writes, Vec::new(), Wait::No, out);
        }
    }

    /// What a stop ended before its turn, to be on record with it.
    pub(super) fn overtaken(&self, stopped: &[AllocId]) -> Vec<(Arc<Allocation>, Arc<Allocation>)> {
        let known = stopped.iter().filter_map(|id| self.tables.alloc(*id));
        let stopped = known.map(|entry| &entry.allocation);
        let stopped = stopped.filter(|alloc| alloc.desired == DesiredStatus::Stop);
        stopped.map(|alloc| (Arc::clone(alloc), Arc::clone(alloc))).collect()
    }

    /// Stops that did not come to their turn in time are answered: what they end was told to.
    pub(super) fn stop_waits(
        &mut self,
        world: &World<'_>,
        job: &JobId,
        out: &mut Vec<ControlEffect>,
    ) {
        let before = self.tables.jobs.get(job).map(|entry| Arc::clone(&entry.record));
        let index = self.tables.index();
        let (mut answered, mut next) = (Vec::new(), None);
        for waiting in self.turns.stops_waiting(job) {
            match waiting.early_stop.as_ref().map(|early_stop| early_stop.until) {
                Some(until) if until > world.uptime => {
                    next = Some(next.map_or(until, |next: Duration| next.min(until)));
                }
                _ => answered.extend(waiting.request.take()),
            }
        }
        let why = format!("another change of the job was not done within {STATE_WRITE_WALL_MAX:?}");
        for request in answered {
            let (job, before) = (Some(job.clone()), before.clone());
            let unwritten = Some(unrecorded(&why));
            let change = Change { job, before, index, unwritten, ..Change::default() };
            self.finish(world, Some(request), Ok(change), out);
        }
        if let Some(next) = next {
            self.alarms.set_by(Alarm::StopWaits(job.clone()), next);
        }
    }
}

//! The turns of jobs: changes of one job are made one after the other, each as a whole.
//!
//! ```text
//! free ─ asked ─► decided, written ─┬─ durable ─► (places of a purged job go) ─► answered ─► next
//!                                   └─ failed ─► taken back ─────────────────► answered ─► next
//! ```
//! The result of a change is known when the next one is decided. Changes of other jobs are not held
//! up.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::alarms::Alarm;
use super::types::{ControlAnswer, ControlEffect, DecidedChange, JobAction, RequestId, World};
use super::{Machine, answer};
use crate::SubmitError;
use crate::views::AgentStage;
use ostler_model::ids::{AllocId, GroupName, JobId};
use ostler_model::limits::{CHANGES_WAITING_MAX, STATE_WRITE_WALL_MAX};
use ostler_model::saved::EndedPlace;

/// A change that waits for its turn.
#[derive(Debug)]
pub(super) struct WaitingChange {
    pub(super) asked: JobAction,
    pub(super) skip_shutdown_delay: bool,
    /// The request to answer; `None`: the machine itself asked.
    pub(super) request: Option<RequestId>,
    /// For a stop that ended tasks before its turn: the allocations that were told to stop.
    pub(super) stopped_early: Option<Vec<AllocId>>,
    /// The requester is answered by this uptime.
    pub(super) until: Duration,
}

impl WaitingChange {
    /// A change that does what is left to do, without a request.
    pub(super) const fn fill() -> Self {
        Self {
            asked: JobAction::Fill,
            skip_shutdown_delay: false,
            request: None,
            stopped_early: None,
            until: Duration::MAX,
        }
    }
}

/// The phase of a job's change.
#[derive(Debug)]
pub(super) enum ChangePhase {
    /// Its records are being written.
    Committing,
    /// It is done, and the remains of a purged job are being removed.
    Forgetting,
    /// It failed, and what it placed is being removed.
    Unplacing { error: Option<SubmitError> },
    /// It was taken back, and its last records are being written.
    Reverted { error: Option<SubmitError>, gone: BTreeSet<AllocId> },
    /// A stop is written again.
    Rewriting,
}

/// The change of a job whose turn it is, and those that wait behind it.
#[derive(Debug)]
pub(super) struct JobChange {
    pub(super) phase: ChangePhase,
    pub(super) change: DecidedChange,
    pub(super) stops: bool,
    pub(super) skip_shutdown_delay: bool,
    pub(super) request: Option<RequestId>,
    /// The requester is answered by this uptime.
    pub(super) until: Duration,
    /// Ended places of allocations that were removed meanwhile: group, index, version. A version
    /// that is taken back leaves them to the version before.
    pub(super) removed: Vec<(GroupName, u32, u64, EndedPlace)>,
    /// Why an owner of a placed allocation could not be made.
    pub(super) unowned: Option<String>,
    pub(super) waiting: VecDeque<WaitingChange>,
}

/// The jobs that are being changed. Empty when there is none.
#[derive(Debug, Default)]
pub(super) struct JobChanges {
    by_job: BTreeMap<JobId, JobChange>,
    waiting: usize,
}

impl JobChanges {
    pub(super) fn is_empty(&self) -> bool {
        self.by_job.is_empty()
    }

    pub(super) fn get_mut(&mut self, job: &JobId) -> Option<&mut JobChange> {
        self.by_job.get_mut(job)
    }

    pub(super) fn is_free(&self, job: &JobId) -> bool {
        !self.by_job.contains_key(job)
    }

    /// Was this allocation placed by a change of its job that is being taken back?
    pub(super) fn is_unplacing(&self, job: &JobId, alloc: AllocId) -> bool {
        let placed = |turn: &JobChange| turn.change.placed.iter().any(|placed| placed.id == alloc);
        let turn = self.by_job.get(job);
        turn.is_some_and(|t| matches!(t.phase, ChangePhase::Unplacing { .. }) && placed(t))
    }

    /// Remove the requests of a job that are to be given up before their turn, and return them.
    pub(super) fn take_overdue(&mut self, job: &JobId, now: Duration) -> Vec<RequestId> {
        let Some(turn) = self.by_job.get_mut(job) else { return Vec::new() };
        let overdue = |one: &WaitingChange| one.until <= now && one.stopped_early.is_none();
        let asked = turn.waiting.iter().filter(|one| overdue(one)).filter_map(|one| one.request);
        let asked: Vec<RequestId> = asked.collect();
        turn.waiting.retain(|one| one.request.is_none() || !overdue(one));
        self.waiting = self.waiting.saturating_sub(asked.len());
        asked
    }

    /// Remove all requests that wait for their turn, and return them.
    fn take_waiting(&mut self) -> Vec<WaitingChange> {
        self.waiting = 0;
        self.by_job.values_mut().flat_map(|turn| std::mem::take(&mut turn.waiting)).collect()
    }
}

impl Machine {
    /// Take a change: it begins now, or when the job's turn is free.
    pub(super) fn ask_change(
        &mut self,
        world: &World<'_>,
        job: JobId,
        asked: JobAction,
        skip_shutdown_delay: bool,
        request: Option<RequestId>,
        out: &mut Vec<ControlEffect>,
    ) {
        // A stop frees what others wait for, so it may wait in places that nothing else takes.
        let share = if asked.stops() { 2 } else { 1 };
        let refused = match self.tables.stage {
            AgentStage::Leaving => Some(SubmitError::Leaving),
            _ if self.turns.waiting >= CHANGES_WAITING_MAX.saturating_mul(share) => {
                Some(SubmitError::Busy)
            }
            _ => None,
        };
        if let Some(error) = refused {
            return reply(request, Err(error), out);
        }
        let until = world.uptime.saturating_add(STATE_WRITE_WALL_MAX);
        let mut waiting =
            WaitingChange { asked, skip_shutdown_delay, request, stopped_early: None, until };
        if !self.turns.is_free(&job) {
            self.alarms.set_by(Alarm::Overdue(job.clone()), until);
            self.overtake(world, &job, &mut waiting, out);
        }
        match self.turns.by_job.get_mut(&job) {
            Some(turn) => {
                turn.waiting.push_back(waiting);
                self.turns.waiting = self.turns.waiting.saturating_add(1);
            }
            None => self.take_turn(world, job, waiting, out),
        }
    }

    /// Begin a change, and go on with those behind it as long as they need nothing.
    pub(super) fn take_turn(
        &mut self,
        world: &World<'_>,
        job: JobId,
        first: WaitingChange,
        out: &mut Vec<ControlEffect>,
    ) {
        self.hold_turn(&job, ChangePhase::Committing);
        if let Some(turn) = self.turns.get_mut(&job) {
            turn.waiting.push_back(first);
        }
        self.turns.waiting = self.turns.waiting.saturating_add(1);
        self.next_turn(world, &job, out);
    }

    /// Take the turn of a job without a request.
    pub(super) fn hold_turn(&mut self, job: &JobId, phase: ChangePhase) {
        let turn = JobChange {
            phase,
            change: DecidedChange { job: Some(job.clone()), ..DecidedChange::default() },
            stops: false,
            skip_shutdown_delay: false,
            request: None,
            until: Duration::MAX,
            removed: Vec::new(),
            unowned: None,
            waiting: VecDeque::new(),
        };
        self.turns.by_job.insert(job.clone(), turn);
    }

    fn next_turn(&mut self, world: &World<'_>, job: &JobId, out: &mut Vec<ControlEffect>) {
        loop {
            let Some(turn) = self.turns.by_job.get_mut(job) else { return };
            let Some(next) = turn.waiting.pop_front() else {
                self.turns.by_job.remove(job);
                self.alarms.clear(&Alarm::Overdue(job.clone()));
                if self.unfilled.contains(job) {
                    // Something happened while the job was being changed.
                    self.wake(world);
                }
                self.note_turn_end(world, job, out);
                return;
            };
            self.turns.waiting = self.turns.waiting.saturating_sub(1);
            if self.begin_change(world, job, next, out) {
                return;
            }
        }
    }

    /// End the change of a job, and begin the next one.
    pub(super) fn end_turn(
        &mut self,
        world: &World<'_>,
        job: &JobId,
        result: Result<(), SubmitError>,
        out: &mut Vec<ControlEffect>,
    ) {
        if let Some(turn) = self.turns.by_job.get_mut(job) {
            let (change, request) = (std::mem::take(&mut turn.change), turn.request.take());
            self.finish(world, request, result.map(|()| change), out);
        }
        self.next_turn(world, job, out);
    }

    /// Answer the request, where there is one.
    pub(super) fn finish(
        &mut self,
        world: &World<'_>,
        request: Option<RequestId>,
        result: Result<DecidedChange, SubmitError>,
        out: &mut Vec<ControlEffect>,
    ) {
        if request.is_some() && result.as_ref().is_ok_and(|change| !change.blocked.is_empty()) {
            // Room may have become free while the change was being written.
            self.wake(world);
        }
        if let (None, Err(error)) = (request, &result) {
            tracing::warn!(%error, "a change of a job that no caller waits for failed");
        }
        reply(request, result, out);
    }

    /// Refuse the changes that wait for their turn: the agent is leaving.
    pub(super) fn refuse_waiting(&mut self, out: &mut Vec<ControlEffect>) {
        for waiting in self.turns.take_waiting() {
            reply(waiting.request, Err(SubmitError::Leaving), out);
        }
    }
}

pub(super) fn reply(
    request: Option<RequestId>,
    result: Result<DecidedChange, SubmitError>,
    out: &mut Vec<ControlEffect>,
) {
    if let Some(request) = request {
        answer(request, ControlAnswer::Changed(result), out);
    }
}

//! Changes of one job come one after the other, each as a whole.
//!
//! ```text
//!   free ─ asked ─► decided, written ─┬─ durable ─► (places of a purged job go) ─► answered ─► next
//!                                     └─ failed ─► taken back ──────────────────► answered ─► next
//! ```
//! What came of the one before is known when the next one is decided. Changes of other jobs are not
//! held up.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::alarms::Alarm;
use super::types::{Answer, Change, ControlEffect, JobAction, RequestId, World};
use super::{Machine, answer};
use crate::SubmitError;
use crate::views::Stage;
use ostler_model::ids::{AllocId, GroupName, JobId};
use ostler_model::limits::{CHANGES_WAITING_MAX, STATE_WRITE_WALL_MAX};
use ostler_model::saved::EndedPlace;

/// A change that waits for its turn.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) asked: JobAction,
    pub(super) skip_shutdown_delay: bool,
    /// Who asked; `None`: the machine itself.
    pub(super) request: Option<RequestId>,
    /// Of one that ends tasks, and did so before its turn: the allocations that are told to stop.
    pub(super) stopped_early: Option<Vec<AllocId>>,
    /// Whoever asked is answered by then.
    pub(super) until: Duration,
}

impl Waiting {
    /// What is left to do is done, and nobody asked.
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

/// Where the change of a job is.
#[derive(Debug)]
pub(super) enum ChangePhase {
    /// Its records are on their way.
    Committing,
    /// It is done, and what is left of the job that is gone is removed.
    Forgetting,
    /// It failed, and what was placed for it is being removed.
    Unplacing { error: Option<SubmitError> },
    /// The last records of a change that is taken back are on their way.
    Reverted { error: Option<SubmitError>, gone: BTreeSet<AllocId> },
    /// A stop is written again.
    Rewriting,
}

/// The turn of a job.
#[derive(Debug)]
pub(super) struct JobChange {
    pub(super) phase: ChangePhase,
    pub(super) change: Change,
    pub(super) stops: bool,
    pub(super) skip_shutdown_delay: bool,
    pub(super) request: Option<RequestId>,
    /// Whoever asked is answered by then.
    pub(super) until: Duration,
    /// Places that ended, of allocations removed meanwhile: group, index, version. A version that is taken
    /// back leaves them to the one before.
    pub(super) removed: Vec<(GroupName, u32, u64, EndedPlace)>,
    /// Why an owner of what was placed could not be made.
    pub(super) unowned: Option<String>,
    pub(super) waiting: VecDeque<Waiting>,
}

/// Whose turn it is, by job. Empty when nothing is being changed.
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

    /// Is this allocation one that was placed by a change of its job that is being taken back?
    pub(super) fn is_unplacing(&self, job: &JobId, alloc: AllocId) -> bool {
        let placed = |turn: &JobChange| turn.change.placed.iter().any(|placed| placed.id == alloc);
        let turn = self.by_job.get(job);
        turn.is_some_and(|t| matches!(t.phase, ChangePhase::Unplacing { .. }) && placed(t))
    }

    /// Changes of a job that are to be given up before their turn.
    pub(super) fn take_overdue(&mut self, job: &JobId, now: Duration) -> Vec<RequestId> {
        let Some(turn) = self.by_job.get_mut(job) else { return Vec::new() };
        let overdue = |one: &Waiting| one.until <= now && one.stopped_early.is_none();
        let asked = turn.waiting.iter().filter(|one| overdue(one)).filter_map(|one| one.request);
        let asked: Vec<RequestId> = asked.collect();
        turn.waiting.retain(|one| one.request.is_none() || !overdue(one));
        self.waiting = self.waiting.saturating_sub(asked.len());
        asked
    }

    /// Requests that wait for their turn.
    fn take_waiting(&mut self) -> Vec<Waiting> {
        self.waiting = 0;
        self.by_job.values_mut().flat_map(|turn| std::mem::take(&mut turn.waiting)).collect()
    }
}

impl Machine {
    /// Somebody wants a change: now, or when the job's turn is free.
    pub(super) fn ask_change(
        &mut self,
        world: &World<'_>,
        job: JobId,
        asked: JobAction,
        skip_shutdown_delay: bool,
        request: Option<RequestId>,
        out: &mut Vec<ControlEffect>,
    ) {
        // A stop frees what others wait for: it has places that nothing else takes.
        let share = if asked.stops() { 2 } else { 1 };
        let refused = match self.tables.stage {
            Stage::Leaving => Some(SubmitError::Leaving),
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
            Waiting { asked, skip_shutdown_delay, request, stopped_early: None, until };
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

    /// Begin a change whose turn it is, and those behind it as long as there is nothing to do.
    pub(super) fn take_turn(
        &mut self,
        world: &World<'_>,
        job: JobId,
        first: Waiting,
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
            change: Change { job: Some(job.clone()), ..Change::default() },
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
                    // Something happened while it was being changed.
                    self.wake(world);
                }
                self.turn_ended(world, job, out);
                return;
            };
            self.turns.waiting = self.turns.waiting.saturating_sub(1);
            if self.begin(world, job, next, out) {
                return;
            }
        }
    }

    /// The change of a job has come to its end.
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

    /// Answer whoever asked.
    pub(super) fn finish(
        &mut self,
        world: &World<'_>,
        request: Option<RequestId>,
        result: Result<Change, SubmitError>,
        out: &mut Vec<ControlEffect>,
    ) {
        if request.is_some() && result.as_ref().is_ok_and(|change| !change.blocked.is_empty()) {
            // Room may have become free while this change was being written.
            self.wake(world);
        }
        if let (None, Err(error)) = (request, &result) {
            tracing::warn!(%error, "a change of a job failed that nobody waits for");
        }
        reply(request, result, out);
    }

    /// No change that waits comes to its turn any more.
    pub(super) fn refuse_waiting(&mut self, out: &mut Vec<ControlEffect>) {
        for waiting in self.turns.take_waiting() {
            reply(waiting.request, Err(SubmitError::Leaving), out);
        }
    }
}

pub(super) fn reply(
    request: Option<RequestId>,
    result: Result<Change, SubmitError>,
    out: &mut Vec<ControlEffect>,
) {
    if let Some(request) = request {
        answer(request, Answer::Changed(result), out);
    }
}

//! Changes of one job come one after the other, each as a whole.
//!
//! ```text
//!   free ─ asked ─► decided, written ─┬─ durable ─► (places of a purged job go) ─► answered ─► next
//!                                     └─ failed ─► taken back ──────────────────► answered ─► next
//! ```
//! What came of the one before is known when the next one is decided. Changes of other jobs are not
//! held up.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::alarms::Alarm;
use super::overtake::EarlyStop;
use super::types::{Answer, Change, ControlEffect, JobAction, RequestId, World};
use super::{Machine, answer};
use crate::SubmitError;
use crate::views::Stage;
use ostler_model::ids::{AllocId, GroupName, JobId};
use ostler_model::limits::CHANGES_WAITING_MAX;
use ostler_model::saved::EndedPlace;

/// A change that waits for its turn.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) asked: JobAction,
    pub(super) skip_shutdown_delay: bool,
    /// Who asked; `None`: the machine itself.
    pub(super) request: Option<RequestId>,
    /// Of one that ends tasks, and did so before its turn.
    pub(super) early_stop: Option<EarlyStop>,
}

impl Waiting {
    /// What is left to do is done, and nobody asked.
    pub(super) const fn fill() -> Self {
        Self { asked: JobAction::Fill, skip_shutdown_delay: false, request: None, early_stop: None }
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
    Unplacing { left: BTreeSet<AllocId>, error: Option<SubmitError> },
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
    /// Places that ended, of allocations removed meanwhile: group, index, version. A version that is taken
    /// back leaves them to the one before.
    pub(super) removed: Vec<(GroupName, u32, u64, EndedPlace)>,
    /// Why an owner of what was placed could not be made.
    pub(super) unowned: Option<String>,
    waiting: VecDeque<Waiting>,
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

    /// The turn of a job that removes this allocation again.
    pub(super) fn unplacing(&mut self, alloc: AllocId) -> Option<(JobId, &mut BTreeSet<AllocId>)> {
        self.by_job.iter_mut().find_map(|(job, turn)| match &mut turn.phase {
            ChangePhase::Unplacing { left, .. } if left.contains(&alloc) => {
                Some((job.clone(), left))
            }
            _ => None,
        })
    }

    /// Stops of a job that wait for their turn.
    pub(super) fn stops_waiting(&mut self, job: &JobId) -> impl Iterator<Item = &mut Waiting> {
        let waiting = self.by_job.get_mut(job).into_iter().flat_map(|turn| &mut turn.waiting);
        waiting.filter(|waiting| waiting.early_stop.is_some() && waiting.request.is_some())
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
        let refused = match self.tables.stage {
            Stage::Leaving => Some(SubmitError::Leaving),
            _ if self.turns.waiting >= CHANGES_WAITING_MAX => Some(SubmitError::Busy),
            _ => None,
        };
        if let Some(error) = refused {
            return reply(request, Err(error), out);
        }
        let mut waiting = Waiting { asked, skip_shutdown_delay, request, early_stop: None };
        if !self.turns.is_free(&job) {
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
        self.alarms.clear(&Alarm::StopUnwritten(job.clone()));
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
            // Something may have become free meanwhile that nobody looked at.
            self.wake(world);
        }
        if let (None, Err(error)) = (request, &result) {
            tracing::warn!(%error, "a placement of the job failed, tried again");
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

fn reply(
    request: Option<RequestId>,
    result: Result<Change, SubmitError>,
    out: &mut Vec<ControlEffect>,
) {
    if let Some(request) = request {
        answer(request, Answer::Changed(result), out);
    }
}

//! A change of a job, from its turn to its answer.
//!
//! Records are queued before an owner is made, so nothing runs whose allocation is not durable: the
//! intent of a task is a durable write, and durable writes keep their order. So the start of a task
//! costs no commit for its allocation alone, and many changes at the same time share one.
//!
//! Owners are told of stops before these are durable, because ending a task needs no disk.
//! [`super::revert`] handles a stop that the disk refuses or does not answer.

use std::sync::Arc;
use std::time::Duration;

use super::alarms::Alarm;
use super::revert::unrecorded_text;
use super::turn::{ChangePhase, WaitingChange};
use super::types::{
    ControlEffect, DecidedChange, HistoryChange, JobAction, World, Write, WriteWait,
};
use super::{AfterWrite, Machine};
use crate::SubmitError;
use crate::tables::{Ownership, PlacedBy};
use ostler_model::alloc::{Allocation, DesiredStatus};
use ostler_model::ids::JobId;
use ostler_model::limits::STATE_WRITE_WALL_MAX;
use ostler_model::planted::planted;
use ostler_model::rollout::{JobDeployments, JobVersions};
use ostler_model::saved::JobOrigin;
use ostler_state::StateError;

/// How long a change waits for a durable write of something else that takes its records along (a
/// task's intent, another change), before it asks for a commit itself.
pub(super) const LINGER: Duration = Duration::from_millis(2);

impl Machine {
    /// Decide a change and write it. `false`: there was nothing to do, or the change was refused.
    pub(super) fn begin_change(
        &mut self,
        world: &World<'_>,
        job: &JobId,
        waiting: WaitingChange,
        out: &mut Vec<ControlEffect>,
    ) -> bool {
        let WaitingChange { asked, skip_shutdown_delay, request, stopped_early, until: _ } =
            waiting;
        let stops = asked.stops() || stopped_early.is_some();
        let whole = matches!(asked, JobAction::Version(..) | JobAction::Stop { .. });
        let mut decided = self.decide(world, job, asked);
        if let (Ok(change), Some(stopped)) = (&mut decided, &stopped_early) {
            // Owners were told of these stops, but the stops are not known to be durable: they are
            // part of the change.
            change.copies.extend(self.overtaken_copies(stopped));
        }
        // The disk may hold a change that was taken back. So the record is written again before the
        // job is acknowledged as unchanged, or as stopped already.
        if let Ok(change) = &mut decided
            && whole
            && change.is_empty()
            && self.reverted.contains(job)
        {
            change.record.clone_from(&change.before);
        }
        let mut change = match decided {
            Ok(change) if !change.is_empty() => change,
            mut result => {
                // An earlier stop asked for the same, and is not durable yet.
                if let Ok(change) = &mut result
                    && stops
                    && self.rewrites.contains_key(job)
                {
                    change.unwritten = Some(unrecorded_text("the disk refused it before"));
                }
                self.finish(world, request, result, out);
                return false;
            }
        };
        let writes = self.records_of(job, &mut change);
        let own = change.placed.clone();
        for alloc in &own {
            if let Some(entry) = self.tables.alloc_mut(alloc.id) {
                entry.make_owner();
            }
        }
        let then = AfterWrite::Change(job.clone());
        let wait = if planted("answered-before-written") {
            WriteWait::No
        } else {
            WriteWait::Commit { linger: LINGER }
        };
        self.write(then, writes, own, wait, out);
        if stops {
            // Owners are told at once: a disk that is full or does not answer must not keep a task
            // from ending.
            self.tell_all(&change, skip_shutdown_delay, out);
        }
        let until = world.uptime.saturating_add(STATE_WRITE_WALL_MAX);
        self.alarms.set_by(Alarm::Overdue(job.clone()), until);
        if let Some(turn) = self.turns.get_mut(job) {
            (turn.phase, turn.change, turn.stops) = (ChangePhase::Committing, change, stops);
            (turn.skip_shutdown_delay, turn.request) = (skip_shutdown_delay, request);
            turn.until = until;
            turn.unowned = None;
            turn.removed.clear();
        }
        true
    }

    /// The records of a change, the job's record first.
    fn records_of(&mut self, job: &JobId, change: &mut DecidedChange) -> Vec<Write> {
        let kept = |record: &&Arc<_>| is_on_record(record) && !planted("job-unwritten");
        // A purge writes the record of a stopped job first. Until the job's record is removed, the
        // purge counts as a stop.
        let record = change.record.as_ref().filter(kept).cloned().map(Write::Job);
        let history = change.history.iter().flat_map(|history| history_writes(job, history, false));
        // They are written before the allocations that belong to them.
        let record = record.into_iter().chain(history.collect::<Vec<_>>());
        let copies = change.copies.iter().map(|(new, _)| new);
        let allocs = copies.chain(&change.placed).cloned().map(Write::Alloc);
        let mut writes: Vec<Write> = record.chain(allocs).collect();
        let by_server =
            |id| self.tables.alloc(id).is_some_and(|entry| entry.placed_by == PlacedBy::Server);
        let assigned = change.placed.iter().map(|alloc| alloc.id).filter(|id| by_server(*id));
        writes.extend(assigned.map(Write::Assigned));
        writes.extend(self.unwritten_records(job, change));
        writes.extend(self.ledger_write());
        writes.extend(self.purge_writes(change));
        writes
    }

    /// The records of a change are durable, or could not be written.
    pub(super) fn finish_change_write(
        &mut self,
        world: &World<'_>,
        job: &JobId,
        result: Result<(), StateError>,
        out: &mut Vec<ControlEffect>,
    ) {
        let Some(turn) = self.turns.get_mut(job) else { return };
        match &mut turn.phase {
            ChangePhase::Committing => {
                let error = match (result, turn.unowned.take()) {
                    (Err(error), _) => SubmitError::State(error),
                    (Ok(()), Some(why)) => SubmitError::Runner(why),
                    (Ok(()), None) => return self.finish_commit(world, job, out),
                };
                if turn.stops {
                    self.handle_stop_failure(world, job, error, out)
                } else {
                    self.revert(world, job, error, out)
                }
            }
            ChangePhase::Forgetting => {
                if let Err(error) = result {
                    // The next start of the agent removes them.
                    tracing::warn!(%job, %error, "records of the job's ended places stay for now");
                }
                self.end_turn(world, job, Ok(()), out);
            }
            ChangePhase::Reverted { error, gone } => {
                let (error, gone) = (error.take(), std::mem::take(gone));
                if let Err(error) = result {
                    self.retry_forget(world, job, gone, &error);
                    tracing::error!(%job, %error, "a change that failed could not be taken back whole");
                }
                self.wake(world);
                self.end_turn(world, job, error.map_or(Ok(()), Err), out);
            }
            ChangePhase::Rewriting => self.finish_rewrite(world, job, result, out),
            ChangePhase::Unplacing { .. } => {}
        }
    }

    fn finish_commit(&mut self, world: &World<'_>, job: &JobId, out: &mut Vec<ControlEffect>) {
        let Some(turn) = self.turns.get_mut(job) else { return };
        let (stops, purge) = (turn.stops, turn.change.purge);
        self.reverted.remove(job);
        // Records of an earlier stop that were still to be written are durable with this change.
        if self.rewrites.remove(job).is_some() {
            self.alarms.clear(&Alarm::Rewrite(job.clone()));
        }
        let (placed, skip) = (!turn.change.placed.is_empty(), turn.skip_shutdown_delay);
        if !stops {
            let change = turn.change.clone();
            self.tell_all(&change, skip, out);
        }
        if placed {
            self.check_garbage(out);
        }
        if purge {
            self.finish_purge(job, out);
        } else {
            self.end_turn(world, job, Ok(()), out);
        }
    }

    pub(super) fn tell_all(
        &mut self,
        change: &DecidedChange,
        skip: bool,
        out: &mut Vec<ControlEffect>,
    ) {
        for (new, _) in &change.copies {
            self.tell(new, skip, out);
        }
    }

    /// Tell the owner of a newer copy: now, or when the owner is made. An owner that knows it is
    /// not told again.
    pub(super) fn tell(
        &mut self,
        alloc: &Arc<Allocation>,
        skip: bool,
        out: &mut Vec<ControlEffect>,
    ) {
        let Some(entry) = self.tables.alloc_mut(alloc.id) else { return };
        entry.skip_shutdown_delay |= skip;
        if entry.owner == Ownership::Made && entry.told < alloc.modify_index {
            entry.told = alloc.modify_index;
            if alloc.desired == DesiredStatus::Stop && planted("devices-free-at-stop") {
                out.push(ControlEffect::ReleaseDevices(alloc.id));
            }
            out.push(ControlEffect::Tell { alloc: Arc::clone(alloc), skip_shutdown_delay: skip });
        }
    }
}

/// Is the job's record kept on disk? A job of `ostler run` ends with its agent and is
/// never on record.
pub(super) fn is_on_record(record: &ostler_model::saved::JobRecord) -> bool {
    record.origin != JobOrigin::Run
}

/// The writes of versions and deployments that differ from those before. `back`: write
/// those from before.
pub(super) fn history_writes(job: &JobId, change: &HistoryChange, back: bool) -> Vec<Write> {
    let (now, other) =
        if back { (&change.before, &change.now) } else { (&change.now, &change.before) };
    let (mut writes, id) = (Vec::new(), || job.clone());
    if now.versions != other.versions {
        // All versions of a job have the same create index.
        writes.push(match now.versions.first().map(|record| record.create_index) {
            None => Write::ForgetVersions(id()),
            Some(create_index) => {
                Write::Versions(id(), JobVersions { create_index, all: now.versions.clone() })
            }
        });
    }
    if now.deployments != other.deployments {
        writes.push(match now.deployments.first().map(|one| one.job_create_index) {
            None => Write::ForgetDeployments(id()),
            Some(create_index) => {
                let all = now.deployments.clone();
                Write::Deployments(id(), JobDeployments { create_index, all })
            }
        });
    }
    writes
}

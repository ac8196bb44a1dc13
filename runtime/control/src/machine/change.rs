//! The way of a change from its turn to its answer.
//!
//! Records are queued before an owner is made, so nothing runs whose allocation is not durable: a
//! task's intent is a durable write, and those keep their order. So the start of a task alone costs
//! no commit for its allocation; many changes at the same time share one.
//!
//! Stops are told to owners before they are durable: ending a task needs no disk. Of a stop that the
//! disk refuses, or does not answer, see [`super::revert`].

use std::sync::Arc;
use std::time::Duration;

use super::alarms::Alarm;
use super::revert::unrecorded;
use super::turn::{ChangePhase, Waiting};
use super::types::{Change, ControlEffect, HistoryChange, JobAction, Wait, World, Write};
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

/// How long a change waits for a durable write of somebody else to take its records along (a task's
/// intent, another change), before it asks for a commit itself.
pub(super) const LINGER: Duration = Duration::from_millis(2);

impl Machine {
    /// Decide a change and write it. `false`: there was nothing to do, or it was refused.
    pub(super) fn begin(
        &mut self,
        world: &World<'_>,
        job: &JobId,
        waiting: Waiting,
        out: &mut Vec<ControlEffect>,
    ) -> bool {
        let Waiting { asked, skip_shutdown_delay, request, stopped_early, until: _ } = waiting;
        let stops = asked.stops() || stopped_early.is_some();
        let whole = matches!(asked, JobAction::Version(..) | JobAction::Stop { .. });
        let mut decided = self.decide(world, job, asked);
        if let (Ok(change), Some(stopped)) = (&mut decided, &stopped_early) {
            // These stops were told and are not known to be durable: they are part of the change.
            change.copies.extend(self.overtaken(stopped));
        }
        // The disk may hold a change that was taken back: before the job is acknowledged as
        // unchanged, or as stopped already, its record is written again.
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
                // An earlier stop asked for the same and is not durable yet.
                if let Ok(change) = &mut result
                    && stops
                    && self.rewrites.contains_key(job)
                {
                    change.unwritten = Some(unrecorded("the disk refused it before"));
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
        let wait = match planted("answered-before-written") {
            true => Wait::No,
            false => Wait::Commit { linger: LINGER },
        };
        self.write(then, writes, own, wait, out);
        if stops {
            // At once: a disk that is full or does not answer keeps nobody from ending a task.
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

    /// What is to be on record of a change, the job's record first.
    fn records_of(&mut self, job: &JobId, change: &mut Change) -> Vec<Write> {
        let kept = |record: &&Arc<_>| is_on_record(record) && !planted("job-unwritten");
        // A purge writes the record of a stopped job first: until the record is gone, it is a
        // stop.
        let record = change.record.as_ref().filter(kept).cloned().map(Write::Job);
        let history = change.history.iter().flat_map(|history| history_writes(job, history, false));
        // Before the allocations that belong to them.
        let record = record.into_iter().chain(history.collect::<Vec<_>>());
        let copies = change.copies.iter().map(|(new, _)| new);
        let allocs = copies.chain(&change.placed).cloned().map(Write::Alloc);
        let mut writes: Vec<Write> = record.chain(allocs).collect();
        let by_server =
            |id| self.tables.alloc(id).is_some_and(|entry| entry.placed_by == PlacedBy::Server);
        let assigned = change.placed.iter().map(|alloc| alloc.id).filter(|id| by_server(*id));
        writes.extend(assigned.map(Write::Assigned));
        writes.extend(self.unwritten_before(job, change));
        writes.extend(self.ledger_write());
        writes.extend(self.purge_writes(change));
        writes
    }

    /// The records of a change are durable, or are not.
    pub(super) fn change_written(
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
                    (Ok(()), None) => return self.committed(world, job, out),
                };
                if turn.stops {
                    self.stop_failed(world, job, error, out)
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
                    self.not_forgotten(world, job, gone, &error);
                    tracing::error!(%job, %error, "a change that failed could not be taken back whole");
                }
                self.wake(world);
                self.end_turn(world, job, error.map_or(Ok(()), Err), out);
            }
            ChangePhase::Rewriting => self.rewritten(world, job, result, out),
            ChangePhase::Unplacing { .. } => {}
        }
    }

    fn committed(&mut self, world: &World<'_>, job: &JobId, out: &mut Vec<ControlEffect>) {
        let Some(turn) = self.turns.get_mut(job) else { return };
        let (stops, purge) = (turn.stops, turn.change.purge);
        self.reverted.remove(job);
        // The records of an earlier stop that were still to be written are durable with this
        // change.
        if self.rewrites.remove(job).is_some() {
            self.alarms.clear(&Alarm::Rewrite(job.clone()));
        }
        let (placed, skip) = (!turn.change.placed.is_empty(), turn.skip_shutdown_delay);
        if !stops {
            let change = turn.change.clone();
            self.tell_all(&change, skip, out);
        }
        if placed {
            self.look(out);
        }
        if purge {
            self.purged(job, out);
        } else {
            self.end_turn(world, job, Ok(()), out);
        }
    }

    pub(super) fn tell_all(&mut self, change: &Change, skip: bool, out: &mut Vec<ControlEffect>) {
        for (new, _) in &change.copies {
            self.tell(new, skip, out);
        }
    }

    /// The owner hears of a new copy, unless it knows it or a newer one: now, or when it is made.
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

/// A job of `ostler run` ends with its agent: it is never on record.
pub(super) fn is_on_record(record: &ostler_model::saved::JobRecord) -> bool {
    record.origin != JobOrigin::Run
}

/// Records of what is another one than before; `back`: as it was before.
pub(super) fn history_writes(job: &JobId, change: &HistoryChange, back: bool) -> Vec<Write> {
    let (now, other) =
        if back { (&change.before, &change.now) } else { (&change.now, &change.before) };
    let (mut writes, id) = (Vec::new(), || job.clone());
    if now.versions != other.versions {
        // Those of one job have one index.
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

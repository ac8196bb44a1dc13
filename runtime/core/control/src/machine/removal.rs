//! Removes allocations that are over.
//!
//! ```text
//! removal ─► waits for its turn ─► end of its place, on record ─► Remove ─► Removed ─► forgotten
//! ```
//! A crash in between leaves both records and directory, or neither.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::alarms::Alarm;
use super::types::{ControlEffect, NotRemoved, RemovalLeft, World, Write, WriteWait};
use super::{AfterWrite, Machine};
use crate::tables::RemovalState;
use ostler_model::alloc::DesiredStatus;
use ostler_model::ids::{AllocId, JobId};
use ostler_model::limits::{PURGE_PARALLEL, STATE_LATER_RETRY_WALL_MAX};
use ostler_model::planted::planted;
use ostler_state::StateError;

/// Why an allocation is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RemovalCause {
    /// The job of the allocation was purged.
    Purged,
    /// The allocation was collected.
    Collected,
}

/// The waiting removals of one cause, and the number of those under way.
#[derive(Debug, Default)]
struct RemovalLane {
    waiting: VecDeque<AllocId>,
    running: usize,
}

/// All removals that wait or are under way.
#[derive(Debug, Default)]
pub(super) struct Removals {
    /// Allocations whose places were not those of the present version when their removal began.
    unremembered: BTreeSet<AllocId>,
    /// Removed allocations whose records the disk did not remove, each with its job.
    unforgotten: BTreeMap<AllocId, JobId>,
    purged: RemovalLane,
    collected: RemovalLane,
    running: BTreeMap<AllocId, RemovalCause>,
}

impl Removals {
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
            && self.purged.waiting.is_empty()
            && self.collected.waiting.is_empty()
    }

    /// Allocations of a job whose records the disk did not remove.
    pub(super) fn unforgotten_allocs(&self, job: &JobId) -> impl Iterator<Item = AllocId> {
        self.unforgotten.iter().filter(move |(_, of)| *of == job).map(|(id, _)| *id)
    }

    /// Forget the unremoved records of a job: they were removed with it.
    pub(super) fn forget_job(&mut self, job: &JobId) {
        self.unforgotten.retain(|_, of| of != job);
    }

    const fn lane(&mut self, cause: RemovalCause) -> &mut RemovalLane {
        match cause {
            RemovalCause::Purged => &mut self.purged,
            RemovalCause::Collected => &mut self.collected,
        }
    }

    /// Start the next removal of a cause, when there is room for it beside those under way.
    fn start_next(&mut self, cause: RemovalCause, most: usize) -> Option<AllocId> {
        let lane = self.lane(cause);
        if lane.running >= most {
            return None;
        }
        let id = lane.waiting.pop_front()?;
        lane.running = lane.running.saturating_add(1);
        self.running.insert(id, cause);
        Some(id)
    }

    fn end_removal(&mut self, id: AllocId) {
        if let Some(cause) = self.running.remove(&id) {
            let lane = self.lane(cause);
            lane.running = lane.running.saturating_sub(1);
        }
    }
}

impl Machine {
    /// Remove this allocation, and the earlier ones of its place, where they have ended and their
    /// jobs were purged.
    pub(super) fn remove_purged(&mut self, id: AllocId, out: &mut Vec<ControlEffect>) {
        self.remove_all_purged(&self.tables.alloc_and_previous(id), out);
    }

    /// Remove those of these allocations that have ended and whose jobs were purged.
    pub(super) fn remove_all_purged(&mut self, among: &[AllocId], out: &mut Vec<ControlEffect>) {
        let purged = self.tables.take_purged(among);
        self.removals.purged.waiting.extend(purged);
        self.next_removals(out);
    }

    /// Remove an allocation that is over. Nothing happens where its removal has begun.
    pub(super) fn collect(&mut self, id: AllocId, out: &mut Vec<ControlEffect>) {
        let Some(entry) = self.tables.alloc_mut(id) else { return };
        if entry.removal == RemovalState::No {
            entry.removal = RemovalState::Begun;
            self.removals.collected.waiting.push_back(id);
            self.next_removals(out);
        }
    }

    fn next_removals(&mut self, out: &mut Vec<ControlEffect>) {
        let most = self.collector.as_ref().map_or(PURGE_PARALLEL, |gc| gc.parallel());
        for (cause, most) in
            [(RemovalCause::Purged, PURGE_PARALLEL), (RemovalCause::Collected, most)]
        {
            while let Some(id) = self.removals.start_next(cause, most) {
                match self.tables.remember(id) {
                    Some((block, places)) => {
                        let mut writes = vec![Write::Places(block, places)];
                        if planted("ended-place-unwritten") {
                            writes.clear();
                        }
                        let wait = WriteWait::Commit { linger: super::change::LINGER };
                        self.write(AfterWrite::Remove(id), writes, Vec::new(), wait, out);
                    }
                    None => {
                        self.removals.unremembered.insert(id);
                        out.push(ControlEffect::Remove(id));
                    }
                }
            }
        }
    }

    /// The end of an allocation's place is on record, or could not be written.
    pub(super) fn place_written(
        &mut self,
        world: &World<'_>,
        id: AllocId,
        result: Result<(), StateError>,
        out: &mut Vec<ControlEffect>,
    ) {
        match result {
            Ok(()) => {}
            Err(StateError::Closed { .. }) => {
                let why = "the agent is shutting down".to_owned();
                return self.handle_removed(
                    world,
                    id,
                    Err(NotRemoved { why, left: RemovalLeft::Everything }),
                    out,
                );
            }
            // The record is written again, before the records of the allocation are removed. The
            // directory is removed in any case: on a full disk nothing else makes room.
            Err(error) => {
                tracing::warn!(alloc = %id, %error, "how the allocation ended is not on record yet");
            }
        }
        out.push(ControlEffect::Remove(id));
    }

    /// An allocation was removed, or could not be removed.
    pub(super) fn handle_removed(
        &mut self,
        world: &World<'_>,
        id: AllocId,
        result: Result<(), NotRemoved>,
        out: &mut Vec<ControlEffect>,
    ) {
        self.removals.end_removal(id);
        if let Err(NotRemoved { left: RemovalLeft::Unknown, .. }) = &result {
            if let Some(entry) = self.tables.alloc_mut(id) {
                entry.removal = RemovalState::Slow;
            }
            self.finish_removal(id, &result, out);
            return self.next_removals(out);
        }
        // When the removal began, the job had another version, which may have been taken back
        // since.
        let stays = |not: &NotRemoved| not.left == RemovalLeft::Everything;
        if self.removals.unremembered.remove(&id)
            && !result.as_ref().is_err_and(stays)
            && let Some((block, places)) = self.tables.remember(id)
        {
            let writes = vec![Write::Places(block, places)];
            self.write(AfterWrite::Nothing, writes, Vec::new(), WriteWait::No, out);
        }
        self.note_removed(id);
        let job = self.tables.alloc(id).map(|entry| entry.allocation.job.id.clone());
        let unplacing = job.as_ref().is_some_and(|job| self.turns.is_unplacing(job, id));
        if result.as_ref().is_err_and(stays) && !unplacing {
            if let Some(entry) = self.tables.alloc_mut(id) {
                entry.removal = RemovalState::No;
            }
        } else {
            self.forget_live(world, id, out);
        }
        if let Err(NotRemoved { left: RemovalLeft::Records, .. }) = &result {
            self.removals.unforgotten.extend(job.clone().map(|job| (id, job)));
            self.forget_later(world);
        }
        self.finish_removal(id, &result, out);
        if let Some(job) = job {
            self.finish_unplace(&job, out);
        }
        self.next_removals(out);
    }

    /// Forget an allocation, and free what it still has.
    pub(super) fn forget_live(
        &mut self,
        world: &World<'_>,
        id: AllocId,
        out: &mut Vec<ControlEffect>,
    ) {
        let live = self.tables.alloc(id).is_some_and(|entry| !entry.ended);
        self.forget_alloc(id, out);
        if live {
            out.push(ControlEffect::ReleaseDevices(id));
            self.wake(world);
        }
    }

    /// Forget an allocation.
    pub(super) fn forget_alloc(&mut self, id: AllocId, out: &mut Vec<ControlEffect>) {
        let previous = self.tables.alloc_and_previous(id);
        self.tables.remove_alloc(id);
        self.note_drained(id, out);
        self.remove_all_purged(&previous, out);
    }

    /// Note the removal of an ended allocation in the change of its job that is under way.
    fn note_removed(&mut self, id: AllocId) {
        let Some(entry) = self.tables.alloc(id) else { return };
        let alloc = &entry.allocation;
        let ended = entry.ended && entry.is_registered() && alloc.desired == DesiredStatus::Run;
        if let Some(turn) = self.turns.get_mut(&alloc.job.id).filter(|_| ended) {
            let place = (alloc.group.clone(), alloc.index, alloc.job_version, entry.ended_place());
            turn.removed.push(place);
        }
    }

    fn forget_later(&mut self, world: &World<'_>) {
        let at = world.uptime.saturating_add(STATE_LATER_RETRY_WALL_MAX);
        self.alarms.set_by(Alarm::Forget, at);
    }

    /// Remove records again that the disk did not remove.
    pub(super) fn forget_again(&mut self, out: &mut Vec<ControlEffect>) {
        // They are forgotten only when they are gone: a purge that comes before takes them along.
        let left: BTreeSet<AllocId> = self.removals.unforgotten.keys().copied().collect();
        let writes: Vec<Write> = left.iter().map(|id| Write::ForgetAlloc(*id)).collect();
        if !writes.is_empty() {
            self.write(AfterWrite::Forgotten(left), writes, Vec::new(), WriteWait::No, out);
        }
    }

    /// Try the removal of allocations' records again later, unless the store is closed.
    pub(super) fn retry_forget(
        &mut self,
        world: &World<'_>,
        job: &JobId,
        allocs: BTreeSet<AllocId>,
        error: &StateError,
    ) {
        if !allocs.is_empty() && !matches!(error, StateError::Closed { .. }) {
            self.removals.unforgotten.extend(allocs.into_iter().map(|id| (id, job.clone())));
            self.forget_later(world);
        }
    }

    pub(super) fn finish_forget(
        &mut self,
        world: &World<'_>,
        allocs: BTreeSet<AllocId>,
        result: Result<(), StateError>,
    ) {
        match result {
            Ok(()) | Err(StateError::Closed { .. }) => {
                self.removals.unforgotten.retain(|id, _| !allocs.contains(id));
            }
            Err(error) => {
                tracing::warn!(%error, "records of allocations that are gone are not removed yet");
                self.forget_later(world);
            }
        }
    }
}

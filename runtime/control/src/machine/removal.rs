//! Allocations that are over are removed.
//!
//! ```text
//!   removal ─► waits for its turn ─► how its place ended, on record ─► Remove ─► Removed ─► forgotten
//! ```
//! A crash in between leaves records and directory, or neither.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::alarms::Alarm;
use super::types::{ControlEffect, NotRemoved, RemovalLeft, Wait, World, Write};
use super::{AfterWrite, Machine};
use crate::tables::Removal;
use ostler_model::alloc::DesiredStatus;
use ostler_model::ids::{AllocId, JobId};
use ostler_model::limits::{PURGE_PARALLEL, STATE_LATER_RETRY_WALL_MAX};
use ostler_model::planted::planted;
use ostler_state::StateError;

/// Why an allocation is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Its job is gone.
    Purged,
    /// It was collected.
    Collected,
}

/// Removals of one cause.
#[derive(Debug, Default)]
struct Lane {
    waiting: VecDeque<AllocId>,
    running: usize,
}

/// Removals that wait or are under way.
#[derive(Debug, Default)]
pub(super) struct Removals {
    /// Those whose places were none of the present version when their removal began.
    unremembered: BTreeSet<AllocId>,
    /// Gone, but for records that the disk did not let go.
    unforgotten: BTreeMap<AllocId, JobId>,
    purged: Lane,
    collected: Lane,
    running: BTreeMap<AllocId, Cause>,
}

impl Removals {
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
            && self.purged.waiting.is_empty()
            && self.collected.waiting.is_empty()
    }

    /// Allocations of a job whose records the disk did not let go.
    pub(super) fn unforgotten(&self, job: &JobId) -> impl Iterator<Item = AllocId> {
        self.unforgotten.iter().filter(move |(_, of)| *of == job).map(|(id, _)| *id)
    }

    /// They are gone with their job.
    pub(super) fn forgotten_with(&mut self, job: &JobId) {
        self.unforgotten.retain(|_, of| of != job);
    }

    const fn lane(&mut self, cause: Cause) -> &mut Lane {
        match cause {
            Cause::Purged => &mut self.purged,
            Cause::Collected => &mut self.collected,
        }
    }

    /// The next one, when there is room for it beside those under way.
    fn next(&mut self, cause: Cause, most: usize) -> Option<AllocId> {
        let lane = self.lane(cause);
        if lane.running >= most {
            return None;
        }
        let id = lane.waiting.pop_front()?;
        lane.running = lane.running.saturating_add(1);
        self.running.insert(id, cause);
        Some(id)
    }

    fn ended(&mut self, id: AllocId) {
        if let Some(cause) = self.running.remove(&id) {
            let lane = self.lane(cause);
            lane.running = lane.running.saturating_sub(1);
        }
    }
}

impl Machine {
    /// Remove this allocation, and those whose place it takes, where they have ended and their jobs were
    /// purged.
    pub(super) fn remove_purged(&mut self, id: AllocId, out: &mut Vec<ControlEffect>) {
        self.remove_all_purged(&self.tables.with_previous(id), out);
    }

    /// Remove those of these allocations that have ended and whose jobs were purged.
    pub(super) fn remove_all_purged(&mut self, among: &[AllocId], out: &mut Vec<ControlEffect>) {
        let purged = self.tables.take_purged(among);
        self.removals.purged.waiting.extend(purged);
        self.next_removals(out);
    }

    /// Remove an allocation that is over; nothing happens where its removal was begun.
    pub(super) fn collect(&mut self, id: AllocId, out: &mut Vec<ControlEffect>) {
        let Some(entry) = self.tables.alloc_mut(id) else { return };
        if entry.removal == Removal::No {
            entry.removal = Removal::Begun;
            self.removals.collected.waiting.push_back(id);
            self.next_removals(out);
        }
    }

    fn next_removals(&mut self, out: &mut Vec<ControlEffect>) {
        let most = self.collector.as_ref().map_or(PURGE_PARALLEL, |gc| gc.parallel());
        for (cause, most) in [(Cause::Purged, PURGE_PARALLEL), (Cause::Collected, most)] {
            while let Some(id) = self.removals.next(cause, most) {
                match self.tables.remember(id) {
                    Some((block, places)) => {
                        let mut writes = vec![Write::Places(block, places)];
                        if planted("ended-place-unwritten") {
                            writes.clear();
                        }
                        let wait = Wait::Commit { linger: super::change::LINGER };
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

    /// How the place of an allocation ended is on record, or is not.
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
                let why = "the agent is leaving".to_owned();
                return self.removed(
                    world,
                    id,
                    Err(NotRemoved { why, left: RemovalLeft::Everything }),
                    out,
                );
            }
            // It is written again, and before the removal of the allocation's records. The directory
            // goes: on a full disk nothing else makes room.
            Err(error) => {
                tracing::warn!(alloc = %id, %error, "how the allocation ended is not on record yet");
            }
        }
        out.push(ControlEffect::Remove(id));
    }

    /// An allocation was removed, or could not be.
    pub(super) fn removed(
        &mut self,
        world: &World<'_>,
        id: AllocId,
        result: Result<(), NotRemoved>,
        out: &mut Vec<ControlEffect>,
    ) {
        self.removals.ended(id);
        if let Err(NotRemoved { left: RemovalLeft::Unknown, .. }) = &result {
            if let Some(entry) = self.tables.alloc_mut(id) {
                entry.removal = Removal::Slow;
            }
            self.collected(id, &result, out);
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
            self.write(AfterWrite::Nothing, writes, Vec::new(), Wait::No, out);
        }
        self.note_removed(id);
        let job = self.tables.alloc(id).map(|entry| entry.allocation.job.id.clone());
        let unplacing = job.as_ref().is_some_and(|job| self.turns.is_unplacing(job, id));
        if result.as_ref().is_err_and(stays) && !unplacing {
            if let Some(entry) = self.tables.alloc_mut(id) {
                entry.removal = Removal::No;
            }
        } else {
            self.forget_live(world, id, out);
        }
        if let Err(NotRemoved { left: RemovalLeft::Records, .. }) = &result {
            self.removals.unforgotten.extend(job.clone().map(|job| (id, job)));
            self.forget_later(world);
        }
        self.collected(id, &result, out);
        if let Some(job) = job {
            self.unplaced(&job, out);
        }
        self.next_removals(out);
    }

    /// An allocation is not known any more; what it still has becomes free.
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

    /// An allocation is not known any more.
    pub(super) fn forget_alloc(&mut self, id: AllocId, out: &mut Vec<ControlEffect>) {
        let previous = self.tables.with_previous(id);
        self.tables.remove_alloc(id);
        self.drained_one(id, out);
        self.remove_all_purged(&previous, out);
    }

    /// An allocation that ended is removed while its job is being changed.
    fn note_removed(&mut self, id: AllocId) {
        let Some(entry) = self.tables.alloc(id) else { return };
        let alloc = &entry.allocation;
        let ended = entry.ended && entry.registered() && alloc.desired == DesiredStatus::Run;
        if let Some(turn) = self.turns.get_mut(&alloc.job.id).filter(|_| ended) {
            let place = (alloc.group.clone(), alloc.index, alloc.job_version, entry.ended_place());
            turn.removed.push(place);
        }
    }

    fn forget_later(&mut self, world: &World<'_>) {
        let at = world.uptime.saturating_add(STATE_LATER_RETRY_WALL_MAX);
        self.alarms.set_by(Alarm::Forget, at);
    }

    /// Remove records again that the disk did not let go.
    pub(super) fn forget_again(&mut self, out: &mut Vec<ControlEffect>) {
        // They are forgotten when they are gone: a purge that comes before takes them along.
        let left: BTreeSet<AllocId> = self.removals.unforgotten.keys().copied().collect();
        let writes: Vec<Write> = left.iter().map(|id| Write::ForgetAlloc(*id)).collect();
        if !writes.is_empty() {
            self.write(AfterWrite::Forgotten(left), writes, Vec::new(), Wait::No, out);
        }
    }

    /// Records of allocations of a job are to be removed again, unless the store is closed.
    pub(super) fn not_forgotten(
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

    pub(super) fn forgotten(
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

//! What owners of allocations say, and what becomes free by it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::alarms::Alarm;
use super::rollout::is_deploying;
use super::turn::Waiting;
use super::types::{ControlEffect, Wait, World, Write};
use super::{AfterWrite, Machine};
use crate::tables::{AllocReport, Ownership};
use crate::views::Stage;
use ostler_model::alloc::ClientStatus;
use ostler_model::ids::{AllocId, JobId};
use ostler_model::planted::planted;

/// How often placements that do not fit are tried again without a reason: a port may become free unseen.
const PLACEMENT_RETRY: Duration = Duration::from_secs(5);

/// So many places that wait are looked at whenever something becomes free.
const FILL_AT_ONCE: usize = 256;
/// Beyond that it is waited so long for each of them: some ten times what looking at one takes.
const FILL_PAUSE_PER_PLACE: Duration = Duration::from_micros(5);

impl Machine {
    /// An allocation is where its owner says.
    pub(super) fn reported(
        &mut self,
        world: &World<'_>,
        id: AllocId,
        report: AllocReport,
        out: &mut Vec<ControlEffect>,
    ) {
        let Some(entry) = self.tables.alloc_mut(id) else { return };
        let ended = report.ended && !entry.ended;
        let started = report.started && !entry.started();
        let over = report.status.terminal() && !entry.client_status().terminal();
        let judged = entry.report.verdict != report.verdict;
        entry.ended |= report.ended;
        self.tables.report(id, report, world.now);
        let Some(entry) = self.tables.alloc(id) else { return };
        let job = entry.allocation.job.id.clone();
        let failed = ended && entry.client_status() == ClientStatus::Failed;
        let decides = entry.registered() && (failed || judged || ended);
        if over || ended {
            self.node_drain_soon(world);
        }
        if ended && planted("devices-kept") {
            self.look(out);
        } else if ended {
            out.push(ControlEffect::ReleaseDevices(id));
            self.wake(world);
            self.look(out);
            self.drained_one(id, out);
            self.unplaced(&job, out);
        }
        if ended || started {
            self.remove_purged(id, out);
        }
        if decides && (failed || is_deploying(&self.tables, &job)) {
            self.look_again(world, job);
        }
        self.collect_if_ended(out);
    }

    /// The owner of an allocation was made, or could not be.
    pub(super) fn owned(
        &mut self,
        world: &World<'_>,
        id: AllocId,
        result: Result<(), String>,
        out: &mut Vec<ControlEffect>,
    ) {
        match result {
            Ok(()) => {
                let Some(entry) = self.tables.alloc_mut(id) else { return };
                entry.owner = Ownership::Made;
                let (newest, skip) = (Arc::clone(&entry.allocation), entry.skip_shutdown_delay);
                // A newer copy may have come while there was no owner.
                self.tell(&newest, skip, out);
            }
            Err(why) => self.not_owned(id, why, out),
        }
        self.restored_one(world, out);
    }

    fn not_owned(&mut self, id: AllocId, why: String, out: &mut Vec<ControlEffect>) {
        let Some(entry) = self.tables.alloc(id) else { return };
        let job = entry.allocation.job.id.clone();
        if let Some(turn) = self.turns.get_mut(&job)
            && turn.change.placed.iter().any(|alloc| alloc.id == id)
        {
            turn.unowned = Some(why);
            return;
        }
        tracing::error!(alloc = %id, error = why, "allocation not restored");
        // An allocation that had ended is not placed again because its owner could not be made.
        if let Some((block, places)) = self.tables.remember(id) {
            let writes = vec![Write::Places(block, places)];
            self.write(AfterWrite::Nothing, writes, Vec::new(), Wait::No, out);
        }
        self.forget_alloc(id, out);
        out.push(ControlEffect::ReleaseDevices(id));
    }

    /// A run that nobody owned has ended: what waited for that goes on.
    pub(super) fn run_ended(
        &mut self,
        world: &World<'_>,
        name: &str,
        out: &mut Vec<ControlEffect>,
    ) {
        let Some(free) = self.tables.holds.lift(name) else { return };
        let own = free.into_iter().filter_map(|id| Some(self.tables.alloc_mut(id)?.make_owner()));
        let own = own.collect();
        self.write(AfterWrite::Nothing, Vec::new(), own, Wait::No, out);
        self.wake(world);
    }

    /// There may be something to do for this job.
    pub(super) fn look_again(&mut self, world: &World<'_>, job: JobId) {
        self.unfilled.insert(job);
        self.wake(world);
    }

    /// Something became free, or may be placed now: places that wait are looked at again.
    pub(super) fn wake(&mut self, world: &World<'_>) {
        self.alarms.set_by(Alarm::Fill, world.uptime.max(self.fill_from));
    }

    /// What was placed could not be written: a disk that refuses is not asked again at once.
    pub(super) fn fill_failed(&mut self, world: &World<'_>) {
        self.fill_from = world.uptime.saturating_add(PLACEMENT_RETRY);
        self.alarms.set_by(Alarm::Fill, self.fill_from);
    }

    /// Fill places that wait: of jobs of a higher priority first, then of those that came first.
    pub(super) fn fill(&mut self, world: &World<'_>, out: &mut Vec<ControlEffect>) {
        if self.tables.stage == Stage::Leaving {
            return;
        }
        let unfilled = std::mem::take(&mut self.unfilled);
        let jobs: BTreeSet<_> = self.tables.blocked().into_iter().chain(unfilled).collect();
        let mut jobs: Vec<_> = jobs.into_iter().collect();
        jobs.sort_by_cached_key(|job| self.tables.rank(job));
        for job in jobs {
            if self.turns.is_free(&job) {
                self.take_turn(world, job, Waiting::fill(), out);
            } else {
                // The change under way fills the places too; if it fails, the next alarm does.
                self.unfilled.insert(job);
            }
        }
        let waiting = self.tables.places_waiting();
        // Looking takes time by the number of places: with many, the ends of many allocations are
        // answered by one look, so that most of the time is left for everything else.
        if waiting > FILL_AT_ONCE {
            let pause =
                FILL_PAUSE_PER_PLACE.saturating_mul(u32::try_from(waiting).unwrap_or(u32::MAX));
            self.fill_from = self.fill_from.max(world.uptime.saturating_add(pause));
        }
        if !self.unfilled.is_empty() || waiting > 0 {
            // Nothing tells when a port becomes free.
            self.alarms.set_by(Alarm::Fill, world.uptime.saturating_add(PLACEMENT_RETRY));
        }
    }
}

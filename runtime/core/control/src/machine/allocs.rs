//! Takes the reports of allocations' owners, and gives away what becomes free.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::alarms::Alarm;
use super::rollout::is_deploying;
use super::turn::WaitingChange;
use super::types::{ControlEffect, World, Write, WriteWait};
use super::{AfterWrite, Machine};
use crate::tables::{AllocReport, Ownership};
use crate::views::AgentStage;
use ostler_model::alloc::ClientStatus;
use ostler_model::ids::{AllocId, JobId};
use ostler_model::planted::planted;

/// Time between tries of placements that do not fit, without another cause: a port may
/// become free unnoticed.
const PLACEMENT_RETRY: Duration = Duration::from_secs(5);

/// The most waiting places that are tried whenever something becomes free.
const FILL_AT_ONCE: usize = 256;
/// With more places than that there is a pause of this length for each of them, some ten times what
/// a try takes.
const FILL_PAUSE_PER_PLACE: Duration = Duration::from_micros(5);

impl Machine {
    /// Take a report of an allocation's owner.
    pub(super) fn handle_report(
        &mut self,
        world: &World<'_>,
        id: AllocId,
        report: AllocReport,
        out: &mut Vec<ControlEffect>,
    ) {
        let Some(entry) = self.tables.alloc_mut(id) else { return };
        let ended = report.ended && !entry.ended;
        let started = report.started && !entry.has_started();
        let over = report.status.is_terminal() && !entry.client_status().is_terminal();
        let judged = entry.report.verdict != report.verdict;
        entry.ended |= report.ended;
        self.tables.report(id, report, world.now);
        let Some(entry) = self.tables.alloc(id) else { return };
        let job = entry.allocation.job.id.clone();
        let failed = ended && entry.client_status() == ClientStatus::Failed;
        let decides = entry.is_registered() && (failed || judged || ended);
        if over || ended {
            self.node_drain_soon(world);
        }
        if ended && planted("devices-kept") {
            self.check_garbage(out);
        } else if ended {
            out.push(ControlEffect::ReleaseDevices(id));
            self.wake(world);
            self.check_garbage(out);
            self.note_drained(id, out);
            self.finish_unplace(&job, out);
        }
        if ended || started {
            self.remove_purged(id, out);
        }
        if decides && (failed || is_deploying(&self.tables, &job)) {
            self.look_again(world, job);
        }
        self.collect_if_ended(out);
    }

    /// The owner of an allocation was made, or could not be made.
    pub(super) fn handle_owner(
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
            Err(why) => self.handle_no_owner(id, why, out),
        }
        self.note_restored_owner(world, out);
    }

    fn handle_no_owner(&mut self, id: AllocId, why: String, out: &mut Vec<ControlEffect>) {
        let Some(entry) = self.tables.alloc(id) else { return };
        let job = entry.allocation.job.id.clone();
        if let Some(turn) = self.turns.get_mut(&job)
            && turn.change.placed.iter().any(|alloc| alloc.id == id)
        {
            turn.unowned = Some(why);
            return;
        }
        tracing::error!(alloc = %id, error = why, "allocation not restored");
        // An allocation that had ended is not placed again only because its owner could not be
        // made.
        if let Some((block, places)) = self.tables.remember(id) {
            let writes = vec![Write::Places(block, places)];
            self.write(AfterWrite::Nothing, writes, Vec::new(), WriteWait::No, out);
        }
        self.forget_alloc(id, out);
        out.push(ControlEffect::ReleaseDevices(id));
    }

    /// A run that nobody owned has ended. What waited for its end goes on.
    pub(super) fn handle_run_end(
        &mut self,
        world: &World<'_>,
        name: &str,
        out: &mut Vec<ControlEffect>,
    ) {
        let Some(free) = self.tables.holds.lift(name) else { return };
        let own = free.into_iter().filter_map(|id| Some(self.tables.alloc_mut(id)?.make_owner()));
        let own = own.collect();
        self.write(AfterWrite::Nothing, Vec::new(), own, WriteWait::No, out);
        self.wake(world);
    }

    /// Look at this job again soon.
    pub(super) fn look_again(&mut self, world: &World<'_>, job: JobId) {
        self.unfilled.insert(job);
        self.wake(world);
    }

    /// Try the waiting places soon, because something became free or may be placed now.
    pub(super) fn wake(&mut self, world: &World<'_>) {
        self.alarms.set_by(Alarm::Fill, world.uptime.max(self.fill_from));
    }

    /// Delay the next try, because a placement could not be written: a disk that refuses is not
    /// asked again at once.
    pub(super) fn delay_fill(&mut self, world: &World<'_>) {
        self.fill_from = world.uptime.saturating_add(PLACEMENT_RETRY);
        self.alarms.set_by(Alarm::Fill, self.fill_from);
    }

    /// Fill the waiting places: first of jobs with a higher priority, then of older jobs.
    pub(super) fn fill(&mut self, world: &World<'_>, out: &mut Vec<ControlEffect>) {
        if self.tables.stage == AgentStage::Leaving {
            return;
        }
        let unfilled = std::mem::take(&mut self.unfilled);
        let jobs: BTreeSet<_> = self.tables.blocked_jobs().into_iter().chain(unfilled).collect();
        let mut jobs: Vec<_> = jobs.into_iter().collect();
        jobs.sort_by_cached_key(|job| self.tables.rank(job));
        for job in jobs {
            if self.turns.is_free(&job) {
                self.take_turn(world, job, WaitingChange::fill(), out);
            } else {
                // The change under way fills the places too; if it fails, the next alarm does.
                self.unfilled.insert(job);
            }
        }
        let waiting = self.tables.places_waiting();
        // A try takes time for each place. With many places the ends of many allocations are
        // answered by one try, so that most of the time is left for everything else.
        if waiting > FILL_AT_ONCE {
            let pause =
                FILL_PAUSE_PER_PLACE.saturating_mul(u32::try_from(waiting).unwrap_or(u32::MAX));
            self.fill_from = self.fill_from.max(world.uptime.saturating_add(pause));
        }
        if !self.unfilled.is_empty() || waiting > 0 {
            // Nothing reports that a port becomes free.
            self.alarms.set_by(Alarm::Fill, world.uptime.saturating_add(PLACEMENT_RETRY));
        }
    }
}

//! Garbage collection: when it is checked, and the requests for it.
//!
//! ```text
//! interval, an end, a placement ─► Measure ─► choice ─► removals ─► Measure … ─► none to go
//! ControlRequest::Collect ─► what is about to end gets a moment ─► removals ─► answered
//! ```
//! An embedded agent collects nothing by itself: whoever runs one job wants to see what became of
//! it.

use std::collections::BTreeSet;
use std::time::Duration;

use super::alarms::Alarm;
use super::types::{ControlAnswer, ControlEffect, NotRemoved, RemovalLeft, RequestId, World};
use super::{Machine, answer};
use crate::AllocError;
use crate::gc::choice::{FsUse, GcPolicy, GcState, GcStep, TooManyAllocs};
use crate::tables::RemovalState;
use crate::views::{AgentStage, CollectOutcome};
use ostler_model::ids::AllocId;
use ostler_model::limits::{COLLECT_REQUESTS_MAX, GC_ENDING_WALL_MAX, GC_INTERVAL_MIN};

/// Checks whether allocations are to go.
#[derive(Debug)]
pub(super) struct AllocCollector {
    policy: GcPolicy,
    state: GcState,
    measuring: bool,
    /// Check once more when this check has ended.
    again: bool,
    /// The allocations that this check removes.
    removing: BTreeSet<AllocId>,
    /// Whether the excess that was last logged was great.
    said: Option<bool>,
}

impl AllocCollector {
    /// Number of removals at the same time.
    pub(super) fn parallel(&self) -> usize {
        usize::try_from(self.policy.parallel.max(1)).unwrap_or(usize::MAX)
    }

    fn interval(&self) -> Duration {
        self.policy.interval.max(GC_INTERVAL_MIN)
    }

    /// Log that there are too many allocations, when that is new.
    fn tell(&mut self, excess: Option<TooManyAllocs>) {
        let great = excess.map(|excess| excess.is_great());
        if let Some(excess) = excess.filter(|_| self.said != great) {
            let TooManyAllocs { have, max } = excess;
            let text = "more allocations than gc.max_allocs, and only those that are over can go";
            if excess.is_great() {
                tracing::warn!(have, max, "{text}");
            } else {
                tracing::info!(have, max, "{text}");
            }
        }
        self.said = great;
    }
}

/// A request to collect one allocation, or all that are over.
#[derive(Debug)]
pub(super) struct CollectRequest {
    request: RequestId,
    only: Option<AllocId>,
    /// Allocations that are still to go; `None`: something is about to end first.
    left: Option<BTreeSet<AllocId>>,
    done: CollectOutcome,
}

impl CollectRequest {
    /// The result of the request. A request for one allocation that stays is an error.
    fn result(mut self) -> Result<CollectOutcome, AllocError> {
        match (self.only, self.done.failed.pop()) {
            (Some(_), Some((alloc, why))) => Err(AllocError::Stays { alloc, why }),
            (_, last) => {
                self.done.failed.extend(last);
                self.done.allocs.sort_unstable();
                Ok(self.done)
            }
        }
    }
}

impl Machine {
    /// Collect by this policy from now on.
    pub(super) fn start_collector(
        &mut self,
        world: &World<'_>,
        policy: GcPolicy,
        out: &mut Vec<ControlEffect>,
    ) {
        let (state, removing) = (GcState::default(), BTreeSet::new());
        let collector =
            AllocCollector { policy, state, measuring: false, again: false, removing, said: None };
        let at = world.uptime.saturating_add(collector.interval());
        self.collector = Some(collector);
        self.alarms.set(Alarm::Collect, at);
        self.check_garbage(out);
    }

    /// The operator changed the policy. Removals under way go on.
    pub(super) fn change_gc_policy(
        &mut self,
        world: &World<'_>,
        request: RequestId,
        policy: GcPolicy,
        out: &mut Vec<ControlEffect>,
    ) {
        if let Some(collector) = &mut self.collector {
            collector.policy = policy;
            let at = world.uptime.saturating_add(collector.interval());
            self.alarms.set(Alarm::Collect, at);
            self.check_garbage(out);
        }
        answer(request, ControlAnswer::Done, out);
    }

    pub(super) fn collect_tick(&mut self, world: &World<'_>, out: &mut Vec<ControlEffect>) {
        let Some(collector) = &mut self.collector else { return };
        collector.state.tick();
        let at = world.uptime.saturating_add(collector.interval());
        self.alarms.set(Alarm::Collect, at);
        self.check_garbage(out);
    }

    /// Something changed: check whether allocations are to go.
    pub(super) fn check_garbage(&mut self, out: &mut Vec<ControlEffect>) {
        self.measure(false, out);
    }

    fn measure(&mut self, sync: bool, out: &mut Vec<ControlEffect>) {
        let leaving = self.tables.stage == AgentStage::Leaving;
        let Some(collector) = self.collector.as_mut().filter(|_| !leaving) else { return };
        if collector.measuring || !collector.removing.is_empty() {
            collector.again = true;
            return;
        }
        collector.measuring = true;
        out.push(ControlEffect::Measure { sync });
    }

    pub(super) fn take_measurement(&mut self, fs: Option<FsUse>, out: &mut Vec<ControlEffect>) {
        let garbage = self.tables.garbage(&self.unfilled);
        let live = self.tables.count().saturating_sub(garbage.len());
        let here =
            |id| self.tables.alloc(id).is_some_and(|entry| entry.removal == RemovalState::No);
        let terminal: Vec<_> = garbage.into_iter().filter(|one| here(one.id)).collect();
        let Some(collector) = &mut self.collector else { return };
        collector.measuring = false;
        match collector.state.next_step(&collector.policy, fs, &terminal, live) {
            GcStep::Done { excess } => {
                collector.tell(excess);
                if std::mem::take(&mut collector.again) {
                    self.check_garbage(out);
                }
            }
            GcStep::Destroy { ids, reason } => {
                collector.removing = ids.iter().copied().collect();
                for id in ids {
                    tracing::info!(alloc = %id, %reason, "allocation is collected");
                    self.collect(id, out);
                }
            }
        }
    }

    /// A removal has ended.
    pub(super) fn finish_removal(
        &mut self,
        id: AllocId,
        result: &Result<(), NotRemoved>,
        out: &mut Vec<ControlEffect>,
    ) {
        if let Err(NotRemoved { why, .. }) = result {
            tracing::warn!(alloc = %id, error = why, "cannot collect the allocation");
        }
        if let Some(collector) = &mut self.collector {
            match result {
                Ok(())
                | Err(NotRemoved { left: RemovalLeft::Directory | RemovalLeft::Records, .. }) => {
                    collector.state.record_destroyed(id);
                }
                Err(NotRemoved { left: RemovalLeft::Unknown, .. }) => {
                    collector.state.record_hang(id)
                }
                Err(NotRemoved { left: RemovalLeft::Everything, .. }) => {
                    collector.state.record_failure(id)
                }
            }
            if collector.removing.remove(&id) && collector.removing.is_empty() {
                collector.again = false;
                self.measure(true, out);
            }
        }
        for collect in &mut self.collects {
            if collect.left.as_mut().is_some_and(|left| left.remove(&id)) {
                match result {
                    Ok(()) => collect.done.allocs.push(id),
                    Err(NotRemoved { why, .. }) => collect.done.failed.push((id, why.clone())),
                }
            }
        }
        self.answer_collects(out);
    }

    fn answer_collects(&mut self, out: &mut Vec<ControlEffect>) {
        let ended =
            |collect: &CollectRequest| collect.left.as_ref().is_some_and(BTreeSet::is_empty);
        let (ended, kept): (Vec<_>, _) =
            std::mem::take(&mut self.collects).into_iter().partition(ended);
        self.collects = kept;
        for collect in ended {
            answer(collect.request, ControlAnswer::Collected(collect.result()), out);
        }
    }

    /// Take a request to collect one allocation, or all that are over.
    pub(super) fn ask_collect(
        &mut self,
        world: &World<'_>,
        request: RequestId,
        only: Option<AllocId>,
        out: &mut Vec<ControlEffect>,
    ) {
        let refused = match only {
            _ if self.tables.stage == AgentStage::Leaving => Some(AllocError::Leaving),
            _ if self.collects.len() >= COLLECT_REQUESTS_MAX => Some(AllocError::Busy),
            Some(alloc) if self.tables.alloc(alloc).is_none() => {
                Some(AllocError::Unknown { alloc })
            }
            _ => None,
        };
        if let Some(error) = refused {
            return answer(request, ControlAnswer::Collected(Err(error)), out);
        }
        self.collects.push(CollectRequest {
            request,
            only,
            left: None,
            done: CollectOutcome::default(),
        });
        // What is about to end is waited for, so that a collection right after a stop removes what
        // was stopped.
        if self.tables.is_ending(only) {
            let at = world.uptime.saturating_add(GC_ENDING_WALL_MAX);
            self.alarms.set(Alarm::CollectNow(request), at);
        } else {
            self.begin_collect(request, out);
        }
    }

    /// Begin the requests whose allocations have ended by now.
    pub(super) fn collect_if_ended(&mut self, out: &mut Vec<ControlEffect>) {
        let waiting = self.collects.iter().filter(|collect| collect.left.is_none());
        let ready: Vec<RequestId> = waiting
            .filter(|collect| !self.tables.is_ending(collect.only))
            .map(|collect| collect.request)
            .collect();
        for request in ready {
            self.alarms.clear(&Alarm::CollectNow(request));
            self.begin_collect(request, out);
        }
    }

    pub(super) fn begin_collect(&mut self, request: RequestId, out: &mut Vec<ControlEffect>) {
        let Some(only) = self.collects.iter().find(|c| c.request == request).map(|c| c.only) else {
            return;
        };
        let garbage = self.tables.garbage(&self.unfilled).into_iter().map(|candidate| candidate.id);
        let ids: Vec<AllocId> = garbage.filter(|id| only.is_none_or(|only| only == *id)).collect();
        let unrecorded = self.tables.unrecorded_ends(only);
        if let (Some(alloc), true) = (only, ids.is_empty() && unrecorded.is_empty()) {
            self.collects.retain(|collect| collect.request != request);
            let status = self.tables.alloc(alloc).map(|entry| entry.client_status());
            let status = status.unwrap_or_default();
            return answer(
                request,
                ControlAnswer::Collected(Err(AllocError::NotOver { alloc, status })),
                out,
            );
        }
        let slow = |id: &AllocId| {
            self.tables.alloc(*id).is_some_and(|entry| entry.removal == RemovalState::Slow)
        };
        let (slow, ids): (Vec<_>, Vec<_>) = ids.into_iter().partition(slow);
        if let Some(collect) = self.collects.iter_mut().find(|c| c.request == request) {
            let why = "its removal takes long and has not ended yet";
            collect.done.failed.extend(slow.into_iter().map(|id| (id, why.to_owned())));
            let why = "it has ended, and that is not on record yet; the agent's log says why, a full disk perhaps";
            collect.done.failed.extend(unrecorded.into_iter().map(|id| (id, why.to_owned())));
            collect.left = Some(ids.iter().copied().collect());
        }
        for id in ids {
            self.collect(id, out);
        }
        self.answer_collects(out);
    }

    /// Drop a request that nobody waits for, so that another one may have its place. Removals that
    /// began go on.
    pub(super) fn give_up_collect(&mut self, request: RequestId) {
        self.collects.retain(|collect| collect.request != request);
        self.alarms.clear(&Alarm::CollectNow(request));
    }

    /// Refuse the waiting requests: the agent is leaving.
    pub(super) fn refuse_collects(&mut self, out: &mut Vec<ControlEffect>) {
        for collect in std::mem::take(&mut self.collects) {
            answer(collect.request, ControlAnswer::Collected(Err(AllocError::Leaving)), out);
        }
    }
}

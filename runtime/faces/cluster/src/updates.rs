//! The reports about allocations to the servers: every state that differs from what they have
//! acknowledged. Pure.
//!
//! ```text
//! update_state ─► one entry per allocation ─ tick, 200 ms ─► batch ─ Node.UpdateAlloc ─► finish_call ─► acknowledged
//!                    urgent: at the next tick   else: each fifth          └─ failed: they wait again
//! ```
//! A change of the client status is urgent. Events of tasks and the health may wait.
//!
//! A call without an answer may be carried out later than a newer one. Its states are in doubt for
//! [`CLUSTER_DOUBT_WALL`]; after that they are reported once more, and they are not recorded
//! before.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ostler_model::alloc::ClientStatus;
use ostler_model::ids::AllocId;
use ostler_model::limits::{CLUSTER_DOUBT_WALL, CLUSTER_UPDATES_PER_CALL};
use ostler_model::saved::AcknowledgedState;

/// The number of ticks between two reports that are not urgent.
const TICKS: u32 = 5;

/// How soon a state must be reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Not at all, because the servers know it.
    None,
    /// With the next regular report.
    Normal,
    /// At the next tick.
    Urgent,
}

/// How soon `now` must be reported to servers that have acknowledged `acknowledged`.
#[must_use]
pub fn urgency(acknowledged: Option<&AcknowledgedState>, now: &AcknowledgedState) -> Urgency {
    match acknowledged {
        Some(known) if known == now => Urgency::None,
        Some(known) if known.client_status != now.client_status => Urgency::Urgent,
        None if now.client_status == ClientStatus::Failed => Urgency::Urgent,
        _ => Urgency::Normal,
    }
}

/// The states that one call reports.
pub type UpdateBatch = BTreeMap<AllocId, AcknowledgedState>;

/// The states of allocations that servers know, and those to report; see the module.
#[derive(Clone, Debug, Default)]
pub struct AllocUpdates {
    acknowledged: BTreeMap<AllocId, AcknowledgedState>,
    waiting: UpdateBatch,
    /// The states in the call under way.
    told: Option<UpdateBatch>,
    /// The allocations that servers count as ended; they are not reported as running.
    over: BTreeSet<AllocId>,
    /// For each allocation in doubt, the time until which an older state may overtake a newer one.
    doubts: BTreeMap<AllocId, Duration>,
    ticks: u32,
}

impl AllocUpdates {
    /// Start with the states that servers have acknowledged before.
    #[must_use]
    pub fn new(acknowledged: BTreeMap<AllocId, AcknowledgedState>) -> Self {
        Self { acknowledged, ..Self::default() }
    }

    /// Note that servers count this allocation as ended, whatever is recorded here.
    pub fn mark_over(&mut self, id: AllocId) {
        self.over.insert(id);
        if self.waiting.get(&id).is_some_and(|now| !now.client_status.is_terminal()) {
            self.waiting.remove(&id);
        }
    }

    /// Set the present state of an allocation.
    pub fn update_state(&mut self, id: AllocId, now: AcknowledgedState) {
        if !now.client_status.is_terminal() && self.over.contains(&id) {
            return;
        }
        // A state in the call under way counts as known; if the call fails, it waits again.
        let told = self.told.as_ref().and_then(|told| told.get(&id));
        match urgency(told.or(self.acknowledged.get(&id)), &now) {
            Urgency::None => drop(self.waiting.remove(&id)),
            Urgency::Normal | Urgency::Urgent => drop(self.waiting.insert(id, now)),
        }
    }

    /// Queue the present state of an allocation that the servers have forgotten.
    pub fn requeue_forgotten(&mut self, id: AllocId, now: AcknowledgedState) {
        self.acknowledged.remove(&id);
        self.waiting.insert(id, now);
    }

    /// Remove an allocation. It is not reported any more.
    pub fn remove_alloc(&mut self, id: AllocId) {
        self.waiting.remove(&id);
        self.acknowledged.remove(&id);
        self.over.remove(&id);
        self.doubts.remove(&id);
    }

    /// Remove all allocations except those that `kept` accepts.
    pub fn retain_allocs(&mut self, kept: impl Fn(AllocId) -> bool) {
        self.acknowledged.retain(|id, _| kept(*id));
        self.waiting.retain(|id, _| kept(*id));
        self.over.retain(|id| kept(*id));
        self.doubts.retain(|id, _| kept(*id));
    }

    /// The time of the next end of a doubt, when a state is reported once more.
    #[must_use]
    pub fn doubt_ends(&self) -> Option<Duration> {
        self.doubts.values().min().copied()
    }

    /// Queue the states whose doubt has ended to be reported once more.
    fn end_doubts(&mut self, now: Duration) {
        let ended: Vec<_> =
            self.doubts.extract_if(.., |_, until| *until <= now).map(|(id, _)| id).collect();
        for id in ended {
            if let Some(known) = self.acknowledged.remove(&id) {
                self.waiting.entry(id).or_insert(known);
            }
        }
    }

    /// Whether servers know for sure that this allocation has ended.
    #[must_use]
    pub fn is_end_known(&self, id: AllocId) -> bool {
        let known = self.acknowledged.get(&id);
        let known = known.is_some_and(|known| known.client_status.is_terminal());
        known && !self.waiting.contains_key(&id) && !self.doubts.contains_key(&id)
    }

    /// Whether there is nothing to report.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.waiting.is_empty() && self.told.is_none()
    }

    /// Run one tick. Returns the states to report now, at most as many as one call takes; none
    /// while a call is under way. `now` is monotonic time.
    pub fn tick(&mut self, now: Duration) -> Option<UpdateBatch> {
        if self.told.is_none() {
            self.end_doubts(now);
        }
        self.ticks = self.ticks.saturating_add(1);
        let urgent = || {
            let mut waiting = self.waiting.iter();
            waiting.any(|(id, now)| urgency(self.acknowledged.get(id), now) == Urgency::Urgent)
        };
        if self.told.is_some() || self.waiting.is_empty() || (self.ticks < TICKS && !urgent()) {
            return None;
        }
        self.ticks = 0;
        let mut urgent_first: Vec<_> = std::mem::take(&mut self.waiting).into_iter().collect();
        urgent_first
            .sort_by_key(|(id, now)| std::cmp::Reverse(urgency(self.acknowledged.get(id), now)));
        let rest = urgent_first.split_off(urgent_first.len().min(CLUSTER_UPDATES_PER_CALL));
        self.waiting = rest.into_iter().collect();
        if !self.waiting.is_empty() {
            // The rest is sent as soon as the call has ended.
            self.ticks = TICKS;
        }
        let told: UpdateBatch = urgent_first.into_iter().collect();
        self.told = Some(told.clone());
        Some(told)
    }

    /// Note that the call has ended. Returns the states that are acknowledged for good, to be
    /// recorded; none if it failed.
    pub fn finish_call(&mut self, taken: bool, now: Duration) -> UpdateBatch {
        let mut told = self.told.take().unwrap_or_default();
        if !taken {
            for (id, state) in told {
                self.doubts.insert(id, now.saturating_add(CLUSTER_DOUBT_WALL));
                // A newer state may have come meanwhile.
                self.waiting.entry(id).or_insert(state);
            }
            return UpdateBatch::new();
        }
        self.acknowledged.extend(told.clone());
        let acknowledged = &self.acknowledged;
        self.waiting.retain(|id, now| urgency(acknowledged.get(id), now) != Urgency::None);
        told.retain(|id, _| !self.doubts.contains_key(id));
        told
    }
}

#[cfg(test)]
mod tests {
    use ostler_model::rng::Rng;
    use proptest::prelude::{any, prop, prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn id(seed: u64) -> AllocId {
        AllocId::new(Rng::from_seed(seed).uuid())
    }

    fn at(client_status: ClientStatus, description: &str) -> AcknowledgedState {
        AcknowledgedState {
            client_status,
            client_description: description.to_owned(),
            ..AcknowledgedState::default()
        }
    }

    #[test]
    fn what_becomes_of_it_is_told_at_once_and_the_rest_with_each_fifth_tick() {
        let running = at(ClientStatus::Running, "one");
        let mut updates = AllocUpdates::new([(id(1), running.clone())].into());
        updates.update_state(id(1), running);
        assert!(updates.is_quiet(), "they know it");
        updates.update_state(id(1), at(ClientStatus::Running, "two"));
        assert_eq!((0..4).filter_map(|_| updates.tick(Duration::ZERO)).count(), 0);
        assert_eq!(updates.tick(Duration::ZERO).unwrap().len(), 1);
        updates.finish_call(true, Duration::ZERO);
        updates.update_state(id(1), at(ClientStatus::Complete, "three"));
        assert_eq!(
            updates.tick(Duration::ZERO).unwrap()[&id(1)].client_status,
            ClientStatus::Complete
        );
        assert_eq!(updates.tick(Duration::ZERO), None, "one call at a time");
        assert_eq!(updates.finish_call(true, Duration::ZERO).len(), 1);
        assert!(updates.is_quiet());
    }

    #[test]
    fn what_could_not_be_told_waits_again_unless_something_newer_does() {
        let mut updates = AllocUpdates::default();
        updates.update_state(id(1), at(ClientStatus::Failed, "one"));
        updates.update_state(id(2), at(ClientStatus::Failed, "one"));
        assert_eq!(updates.tick(Duration::ZERO).unwrap().len(), 2);
        updates.update_state(id(1), at(ClientStatus::Failed, "two"));
        assert!(updates.finish_call(false, Duration::ZERO).is_empty());
        let again = updates.tick(Duration::ZERO).unwrap();
        assert_eq!(again[&id(1)].client_description, "two");
        assert_eq!(again[&id(2)].client_description, "one");
    }

    #[test]
    fn what_servers_have_forgotten_is_told_again() {
        let running = at(ClientStatus::Running, "one");
        let mut updates = AllocUpdates::new([(id(1), running.clone())].into());
        updates.requeue_forgotten(id(1), running.clone());
        let told = (0..TICKS).find_map(|_| updates.tick(Duration::ZERO)).unwrap();
        assert_eq!(told[&id(1)], running);
        updates.finish_call(true, Duration::ZERO);
        updates.update_state(id(1), running);
        assert!(updates.is_quiet());
    }

    #[test]
    fn a_call_takes_so_many_and_those_that_are_urgent_first() {
        let known = 0..CLUSTER_UPDATES_PER_CALL as u64 + 1;
        let running = at(ClientStatus::Running, "one");
        let mut updates =
            AllocUpdates::new(known.clone().map(|n| (id(n), running.clone())).collect());
        for n in known {
            updates.update_state(id(n), at(ClientStatus::Running, "two"));
        }
        updates.update_state(id(3), at(ClientStatus::Failed, "two"));
        let first = updates.tick(Duration::ZERO).unwrap();
        assert!(first.len() == CLUSTER_UPDATES_PER_CALL && first.contains_key(&id(3)));
        updates.finish_call(true, Duration::ZERO);
        assert_eq!(updates.tick(Duration::ZERO).unwrap().len(), 1, "the rest follows at once");
    }

    #[test]
    fn what_servers_count_as_over_is_not_told_to_run() {
        let mut updates = AllocUpdates::default();
        updates.update_state(id(1), at(ClientStatus::Running, "one"));
        updates.mark_over(id(1));
        assert!(updates.is_quiet());
        updates.update_state(id(1), at(ClientStatus::Pending, "two"));
        assert!(updates.is_quiet());
        updates.update_state(id(1), at(ClientStatus::Complete, "three"));
        assert!(!updates.is_quiet());
    }

    #[test]
    fn what_may_be_overtaken_by_a_call_without_an_answer_is_told_once_more_and_only_then_on_record()
    {
        let (mut updates, second) = (AllocUpdates::default(), Duration::from_secs(1));
        updates.update_state(id(1), at(ClientStatus::Failed, "one"));
        assert!(updates.tick(second).is_some());
        updates.finish_call(false, second);
        assert_eq!(updates.doubt_ends(), Some(second + CLUSTER_DOUBT_WALL));
        assert!(updates.tick(second).is_some());
        assert!(updates.finish_call(true, second).is_empty(), "nothing is sure");
        assert!(updates.is_quiet() && !updates.is_end_known(id(1)));
        let later = second + CLUSTER_DOUBT_WALL;
        let again = (0..TICKS).find_map(|_| updates.tick(later)).unwrap();
        assert_eq!(again[&id(1)].client_description, "one");
        assert_eq!(updates.finish_call(true, later).len(), 1);
        assert!(updates.is_quiet() && updates.doubt_ends().is_none());
        assert!(updates.is_end_known(id(1)));
    }

    proptest! {
        #[test]
        fn in_the_end_the_servers_know_everything(
            steps in prop::collection::vec((0_u64..4, 0_u8..5, any::<bool>()), 1..80),
        ) {
            let (mut updates, mut servers) = (AllocUpdates::default(), BTreeMap::new());
            let (mut states, mut now) = (BTreeMap::new(), Duration::ZERO);
            let mut call: Option<UpdateBatch> = None;
            // Calls that were not answered, and when they were given up.
            let mut late: Vec<(Duration, UpdateBatch)> = Vec::new();
            for (which, what, ok) in steps {
                now += CLUSTER_DOUBT_WALL / 10;
                // They are carried out before their time is over, or not at all.
                for (_, batch) in late.extract_if(.., |(at, _)| *at + CLUSTER_DOUBT_WALL <= now + CLUSTER_DOUBT_WALL / 10) {
                    if ok { servers.extend(batch); }
                }
                match what {
                    0 => {
                        let status = if ok { ClientStatus::Running } else { ClientStatus::Failed };
                        states.insert(id(which), at(status, &now.as_secs().to_string()));
                        updates.update_state(id(which), states[&id(which)].clone());
                    }
                    1 if call.is_none() => call = updates.tick(now),
                    2 => if let Some(batch) = call.take() {
                        if ok { servers.extend(batch); } else { late.push((now, batch)); }
                        updates.finish_call(ok, now);
                    },
                    3 => if let Some((_, batch)) = late.pop().filter(|_| ok) {
                        servers.extend(batch);
                    },
                    _ => {}
                }
            }
            for (_, batch) in late {
                servers.extend(batch);
            }
            for _ in 0..40 {
                if let Some(batch) = call.take() {
                    servers.extend(batch);
                    updates.finish_call(true, now);
                }
                now += CLUSTER_DOUBT_WALL / 10;
                call = updates.tick(now);
            }
            prop_assert!(updates.is_quiet());
            prop_assert_eq!(servers, states);
        }
    }
}

//! Decides which places are filled, emptied or left as they are, group by group.
//!
//! ```text
//!   no policy, or 0 at a time ─► every place as it is
//!   deployed step by step:
//!     open       ─► empty places are filled; of those that differ so many are replaced as are missing
//!                   to max_parallel: none while a new one is unhealthy
//!     canaries   ─► so many of the new version beside the old ones; nothing else of it. Accepted ones have
//!                   the places that they are beside: what is in these of the older version is stopped
//!     held       ─► nothing of the new version (paused, failed)
//!   while it is not open, what fails of the older version gets successors of that version, also in
//!   places that only the older version has: a lower count counts when the new version is accepted.
//!   What an even older version had in other places does not come back
//! ```

use std::collections::{BTreeMap, BTreeSet};

use super::steps::Steps;
use super::{
    Actions, ExistingAlloc, GroupProgress, PlaceAction, PlacementDetails, ReconcilePlan, WantedJob,
    is_destructive, reason,
};
use crate::reschedule;
use ostler_model::alloc::ClientStatus;
use ostler_model::ids::{AllocId, GroupName};
use ostler_model::job::{JobKind, TaskGroup};
use ostler_model::planted::planted;
use ostler_model::rollout::{
    DeployedGroup, Deployment, DeploymentPhase, RescheduleEvent, UpdatePolicy,
};
use ostler_model::time::Timestamp;

/// Allocations by group and index of their place.
type Places<'e, 'a> = BTreeMap<(&'a GroupName, u32), Vec<&'e ExistingAlloc<'a>>>;

/// The steps that a deployment allows for a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RolloutGate {
    Open,
    Canaries,
    Held,
}

pub(super) fn reconcile_places<'a>(
    wanted: &WantedJob<'a>,
    existing: &[ExistingAlloc<'a>],
) -> ReconcilePlan {
    let mut places: Places<'_, 'a> = BTreeMap::new();
    let mut canaries: BTreeMap<&GroupName, Vec<&ExistingAlloc<'a>>> = BTreeMap::new();
    let mut done = Todo::default();
    let trying = wanted.deployment.is_some_and(|deployment| deployment.phase.is_active());
    for alloc in existing {
        if !alloc.canary {
            places.entry((alloc.group, alloc.index)).or_default().push(alloc);
        } else if trying && alloc.deployed && !wanted.stopped {
            canaries.entry(alloc.group).or_default().push(alloc);
        } else {
            let reason = if wanted.stopped { reason::JOB_STOPPED } else { reason::NOT_NEEDED };
            done.actions.end(alloc, reason);
        }
    }
    if !wanted.stopped {
        let mut steps = Steps::for_job(wanted, existing);
        for group in &wanted.job.groups {
            let canaries = canaries.remove(&group.name).unwrap_or_default();
            let policy = group.update.filter(|policy| {
                wanted.lives_on && wanted.job.kind == JobKind::Service && policy.max_parallel > 0
            });
            let count_before = count_before(wanted, &group.name, &places);
            let group = GroupPlaces { wanted, group, policy, canaries, count_before };
            group.decide(&mut places, &mut steps, &mut done);
        }
        done.next = steps.next(wanted);
    }
    let reason = if wanted.stopped { reason::JOB_STOPPED } else { reason::NOT_NEEDED };
    let runs_on = !wanted.stopped && planted("beyond-count-runs-on");
    for alloc in places.into_values().chain(canaries.into_values()).flatten().filter(|_| !runs_on) {
        done.actions.end(alloc, reason);
    }
    let Todo { actions, later, next, groups, behind } = done;
    let next = later.values().copied().chain(next).min();
    ReconcilePlan { actions: actions.into_ordered(), later, next, groups, behind }
}

#[derive(Default)]
struct Todo {
    actions: Actions,
    later: BTreeMap<AllocId, Timestamp>,
    next: Option<Timestamp>,
    groups: BTreeMap<GroupName, GroupProgress>,
    behind: BTreeSet<AllocId>,
}

/// A group of the job, with what decides about its places.
struct GroupPlaces<'w, 'e, 'a> {
    wanted: &'w WantedJob<'a>,
    group: &'a TaskGroup,
    /// The policy of a group that is replaced step by step.
    policy: Option<UpdatePolicy>,
    /// Canaries that nobody has accepted yet.
    canaries: Vec<&'e ExistingAlloc<'a>>,
    /// The number of places that the version before has.
    count_before: u32,
}

/// What was counted while the places of a group were decided.
#[derive(Default)]
struct PlaceTally<'e, 'a> {
    /// To be replaced, as far as the policy allows.
    differ: Vec<(u32, &'e ExistingAlloc<'a>, Option<AllocId>)>,
    /// Places in which nothing runs that is to go on. A canary may be accepted for them as well.
    vacant: Vec<u32>,
    /// Places that canaries have when they are accepted.
    beside_canaries: BTreeSet<u32>,
    /// Number of new allocations without a verdict on their health.
    outstanding: u32,
    unhealthy: bool,
    placed: u32,
    /// Something is not in its final state yet.
    unfinished: bool,
    updated: bool,
    known: bool,
}

impl<'e, 'a> GroupPlaces<'_, 'e, 'a> {
    fn deployed_group(&self) -> Option<&DeployedGroup> {
        self.wanted.deployment.and_then(|deployment| deployment.groups.get(&self.group.name))
    }

    /// Decide about every place of the group.
    fn decide(&self, places: &mut Places<'e, 'a>, steps: &mut Steps, todo: &mut Todo) {
        let mut there = Vec::new();
        let short = u32::from(planted("last-place-empty"));
        for index in 0..self.group.count.saturating_sub(short) {
            let mut allocs = places.remove(&(&self.group.name, index)).unwrap_or_default();
            allocs.sort_by_key(|alloc| alloc.rank(self.wanted));
            there.push((index, allocs));
        }
        let gate = self.gate(&there);
        let beyond = if self.is_open_beyond(gate) { Vec::new() } else { self.take_beyond(places) };
        let of_version =
            |allocs: &[&ExistingAlloc<'a>]| allocs.iter().any(|a| a.is_of(self.wanted));
        let known = !self.canaries.is_empty() || there.iter().any(|(_, allocs)| of_version(allocs));
        let beside_canaries = self.beside_canaries();
        let mut counted = PlaceTally { known, beside_canaries, ..PlaceTally::default() };
        for (index, allocs) in &there {
            self.place(*index, allocs, gate, todo, &mut counted);
        }
        for (index, allocs) in &beyond {
            self.place_beyond(*index, allocs, gate, todo, &mut counted);
        }
        let promotes = gate == RolloutGate::Canaries;
        self.place_canaries(&counted, promotes, todo);
        self.replace(&counted, gate, steps, todo);
        let progress = GroupProgress {
            updates: counted.updated || !counted.differ.is_empty(),
            places: counted.placed > 0,
            known: counted.known,
            wants_canaries: promotes,
            done: !counted.unfinished
                && !counted.updated
                && counted.differ.is_empty()
                && counted.placed == 0
                && gate == RolloutGate::Open,
        };
        todo.groups.insert(self.group.name.clone(), progress);
    }

    /// May places be emptied that the wanted version does not have? Not before that
    /// version is accepted.
    fn is_open_beyond(&self, gate: RolloutGate) -> bool {
        match gate {
            RolloutGate::Open => true,
            RolloutGate::Canaries => false,
            RolloutGate::Held => {
                !self.deployed_group().is_some_and(DeployedGroup::awaits_promotion)
            }
        }
    }

    /// Take the places that only the version before has, and those in which one of its kind runs.
    /// What a drain of the node stopped there comes again.
    fn take_beyond(&self, places: &mut Places<'e, 'a>) -> Vec<(u32, Vec<&'e ExistingAlloc<'a>>)> {
        let group = &self.group.name;
        let runs = |alloc: &&ExistingAlloc<'a>| {
            is_before(self.wanted, alloc) && !alloc.stopping && !alloc.status.is_terminal()
        };
        let of_group = places.range((group, self.group.count)..=(group, u32::MAX));
        let kept = of_group
            .filter(|((_, index), allocs)| *index < self.count_before || allocs.iter().any(runs));
        let kept: Vec<u32> = kept.map(|((_, index), _)| *index).collect();
        let mut beyond = Vec::new();
        for index in kept {
            let mut allocs = places.remove(&(group, index)).unwrap_or_default();
            allocs.sort_by_key(|alloc| alloc.rank(self.wanted));
            beyond.push((index, allocs));
        }
        beyond
    }

    /// Decide about a place that only the version before has: its allocation runs on by the rules
    /// of its own version.
    fn place_beyond(
        &self,
        index: u32,
        there: &[&'e ExistingAlloc<'a>],
        gate: RolloutGate,
        todo: &mut Todo,
        counted: &mut PlaceTally<'e, 'a>,
    ) {
        let older: Vec<&ExistingAlloc<'a>> =
            there.iter().copied().filter(|alloc| is_before(self.wanted, alloc)).collect();
        let current = current_alloc(self.wanted, &older);
        for alloc in there.iter().filter(|alloc| current.is_none_or(|kept| kept.id != alloc.id)) {
            todo.actions.end(alloc, reason::NOT_NEEDED);
        }
        counted.unfinished = true;
        match current {
            Some(alloc) if alloc.status.is_terminal() => self.follow(alloc, false, todo),
            Some(alloc) => self.leave(alloc, todo),
            None => {
                if let Some(last) = older.last() {
                    self.fill(index, Some(last), gate, todo, counted);
                }
            }
        }
    }

    fn gate(&self, there: &[(u32, Vec<&ExistingAlloc<'a>>)]) -> RolloutGate {
        let Some(policy) = self.policy else { return RolloutGate::Open };
        let phase = self.wanted.deployment.map(|deployment| deployment.phase);
        match (phase, self.deployed_group()) {
            (Some(DeploymentPhase::Paused | DeploymentPhase::Failed), _) => RolloutGate::Held,
            (Some(_), Some(group)) if group.awaits_promotion() => RolloutGate::Canaries,
            (Some(_), _) => RolloutGate::Open,
            (None, _) => {
                let differs = |allocs: &Vec<&ExistingAlloc<'a>>| {
                    current_alloc(self.wanted, allocs).is_some_and(|alloc| {
                        !alloc.is_of(self.wanted)
                            && !alloc.status.is_terminal()
                            && is_destructive(alloc.job, self.wanted.job, &self.group.name)
                    })
                };
                let first = policy.canary > 0 && there.iter().any(|(_, allocs)| differs(allocs));
                if first { RolloutGate::Canaries } else { RolloutGate::Open }
            }
        }
    }

    /// Decide about a place. `there`: its allocations, oldest first.
    fn place(
        &self,
        index: u32,
        there: &[&'e ExistingAlloc<'a>],
        gate: RolloutGate,
        todo: &mut Todo,
        counted: &mut PlaceTally<'e, 'a>,
    ) {
        let wanted = self.wanted;
        let current = current_alloc(wanted, there);
        for alloc in there.iter().filter(|alloc| current.is_none_or(|kept| kept.id != alloc.id)) {
            // An accepted canary has the place beside which it ran.
            let replaced = current.is_some_and(|kept| kept.is_of(wanted) && !alloc.is_of(wanted));
            let why = if replaced { reason::NOT_NEEDED } else { reason::DOUBLE };
            todo.actions.end(alloc, why);
        }
        let last = there.last().map(|alloc| alloc.id);
        let ended = wanted.has_ended(&self.group.name, index);
        let Some(current) = current else {
            counted.unfinished |= ended;
            if !ended {
                counted.vacant.push(index);
                self.fill(index, there.last().copied(), gate, todo, counted);
            }
            return;
        };
        if current.is_of(wanted) {
            self.keep(current, todo, counted);
        } else if ended {
            // It is left from an older version. The one that took its place is over and was
            // collected.
            counted.unfinished = true;
            todo.actions.end(current, reason::DOUBLE);
        } else if gate == RolloutGate::Open && current.status.is_terminal() {
            todo.actions.ignored.push(PlaceAction::Ignore(current.id));
            // A newer one may have been told to stop and may still run.
            counted.placed = counted.placed.saturating_add(1);
            todo.actions.places.push(self.placement(
                index,
                last,
                false,
                PlacementDetails::default(),
            ));
        } else if current.status.is_terminal() {
            counted.unfinished = true;
            counted.vacant.push(index);
            if index < self.count_before {
                self.follow(current, false, todo);
            } else {
                todo.actions.ignored.push(PlaceAction::Ignore(current.id));
            }
        } else if is_destructive(current.job, wanted.job, &self.group.name) {
            counted.differ.push((index, current, last));
        } else if counted.beside_canaries.contains(&index) {
            // That one has the place when it is accepted.
            counted.unfinished = true;
            self.leave(current, todo);
        } else {
            counted.updated = true;
            // An allocation that was not healthy before is waited for as a new one is.
            if current.healthy != Some(true) {
                counted.outstanding = counted.outstanding.saturating_add(1);
            }
            todo.actions.updates.push(PlaceAction::Update(current.id));
        }
    }

    /// Fill an empty place, where the gate allows it.
    fn fill(
        &self,
        index: u32,
        last: Option<&ExistingAlloc<'a>>,
        gate: RolloutGate,
        todo: &mut Todo,
        counted: &mut PlaceTally<'e, 'a>,
    ) {
        let previous = last.map(|alloc| alloc.id);
        let before = |alloc: &&ExistingAlloc<'a>| is_before(self.wanted, alloc);
        let older = last.filter(|alloc| before(alloc) && index < self.count_before);
        let like = match (gate, older, last) {
            (RolloutGate::Open, ..) => None,
            // An allocation of the older version that was stopped is replaced by one of its
            // version.
            (_, Some(_), _) => previous,
            (RolloutGate::Held, None, Some(last))
                if !before(&last) && !counted.beside_canaries.contains(&index) =>
            {
                None
            }
            _ => {
                counted.unfinished = true;
                return;
            }
        };
        let of_place = last.filter(|alloc| like.is_some() || alloc.is_of(self.wanted));
        let reschedules = of_place.map(|alloc| self.attempts_after(alloc)).unwrap_or_default();
        let how = PlacementDetails { reschedules, canary: false, like };
        counted.placed = counted.placed.saturating_add(1);
        todo.actions.places.push(self.placement(index, previous, false, how));
    }

    /// The earlier attempts for a place whose last allocation was stopped for a successor that was
    /// never placed: that change was taken back, but the stop is on record. Empty where somebody
    /// else emptied the place.
    fn attempts_after(&self, last: &ExistingAlloc<'a>) -> Vec<RescheduleEvent> {
        let policy = last.job.group(last.group).map(|group| group.reschedule);
        let Some(policy) = policy.filter(|_| last.is_followed()) else { return Vec::new() };
        let due = reschedule::successor_time(policy, last.before, last.ended_at);
        let delay = due.map_or(policy.delay, |(_, delay)| delay);
        reschedule::successor_events(policy, last.before, last.id, self.wanted.now, delay)
    }

    /// The places beside which canaries are, or successors of canaries are to come.
    fn beside_canaries(&self) -> BTreeSet<u32> {
        let there = self.canaries.iter().filter(|alloc| !alloc.stopping).copied();
        there.chain(self.unfollowed_canaries()).map(|alloc| alloc.index).collect()
    }

    /// Decide about an allocation of the wanted version.
    fn keep(&self, alloc: &ExistingAlloc<'a>, todo: &mut Todo, counted: &mut PlaceTally<'e, 'a>) {
        if alloc.deployed && self.policy.is_some() {
            match alloc.healthy {
                None => counted.outstanding = counted.outstanding.saturating_add(1),
                Some(healthy) => counted.unhealthy |= !healthy,
            }
            counted.unfinished |= alloc.healthy != Some(true);
        }
        if alloc.status == ClientStatus::Failed {
            counted.unfinished = true;
            self.follow(alloc, false, todo);
        } else {
            todo.actions.ignored.push(PlaceAction::Ignore(alloc.id));
        }
    }

    /// Decide about an allocation that is over. If it failed and its policy says so, it gets a
    /// successor of its own version, now or later.
    fn follow(&self, alloc: &ExistingAlloc<'a>, canary: bool, todo: &mut Todo) {
        let group = alloc.job.group(alloc.group);
        let given_up = alloc.deployed
            && self.wanted.deployment.is_some_and(|deployment| {
                let at_once =
                    self.deployed_group().is_some_and(|group| group.progress_deadline.is_zero());
                // An allocation that is unhealthy then ends the deployment instead.
                deployment.phase == DeploymentPhase::Failed
                    || deployment.phase.is_active() && at_once
            });
        let forced = self.wanted.forced;
        let due = group
            .filter(|_| self.wanted.lives_on && alloc.status == ClientStatus::Failed && alloc.over)
            .filter(|_| forced || !given_up)
            .and_then(|group| {
                let policy = group.reschedule;
                let due = if forced {
                    (self.wanted.now, policy.delay)
                } else {
                    reschedule::successor_time(policy, alloc.before, alloc.ended_at)?
                };
                Some((policy, due))
            });
        let Some((policy, (at, delay))) = due else {
            return todo.actions.ignored.push(PlaceAction::Ignore(alloc.id));
        };
        if at > self.wanted.now {
            todo.later.insert(alloc.id, at);
            return todo.actions.ignored.push(PlaceAction::Ignore(alloc.id));
        }
        let now = self.wanted.now;
        let how = PlacementDetails {
            reschedules: reschedule::successor_events(policy, alloc.before, alloc.id, now, delay),
            canary,
            like: (!alloc.is_of(self.wanted)).then_some(alloc.id),
        };
        todo.actions.stop(alloc, reason::RESCHEDULED);
        todo.actions.places.push(self.placement(alloc.index, Some(alloc.id), false, how));
    }

    /// Canaries that failed and whose successors were never placed, the newest first. The
    /// successors are still to come.
    fn unfollowed_canaries(&self) -> Vec<&'e ExistingAlloc<'a>> {
        let follows = |of: &ExistingAlloc<'_>, one: &ExistingAlloc<'_>| {
            one.before.last().is_some_and(|event| event.previous == of.id)
        };
        let failed = self.canaries.iter().copied().filter(|alloc| alloc.is_followed());
        let mut all: Vec<_> =
            failed.filter(|of| !self.canaries.iter().any(|one| follows(of, one))).collect();
        all.sort_by_key(|alloc| std::cmp::Reverse(alloc.rank(self.wanted)));
        all
    }

    /// Place canaries beside what they may replace. `more`: new ones are the next step.
    fn place_canaries(&self, counted: &PlaceTally<'e, 'a>, more: bool, todo: &mut Todo) {
        let (mut there, mut taken) = (0_u32, BTreeSet::new());
        for alloc in &self.canaries {
            if alloc.stopping {
                todo.actions.ignored.push(PlaceAction::Ignore(alloc.id));
                continue;
            }
            there = there.saturating_add(1);
            taken.insert(alloc.index);
            if alloc.status.is_terminal() {
                self.follow(alloc, true, todo);
                continue;
            }
            // When it is accepted, it has no place in which to stay.
            if alloc.index >= self.group.count {
                todo.behind.insert(alloc.id);
            }
            todo.actions.ignored.push(PlaceAction::Ignore(alloc.id));
        }
        let wanted = match self.deployed_group() {
            _ if !more => 0,
            Some(group) => group.desired_canaries,
            None => self.policy.map_or(0, |policy| policy.canary),
        };
        let mut missing = usize::try_from(wanted.saturating_sub(there)).unwrap_or(usize::MAX);
        for alloc in self.unfollowed_canaries() {
            if missing == 0 || !taken.insert(alloc.index) {
                continue;
            }
            missing = missing.saturating_sub(1);
            let reschedules = self.attempts_after(alloc);
            let how = PlacementDetails { reschedules, canary: true, like: None };
            todo.actions.places.push(self.placement(alloc.index, Some(alloc.id), false, how));
        }
        let differ = counted.differ.iter().map(|(index, ..)| *index);
        // When there are more canaries than places to replace or fill, they get places beyond the
        // last one.
        let beyond = (0..u32::MAX).map(|more| self.group.count.saturating_add(more));
        let free = differ.chain(counted.vacant.iter().copied()).chain(beyond);
        for index in free.filter(|index| !taken.contains(index)).take(missing) {
            let how = PlacementDetails { canary: true, ..PlacementDetails::default() };
            todo.actions.places.push(self.placement(index, None, false, how));
        }
    }

    /// Replace as many of the differing allocations as is allowed now.
    fn replace(
        &self,
        counted: &PlaceTally<'e, 'a>,
        gate: RolloutGate,
        steps: &mut Steps,
        todo: &mut Todo,
    ) {
        let mut left = match (gate, self.policy) {
            (RolloutGate::Canaries | RolloutGate::Held, _) => 0,
            (RolloutGate::Open, None) => u32::MAX,
            (RolloutGate::Open, Some(_)) if counted.unhealthy => 0,
            (RolloutGate::Open, Some(policy)) => policy
                .max_parallel
                .saturating_sub(counted.outstanding)
                .saturating_sub(counted.placed),
        };
        for (index, alloc, last) in &counted.differ {
            if left == 0 || !steps.take() {
                self.leave(alloc, todo);
                continue;
            }
            left = left.saturating_sub(1);
            todo.actions.stop(alloc, reason::REPLACED);
            todo.actions.places.push(self.placement(
                *index,
                *last,
                true,
                PlacementDetails::default(),
            ));
        }
    }

    /// Leave an allocation of an older version whose turn has not come.
    fn leave(&self, alloc: &ExistingAlloc<'_>, todo: &mut Todo) {
        let failed = |deployment: &&Deployment| deployment.phase == DeploymentPhase::Failed;
        if self.wanted.deployment.filter(failed).is_none() {
            todo.behind.insert(alloc.id);
        }
        todo.actions.ignored.push(PlaceAction::Ignore(alloc.id));
    }

    fn placement(
        &self,
        index: u32,
        previous: Option<AllocId>,
        replaces: bool,
        how: PlacementDetails,
    ) -> PlaceAction {
        PlaceAction::Place { group: self.group.name.clone(), index, previous, replaces, how }
    }
}

/// Does it belong to an older version of this job, and not to an earlier job of its name?
fn is_before(wanted: &WantedJob<'_>, alloc: &ExistingAlloc<'_>) -> bool {
    alloc.version < wanted.version && alloc.create_index >= wanted.create_index
}

/// The number of places that the version before has: the newest of those that have something.
fn count_before(wanted: &WantedJob<'_>, group: &GroupName, places: &Places<'_, '_>) -> u32 {
    let of_group = places.range((group, 0)..=(group, u32::MAX));
    let older = of_group.flat_map(|(_, allocs)| allocs).filter(|alloc| is_before(wanted, alloc));
    let newest = older.max_by_key(|alloc| alloc.version);
    newest.and_then(|alloc| alloc.job.group(group)).map_or(0, |group| group.count)
}

/// The allocation that has the place. `there`: ordered by rank.
fn current_alloc<'e, 'a>(
    wanted: &WantedJob<'_>,
    there: &[&'e ExistingAlloc<'a>],
) -> Option<&'e ExistingAlloc<'a>> {
    let newest = |of: &dyn Fn(&ExistingAlloc<'_>) -> bool| {
        there.iter().rev().find(|a| !a.stopping && of(a)).copied()
    };
    // Where an update was taken back, the allocation that it was to replace runs on.
    newest(&|alloc| !alloc.was_taken_back(wanted)).or_else(|| newest(&|_| true))
}

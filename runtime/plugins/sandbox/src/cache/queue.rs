//! Decides whose guest is compiled next. Pure.
//!
//! ```text
//!            join                 granted: a place is free
//!   owner ─────────► waiting ───────────────────────────────► compiling ─► left
//!                      ▲  ▲                                      │
//!                      │  └── set back: its try is over, and ────┘
//!                   long      somebody waits who had none
//! ```
//! Each owner (a job or a plugin) has a queue of its own. A place goes to the owner that
//! compiles least at the moment; among several of those, to the one that has had the least time.
//! So a job with many modules delays only itself. A module that takes longer than one try while
//! others wait is set back, and begins again later. It then waits behind all that had no try,
//! but behind a few of them at most where there is always another one. Modules that were set
//! back never take the last place. So a module that compiles quickly waits a few tries at most,
//! whatever came before it.

use std::collections::BTreeMap;
use std::time::Duration;

use ostler_model::limits::{COMPILE_OWNER_QUEUE_MAX, COMPILE_OWNERS_KEPT_MAX};

/// Number of a load that waits or compiles.
pub(super) type Ticket = u64;

/// Whether a load waits or compiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CompileStage {
    Waiting,
    Compiling,
}

#[derive(Debug)]
struct QueueEntry {
    owner: String,
    stage: CompileStage,
    /// The load had a try that was not enough.
    long: bool,
    /// How many loads were granted a place before this one since then.
    passed: u32,
}

impl QueueEntry {
    /// Does this load wait behind all that had no try? Only until [`LONG_PASSED_MAX`] of them
    /// went before it.
    fn last(&self) -> bool {
        self.long && self.passed < LONG_PASSED_MAX
    }
}

/// How many loads may go before one that was set back.
const LONG_PASSED_MAX: u32 = 6;

/// As many loads of one owner wait as may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueFull;

/// All loads that wait or compile, and how much time each owner has had.
#[derive(Debug)]
pub(super) struct CompileQueue {
    places: usize,
    next: Ticket,
    entries: BTreeMap<Ticket, QueueEntry>,
    /// Compile time that each owner has had.
    had: BTreeMap<String, Duration>,
    /// The time with which an owner begins that had none lately. It never decreases.
    floor: Duration,
}

impl CompileQueue {
    /// An empty queue in which `places` loads may compile at once.
    pub(super) fn new(places: usize) -> Self {
        let (entries, had) = (BTreeMap::new(), BTreeMap::new());
        Self { places: places.max(1), next: 0, entries, had, floor: Duration::ZERO }
    }

    /// Add a load of this owner.
    pub(super) fn join(&mut self, owner: &str) -> Result<Ticket, QueueFull> {
        let of_owner = self.entries.values().filter(|entry| entry.owner == owner).count();
        if of_owner >= COMPILE_OWNER_QUEUE_MAX {
            return Err(QueueFull);
        }
        if of_owner == 0 {
            let had = self.had.entry(owner.to_owned()).or_default();
            *had = (*had).max(self.floor);
        }
        self.next += 1;
        let entry = QueueEntry {
            owner: owner.to_owned(),
            stage: CompileStage::Waiting,
            long: false,
            passed: 0,
        };
        self.entries.insert(self.next, entry);
        Ok(self.next)
    }

    /// Does this load have a place, so that it compiles?
    pub(super) fn compiles(&self, ticket: Ticket) -> bool {
        self.entries.get(&ticket).is_some_and(|entry| entry.stage == CompileStage::Compiling)
    }

    /// How many other loads wait or compile.
    pub(super) fn others(&self) -> usize {
        self.entries.len().saturating_sub(1)
    }

    /// Give free places away. Returns the loads that got one.
    pub(super) fn grant(&mut self) -> Vec<Ticket> {
        let mut granted = Vec::new();
        while let Some(ticket) = self.choose() {
            if let Some(entry) = self.entries.get_mut(&ticket) {
                entry.stage = CompileStage::Compiling;
                granted.push(ticket);
            }
            let set_back =
                |entry: &&mut QueueEntry| entry.long && entry.stage == CompileStage::Waiting;
            for entry in self.entries.values_mut().filter(set_back) {
                entry.passed = entry.passed.saturating_add(1);
            }
        }
        granted
    }

    /// The load whose turn it is, when there is a free place.
    fn choose(&self) -> Option<Ticket> {
        let compiling = |entry: &&QueueEntry| entry.stage == CompileStage::Compiling;
        let taken = self.entries.values().filter(compiling).count();
        let long = self.entries.values().filter(compiling).filter(|entry| entry.long).count();
        if taken >= self.places {
            return None;
        }
        let may = |entry: &QueueEntry| !entry.long || long + 1 < self.places.max(2);
        let waiting = self.entries.iter().filter(|(_, entry)| entry.stage == CompileStage::Waiting);
        let next = waiting.filter(|(_, entry)| may(entry)).min_by_key(|(ticket, entry)| {
            let of_owner = |other: &&QueueEntry| compiling(other) && other.owner == entry.owner;
            let busy = self.entries.values().filter(of_owner).count();
            (entry.last(), busy, self.had.get(&entry.owner).copied().unwrap_or_default(), **ticket)
        });
        next.map(|(ticket, _)| *ticket)
    }

    /// The try of a load is over, after it had the time `used`. `true`: it is set back and waits
    /// again, because a load waits that had no try.
    pub(super) fn set_back(&mut self, ticket: Ticket, used: Duration) -> bool {
        let untried = |entry: &QueueEntry| entry.stage == CompileStage::Waiting && !entry.long;
        let contended = self.entries.values().any(untried);
        let Some(entry) = self.entries.get_mut(&ticket) else { return false };
        if !contended || entry.long || entry.stage != CompileStage::Compiling {
            return false;
        }
        (entry.long, entry.stage) = (true, CompileStage::Waiting);
        let owner = entry.owner.clone();
        self.charge(&owner, used);
        true
    }

    /// Remove a load that was compiled, failed, or is not wanted any more. `used` is the time it
    /// had since it was granted a place.
    pub(super) fn leave(&mut self, ticket: Ticket, used: Duration) {
        if let Some(entry) = self.entries.remove(&ticket) {
            self.charge(&entry.owner, used);
        }
        let there = |owner: &String| self.entries.values().any(|entry| entry.owner == *owner);
        let least = self.had.iter().filter(|(owner, _)| there(owner)).map(|(_, had)| *had).min();
        self.floor = self.floor.max(least.unwrap_or(self.floor));
        while self.had.len() > COMPILE_OWNERS_KEPT_MAX {
            let gone = self.had.iter().filter(|(owner, _)| !there(owner));
            let Some(owner) = gone.min_by_key(|(_, had)| **had).map(|(owner, _)| owner.clone())
            else {
                break;
            };
            self.had.remove(&owner);
        }
    }

    fn charge(&mut self, owner: &str, used: Duration) {
        if let Some(had) = self.had.get_mut(owner) {
            *had = had.saturating_add(used);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TRY: Duration = Duration::from_secs(5);

    #[test]
    fn an_owner_with_many_modules_delays_only_itself() {
        let mut queue = CompileQueue::new(2);
        let many: Vec<Ticket> = (0..6).map(|_| queue.join("many").unwrap()).collect();
        assert_eq!(queue.grant(), many[..2]);
        let honest = queue.join("honest").unwrap();
        queue.leave(many[0], TRY);
        assert_eq!(queue.grant(), [honest]);
    }

    #[test]
    fn whoever_came_before_a_quick_one_waits_a_few_tries_at_most() {
        let mut queue = CompileQueue::new(2);
        let slow: Vec<Ticket> = (0..6).map(|n| queue.join(&format!("slow {n}")).unwrap()).collect();
        let honest = queue.join("honest").unwrap();
        let mut running = queue.grant();
        let mut tries = 0;
        while !running.contains(&honest) {
            tries += 1;
            assert!(tries <= 3, "{queue:?}");
            let over: Vec<Ticket> =
                running.iter().copied().filter(|ticket| queue.set_back(*ticket, TRY)).collect();
            running.retain(|ticket| !over.contains(ticket));
            running.extend(queue.grant());
        }
        let compiling = slow.iter().filter(|ticket| queue.compiles(**ticket)).count();
        assert_eq!(compiling, 1);
    }

    #[test]
    fn long_ones_leave_a_place_to_those_who_had_no_try() {
        let mut queue = CompileQueue::new(2);
        let (first, second) = (queue.join("a").unwrap(), queue.join("b").unwrap());
        queue.grant();
        let third = queue.join("c").unwrap();
        assert!(queue.set_back(first, TRY));
        assert_eq!(queue.grant(), [third]);
        assert!(!queue.set_back(second, TRY), "nobody waits any more who had no try");
        queue.leave(third, TRY);
        assert_eq!(queue.grant(), [first], "a place for a long one");
        queue.leave(second, TRY);
        assert!(queue.grant().is_empty());
        let fourth = queue.join("d").unwrap();
        assert_eq!(queue.grant(), [fourth]);
        assert!(!queue.set_back(first, TRY), "it is not set back twice");
    }

    #[test]
    fn one_that_was_set_back_comes_to_its_turn_though_quick_ones_always_wait() {
        let mut queue = CompileQueue::new(2);
        let honest = queue.join("honest").unwrap();
        queue.grant();
        let mut others: Vec<Ticket> =
            ["a", "b", "a", "b"].map(|owner| queue.join(owner).unwrap()).to_vec();
        assert!(queue.set_back(honest, TRY));
        queue.grant();
        let mut quick = 0;
        while !queue.compiles(honest) {
            quick += 1;
            assert!(quick < 20, "{queue:?}");
            let over = others.iter().position(|ticket| queue.compiles(*ticket)).unwrap();
            queue.leave(others.remove(over), TRY);
            others.push(queue.join(if quick % 2 == 0 { "a" } else { "b" }).unwrap());
            queue.grant();
        }
    }

    #[test]
    fn with_one_place_long_ones_have_it_when_nobody_else_waits() {
        let mut queue = CompileQueue::new(1);
        let first = queue.join("a").unwrap();
        queue.grant();
        let second = queue.join("b").unwrap();
        assert!(queue.set_back(first, TRY));
        assert_eq!(queue.grant(), [second]);
        queue.leave(second, TRY);
        assert_eq!(queue.grant(), [first]);
    }

    #[test]
    fn an_owner_has_so_many_and_no_more_and_new_names_save_up_nothing() {
        let mut queue = CompileQueue::new(1);
        for _ in 0..COMPILE_OWNER_QUEUE_MAX {
            queue.join("many").unwrap();
        }
        assert_eq!(queue.join("many"), Err(QueueFull));
        for number in 0..1_000 {
            let ticket = queue.join(&format!("name {number}")).unwrap();
            queue.grant();
            queue.leave(ticket, TRY);
        }
        assert!(queue.had.len() <= COMPILE_OWNERS_KEPT_MAX);
    }

    proptest! {
        #[test]
        fn places_are_never_exceeded_and_everybody_comes_to_an_end(
            places in 1usize..4,
            steps in prop::collection::vec((0u8..4, 0usize..8), 1..200),
        ) {
            let mut queue = CompileQueue::new(places);
            for (step, at) in steps {
                let ticket = queue.entries.keys().nth(at).copied().unwrap_or_default();
                match step {
                    0 => drop(queue.join(&format!("o{}", at % 3))),
                    1 => drop(queue.set_back(ticket, TRY)),
                    2 => queue.leave(ticket, TRY),
                    _ => {}
                }
                queue.grant();
                let taken = queue.entries.values().filter(|e| e.stage == CompileStage::Compiling).count();
                prop_assert!(taken <= places);
                let untried = queue.entries.values().any(|e| e.stage == CompileStage::Waiting && !e.long);
                prop_assert!(!untried || taken == places);
            }
            while let Some(ticket) = queue.entries.keys().copied().find(|t| queue.compiles(*t)) {
                queue.leave(ticket, TRY);
                queue.grant();
            }
            prop_assert!(queue.entries.is_empty());
        }
    }
}

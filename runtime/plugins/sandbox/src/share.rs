//! Decides which of the WASM tasks that want to compute may, in proportion to their weights. Pure.
//!
//! ```text
//!            ask                    granted                    poll begins
//!   Idle ──────────► Waiting ───────────────────► Granted ──────────────────► Running
//!    ▲   (or straight to Granted)                                              │
//!    └────────────── poll over, waits for something ───────────────────────────┤
//!            Waiting ◄────── poll over, wants to go on (the tick interrupted) ─┘
//! ```
//! There are as many places as threads for busy guests. A place goes to the waiting task that has
//! had the least processor time for its weight (start-time fair queueing). A task that was idle is
//! set to where the others are, so nobody saves up turns by sleeping. Where there is a place for
//! each task nobody waits, so an idle node is used in full.
//!
//! A task that runs through [`OVERDUE_TICKS`] without yielding is in an operation that no tick
//! interrupts: one instruction may fill all its memory, or a file may be on a slow disk. The
//! task keeps its thread and gives its place to the next task, as long as there is a spare
//! thread for that one.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use ostler_model::limits::{GUEST_THREADS_PER_PLACE, OVERDUE_TICKS};

/// Number of a task among the others.
pub(super) type Member = u64;

/// Factor of processor time in nanoseconds before it is divided by the weight.
const SCALE: u128 = 1_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShareStage {
    Idle,
    Waiting,
    Granted,
    /// The task is being polled, through this many ticks so far.
    Running(u8),
    /// The task is being polled, and another one has its place.
    Overdue,
}

#[derive(Debug)]
struct ShareAccount {
    weight: u128,
    /// Processor time so far in nanoseconds, times [`SCALE`], divided by the weight.
    had: u128,
    stage: ShareStage,
}

/// The places, and all tasks with what they have had.
#[derive(Debug)]
pub(super) struct TaskShares {
    places: usize,
    taken: usize,
    /// How many places are lent by tasks that are overdue.
    lent: usize,
    next: Member,
    accounts: HashMap<Member, ShareAccount>,
    waiting: BTreeSet<(u128, Member)>,
    /// The tasks that wait, are granted a place, or run; not those that are overdue.
    active: BTreeSet<(u128, Member)>,
    /// The tasks that run or are overdue.
    running: Vec<Member>,
    /// The value of `had` with which tasks begin that were idle. It never decreases.
    floor: u128,
}

impl TaskShares {
    /// No tasks, and `places` of them may compute at once.
    pub(super) fn new(places: usize) -> Self {
        Self {
            places: places.max(1),
            taken: 0,
            lent: 0,
            next: 0,
            accounts: HashMap::new(),
            waiting: BTreeSet::new(),
            active: BTreeSet::new(),
            running: Vec::new(),
            floor: 0,
        }
    }

    /// Add a task, which is idle.
    pub(super) fn join(&mut self, weight: u32) -> Member {
        self.next += 1;
        let account = ShareAccount {
            weight: u128::from(weight.max(1)),
            had: self.floor,
            stage: ShareStage::Idle,
        };
        self.accounts.insert(self.next, account);
        self.next
    }

    /// May the task be polled now? If not, it is granted a place later.
    pub(super) fn ask(&mut self, member: Member) -> bool {
        let Some(account) = self.accounts.get_mut(&member) else { return true };
        match account.stage {
            ShareStage::Idle => {
                account.had = account.had.max(self.floor);
                account.stage = ShareStage::Waiting;
                self.waiting.insert((account.had, member));
                self.active.insert((account.had, member));
                // Only this task can be granted a place: another one that waits would have it
                // already.
                if self.grant().is_empty() {
                    return false;
                }
                self.run(member)
            }
            ShareStage::Waiting => false,
            ShareStage::Granted => self.run(member),
            ShareStage::Running(_) | ShareStage::Overdue => true,
        }
    }

    /// Count a tick. Returns the tasks that are granted a place which another one kept
    /// for too long.
    pub(super) fn tick(&mut self) -> Vec<Member> {
        let spare = self.places.saturating_mul(GUEST_THREADS_PER_PLACE - 1);
        for member in &self.running {
            let Some(account) = self.accounts.get_mut(member) else { continue };
            let ShareStage::Running(ticks) = account.stage else { continue };
            account.stage = match ticks.saturating_add(1) {
                OVERDUE_TICKS.. if self.lent < spare => {
                    // Tasks that come meanwhile begin where the others are, not where this one is.
                    self.active.remove(&(account.had, *member));
                    self.lent += 1;
                    self.taken = self.taken.saturating_sub(1);
                    ShareStage::Overdue
                }
                ticks => ShareStage::Running(ticks),
            };
        }
        self.grant()
    }

    /// Take the place of a task away, whether it has it or has lent it.
    fn give_up(&mut self, member: Member, stage: ShareStage) {
        self.running.retain(|running| *running != member);
        match stage {
            ShareStage::Granted | ShareStage::Running(_) => {
                self.taken = self.taken.saturating_sub(1)
            }
            ShareStage::Overdue => self.lent = self.lent.saturating_sub(1),
            ShareStage::Idle | ShareStage::Waiting => {}
        }
    }

    /// Record the end of a poll that used this processor time. Returns the tasks that are granted a
    /// place by that; the task itself may be among them.
    pub(super) fn finish_poll(
        &mut self,
        member: Member,
        used: Duration,
        goes_on: bool,
    ) -> Vec<Member> {
        let Some(account) = self.accounts.get_mut(&member) else { return Vec::new() };
        let stage = account.stage;
        if !matches!(stage, ShareStage::Running(_) | ShareStage::Overdue) {
            return Vec::new();
        }
        self.active.remove(&(account.had, member));
        // At least a microsecond counts, so that a task that only yields does not keep its place.
        let nanos = used.as_nanos().max(1_000);
        account.had = account.had.saturating_add(nanos.saturating_mul(SCALE) / account.weight);
        if goes_on {
            account.stage = ShareStage::Waiting;
            self.waiting.insert((account.had, member));
            self.active.insert((account.had, member));
        } else {
            account.stage = ShareStage::Idle;
        }
        let had = account.had;
        self.give_up(member, stage);
        let least = self.active.first().map_or(had, |(had, _)| *had);
        self.floor = self.floor.max(least);
        self.grant()
    }

    /// Remove a task. Returns the tasks that are granted a place by that.
    pub(super) fn leave(&mut self, member: Member) -> Vec<Member> {
        let Some(account) = self.accounts.remove(&member) else { return Vec::new() };
        self.waiting.remove(&(account.had, member));
        self.active.remove(&(account.had, member));
        self.give_up(member, account.stage);
        self.grant()
    }

    fn run(&mut self, member: Member) -> bool {
        match self.accounts.get_mut(&member) {
            Some(account) if account.stage == ShareStage::Granted => {
                account.stage = ShareStage::Running(0);
                self.running.push(member);
                true
            }
            _ => false,
        }
    }

    fn grant(&mut self) -> Vec<Member> {
        let mut granted = Vec::new();
        while self.taken < self.places {
            let Some((_, member)) = self.waiting.pop_first() else { break };
            if let Some(account) = self.accounts.get_mut(&member) {
                account.stage = ShareStage::Granted;
                self.taken += 1;
                granted.push(member);
            }
        }
        granted
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TICK: Duration = Duration::from_millis(10);

    /// Let all tasks compute without pause for `rounds` polls of one tick. Returns how many
    /// ticks each had.
    fn compute(shares: &mut TaskShares, members: &[Member], rounds: usize) -> Vec<u32> {
        let mut had = vec![0; members.len()];
        for _ in 0..rounds {
            let running: Vec<usize> =
                (0..members.len()).filter(|at| shares.ask(members[*at])).collect();
            assert!(running.len() <= shares.places && !running.is_empty());
            for at in running {
                had[at] += 1;
                shares.finish_poll(members[at], TICK, true);
            }
        }
        had
    }

    #[test]
    fn those_who_compute_without_pause_get_processor_time_by_weight() {
        let mut shares = TaskShares::new(1);
        let members: Vec<Member> = [100, 200, 400].map(|weight| shares.join(weight)).to_vec();
        let had = compute(&mut shares, &members, 700);
        assert!((99..=101).contains(&had[0]) && (199..=201).contains(&had[1]), "{had:?}");
    }

    #[test]
    fn with_a_place_for_each_nobody_waits() {
        let mut shares = TaskShares::new(2);
        let members = [shares.join(1_000), shares.join(10)];
        assert_eq!(compute(&mut shares, &members, 50), [50, 50]);
    }

    #[test]
    fn a_heavy_task_has_one_place_and_the_light_ones_share_the_other() {
        let mut shares = TaskShares::new(2);
        let members = [shares.join(10_000), shares.join(100), shares.join(100)];
        let had = compute(&mut shares, &members, 100);
        assert_eq!(had[0], 100, "never waits");
        assert!(had[1].abs_diff(had[2]) <= 1, "{had:?}");
    }

    #[test]
    fn sleeping_saves_up_no_turns() {
        let mut shares = TaskShares::new(1);
        let (busy, sleeper) = (shares.join(100), shares.join(100));
        assert!(shares.ask(sleeper));
        shares.finish_poll(sleeper, TICK, false);
        compute(&mut shares, &[busy], 1_000);
        let had = compute(&mut shares, &[busy, sleeper], 100);
        assert!(had[0].abs_diff(had[1]) <= 2, "{had:?}");
    }

    #[test]
    fn one_that_does_not_yield_lends_its_place_and_pays_for_its_time_all_the_same() {
        let mut shares = TaskShares::new(1);
        let [stuck, honest, third] = [100; 3].map(|weight| shares.join(weight));
        assert!(shares.ask(stuck) && !shares.ask(honest) && !shares.ask(third));
        for _ in 1..OVERDUE_TICKS {
            assert!(shares.tick().is_empty());
        }
        assert_eq!(shares.tick(), [honest]);
        assert!(shares.ask(honest));
        for _ in 0..2 * OVERDUE_TICKS {
            assert!(shares.tick().is_empty(), "there is one spare thread");
        }
        assert_eq!(shares.finish_poll(honest, TICK, true), [third]);
        assert!(shares.ask(third));
        assert!(
            shares.finish_poll(stuck, 10 * TICK, true).is_empty(),
            "its place is another's now"
        );
        assert_eq!(shares.finish_poll(third, TICK, false), [honest], "it had less");
        assert!(shares.ask(honest));
        assert_eq!(shares.finish_poll(honest, TICK, false), [stuck]);
        assert_eq!((shares.taken, shares.lent), (1, 0));
    }

    #[test]
    fn nobody_saves_up_turns_behind_one_that_is_stuck() {
        let mut shares = TaskShares::new(1);
        let (stuck, busy) = (shares.join(100), shares.join(100));
        assert!(shares.ask(stuck) && !shares.ask(busy));
        for _ in 0..OVERDUE_TICKS {
            shares.tick();
        }
        compute(&mut shares, &[busy], 1_000);
        let fresh = shares.join(100);
        let had = compute(&mut shares, &[busy, fresh], 100);
        assert!(had[0].abs_diff(had[1]) <= 2, "{had:?}");
    }

    #[test]
    fn one_that_goes_while_granted_gives_its_place_to_the_next() {
        let mut shares = TaskShares::new(1);
        let (first, second, third) = (shares.join(1), shares.join(1), shares.join(1));
        assert!(shares.ask(first));
        assert!(!shares.ask(second) && !shares.ask(third));
        assert_eq!(shares.finish_poll(first, TICK, false), [second]);
        assert_eq!(shares.leave(second), [third]);
        assert!(shares.ask(third));
    }

    proptest! {
        #[test]
        fn places_are_never_exceeded_nor_left_empty_while_somebody_waits(
            places in 1usize..4,
            steps in prop::collection::vec((0usize..6, 0u8..5), 1..200),
        ) {
            let mut shares = TaskShares::new(places);
            let mut members: Vec<Member> = (1..=6).map(|weight| shares.join(weight * 50)).collect();
            for (at, step) in steps {
                let member = members[at];
                match step {
                    0 | 1 => { shares.ask(member); }
                    2 => { shares.finish_poll(member, TICK, at % 2 == 0); }
                    3 => { shares.tick(); }
                    _ => { shares.leave(member); members[at] = shares.join(100); }
                }
                let holds = |stage| matches!(stage, ShareStage::Granted | ShareStage::Running(_));
                let held = shares.accounts.values().filter(|a| holds(a.stage)).count();
                prop_assert_eq!(held, shares.taken);
                let overdue = shares.accounts.values().filter(|a| a.stage == ShareStage::Overdue);
                prop_assert_eq!(overdue.count(), shares.lent);
                prop_assert!(shares.lent <= places && shares.running.len() <= 2 * places);
                prop_assert!(shares.taken <= places);
                prop_assert!(shares.waiting.is_empty() || shares.taken == places);
                prop_assert_eq!(shares.active.len(), held + shares.waiting.len());
            }
        }
    }
}

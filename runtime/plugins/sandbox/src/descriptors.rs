//! Counts the files, directories and sockets that guests have open, for each guest and
//! for all together.
//!
//! ```text
//!   all the process may have open ─┬─ two thirds: its own (API, state, supervisors, logs that are written)
//!                                  └─ a third: guests ─┬─ a quarter of it at most: one task, one plugin
//!                                                      ├─ never more than its own limit
//!                                                      └─ directories that tasks were given and use
//! ```
//! A guest beyond its share is told that there are too many. The others and the agent do not notice.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::process::{Resource, getrlimit};

use ostler_model::limits;

/// What all guests of one agent have open together. The limit is read when the first guest opens
/// something, because the agent raises its own limit before that.
#[derive(Debug, Default)]
pub(super) struct AllDescriptors {
    open: AtomicU64,
    max: OnceLock<u64>,
}

impl AllDescriptors {
    fn max(&self) -> u64 {
        *self.max.get_or_init(|| {
            let of_process = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
            of_process / limits::GUEST_DESCRIPTORS_PART
        })
    }
}

/// What one task, or all calls of one plugin together, may have open.
#[derive(Debug)]
pub struct Descriptors {
    open: AtomicU64,
    max: u64,
    all: Arc<AllDescriptors>,
}

fn add(open: &AtomicU64, max: u64) -> bool {
    let one_more = |now: u64| (now < max).then_some(now + 1);
    open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
}

impl Descriptors {
    pub(super) const fn new(max: u64, all: Arc<AllDescriptors>) -> Self {
        Self { open: AtomicU64::new(0), max, all }
    }

    /// Take a place for one more descriptor, until it is dropped. `None`: the share of this guest,
    /// or of all guests, is used up.
    #[must_use]
    pub fn take(self: &Arc<Self>) -> Option<DescriptorPermit> {
        let max = self.all.max();
        if !add(&self.open, self.max.min(max / limits::GUEST_DESCRIPTORS_OWN_PART)) {
            return None;
        }
        if !add(&self.all.open, max) {
            self.open.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        Some(DescriptorPermit { of: Arc::clone(self) })
    }

    /// Take places for directories that the guest is given, until they are dropped. They count for
    /// all guests together, and not for the share of this one. `None`: there are not so many left.
    #[must_use]
    pub fn give(&self, many: u64) -> Option<GivenDescriptors> {
        let max = self.all.max();
        let more = |now: u64| now.checked_add(many).filter(|sum| *sum <= max);
        self.all.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(GivenDescriptors { many, all: Arc::clone(&self.all) })
    }

    /// How many descriptors the guest has open now.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }
}

/// A place for one open file, directory or socket of a guest.
#[derive(Debug)]
pub struct DescriptorPermit {
    of: Arc<Descriptors>,
}

impl Drop for DescriptorPermit {
    fn drop(&mut self) {
        self.of.open.fetch_sub(1, Ordering::Relaxed);
        self.of.all.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Places for directories that a guest was given.
#[derive(Debug)]
pub struct GivenDescriptors {
    many: u64,
    all: Arc<AllDescriptors>,
}

impl Drop for GivenDescriptors {
    fn drop(&mut self) {
        self.all.open.fetch_sub(self.many, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn all(max: u64) -> Arc<AllDescriptors> {
        let all = AllDescriptors::default();
        all.max.set(max).unwrap();
        Arc::new(all)
    }

    fn take_all(of: &Arc<Descriptors>) -> Vec<DescriptorPermit> {
        std::iter::from_fn(|| of.take()).collect()
    }

    #[test]
    fn nobody_takes_more_than_its_limit_nor_than_a_quarter_of_what_there_is_for_guests() {
        let all = all(40);
        let (small, large) =
            [3, 1_000].map(|max| Arc::new(Descriptors::new(max, Arc::clone(&all)))).into();
        assert_eq!((take_all(&small).len(), take_all(&large).len()), (3, 10));
        assert_eq!((small.open(), large.open()), (0, 0), "given back");
    }

    #[test]
    fn guests_together_take_no_more_than_there_is_for_them() {
        let all = all(40);
        let guests: Vec<_> =
            (0..6).map(|_| Arc::new(Descriptors::new(1_000, Arc::clone(&all)))).collect();
        let held: Vec<_> = guests.iter().map(take_all).collect();
        assert_eq!(held.iter().map(Vec::len).collect::<Vec<_>>(), [10, 10, 10, 10, 0, 0]);
        drop(held);
        assert_eq!(all.open.load(Ordering::Relaxed), 0);
        assert!(guests.iter().all(|guest| guest.take().is_some()));
    }

    #[test]
    fn what_guests_are_given_counts_for_all_and_not_for_the_one() {
        let all = all(40);
        let [one, other] = [5, 1_000].map(|max| Arc::new(Descriptors::new(max, Arc::clone(&all))));
        let given = one.give(36).unwrap();
        assert!(one.give(5).is_none(), "there are four left");
        assert_eq!((one.open(), take_all(&other).len()), (0, 4));
        drop(given);
        assert_eq!(all.open.load(Ordering::Relaxed), 0);
        assert_eq!(take_all(&one).len(), 5);
    }
}

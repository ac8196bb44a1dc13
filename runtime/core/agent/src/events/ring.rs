//! The events that are held in memory, ordered by when each happened last. Pure.
//!
//! ```text
//! add ─► was the same noted before, not too long ago? ─ yes ─► it moves to the end, counted
//!                          │ no                                      │
//!                          └─► a new one at the end ─────────────────┴─► the oldest go, until it fits
//! ```

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use super::event::{EventNote, KeptEvent};
use ostler_model::event::EventKind;
use ostler_model::time::Timestamp;

/// How much the ring holds at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventRingBounds {
    /// Number of events.
    pub events: usize,
    /// About how many bytes all events take together.
    pub bytes: usize,
    /// An event that repeats after a longer time than this counts as another event.
    pub apart: Duration,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct EventRing {
    bounds: EventRingBounds,
    kept: BTreeMap<u64, KeptEvent>,
    /// Number of the last event of each kind, by a hash of what happened.
    same: HashMap<u64, u64>,
    bytes: usize,
    /// The last number that was given.
    last: u64,
    /// Events up to this number may be gone.
    gone: u64,
}

impl EventRing {
    pub fn new(bounds: EventRingBounds) -> Self {
        let (kept, same) = (BTreeMap::new(), HashMap::new());
        Self { bounds, kept, same, bytes: 0, last: 0, gone: 0 }
    }

    /// The number of the newest event; 0 before the first.
    pub const fn newest(&self) -> u64 {
        self.last
    }

    /// Note what happened at a time.
    pub fn add(&mut self, what: EventNote, at: Timestamp) {
        let event = KeptEvent { seq: 0, first: at, last: at, times: 1, what };
        self.put(event);
    }

    /// Add an event with its counts, as a file kept it. It gets a new number.
    pub fn put(&mut self, mut event: KeptEvent) {
        let key = key(&event.what);
        if let Some(before) = self.same.get(&key).copied()
            && self.kept.get(&before).is_some_and(|known| self.is_repeat(known, &event))
            && let Some(known) = self.kept.remove(&before)
        {
            self.bytes = self.bytes.saturating_sub(known.what.bytes());
            // A later line of a file has the count of the earlier one in it.
            if event.first != known.first || event.times <= known.times {
                event.times = event.times.saturating_add(known.times);
            }
            event.first = known.first;
        }
        self.last = self.last.saturating_add(1);
        event.seq = self.last;
        self.bytes = self.bytes.saturating_add(event.what.bytes());
        self.same.insert(key, event.seq);
        self.kept.insert(event.seq, event);
        while self.kept.len() > self.bounds.events || self.bytes > self.bounds.bytes {
            let Some((seq, old)) = self.kept.pop_first() else { break };
            self.bytes = self.bytes.saturating_sub(old.what.bytes());
            self.gone = seq;
            let key = self::key(&old.what);
            if self.same.get(&key) == Some(&seq) {
                self.same.remove(&key);
            }
        }
    }

    fn is_repeat(&self, known: &KeptEvent, event: &KeptEvent) -> bool {
        event.last.since(known.last) <= self.bounds.apart && is_same(&known.what, &event.what)
    }

    /// The events after a number, oldest first, and whether some of those were dropped.
    pub fn events_after(&self, seq: u64) -> (impl DoubleEndedIterator<Item = &KeptEvent>, bool) {
        let missed = seq > 0 && seq < self.gone;
        (self.kept.range(seq.saturating_add(1)..).map(|(_, event)| event), missed)
    }
}

/// The part of a message that tells one event from another of its kind. How long a task waits
/// before it starts again, or how far a download is, makes no difference.
fn telling_text(what: &EventNote) -> &str {
    if what.kind == EventKind::Restarting.as_str() {
        return what.message.split(" - Task restarting in ").next().unwrap_or(&what.message);
    }
    if what.kind == EventKind::DownloadingArtifacts.as_str() {
        return what.message.rsplit_once(": ").map_or(&*what.message, |(name, _)| name);
    }
    &what.message
}

fn key(what: &EventNote) -> u64 {
    let mut hasher = DefaultHasher::new();
    let EventNote { topic, kind, namespace, job, alloc, task, name, message: _, trouble: _ } = what;
    (topic, kind, namespace, job, alloc, task, name, telling_text(what)).hash(&mut hasher);
    hasher.finish()
}

/// Are two events the same? Different events may have the same hash.
fn is_same(a: &EventNote, b: &EventNote) -> bool {
    let parts = |what: &EventNote| {
        (
            what.topic,
            [&what.kind, &what.namespace, &what.job, &what.alloc, &what.task, &what.name]
                .map(String::clone),
        )
    };
    parts(a) == parts(b) && telling_text(a) == telling_text(b)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use proptest::prelude::*;

    use super::*;
    use crate::events::event::EventTopic;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * 1_000_000_000)
    }

    fn ring(events: usize) -> EventRing {
        EventRing::new(EventRingBounds {
            events,
            bytes: usize::MAX,
            apart: Duration::from_secs(60),
        })
    }

    fn noted(kind: &str, message: &str) -> EventNote {
        let (kind, message) = (kind.to_owned(), message.to_owned());
        EventNote { topic: EventTopic::Task, kind, message, ..EventNote::default() }
    }

    fn seen(ring: &EventRing, after: u64) -> Vec<(u64, &str, u64)> {
        ring.events_after(after)
            .0
            .map(|event| (event.seq, &*event.what.message, event.times))
            .collect()
    }

    #[test]
    fn the_same_again_is_counted_and_comes_last() {
        let mut ring = ring(9);
        for (second, message) in [(1, "a"), (2, "b"), (3, "a"), (4, "a")] {
            ring.add(noted("Started", message), at(second));
        }
        assert_eq!(seen(&ring, 0), [(2, "b", 1), (4, "a", 3)]);
        assert_eq!(seen(&ring, 2), [(4, "a", 3)], "who read up to 2 hears of it again");
        let (first, last) =
            ring.events_after(2).0.map(|event| (event.first, event.last)).next().unwrap();
        assert_eq!((first, last), (at(1), at(4)));
    }

    #[test]
    fn much_later_it_is_another_one() {
        let mut ring = ring(9);
        ring.add(noted("Started", "a"), at(1));
        ring.add(noted("Started", "a"), at(62));
        assert_eq!(seen(&ring, 0), [(1, "a", 1), (2, "a", 1)]);
    }

    #[test]
    fn delays_and_progress_are_no_difference_and_exit_codes_are() {
        let mut ring = ring(9);
        for message in [
            "Restart within policy - Task restarting in 1s",
            "Restart within policy - Task restarting in 2s",
        ] {
            ring.add(noted("Restarting", message), at(1));
        }
        ring.add(noted("Terminated", "Exit Code: 1"), at(1));
        ring.add(noted("Terminated", "Exit Code: 2"), at(1));
        let times: Vec<_> = seen(&ring, 0).iter().map(|(_, _, times)| *times).collect();
        assert_eq!(times, [2, 1, 1]);
    }

    #[test]
    fn the_oldest_go_and_who_had_not_read_them_hears_that() {
        let mut ring = ring(2);
        for (second, message) in [(1, "a"), (2, "b"), (3, "c")] {
            ring.add(noted("x", message), at(second));
        }
        assert_eq!(seen(&ring, 0), [(2, "b", 1), (3, "c", 1)]);
        assert!(
            !ring.events_after(1).1 && !ring.events_after(0).1,
            "read up to what is gone, or from the beginning"
        );
        ring.add(noted("x", "d"), at(4));
        assert!(ring.events_after(1).1);
    }

    proptest! {
        #[test]
        fn whatever_comes_it_stays_within_its_bounds_and_in_order(
            events in proptest::collection::vec((0..4_u8, 0..200_u64), 0..200)
        ) {
            let bounds = EventRingBounds { events: 5, bytes: 2_000, apart: Duration::from_secs(30) };
            let mut ring = EventRing::new(bounds);
            let mut sorted = events;
            sorted.sort_by_key(|(_, second)| *second);
            let count = sorted.len();
            for (message, second) in sorted {
                ring.add(noted("x", &message.to_string()), at(second));
                let bytes: usize = ring.kept.values().map(|event| event.what.bytes()).sum();
                prop_assert!(ring.kept.len() <= 5 && bytes <= 2_000 && bytes == ring.bytes);
                prop_assert!(ring.same.len() <= ring.kept.len());
            }
            let last: Vec<_> = ring.events_after(0).0.map(|event| event.last).collect();
            prop_assert!(last.is_sorted());
            prop_assert_eq!(ring.newest(), u64::try_from(count).unwrap());
        }
    }
}

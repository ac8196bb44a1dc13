//! Joins repeated events into one with a count.
//!
//! ```text
//! Started, Terminated (3), Restarting, Started, Terminated (3), Restarting
//!      └─► Started x2, Terminated (3) x2, Restarting x2: each where it last was
//! ```

use std::collections::HashMap;

use ostler_model::event::EventKind;
use ostler_model::time::Timestamp;

/// An event that occurred once or more, with the count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepeatedEvent<T> {
    /// The last occurrence of the event.
    pub event: T,
    /// Time of the first occurrence.
    pub first: Timestamp,
    /// Time of the last occurrence.
    pub last: Timestamp,
    /// Number of occurrences.
    pub times: u64,
}

/// Fold events with the same key. The events come oldest first; each result stands where its last
/// occurrence was.
pub fn fold<T, K: std::hash::Hash + Eq>(
    events: impl IntoIterator<Item = T>,
    key: impl Fn(&T) -> K,
    time: impl Fn(&T) -> Timestamp,
) -> Vec<RepeatedEvent<T>> {
    let mut places: HashMap<K, usize> = HashMap::new();
    let mut all: Vec<Option<RepeatedEvent<T>>> = Vec::new();
    for event in events {
        let (key, at) = (key(&event), time(&event));
        let before = places.insert(key, all.len()).and_then(|place| all.get_mut(place)?.take());
        let (first, times) = before.map_or((at, 0), |before| (before.first, before.times));
        all.push(Some(RepeatedEvent { event, first, last: at, times: times.saturating_add(1) }));
    }
    all.into_iter().flatten().collect()
}

/// The part of a message that distinguishes events of one kind. The wait of a task before it starts
/// again, or the progress of a download, differs each time and means the same.
#[must_use]
pub fn message_key<'a>(kind: &str, message: &'a str) -> &'a str {
    if kind == EventKind::Restarting.as_str() {
        return message.split(" - Task restarting in ").next().unwrap_or(message);
    }
    if kind == EventKind::DownloadingArtifacts.as_str() {
        // `NAME: 3 of 12 MiB`
        return message.rsplit_once(": ").map_or(message, |(name, _)| name);
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_again_is_counted_where_it_was_last() {
        let at = Timestamp::from_nanos;
        let events = [("a", 1), ("b", 2), ("a", 3), ("c", 4), ("a", 5)];
        let folded = fold(events, |(name, _)| *name, |(_, time)| at(*time));
        let seen: Vec<_> =
            folded.iter().map(|one| (one.event.0, one.times, one.first, one.last)).collect();
        assert_eq!(seen, [("b", 1, at(2), at(2)), ("c", 1, at(4), at(4)), ("a", 3, at(1), at(5))]);
    }

    #[test]
    fn delays_and_progress_make_no_other_event() {
        let one = message_key("Restarting", "Restart within policy - Task restarting in 1.2s");
        assert_eq!(one, message_key("Restarting", "Restart within policy - Task restarting in 9s"));
        assert_eq!(message_key("Restarting", "Task restarting in 0s"), "Task restarting in 0s");
        let (one, other) = ("x.tgz: 1 of 9 MiB", "x.tgz: 8 of 9 MiB");
        assert_eq!(
            message_key("Downloading Artifacts", one),
            message_key("Downloading Artifacts", other)
        );
        assert_ne!(
            message_key("Terminated", "Exit Code: 1"),
            message_key("Terminated", "Exit Code: 2")
        );
    }
}

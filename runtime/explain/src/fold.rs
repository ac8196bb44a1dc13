//! The same event again and again, as one with a count.
//!
//! ```text
//! Started, Terminated (3), Restarting, Started, Terminated (3), Restarting
//!      └─► Started x2, Terminated (3) x2, Restarting x2: each where it last was
//! ```

use std::collections::HashMap;

use ostler_model::event::EventKind;
use ostler_model::time::Timestamp;

/// An event and how often it was there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folded<T> {
    /// The last of them.
    pub event: T,
    /// When the first of them was.
    pub first: Timestamp,
    /// When the last of them was.
    pub last: Timestamp,
    /// How many.
    pub times: u64,
}

/// Fold events, oldest first, that have the same key; each stands where its last one was.
pub fn fold<T, K: std::hash::Hash + Eq>(
    events: impl IntoIterator<Item = T>,
    key: impl Fn(&T) -> K,
    time: impl Fn(&T) -> Timestamp,
) -> Vec<Folded<T>> {
    let mut places: HashMap<K, usize> = HashMap::new();
    let mut all: Vec<Option<Folded<T>>> = Vec::new();
    for event in events {
        let (key, at) = (key(&event), time(&event));
        let before = places.insert(key, all.len()).and_then(|place| all.get_mut(place)?.take());
        let (first, times) = before.map_or((at, 0), |before| (before.first, before.times));
        all.push(Some(Folded { event, first, last: at, times: times.saturating_add(1) }));
    }
    all.into_iter().flatten().collect()
}

/// What of a message tells one event of a kind from another. How long a task waits before it starts
/// again, or how far a download is, differs each time and means the same.
#[must_use]
pub fn same<'a>(kind: &str, message: &'a str) -> &'a str {
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
        let one = same("Restarting", "Restart within policy - Task restarting in 1.2s");
        assert_eq!(one, same("Restarting", "Restart within policy - Task restarting in 9s"));
        assert_eq!(same("Restarting", "Task restarting in 0s"), "Task restarting in 0s");
        let (one, other) = ("x.tgz: 1 of 9 MiB", "x.tgz: 8 of 9 MiB");
        assert_eq!(same("Downloading Artifacts", one), same("Downloading Artifacts", other));
        assert_ne!(same("Terminated", "Exit Code: 1"), same("Terminated", "Exit Code: 2"));
    }
}

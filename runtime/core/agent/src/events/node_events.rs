//! The events of the node as the agent holds them.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::event::{EventNote, EventTopic, KeptEvent};
use super::file::EventsFile;
use super::ring::{EventRing, EventRingBounds};
use ostler_model::limits::{
    EVENT_MESSAGE_BYTES_MAX, EVENTS_APART, EVENTS_KEPT_BYTES_MAX, EVENTS_KEPT_MAX,
};
use ostler_model::printable::printable_line;
use ostler_model::time::Timestamp;

/// Which events a reader asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventsFilter {
    /// Only events after this number; 0 means all.
    pub after: u64,
    /// Only events that happened at this time or later.
    pub since: Option<Timestamp>,
    /// Only events of this topic.
    pub topic: Option<EventTopic>,
    /// Only events of this job, its allocations and tasks.
    pub job: Option<String>,
    /// Only events of allocations whose id begins with this text.
    pub alloc: Option<String>,
    /// Only events of this task.
    pub task: Option<String>,
    /// Only events of this plugin, device or deployment.
    pub name: Option<String>,
    /// Only events that report a trouble.
    pub trouble: bool,
}

impl EventsFilter {
    fn matches(&self, event: &KeptEvent) -> bool {
        let what = &event.what;
        let is = |wanted: &Option<String>, has: &str| wanted.as_ref().is_none_or(|one| one == has);
        self.since.is_none_or(|since| event.last.nanos() >= since.nanos())
            && self.topic.is_none_or(|topic| topic == what.topic)
            && is(&self.job, &what.job)
            && is(&self.task, &what.task)
            && is(&self.name, &what.name)
            && self.alloc.as_ref().is_none_or(|begin| what.alloc.starts_with(begin.as_str()))
            && (!self.trouble || what.trouble)
    }
}

/// The events that a reader gets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EventsPage {
    /// Oldest first, in the order in which each happened last.
    pub events: Vec<KeptEvent>,
    /// Number of the newest event of the node: where the next read goes on.
    pub position: u64,
    /// Some events after the number that was asked for were dropped before anybody read them.
    pub missed: bool,
}

/// The events of the node: noted by the agent, read by anybody.
#[derive(Debug)]
pub struct NodeEvents {
    ring: Mutex<EventRing>,
    grown: watch::Sender<u64>,
    /// The file, and the number of the newest event in it; `None` while no data directory is set.
    file: Mutex<Option<(EventsFile, u64)>>,
}

impl Default for NodeEvents {
    /// Events that are held in memory alone.
    fn default() -> Self {
        let bounds = EventRingBounds {
            events: EVENTS_KEPT_MAX,
            bytes: EVENTS_KEPT_BYTES_MAX,
            apart: EVENTS_APART,
        };
        Self {
            ring: Mutex::new(EventRing::new(bounds)),
            grown: watch::channel(0).0,
            file: Mutex::default(),
        }
    }
}

impl NodeEvents {
    /// Take over what an earlier agent kept below a directory, and write there from now on. Call it
    /// before anything is noted. It waits for the disk. A file that cannot be read is reported in
    /// the log and made anew.
    pub fn keep_in(&self, data_dir: &Path) {
        let mut file = EventsFile::new(data_dir.join(crate::EVENTS_FILE));
        let read = file.read().unwrap_or_else(|error| {
            tracing::warn!(%error, "the events of earlier agents cannot be read");
            Vec::new()
        });
        let mut ring = self.ring();
        read.into_iter().for_each(|event| ring.put(event));
        let newest = ring.newest();
        drop(ring);
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = Some((file, newest));
    }

    fn ring(&self) -> MutexGuard<'_, EventRing> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Note events, each with its time. Waits for nothing.
    pub fn note(&self, noted: impl IntoIterator<Item = (Timestamp, EventNote)>) {
        let mut ring = self.ring();
        let before = ring.newest();
        for (at, mut what) in noted {
            what.message = printable_line(what.message, EVENT_MESSAGE_BYTES_MAX);
            ring.add(what, at);
        }
        let newest = ring.newest();
        drop(ring);
        if newest > before {
            self.grown.send_replace(newest);
        }
    }

    /// Follow the number of the newest event.
    #[must_use]
    pub fn subscribe_newest(&self) -> watch::Receiver<u64> {
        self.grown.subscribe()
    }

    /// When the newest event happened; `None` while there are no events.
    #[must_use]
    pub fn newest_time(&self) -> Option<Timestamp> {
        self.ring().events_after(0).0.map(|event| event.last).max()
    }

    /// The events that match, at most `most` of them; of more events the newest.
    #[must_use]
    pub fn find_events(&self, wanted: &EventsFilter, most: usize) -> EventsPage {
        let ring = self.ring();
        let (events, missed) = ring.events_after(wanted.after);
        let newest = events.rev().filter(|event| wanted.matches(event)).take(most);
        let mut events: Vec<KeptEvent> = newest.cloned().collect();
        events.reverse();
        EventsPage { events, position: ring.newest(), missed }
    }

    /// Write the events that are not in the file yet. Waits for the disk.
    ///
    /// # Errors
    /// When the disk refuses. The next call tries to write the same events again.
    pub fn write(&self) -> std::io::Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((file, written)) = file.as_mut() else { return Ok(()) };
        let (new, newest) = {
            let ring = self.ring();
            (ring.events_after(*written).0.cloned().collect::<Vec<_>>(), ring.newest())
        };
        if new.is_empty() {
            return Ok(());
        }
        file.write(&new, || self.ring().events_after(0).0.cloned().collect())?;
        *written = newest;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn noted(job: &str, message: &str) -> (Timestamp, EventNote) {
        let what =
            EventNote { job: job.to_owned(), message: message.to_owned(), ..EventNote::default() };
        (Timestamp::from_nanos(5), what)
    }

    fn kept_in(dir: &Path) -> NodeEvents {
        let events = NodeEvents::default();
        events.keep_in(dir);
        events
    }

    fn messages(events: &NodeEvents, wanted: &EventsFilter) -> Vec<(String, u64)> {
        let seen = events.find_events(wanted, 9);
        seen.events.into_iter().map(|event| (event.what.message, event.times)).collect()
    }

    #[test]
    fn events_are_there_after_a_restart_with_their_counts_and_go_on() {
        let dir = tempfile::tempdir().unwrap();
        let events = kept_in(dir.path());
        events.note([noted("web", "a"), noted("web", "b"), noted("web", "a")]);
        events.write().unwrap();
        events.note([noted("web", "a")]);
        events.write().unwrap();
        let again = kept_in(dir.path());
        let all = EventsFilter::default();
        assert_eq!(messages(&again, &all), messages(&events, &all));
        assert_eq!(messages(&again, &all), [("b".to_owned(), 1), ("a".to_owned(), 3)]);
    }

    #[test]
    fn nothing_new_is_no_write() {
        let dir = tempfile::tempdir().unwrap();
        let events = kept_in(dir.path());
        events.write().unwrap();
        assert!(!dir.path().join(crate::EVENTS_FILE).exists());
    }

    #[test]
    fn who_asks_for_one_job_gets_its_events_and_who_follows_is_woken() {
        let events = NodeEvents::default();
        let mut grown = events.subscribe_newest();
        events.note([noted("web", "a"), noted("db", "b")]);
        assert!(grown.has_changed().unwrap());
        assert_eq!(*grown.borrow_and_update(), 2);
        let wanted = EventsFilter { job: Some("db".to_owned()), ..EventsFilter::default() };
        assert_eq!(messages(&events, &wanted), [("b".to_owned(), 1)]);
        let next = EventsFilter { after: 2, ..EventsFilter::default() };
        assert_eq!(messages(&events, &next), []);
    }
}

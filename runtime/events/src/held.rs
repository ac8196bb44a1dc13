//! The events of the node as the agent holds them.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use tokio::sync::watch;

use crate::event::{EventTopic, KeptEvent, Noted};
use crate::file::EventsFile;
use crate::ring::{Bounds, Ring};
use ostler_model::limits::{
    EVENT_MESSAGE_BYTES_MAX, EVENTS_APART, EVENTS_KEPT_BYTES_MAX, EVENTS_KEPT_MAX,
};
use ostler_model::shown::shown;
use ostler_model::time::Timestamp;

/// Which events are wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventsWanted {
    /// After this number; 0: all.
    pub after: u64,
    /// Not older than this.
    pub since: Option<Timestamp>,
    /// Of this topic.
    pub topic: Option<EventTopic>,
    /// Of this job, its allocations and tasks.
    pub job: Option<String>,
    /// Of allocations whose id begins so.
    pub alloc: Option<String>,
    /// Of this task.
    pub task: Option<String>,
    /// Of this plugin, or this device.
    pub name: Option<String>,
    /// Only where something is not as it should be.
    pub trouble: bool,
}

impl EventsWanted {
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

/// Events that are there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EventsSeen {
    /// Oldest first, in the order in which each happened last.
    pub events: Vec<KeptEvent>,
    /// Where to go on.
    pub position: u64,
    /// Events before these are gone that were not read.
    pub missed: bool,
}

/// The events of the node: noted by the agent, read by anybody.
#[derive(Debug)]
pub struct NodeEvents {
    ring: Mutex<Ring>,
    grown: watch::Sender<u64>,
    /// The file, and up to which number it has the events; none where there is no data directory to keep.
    file: Mutex<Option<(EventsFile, u64)>>,
}

impl Default for NodeEvents {
    /// In memory alone.
    fn default() -> Self {
        let bounds =
            Bounds { events: EVENTS_KEPT_MAX, bytes: EVENTS_KEPT_BYTES_MAX, apart: EVENTS_APART };
        Self {
            ring: Mutex::new(Ring::new(bounds)),
            grown: watch::channel(0).0,
            file: Mutex::default(),
        }
    }
}

impl NodeEvents {
    /// Take over what an earlier agent kept below a directory, before anything is noted, and write there from
    /// now on. Waits for the disk. A file that cannot be read is told in the log, and made anew.
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

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Note what happened, at the time of each. Waits for nothing.
    pub fn note(&self, noted: impl IntoIterator<Item = (Timestamp, Noted)>) {
        let mut ring = self.ring();
        let before = ring.newest();
        for (at, mut what) in noted {
            what.message = shown(what.message, EVENT_MESSAGE_BYTES_MAX);
            ring.add(what, at);
        }
        let newest = ring.newest();
        drop(ring);
        if newest > before {
            self.grown.send_replace(newest);
        }
    }

    /// The number of the newest, as it grows.
    #[must_use]
    pub fn grown(&self) -> watch::Receiver<u64> {
        self.grown.subscribe()
    }

    /// When the newest of all happened; none where there is none.
    #[must_use]
    pub fn newest_at(&self) -> Option<Timestamp> {
        self.ring().after(0).0.map(|event| event.last).max()
    }

    /// Those that are wanted, at most so many: of more the newest.
    #[must_use]
    pub fn seen(&self, wanted: &EventsWanted, most: usize) -> EventsSeen {
        let ring = self.ring();
        let (events, missed) = ring.after(wanted.after);
        let newest = events.rev().filter(|event| wanted.matches(event)).take(most);
        let mut events: Vec<KeptEvent> = newest.cloned().collect();
        events.reverse();
        EventsSeen { events, position: ring.newest(), missed }
    }

    /// Write what is not in the file yet. Waits for the disk.
    ///
    /// # Errors
    /// The disk's; what was not written is tried again with the next write.
    pub fn write(&self) -> std::io::Result<()> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((file, written)) = file.as_mut() else { return Ok(()) };
        let (new, newest) = {
            let ring = self.ring();
            (ring.after(*written).0.cloned().collect::<Vec<_>>(), ring.newest())
        };
        if new.is_empty() {
            return Ok(());
        }
        file.write(&new, || self.ring().after(0).0.cloned().collect())?;
        *written = newest;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn noted(job: &str, message: &str) -> (Timestamp, Noted) {
        let what = Noted { job: job.to_owned(), message: message.to_owned(), ..Noted::default() };
        (Timestamp::from_nanos(5), what)
    }

    fn kept_in(dir: &Path) -> NodeEvents {
        let events = NodeEvents::default();
        events.keep_in(dir);
        events
    }

    fn messages(events: &NodeEvents, wanted: &EventsWanted) -> Vec<(String, u64)> {
        let seen = events.seen(wanted, 9);
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
        let all = EventsWanted::default();
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
        let mut grown = events.grown();
        events.note([noted("web", "a"), noted("db", "b")]);
        assert!(grown.has_changed().unwrap());
        assert_eq!(*grown.borrow_and_update(), 2);
        let wanted = EventsWanted { job: Some("db".to_owned()), ..EventsWanted::default() };
        assert_eq!(messages(&events, &wanted), [("b".to_owned(), 1)]);
        let next = EventsWanted { after: 2, ..EventsWanted::default() };
        assert_eq!(messages(&events, &next), []);
    }
}

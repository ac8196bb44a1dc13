//! Keeps the events of changes, which are written as JSON once for all clients that follow events.
//!
//! ```text
//! a stream ─ change at a position ─► EventCache ─ there? ─┬─ yes ─► its events, shared
//! another  ──────────────────────────┘                    └─ no ──► read ─► JSON ─► kept while there is room
//! ```
//! A change is read and written as JSON once for all streams that need it at about the same time,
//! so that of fifty streams forty-nine only copy bytes. The events of the newest changes are kept.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use serde::Serialize;
use serde_json::Value;

use ostler_model::limits::API_EVENTS_RENDERED_BYTES_MAX;

/// The kinds of objects that have events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Topic {
    Job,
    Allocation,
    Evaluation,
    Deployment,
    Node,
}

/// One event: the fields that clients choose it by, and its JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RenderedEvent {
    pub topic: Topic,
    pub key: String,
    /// The namespace of the object; empty if it is in none.
    pub namespace: String,
    pub filter_keys: Vec<String>,
    pub index: u64,
    /// The JSON of Nomad's `Event`.
    json: String,
}

/// Nomad's `Event`.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct EventJson<'a> {
    topic: Topic,
    #[serde(rename = "Type")]
    kind: &'static str,
    key: &'a str,
    namespace: &'a str,
    filter_keys: &'a [String],
    index: u64,
    payload: &'a Value,
}

impl RenderedEvent {
    /// An event. Clients can also choose it by its filter keys. None if it cannot be written as JSON.
    pub(super) fn new(
        (topic, kind): (Topic, &'static str),
        key: String,
        (namespace, filter_keys): (&str, Vec<String>),
        index: u64,
        payload: &Value,
    ) -> Option<Self> {
        let whole = EventJson {
            topic,
            kind,
            key: &key,
            namespace,
            filter_keys: &filter_keys,
            index,
            payload,
        };
        let json = serde_json::to_string(&whole).ok()?;
        Some(Self { topic, key, namespace: namespace.to_owned(), filter_keys, index, json })
    }
}

/// One line of a stream, with events of the same index; none if there are no events.
pub(super) fn event_line(events: &[&RenderedEvent]) -> Option<Bytes> {
    let first = events.first()?;
    let texts: Vec<&str> = events.iter().map(|event| event.json.as_str()).collect();
    let text = format!("{{\"Index\":{},\"Events\":[{}]}}\n", first.index, texts.join(","));
    Some(text.into())
}

/// A cache of the events of the newest changes that a stream has read.
#[derive(Debug, Default)]
pub(super) struct EventCache(Mutex<EventCacheInner>);

#[derive(Debug, Default)]
struct EventCacheInner {
    events: BTreeMap<u64, Arc<[RenderedEvent]>>,
    bytes: usize,
}

impl EventCache {
    /// The events of the change at this position, from the cache if they are there, else those that
    /// `render` makes.
    pub(super) fn events_of_change(
        &self,
        position: u64,
        render: impl FnOnce() -> Vec<RenderedEvent>,
    ) -> Arc<[RenderedEvent]> {
        let kept = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(events) = kept().events.get(&position) {
            return Arc::clone(events);
        }
        // The lock is not held here, so two streams that come at once both render the change.
        let events: Arc<[RenderedEvent]> = render().into();
        kept().keep(position, Arc::clone(&events));
        events
    }
}

fn events_size(events: &[RenderedEvent]) -> usize {
    let one = |event: &RenderedEvent| size_of::<RenderedEvent>() + event.json.len();
    events.iter().map(one).sum()
}

impl EventCacheInner {
    /// Add the events of a change; the oldest ones make room for it.
    fn keep(&mut self, position: u64, events: Arc<[RenderedEvent]>) {
        self.bytes += events_size(&events);
        if let Some(before) = self.events.insert(position, events) {
            self.bytes -= events_size(&before);
        }
        while self.bytes > API_EVENTS_RENDERED_BYTES_MAX
            && let Some((_, oldest)) = self.events.pop_first()
        {
            self.bytes -= events_size(&oldest);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
impl RenderedEvent {
    /// An event of the index 7 in the default namespace.
    pub(super) fn of_test(topic: Topic, key: &str, filter_keys: &[&str]) -> Self {
        let keys = filter_keys.iter().map(|key| (*key).to_owned()).collect();
        let of = ("default", keys);
        Self::new((topic, "JobRegistered"), key.to_owned(), of, 7, &Value::Null).unwrap()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn an_event_has_the_names_that_nomad_gives_its_members() {
        let (one, other) = (
            RenderedEvent::of_test(Topic::Job, "web", &[]),
            RenderedEvent::of_test(Topic::Job, "db", &["x"]),
        );
        let text = event_line(&[&one, &other]).unwrap();
        let wanted = r#"{"Index":7,"Events":[{"Topic":"Job","Type":"JobRegistered","Key":"web","Namespace":"default","FilterKeys":[],"Index":7,"Payload":null},{"Topic":"Job","Type":"JobRegistered","Key":"db","Namespace":"default","FilterKeys":["x"],"Index":7,"Payload":null}]}"#;
        assert_eq!(text, format!("{wanted}\n"));
        assert_eq!(event_line(&[]), None);
    }

    #[test]
    fn the_newest_events_are_kept_and_no_more_of_them_than_there_is_room_for() {
        let mut kept = EventCacheInner::default();
        let big = || -> Arc<[RenderedEvent]> {
            let text = "x".repeat(API_EVENTS_RENDERED_BYTES_MAX / 4);
            [RenderedEvent::of_test(Topic::Job, "web", &[&text])].into()
        };
        for position in [7, 8, 9, 10, 5] {
            kept.keep(position, big());
        }
        assert_eq!(kept.events.keys().copied().collect::<Vec<_>>(), [8, 9, 10]);
        kept.keep(10, big());
        assert_eq!(
            kept.bytes,
            kept.events.values().map(|events| events_size(events)).sum::<usize>()
        );
        assert!(kept.bytes <= API_EVENTS_RENDERED_BYTES_MAX);
    }
}

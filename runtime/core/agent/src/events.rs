//! The events of the node: what happened to its jobs, allocations, tasks, plugins and devices. The
//! newest events are held, up to a bound. An event that repeats is counted in one entry. Events are
//! kept over restarts of the agent.
//!
//! ```text
//! note(EventNote) ─► ring (pure: fold, bound) ─► since, and a watch for those who follow
//!                  │ changed since the last write, at most once a period
//!                  └─► file: lines of JSON, appended; written anew when it is too large
//! ```
//! Noting an event never waits for the disk. What was noted in the last period is lost when the
//! agent is killed. Start with [`NodeEvents`] and `ring`.

mod event;
mod file;
mod node_events;
mod ring;

pub use event::{EventNote, EventTopic, KeptEvent};
pub use node_events::{EventsFilter, EventsPage, NodeEvents};

/// Name of the file below the data directory.
pub const EVENTS_FILE: &str = "events.jsonl";

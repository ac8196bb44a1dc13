//! What happened on the node, to its jobs, allocations, tasks, plugins and devices: the last of it, bounded, the same event
//! again and again counted in one, and kept over restarts.
//!
//! ```text
//! note(Noted) ─► ring (pure: fold, bound) ─► since, and a watch for those who follow
//!                  │ changed since the last write, at most once a period
//!                  └─► file: lines of JSON, appended; written anew when it is too large
//! ```
//! Who notes never waits for a disk. What was noted in the last period is lost when the agent is killed.
//! Start with [`NodeEvents`] and `ring`.

mod event;
mod file;
mod held;
mod ring;

pub use event::{EventTopic, KeptEvent, Noted};
pub use held::{EventsSeen, EventsWanted, NodeEvents};

/// Name of the file below the data directory.
pub const EVENTS_FILE: &str = "events.jsonl";

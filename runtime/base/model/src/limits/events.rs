//! Limits of the events that the node keeps of what happened.

use std::time::Duration;

use super::MIB;

/// Most events that are kept. An event that repeats is counted and kept once.
pub const EVENTS_KEPT_MAX: usize = 4_096;
/// Most memory of these events, bytes, about: a few hundred each. Of events with long messages fewer than
/// [`EVENTS_KEPT_MAX`] fit.
pub const EVENTS_KEPT_BYTES_MAX: usize = 2 * MIB as usize;
/// Longest message of an event, bytes. A longer one is cut, with a note of how much is missing.
pub const EVENT_MESSAGE_BYTES_MAX: usize = 512;
/// An event that repeats later than this after the last time counts as a new one: what happened yesterday is
/// not what happens now.
pub const EVENTS_APART: Duration = Duration::from_secs(3_600);
/// Largest file of events, bytes: the kept events as JSON, and as many lines that later ones replace.
pub const EVENTS_FILE_BYTES_MAX: u64 = 4 * MIB;
/// Time between two writes of that file, where there is something new. A killed agent may forget the events
/// of this time. On a busy node, at most the kept events are written each time.
pub const EVENTS_WRITE_PERIOD: Duration = Duration::from_secs(5);
/// Time between two looks at what changed: changes that come faster are handled together.
pub const EVENTS_PACE: Duration = Duration::from_millis(200);
/// Most changes that are handled at once.
pub const EVENTS_CHANGES_AT_ONCE: usize = 1_024;
/// Most events in one answer of the API.
pub const EVENTS_ANSWERED_MAX: usize = EVENTS_KEPT_MAX;

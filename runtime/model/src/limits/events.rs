//! Limits of the events that the node keeps of what happened.

use std::time::Duration;

use super::MIB;

/// Events that are kept; the same one again is counted in one.
pub const EVENTS_KEPT_MAX: usize = 4_096;
/// Their memory, bytes, about: a few hundred each, [`EVENTS_KEPT_MAX`] of them with long messages fewer.
pub const EVENTS_KEPT_BYTES_MAX: usize = 2 * MIB as usize;
/// Longest message of one, bytes; what is longer is cut, with how much is missing.
pub const EVENT_MESSAGE_BYTES_MAX: usize = 512;
/// The same event later than this after the last one is another one: what happened yesterday is not what
/// happens now.
pub const EVENTS_APART: Duration = Duration::from_secs(3_600);
/// Largest file of events, bytes: those that are kept as JSON, and as many lines that later ones replace.
pub const EVENTS_FILE_BYTES_MAX: u64 = 4 * MIB;
/// From one write of that file to the next, where there is something new: what an agent that is killed may
/// forget. Of a busy node at most what is kept is written each time.
pub const EVENTS_WRITE_PERIOD: Duration = Duration::from_secs(5);
/// From one look at what changed to the next: changes that come faster are looked at together.
pub const EVENTS_PACE: Duration = Duration::from_millis(200);
/// Changes that are looked at in one go.
pub const EVENTS_CHANGES_AT_ONCE: usize = 1_024;
/// Events that one answer of the API has.
pub const EVENTS_ANSWERED_MAX: usize = EVENTS_KEPT_MAX;

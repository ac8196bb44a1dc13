//! Limits of the API and of its clients.

use std::time::Duration;

use super::{KIB, MIB};

/// Largest body of a request, bytes: a job of [`super::JOB_FILE_BYTES_MAX`] inside JSON, escapes included.
pub const API_BODY_BYTES_MAX: usize = 4 * MIB as usize;
/// Request line and headers of one request together, bytes. Nomad's command line sends below 1 KiB.
pub const API_HEADER_BYTES_MAX: usize = 16 * KIB as usize;
/// Longest that a client may take for the head of a request, or leave a connection idle.
pub const API_HEADER_WALL_MAX: Duration = Duration::from_secs(30);
/// Bytes of a request's body that are read and thrown away after it was answered, so that a client
/// which writes it whole before it reads gets the answer: a body some times as large as is taken.
pub const API_DRAIN_BYTES_MAX: usize = 8 * API_BODY_BYTES_MAX;
/// How long that may take; the answer waits for it. Local clients write without a pause.
pub const API_DRAIN_WALL_MAX: Duration = Duration::from_secs(1);
/// Connections at once; each may have one request under way. A person's tools use a handful, and
/// waiting queries of a hundred watchers still leave room.
pub const API_CONNECTIONS_MAX: usize = 128;
/// Connections beyond those that are told so with status 503 at the same time; more are dropped.
pub const API_REFUSALS_MAX: usize = 16;
/// How long such a refusal may take.
pub const API_REFUSAL_WALL_MAX: Duration = Duration::from_secs(2);
/// Streams (followed logs, files) at once: fewer than connections, so that followers alone cannot
/// lock everybody else out.
pub const API_STREAMS_MAX: usize = 64;
/// Longest that a request may take which neither waits for a change nor streams. Above
/// [`super::KILL_TIMEOUT_MAX`] and [`super::KILL_GRACE`], which bound a restart.
pub const API_REQUEST_WALL_MAX: Duration = Duration::from_secs(60);
/// How long a request waits for what an agent that starts does not have yet, before it is told so:
/// most starts are shorter, and who asks again hears in between how far it is.
pub const API_START_WAIT: Duration = Duration::from_secs(3);
/// How long a query with `index` waits for a change unless it says so; Nomad's default.
pub const API_WAIT_DEFAULT: Duration = Duration::from_secs(5 * 60);
/// Longest wait a query may ask for; Nomad's bound.
pub const API_WAIT_MAX: Duration = Duration::from_secs(10 * 60);
/// A waiting query looks again at most this often, so that a hundred of them do not make every
/// change of a busy node a hundred times as dear.
pub const API_LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Silence in a stream of frames after which an empty one is sent; Nomad's interval.
pub const API_HEARTBEAT: Duration = Duration::from_secs(1);
/// Topics of one stream of events.
pub const API_TOPICS_MAX: usize = 64;
/// Visible changes that are kept for those who follow each of them; a few hundred bytes each at most.
pub const CHANGES_KEPT_MAX: usize = 8_192;
/// From one look at a file that is followed to the next; Nomad's interval.
pub const API_FILE_PACE: Duration = Duration::from_millis(250);
/// Longest that a write to a client may make no progress: a reader that does not read gives up its
/// connection, and a stream its place and its open files.
pub const API_WRITE_WALL_MAX: Duration = Duration::from_secs(30);
/// How long requests under way may take when the agent leaves; waiting ones and streams end at once.
pub const API_STOP_WALL_MAX: Duration = Duration::from_secs(5);
/// Pause after a failed accept (no file descriptors left), so that it does not spin.
pub const API_ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Requests to scale that are kept of one group; Nomad keeps as many.
pub const SCALING_EVENTS_MAX: usize = 20;
/// Largest message and meta of one such request together, bytes: they are kept in memory.
pub const SCALING_EVENT_BYTES_MAX: usize = 4 * 1024;
/// Entries of one directory listed; more are left out.
pub const API_DIR_ENTRIES_MAX: usize = 10_000;

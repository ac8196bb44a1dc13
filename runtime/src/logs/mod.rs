//! What tasks print: rotated files, and readers that follow them.
//!
//! ```text
//! pipe ─ pump ─► LogStream (ByteSink) ─► RotatingWriter ─► <task>.stdout.N in the alloc's log directory
//! WASM stdio ──────────┘      │                                     ▲
//!                             └─ watch: position ─► Follower ───────┘ ─► LineFollower ─► terminal
//! ```
//! Nothing here ever blocks or fails a task: bytes that cannot be written are counted and said once
//! in the agent's log. Followers read the files, not a copy in memory: a slow reader costs nothing,
//! and what was pruned before it came by is reported as skipped.
//!
//! The directory may be writable by the task, so every name in it is untrusted: links are never
//! followed, and only plain files that the agent alone names are appended to.

mod files;
mod plan;
pub mod pump;
mod rotate;
mod stream;
mod tail;

pub use self::files::{LogError, StreamKind};
pub use self::stream::{LogStream, TaskLogs};
pub use self::tail::{Chunk, Follower, From, LINE_BYTES_MAX, Line, LineFollower};

//! What tasks print: rotated files, and readers that follow them.
//!
//! ```text
//! pipe ─ pump ─► LogStream (ByteSink) ─► RotatingWriter ─► <task>.stdout.N in the alloc's log directory
//! WASM stdio ──────────┘      │                                     ▲
//!                             └─ watch: position ─► Follower ───────┘ ─► LineFollower ─► terminal
//! ```
//! A supervised native task is written by its supervisor ([`OutsideWriter`], in another process);
//! the agent then looks at the files while somebody follows (inotify, with a slow poll besides):
//!
//! ```text
//! pipe ─ supervisor ─► OutsideWriter ─► <task>.stdout.N ─ inotify ─► Outside::look ─► position ─► Follower
//! ```
//! A stream is taken for one written outside until the first byte is written to it here.
//!
//! Nothing here ever blocks or fails a task: bytes that cannot be written are counted and said once
//! in the agent's log. Followers read the files, not a copy in memory: a slow reader costs nothing,
//! and what was pruned before it came by is reported as skipped.
//!
//! The directory may be writable by the task, so every name in it is untrusted: links are never
//! followed, and only plain files that the agent alone names are appended to.

mod files;
mod outside;
mod plan;
pub mod pump;
mod rotate;
mod stream;
mod tail;

pub use self::files::{LogError, StreamKind};
pub use self::outside::OutsideWriter;
pub use self::stream::{LogStream, TaskLogs};
pub use self::tail::{Chunk, Follower, From, LINE_BYTES_MAX, Line, LineFollower};

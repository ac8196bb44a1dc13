//! What tasks print: rotated files, and readers that follow them.
//!
//! ```text
//! pipe ─ pump ─► LogStream (ByteSink) ─► RotatingWriter ─► <task>.stdout.N in the alloc's log directory
//! WASM stdio ──────────┘      │                                     ▲
//!                             └─ watch: position ─► Follower ───────┘ ─► LineFollower ─► terminal
//! ```
//! Never blocks or fails a task: bytes that cannot be written are counted and said once in the agent's
//! log. The directory may be writable by the task, so every name in it is untrusted: links are never
//! followed, and only plain files that the agent alone names are appended to.
//!
//! Start with `stream.rs`; `plan.rs` decides (pure), `rotate.rs` writes.

mod files;
mod named_pipe;
mod outside;
mod pace;
mod plan;
pub mod pump;
mod rotate;
mod stream;
mod tail;

pub use self::files::{LogError, StreamKind};
pub use self::named_pipe::end_pipe;
pub use self::outside::{OutsideWriter, task_sink};
pub use self::stream::{LogStream, TaskLogs};
pub use self::tail::{Chunk, Follower, From, LINE_BYTES_MAX, Line, LineFollower};

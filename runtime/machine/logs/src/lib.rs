//! The output of tasks: rotated files, and readers that follow them.
//!
//! ```text
//! pipe ─ pump ─► LogStream (ByteSink) ─► RotatingWriter ─► <task>.stdout.N in the alloc's log directory
//! WASM stdio ──────────┘      │                                     ▲
//!                             └─ watch: position ─► StreamFollower ─┘ ─► LineFollower ─► terminal
//! ```
//! This never blocks or fails a task: bytes that cannot be written are counted, and reported once
//! in the agent's log. The task may be able to write in the directory, so every name in it is
//! untrusted: links are never followed, and only plain files without other names are appended to.
//!
//! Start reading with `stream.rs`; `plan.rs` decides (pure), `rotate.rs` writes.

mod files;
mod named_pipe;
mod outside;
mod pace;
mod plan;
pub mod pump;
mod rotate;
mod stream;
mod tail;

pub use self::files::{LogError, StreamKind, open_log_dir};
pub use self::named_pipe::end_pipe;
pub use self::outside::{OutsideWriter, task_sink};
pub use self::stream::{LogStream, TaskLogs};
pub use self::tail::{Chunk, FollowFrom, LINE_BYTES_MAX, LineFollower, StreamFollower, StreamLine};

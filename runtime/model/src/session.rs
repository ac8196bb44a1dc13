//! Commands that people run inside a task, and the bytes that go both ways.
//!
//! ```text
//! Driver::exec ─► ExecPlan ─► Workloads::exec ─► ExecSession ─┬─► stdin, resize
//!                                                             ├─◄ stdout, stderr
//!                                                             └─◄ end: exit code
//! ```
//! A session ends with its program, with its task, and when it is dropped.

use std::fmt;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::ports::BoxFuture;

/// What somebody asks to be run inside a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecCommand {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// With a terminal of this size.
    pub terminal: Option<TerminalSize>,
    /// Also inside a task that sees the node's own files, where the command does too; else why not.
    pub on_node: Result<(), String>,
}

/// What a driver says is to be run inside a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecPlan {
    /// Program and arguments; at least the program.
    pub argv: Vec<String>,
    /// The whole environment. Absent: that which the task was started with.
    pub env: Option<Vec<(String, String)>>,
    /// Absolute directory to start in, as the task sees it. Absent: where the task was started.
    pub cwd: Option<String>,
    /// User to run as; nobody but the task's own is possible. Absent: that one.
    pub user: Option<String>,
}

/// Size of a terminal, characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Characters of a line.
    pub columns: u16,
}

impl Default for TerminalSize {
    /// What a terminal has of which nothing is known.
    fn default() -> Self {
        Self { rows: 24, columns: 80 }
    }
}

/// Gives a terminal another size.
pub type Resize = Box<dyn Fn(TerminalSize) + Send + Sync>;

/// A command that runs inside a task. Everything it started is ended when `end` is dropped.
pub struct ExecSession {
    /// What it reads. Dropped: the end of its input, but for a terminal.
    pub stdin: Box<dyn AsyncWrite + Send + Unpin>,
    /// What it prints; of a terminal all of it.
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    /// What it prints as errors; absent with a terminal.
    pub stderr: Option<Box<dyn AsyncRead + Send + Unpin>>,
    /// Present with a terminal.
    pub resize: Option<Resize>,
    /// Its exit code: 128 and the signal's number of one that a signal ended.
    ///
    /// An error is the text for whoever asked: it ended with its task, or with the host's means to watch
    /// it.
    pub end: BoxFuture<'static, Result<i32, String>>,
}

impl fmt::Debug for ExecSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecSession")
            .field("terminal", &self.resize.is_some())
            .finish_non_exhaustive()
    }
}

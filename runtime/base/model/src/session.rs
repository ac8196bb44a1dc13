//! Commands that people run inside a task, and the bytes that go both ways.
//!
//! ```text
//! TaskDriver::exec ─► ExecPlan ─► Workloads::exec ─► ExecSession ─┬─► stdin, resize
//!                                                                 ├─◄ stdout, stderr
//!                                                                 └─◄ end: exit code
//! ```
//! A session ends with its program, with its task, and when it is dropped.

use std::fmt;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::ports::BoxFuture;

/// A command that a person asks to run inside a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecCommand {
    /// The program, followed by its arguments.
    pub argv: Vec<String>,
    /// Size of the terminal; absent for a command without one.
    pub terminal: Option<TerminalSize>,
    /// Whether the command may run inside a task that sees the node's own files, as the command
    /// then sees them too; an error says why not.
    pub on_node: Result<(), String>,
}

/// The command that a driver wants to run inside a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecPlan {
    /// The program, followed by its arguments. It is not empty.
    pub argv: Vec<String>,
    /// The whole environment. Absent: that which the task was started with.
    pub env: Option<Vec<(String, String)>>,
    /// Absolute working directory, as the task sees it. Absent: the one that the task was
    /// started in.
    pub cwd: Option<String>,
    /// User to run as, which can only be the task's own. Absent: the task's own user.
    pub user: Option<String>,
}

/// Size of a terminal, characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Number of lines.
    pub rows: u16,
    /// Number of characters in a line.
    pub columns: u16,
}

impl Default for TerminalSize {
    /// The usual size, for a terminal whose size is not known.
    fn default() -> Self {
        Self { rows: 24, columns: 80 }
    }
}

/// A function that gives a terminal another size.
pub type Resize = Box<dyn Fn(TerminalSize) + Send + Sync>;

/// A command that runs inside a task. All processes that it started are ended when `end`
/// is dropped.
pub struct ExecSession {
    /// Writes the command's standard input. Dropping it ends the input, except with a terminal.
    pub stdin: Box<dyn AsyncWrite + Send + Unpin>,
    /// Reads the command's standard output; with a terminal, all that it shows.
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    /// Reads the command's standard error; absent with a terminal.
    pub stderr: Option<Box<dyn AsyncRead + Send + Unpin>>,
    /// Changes the size of the terminal, if there is one.
    pub resize: Option<Resize>,
    /// Ends with the exit code of the command. For a signal it is 128 and the signal's number.
    ///
    /// An error is a text for the caller: the command ended with its task, or the host could not
    /// watch it any more.
    pub end: BoxFuture<'static, Result<i32, String>>,
}

impl fmt::Debug for ExecSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecSession")
            .field("terminal", &self.resize.is_some())
            .finish_non_exhaustive()
    }
}

//! A process of the agent's own program that limits itself and does one thing with what is not trusted.
//!
//! ```text
//! agent ── order ─► standard input: then it stays open, and its end is the agent's
//!    ▲                    ▼
//!    └─ words, by lines ─ child: limits itself, does it, says how far it is and how it ended
//! ```
//! It has a process group of its own, works in a directory that is its alone, and is killed when it is
//! dropped.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use tokio::process::{Child, ChildStdin, ChildStdout};

/// What to start.
#[derive(Debug)]
pub struct LimitedSpec<'a> {
    /// The program; `/proc/self/exe` is this one, also after its file was replaced.
    pub program: &'a Path,
    /// Its first argument, by which it knows what it is.
    pub argument: &'a str,
    /// Where it works.
    pub dir: &'a Path,
    /// Its environment; nothing is inherited.
    pub env: &'a [(String, OsString)],
}

/// One that runs.
#[derive(Debug)]
pub struct Limited {
    child: Child,
    /// To be kept as long as it is to live.
    pub stdin: Option<ChildStdin>,
    /// What it says.
    pub stdout: Option<ChildStdout>,
}

/// Start one.
///
/// # Errors
/// When the program cannot be executed.
pub fn start(spec: &LimitedSpec<'_>) -> io::Result<Limited> {
    #[expect(clippy::disallowed_methods, reason = "host is where processes are started")]
    let mut command = tokio::process::Command::new(spec.program);
    let mut child = command
        .arg(spec.argument)
        .env_clear()
        .envs(spec.env.iter().map(|(name, value)| (name, value)))
        .current_dir(spec.dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // Ctrl-C in the agent's terminal is the agent's to handle.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    Ok(Limited { child, stdin, stdout })
}

impl Limited {
    /// Wait for its end.
    ///
    /// # Errors
    /// When the system cannot tell.
    pub async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }
}

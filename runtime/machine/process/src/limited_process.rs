//! A process of the agent's own program that limits itself and works on one piece of untrusted
//! data.
//!
//! ```text
//! agent ── order ─► standard input: then it stays open, and its end is the agent's
//!    ▲                    ▼
//!    └─ words, by lines ─ child: limits itself, does it, says how far it is and how it ended
//! ```
//! It has a process group of its own, works in a directory that nobody else uses, and is killed
//! when its value is dropped.

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
    /// Its first argument, which tells the program what to be.
    pub argument: &'a str,
    /// Its working directory.
    pub dir: &'a Path,
    /// Its whole environment: nothing is inherited.
    pub env: &'a [(String, OsString)],
}

/// A running process that limits itself.
#[derive(Debug)]
pub struct LimitedProcess {
    child: Child,
    /// Its standard input. Keep it open as long as the process is to live.
    pub stdin: Option<ChildStdin>,
    /// Its standard output, on which it reports in lines.
    pub stdout: Option<ChildStdout>,
}

/// Start a process that limits itself.
///
/// # Errors
/// When the program cannot be executed.
pub fn start_limited(spec: &LimitedSpec<'_>) -> io::Result<LimitedProcess> {
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
    Ok(LimitedProcess { child, stdin, stdout })
}

impl LimitedProcess {
    /// Wait for the end of the process.
    ///
    /// # Errors
    /// When the system cannot tell how it ended.
    pub async fn wait_for_end(&mut self) -> io::Result<ExitStatus> {
        self.child.wait().await
    }
}

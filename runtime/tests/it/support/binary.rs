//! The binary, run as a person runs it.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Output, Stdio};

use tokio::io::AsyncWriteExt as _;

use super::{OSTLER, PATIENCE};

/// How the binary ended and what it said.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The exit code is `code` and every text was said on standard error.
    #[track_caller]
    pub fn said(&self, code: i32, texts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:#?}");
        for text in texts {
            assert!(self.stderr.contains(text), "nothing of {text:?} in:\n{}", self.stderr);
        }
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
    }
}

/// The command, with nothing of this process's configuration.
pub fn command<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> tokio::process::Command {
    let mut command = unconfigured(OSTLER);
    command.args(args);
    command
}

/// Any program that may call it, likewise. Signals do to it what they do to a program of a terminal,
/// also where these tests run under `nohup` or behind a shell that goes on.
pub fn unconfigured(program: &str) -> tokio::process::Command {
    let mut command = tokio::process::Command::new(program);
    with_default_signals(&mut command);
    command
        .env_remove("OSTLER_CONFIG")
        .env_remove("OSTLER_DATA_DIR")
        .env_remove("OSTLER_ADDR")
        .env_remove("OSTLER_JOBS_DIR")
        .env_remove("NOTIFY_SOCKET")
        .env_remove("OSTLER_LOG")
        // What runs without a data directory keeps its code here, not in the home of who tests.
        .env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/caches"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// Whoever starts these tests may have had signals ignored, which programs inherit.
pub fn with_default_signals(command: &mut tokio::process::Command) {
    let heed = || {
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
            // SAFETY: it changes one entry of a table of the new process.
            if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
                return Err(std::io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec only system calls are made; nothing is allocated.
    unsafe { command.pre_exec(heed) };
}

/// Run it to its end.
pub async fn ostler<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Ended {
    let ended = ostler_model::clock::timeout(PATIENCE, command(args).output()).await;
    Ended::of(ended.expect("the binary ends").unwrap())
}

/// Run a command line to its end with this input.
pub async fn with_input(mut command: tokio::process::Command, input: &[u8]) -> Ended {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    tokio::spawn(async move { stdin.write_all(&input).await });
    let output = ostler_model::clock::timeout(PATIENCE, child.wait_with_output()).await;
    Ended::of(output.unwrap_or_else(|| panic!("{command:?} does not end")).unwrap())
}

/// `ostler run --raw-exec --data-dir DIR FILE`.
pub async fn run(data_dir: &Path, file: &Path) -> Ended {
    let begin = ["run", "--raw-exec", "--data-dir"].map(OsStr::new);
    ostler(begin.into_iter().chain([data_dir.as_os_str(), file.as_os_str()])).await
}

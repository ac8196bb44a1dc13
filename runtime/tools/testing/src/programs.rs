//! Programs that a test writes and then runs.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

/// Write `text`, a script, to `path` so that it can be run at once, also while other threads start
/// processes.
///
/// Another process writes it: a child that is forked while a file is open for writing has it open
/// too, and until that child runs its own program the kernel refuses to run the file ("Text file
/// busy").
///
/// # Errors
/// When the shell cannot be started, or cannot write the file.
pub fn write_script(path: &Path, text: &str) -> io::Result<()> {
    #[allow(clippy::disallowed_methods, reason = "for tests alone")]
    let mut shell = Command::new("/bin/sh");
    let write = "cat > \"$0\" && chmod 755 \"$0\"";
    let mut writer = shell.args(["-c", write]).arg(path).stdin(Stdio::piped()).spawn()?;
    if let Some(mut input) = writer.stdin.take() {
        input.write_all(text.as_bytes())?;
    }
    if writer.wait()?.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("a shell could not write {}", path.display())))
}

/// Copy a program so that the copy can be run at once, for the same reason.
///
/// # Errors
/// When it cannot be copied.
pub fn copy_program(from: &Path, to: &Path) -> io::Result<()> {
    #[allow(clippy::disallowed_methods, reason = "for tests alone")]
    let copied = Command::new("cp").arg(from).arg(to).status()?;
    if copied.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("{} could not be copied", from.display())))
}

//! Files that a test makes and other users read.

use std::io;
use std::path::Path;
use std::process::Command;

/// Let everybody read what is at `path` and below it, whatever the test's umask is.
///
/// # Errors
/// When it cannot be changed.
pub fn open_to_all(path: &Path) -> io::Result<()> {
    #[allow(clippy::disallowed_methods, reason = "for tests alone")]
    let changed = Command::new("chmod").args(["-R", "a+rX"]).arg(path).status()?;
    if changed.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("the mode of {} could not be changed", path.display())))
}

/// What the umask of this process leaves of a mode.
///
/// # Errors
/// When the kernel does not say the umask.
pub fn mode_left(mode: u32) -> io::Result<u32> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    let umask = umask.and_then(|text| u32::from_str_radix(text.trim(), 8).ok());
    let umask = umask.ok_or_else(|| io::Error::other("the kernel does not say the umask"))?;
    Ok(mode & !umask)
}

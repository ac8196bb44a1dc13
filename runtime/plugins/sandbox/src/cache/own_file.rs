//! Opens files that only this user can have changed or read.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

/// Mode bits of any permission for group and others.
const SHARED: u32 = 0o077;

/// The open file and its metadata, or why it cannot be trusted.
pub(super) fn open(path: &Path) -> io::Result<Result<(File, Metadata), &'static str>> {
    // Opening a pipe would wait otherwise.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            return Ok(Err("it is a symbolic link"));
        }
        other => other?,
    };
    let found = file.metadata()?;
    if !found.is_file() {
        return Ok(Err("it is not a regular file"));
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Ok(Err("it belongs to another user"));
    }
    if found.mode() & SHARED != 0 {
        return Ok(Err("group or others may read or write it"));
    }
    Ok(Ok((file, found)))
}

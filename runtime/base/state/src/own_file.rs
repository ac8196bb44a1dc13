//! Opens files of a data directory, but never through a link. The owner of the directory was
//! checked before. An agent makes no links there, so whatever a link leads to is not the agent's to
//! read or write.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::OFlags;

/// Open a file with these options. A link in its place is an error, and opening a pipe does
/// not wait.
///
/// # Errors
/// That of the system; for a link, one that says so.
pub fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).map_err(io::Error::other)?;
    options.custom_flags(flags).open(path).map_err(|error| {
        if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) {
            return io::Error::new(
                io::ErrorKind::InvalidData,
                "it is a link, which is not followed",
            );
        }
        error
    })
}

/// Open a file to read it.
///
/// # Errors
/// As [`open`].
pub fn read(path: &Path) -> io::Result<File> {
    open(OpenOptions::new().read(true), path)
}

/// Open a file that only its owner may read, to write it anew.
///
/// # Errors
/// As [`open`].
pub fn write_anew(path: &Path) -> io::Result<File> {
    open(OpenOptions::new().write(true).create(true).truncate(true).mode(0o600), path)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_neither_read_nor_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        std::fs::write(&target, "kept").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        for opened in [read(&link), write_anew(&link)] {
            let error = opened.unwrap_err().to_string();
            assert_eq!(error, "it is a link, which is not followed");
        }
        assert_eq!(std::fs::read(&target).unwrap(), b"kept");
        assert!(read(&target).is_ok());
    }
}

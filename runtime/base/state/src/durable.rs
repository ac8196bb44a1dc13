//! Creates directories that are still there after a power cut.
//!
//! A synced file is on the disk, but its name is not before the directory that holds it was synced,
//! and so on up to the first directory that was there before.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// Create a directory, and those above it that are missing, with this mode (the umask may cut it).
/// When this returns, what was created is durable. It costs nothing if all are there.
///
/// # Errors
/// When one cannot be made or synced, or something else has its name.
pub fn make_dirs(path: &Path, mode: u32) -> io::Result<()> {
    let mut missing: Vec<PathBuf> = Vec::new();
    for dir in path.ancestors().filter(|dir| !dir.as_os_str().is_empty()) {
        match dir.metadata() {
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(dir.to_owned()),
            Err(error) => return Err(error),
        }
    }
    // This is done even if nothing is missing, because a file in its place is reported then.
    DirBuilder::new().recursive(true).mode(mode).create(path)?;
    for made in missing {
        sync_parent(&made)?;
    }
    Ok(())
}

/// Make the name of a file or directory durable.
///
/// # Errors
/// When the directory that holds it cannot be opened or synced.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => File::open(dir)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn directories_are_made_with_all_that_lead_to_them_and_found_again() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a/b/c");
        for _ in 0..2 {
            make_dirs(&path, 0o700).unwrap();
        }
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_file_in_the_place_of_a_directory_is_an_error() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("a"), "").unwrap();
        make_dirs(&root.path().join("a"), 0o700).unwrap_err();
        make_dirs(&root.path().join("a/b"), 0o700).unwrap_err();
    }
}

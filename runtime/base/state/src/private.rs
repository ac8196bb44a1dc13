//! Closes a data directory to everybody but its agent: mode 0700, whoever made it.
//!
//! Its content belongs to tasks of any user and is readable by anybody in places (`alloc/data`),
//! so the directory itself keeps everybody else out. A directory that was made by hand has the
//! mode that the umask left, mostly 0755. It is closed if it evidently belongs to an agent, or is
//! still empty. Anything else in it would be closed too (`--data-dir /tmp`), so the operator is
//! asked then.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::durable;
use crate::lock::{LOCK_FILE, LockError, check_owner};

/// The name of the state file in a data directory.
pub const STATE_FILE: &str = "state.redb";
/// The mode of a data directory.
const OWNER_ALONE: Mode = Mode::from_raw_mode(0o700);
/// The permission bits of everybody but the owner.
const OTHERS: u32 = 0o077;
/// The files that only an agent makes, or that were copied for one.
const OF_AGENTS: [&str; 2] = [LOCK_FILE, STATE_FILE];
/// Entries that say nothing about the owner of a directory: itself, the one above, and what a fresh
/// file system has.
const OF_NOBODY: [&CStr; 3] = [c".", c"..", c"lost+found"];

/// Create a data directory, and those above it that are missing, or close one that other users may
/// enter. Returns the mode that it had, if it was closed.
///
/// # Errors
/// [`LockError::NotOwn`] if others decide what is in it; [`LockError::OpenToOthers`] if they may
/// enter it and it has things that belong to no agent; else when it cannot be made, read or closed.
pub fn make_private(dir: &Path) -> Result<Option<u32>, LockError> {
    durable::make_dirs(dir, OWNER_ALONE.as_raw_mode())
        .map_err(|source| LockError::from_io_error("create directory", dir, source))?;
    let failed =
        |doing| move |error: rustix::io::Errno| LockError::from_io_error(doing, dir, error.into());
    // The operator chose this path, so links on the way are followed. They are followed only once,
    // so that the directory that is checked is the one that is changed.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(dir, flags, Mode::empty()).map_err(failed("open directory"))?;
    let found = rustix::fs::fstat(&opened).map_err(failed("look at directory"))?;
    let mode = found.st_mode & 0o7777;
    check_owner(dir, found.st_uid, mode)?;
    if mode & OTHERS == 0 {
        return Ok(None);
    }
    if !belongs_to_agent(&opened).map_err(failed("read directory"))? {
        return Err(LockError::OpenToOthers { dir: dir.to_owned(), mode });
    }
    rustix::fs::fchmod(&opened, OWNER_ALONE).map_err(failed("close directory"))?;
    Ok(Some(mode))
}

/// Whether the directory belongs to an agent, or is empty.
fn belongs_to_agent(dir: &OwnedFd) -> rustix::io::Result<bool> {
    let mut empty = true;
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if OF_AGENTS.iter().any(|of| of.as_bytes() == name.to_bytes()) {
            return Ok(true);
        }
        empty &= OF_NOBODY.contains(&name);
    }
    Ok(empty)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o7777
    }

    fn open_dir(mode: u32) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
        dir
    }

    #[test]
    fn a_data_directory_is_made_for_its_agent_alone_and_stays_so() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("data");
        for _ in 0..2 {
            assert_eq!(make_private(&dir).unwrap(), None);
            assert_eq!(mode(&dir), 0o700);
        }
    }

    #[test]
    fn one_that_was_made_by_hand_is_closed_where_it_is_empty_or_an_agents() {
        for found in [0o755, 0o750, 0o711, 0o1777] {
            let dir = open_dir(found);
            assert_eq!(make_private(dir.path()).unwrap(), Some(found));
            assert_eq!(mode(dir.path()), 0o700);
        }
        let fresh_disk = open_dir(0o755);
        std::fs::create_dir(fresh_disk.path().join("lost+found")).unwrap();
        assert_eq!(make_private(fresh_disk.path()).unwrap(), Some(0o755));
        let used = open_dir(0o755);
        std::fs::write(used.path().join(LOCK_FILE), "1").unwrap();
        std::fs::write(used.path().join("more"), "").unwrap();
        assert_eq!(make_private(used.path()).unwrap(), Some(0o755));
        assert_eq!(mode(used.path()), 0o700);
    }

    #[test]
    fn one_with_other_things_is_left_and_refused_with_the_command_that_closes_it() {
        let dir = open_dir(0o755);
        std::fs::write(dir.path().join("letter"), "").unwrap();
        let error = make_private(dir.path()).unwrap_err();
        assert!(matches!(error, LockError::OpenToOthers { mode: 0o755, .. }), "{error:?}");
        let command = format!("`chmod 700 {}`", dir.path().display());
        assert!(error.to_string().contains(&command), "{error}");
        assert_eq!(mode(dir.path()), 0o755);
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
        assert_eq!(make_private(dir.path()).unwrap(), None, "as the operator closed it");
    }
}

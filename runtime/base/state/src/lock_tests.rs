//! Tests that there is one agent per data directory.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use super::*;
use std::error::Error as _;
use std::os::unix::fs::PermissionsExt as _;

#[test]
fn a_link_in_the_place_of_the_lock_is_not_written_through() {
    let base = tempfile::tempdir().unwrap();
    let target = base.path().join("target");
    std::fs::write(&target, "kept").unwrap();
    let dir = base.path().join("data");
    std::fs::create_dir(&dir).unwrap();
    std::os::unix::fs::symlink(&target, dir.join(LOCK_FILE)).unwrap();
    let error = DataDirLock::acquire(&dir).unwrap_err();
    assert!(error.source().unwrap().to_string().contains("a link"), "{error:?}");
    assert!(DataDirReading::acquire(&dir).is_err() && holder(&dir).is_none());
    assert_eq!(std::fs::read(&target).unwrap(), b"kept");
}

#[test]
fn a_directory_of_somebody_else_is_refused_before_anything_in_it_is_opened() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("data");
    std::fs::create_dir(&dir).unwrap();
    let mode = |mode| std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(mode));
    mode(0o770).unwrap();
    let said = DataDirLock::acquire(&dir).unwrap_err().to_string();
    assert!(said.contains("may be written by other users (mode 770)"), "{said}");
    mode(0o700).unwrap();
    // Only root can make directories of other users.
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&dir, Some(65_534), None).unwrap();
        let said = DataDirLock::acquire(&dir).unwrap_err().to_string();
        assert!(said.contains("belongs to user 65534"), "{said}");
    }
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
}

#[test]
fn a_second_agent_is_told_the_directory_and_the_pid_of_the_first() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("data");
    let held = DataDirLock::acquire(&dir).unwrap();
    assert_eq!(held.path(), dir);
    let error = DataDirLock::acquire(&dir).unwrap_err();
    let LockError::InUse { pid, .. } = &error else { panic!("{error:?}") };
    assert_eq!(*pid, Some(std::process::id()));
    let text = error.to_string();
    assert!(text.contains(dir.to_str().unwrap()), "{text}");
    assert!(text.contains(&format!("(pid {})", std::process::id())), "{text}");
}

#[test]
fn a_lock_ends_with_its_owner_and_a_left_behind_file_blocks_nobody() {
    let base = tempfile::tempdir().unwrap();
    std::fs::write(base.path().join(LOCK_FILE), "4294967295, and more text than a pid has")
        .unwrap();
    drop(DataDirLock::acquire(base.path()).unwrap());
    let again = DataDirLock::acquire(base.path()).unwrap();
    let text = std::fs::read_to_string(again.path().join(LOCK_FILE)).unwrap();
    assert_eq!(text, format!("{}\n", std::process::id()));
}

#[test]
fn a_copy_of_the_file_in_a_child_does_not_keep_the_lock_of_an_owner_that_left() {
    let base = tempfile::tempdir().unwrap();
    let held = DataDirLock::acquire(base.path()).unwrap();
    // This is what a fork does.
    let copy = held.file.try_clone().unwrap();
    drop(held);
    DataDirLock::acquire(base.path()).unwrap();
    drop(copy);
}

#[test]
fn who_has_a_directory_is_told_without_taking_its_lock() {
    let base = tempfile::tempdir().unwrap();
    assert_eq!(holder(base.path()), None, "nobody ever had it");
    let mut held = DataDirLock::acquire(base.path()).unwrap();
    let pid = std::process::id();
    assert_eq!(holder(base.path()), Some(Holder { pid, serves: false, ends: false }));
    held.note_serving().unwrap();
    assert_eq!(holder(base.path()), Some(Holder { pid, serves: true, ends: false }));
    held.note_ending().unwrap();
    assert_eq!(holder(base.path()), Some(Holder { pid, serves: true, ends: true }));
    let error = DataDirLock::acquire(base.path()).unwrap_err();
    assert!(matches!(error, LockError::InUse { pid: Some(p), .. } if p == pid), "{error:?}");
    drop(held);
    assert_eq!(holder(base.path()), None, "the process runs, and has it no more");
    let _again = DataDirLock::acquire(base.path()).unwrap();
    assert_eq!(
        holder(base.path()),
        Some(Holder { pid, serves: false, ends: false }),
        "written anew"
    );
}

#[test]
fn an_unreadable_owner_is_still_an_owner() {
    let base = tempfile::tempdir().unwrap();
    let _held = DataDirLock::acquire(base.path()).unwrap();
    std::fs::write(base.path().join(LOCK_FILE), [0xff, 0xfe]).unwrap();
    let error = DataDirLock::acquire(base.path()).unwrap_err();
    assert!(matches!(error, LockError::InUse { pid: None, .. }), "{error:?}");
}

#[test]
fn a_new_data_directory_and_its_lock_belong_to_the_agent_alone() {
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("a/b");
    let _held = DataDirLock::acquire(&dir).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&dir), 0o700);
    assert_eq!(mode(&dir.join(LOCK_FILE)), 0o600);
}

#[test]
fn a_file_where_the_directory_should_be_is_named() {
    let base = tempfile::tempdir().unwrap();
    let path = base.path().join("file");
    std::fs::write(&path, "").unwrap();
    let error = DataDirLock::acquire(&path).unwrap_err();
    assert!(matches!(error, LockError::Io { doing: "create directory", .. }), "{error:?}");
    assert!(error.to_string().contains(path.to_str().unwrap()));
}

#[test]
fn refusals_of_the_system_are_told_apart_and_keep_their_cause_and_path() {
    let of = |errno| {
        LockError::from_io_error("write", Path::new("/data"), io::Error::from_raw_os_error(errno))
    };
    let (eacces, erofs, enospc, edquot, eio) = (13, 30, 28, 122, 5);
    assert!(matches!(of(eacces), LockError::ReadOnly { .. }));
    assert!(matches!(of(erofs), LockError::ReadOnly { .. }));
    assert!(matches!(of(enospc), LockError::DiskFull { .. }));
    assert!(matches!(of(edquot), LockError::DiskFull { .. }));
    assert!(matches!(of(eio), LockError::Io { .. }));
    for errno in [eacces, erofs, enospc, edquot, eio] {
        assert!(of(errno).to_string().contains("/data"));
        assert!(of(errno).source().is_some());
    }
}

#[test]
fn a_directory_without_write_permission_is_read_only() {
    if rustix::process::geteuid().is_root() {
        eprintln!("skipped: root may write everywhere");
        return;
    }
    let base = tempfile::tempdir().unwrap();
    std::fs::set_permissions(base.path(), std::fs::Permissions::from_mode(0o500)).unwrap();
    let error = DataDirLock::acquire(base.path()).unwrap_err();
    assert!(matches!(error, LockError::ReadOnly { .. }), "{error:?}");
}

#[test]
fn readers_share_a_directory_but_not_with_an_agent() {
    let base = tempfile::tempdir().unwrap();
    let never_used = DataDirReading::acquire(base.path()).unwrap();
    assert_eq!(std::fs::read_dir(base.path()).unwrap().count(), 0, "reading leaves nothing behind");
    let agent = DataDirLock::acquire(base.path()).unwrap();
    let error = DataDirReading::acquire(base.path()).unwrap_err();
    let me = std::process::id();
    assert!(matches!(error, LockError::InUse { pid: Some(pid), .. } if pid == me), "{error:?}");
    drop((agent, never_used));
    // No process has this pid: the earlier owner of the lock does not have it now.
    std::fs::write(base.path().join(LOCK_FILE), "4294967295\n").unwrap();
    let readers = [(), ()].map(|()| DataDirReading::acquire(base.path()).unwrap());
    let error = DataDirLock::acquire(base.path()).unwrap_err();
    assert!(matches!(error, LockError::InUse { pid: None, .. }), "{error:?}");
    assert!(error.to_string().contains("another process"), "{error}");
    drop(readers);
    DataDirLock::acquire(base.path()).unwrap();
}

//! Keeps the `secrets` directories of tasks in memory. Each is a small file system of its own, so
//! that secrets never reach the disk.
//!
//! ```text
//! directories of a task:  no file system there, and nothing in it   ─► tmpfs of its size
//!   are made              one is there (an earlier agent's)          ─► stays
//!                         files are there                            ─► stays on disk: a run may use them
//! removal:                every one of the allocation is detached, then the directory goes
//! ```
//! A restart of the machine clears the file system, and the next run finds an empty one.
//! Mounting needs root. Where it is refused, the directory stays on disk, for its owner alone,
//! and the log says so.

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::sync::Once;

use rustix::fs::{AtFlags, Mode, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::dir::at::{DIRECTORY_FLAGS, io_error, is_dots, is_empty, open_child};
use super::dir::{AllocDir, AllocDirError, TaskDir};
use ostler_model::ids::TaskName;
use ostler_model::job::Task;
use ostler_model::limits::SECRETS_MB_DEFAULT;

/// Name of the secrets directory in the directory of a task.
const SECRETS: &str = "secrets";

/// Where the secrets of a task are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SecretsPlace {
    /// The secrets are in memory.
    Memory,
    /// The secrets are on disk: there were files already, or mounting is not allowed.
    Disk,
}

/// Make the directories of a task. With `memory` the secrets are kept in memory, where
/// that is possible.
///
/// # Errors
/// As [`AllocDir::create_task`].
pub(crate) fn create_task(
    dir: &AllocDir,
    task: &Task,
    memory: bool,
) -> Result<TaskDir, AllocDirError> {
    dir.create_task_with(&task.name, || {
        if memory {
            let size_mb = task.resources.secrets_mb.unwrap_or(SECRETS_MB_DEFAULT);
            mount_in_memory(dir, &task.name, size_mb)?;
        }
        Ok(())
    })
}

/// Mount a file system in memory for the secrets of a task, at most `size_mb` MiB large.
///
/// # Errors
/// [`AllocDirError`] when the directory is missing or cannot be read.
fn mount_in_memory(
    dir: &AllocDir,
    task: &TaskName,
    size_mb: u32,
) -> Result<SecretsPlace, AllocDirError> {
    let paths = dir.task(task);
    let of_task = open_child(dir.fd(), task.as_str(), &paths.path)?;
    if is_mount(of_task.as_fd()) {
        return Ok(SecretsPlace::Memory);
    }
    let secrets = open_child(of_task.as_fd(), SECRETS, &paths.secrets)?;
    if !is_empty(&secrets).map_err(io_error("read", &paths.secrets))? {
        return Ok(SecretsPlace::Disk);
    }
    // The target is the open directory, not its name: a task may put a link in its place meanwhile.
    let target = format!("/proc/self/fd/{}", secrets.as_raw_fd());
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let options = std::ffi::CString::new(format!("size={size_mb}m,mode=0700")).unwrap_or_default();
    match rustix::mount::mount("tmpfs", target.as_str(), "tmpfs", flags, options.as_c_str()) {
        Ok(()) => Ok(SecretsPlace::Memory),
        Err(error) => {
            warn_once(error);
            Ok(SecretsPlace::Disk)
        }
    }
}

fn warn_once(error: Errno) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        tracing::warn!(
            error = %std::io::Error::from(error),
            "secrets of tasks are kept on disk: a file system in memory cannot be mounted; run the \
             agent as root, or put its data directory on an encrypted disk"
        );
    });
}

/// Is a file system mounted on the secrets of this task's directory?
fn is_mount(of_task: BorrowedFd<'_>) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let found = rustix::fs::statx(of_task, SECRETS, flags, StatxFlags::TYPE);
    found.is_ok_and(|found| {
        found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT)
            && found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
    })
}

/// Detach what [`mount_in_memory`] mounted below the directory `alloc` in `root`. The removal of
/// the directory reports what cannot be detached.
pub(super) fn detach_all(root: BorrowedFd<'_>, alloc: &str) {
    let open = |parent: BorrowedFd<'_>, name: &std::ffi::CStr| {
        rustix::fs::openat(
            parent,
            name,
            DIRECTORY_FLAGS | rustix::fs::OFlags::NOFOLLOW,
            Mode::empty(),
        )
    };
    let Ok(name) = std::ffi::CString::new(alloc) else { return };
    let Ok(dir) = open(root, &name) else { return };
    let Ok(entries) = rustix::fs::Dir::read_from(&dir) else { return };
    for entry in entries.flatten().filter(|entry| !is_dots(entry.file_name())) {
        let Ok(of_task) = open(dir.as_fd(), entry.file_name()) else { continue };
        if !is_mount(of_task.as_fd()) {
            continue;
        }
        let target = format!("/proc/self/fd/{}/{SECRETS}", of_task.as_raw_fd());
        let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        if let Err(error) = rustix::mount::unmount(target.as_str(), flags) {
            let error = std::io::Error::from(error);
            tracing::warn!(alloc, %error, "secrets in memory not detached");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use ostler_model::ids::AllocId;
    use ostler_model::rng::Rng;

    fn id() -> AllocId {
        AllocId::new(Rng::from_seed(7).uuid())
    }

    fn secret_place() -> Option<(tempfile::TempDir, AllocDir, TaskName)> {
        let root = tempfile::tempdir().unwrap();
        let dir = AllocDir::create(root.path(), id()).unwrap();
        let task = TaskName::new("web").unwrap();
        dir.create_task(&task).unwrap();
        let place = mount_in_memory(&dir, &task, 1).unwrap();
        if place == SecretsPlace::Disk {
            eprintln!("skipped: mounting is not allowed here");
            return None;
        }
        Some((root, dir, task))
    }

    #[test]
    fn secrets_are_in_memory_bounded_and_go_with_the_directory() {
        let Some((root, dir, task)) = secret_place() else { return };
        let secrets = dir.task(&task).secrets;
        std::fs::write(secrets.join("token"), "s").unwrap();
        let full = std::fs::write(secrets.join("large"), vec![0; 2 << 20]).unwrap_err();
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
        // The next run of the task, or of the agent, finds them.
        dir.create_task(&task).unwrap();
        assert_eq!(mount_in_memory(&dir, &task, 1).unwrap(), SecretsPlace::Memory);
        assert_eq!(std::fs::read(secrets.join("token")).unwrap(), b"s");
        AllocDir::destroy(root.path(), id()).unwrap();
        assert!(!dir.path().exists());
    }

    #[test]
    fn what_is_on_disk_already_is_not_hidden() {
        let root = tempfile::tempdir().unwrap();
        let dir = AllocDir::create(root.path(), id()).unwrap();
        let task = TaskName::new("web").unwrap();
        let secrets = dir.create_task(&task).unwrap().secrets;
        std::fs::write(secrets.join("token"), "s").unwrap();
        assert_eq!(mount_in_memory(&dir, &task, 1).unwrap(), SecretsPlace::Disk);
        assert_eq!(std::fs::read(secrets.join("token")).unwrap(), b"s");
    }
}

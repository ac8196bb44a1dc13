//! Opens the directories and files of the node that a WASM task sees.
//!
//! A directory is opened by walking down from the task's own or the shared directory through
//! cap-std. So neither `..` nor a symlink that another task planted leads outside. WASI then gets
//! the opened directory itself (through `/proc/self/fd`), and not a path that could be swapped.
//!
//! In the shared directory a task may write below `data` and `tmp`. It may only read the rest, such
//! as the logs of its group.

use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use cap_std::ambient_authority;
use cap_std::fs::Dir;
use rustix::fs::{Mode, OFlags};
use wasmtime_wasi::{FsPerms, WasiCtxBuilder};

use super::{PreopenedDir, WasmTaskError};
use crate::guest_files::places::{self, FileSystemKind};
use ostler_model::device::Mount;
use ostler_model::ports::TaskContext;
use ostler_model::task_path::ASSIGNED_FILES;

/// Largest file mount that is copied where it cannot be linked, bytes.
const COPIED_MOUNT_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// The parts of the shared directory that a task may write.
const SHARED: [&str; 2] = ["data", "tmp"];

/// The directories of the node below which a task may see something.
#[derive(Clone, Debug)]
pub(super) struct Roots {
    task_dir: PathBuf,
    alloc_dir: PathBuf,
    /// The mounts that reservations assigned to the task.
    mounts: Vec<Mount>,
}

impl Roots {
    pub(super) fn from_context(context: &TaskContext) -> Self {
        let (task_dir, alloc_dir) = (context.task_dir.clone(), context.alloc_dir.clone());
        Self { task_dir, alloc_dir, mounts: context.mounts.clone() }
    }

    /// Check that each directory is one of the task's own or of the shared ones, by its path.
    pub(super) fn check_paths(&self, dirs: &[PreopenedDir]) -> Result<(), WasmTaskError> {
        for dir in dirs {
            let below = [&self.task_dir, &self.alloc_dir]
                .into_iter()
                .any(|root| dir.host_path.strip_prefix(root).is_ok_and(is_plain));
            if !below {
                return Err(WasmTaskError::OutsideTask { path: dir.host_path.clone() });
            }
        }
        Ok(())
    }

    /// Is none of these directories a mount? A mount may lie on a disk that hangs, or is gathered
    /// at the start.
    pub(super) fn is_free_of_mounts(&self, dirs: &[PreopenedDir]) -> bool {
        dirs.iter().all(|dir| !self.mounts.iter().any(|m| Path::new(&m.host_path) == dir.host_path))
    }
}

/// Pre-open everything that the task was given. Returns how many directories that are.
pub(super) fn preopen(
    wasi: &mut WasiCtxBuilder,
    context: &Roots,
    dirs: &[PreopenedDir],
) -> Result<u64, WasmTaskError> {
    let mut many = 0;
    let mut staged: Vec<(String, PathBuf)> = Vec::new();
    for dir in dirs {
        let meta = std::fs::metadata(&dir.host_path).map_err(|e| WasmTaskError::Dir {
            path: dir.host_path.clone(),
            reason: e.to_string(),
        })?;
        if meta.is_dir() {
            let (opened, read_only) = open(context, dir)?;
            let whole = !read_only && dir.host_path == context.alloc_dir;
            give(wasi, dir, &opened, &dir.guest_path, read_only || whole)?;
            many += 1;
            for name in SHARED.iter().filter(|_| whole) {
                // A link that another task put there is left out.
                if opened.symlink_metadata(name).is_ok_and(|meta| meta.is_dir())
                    && let Ok(part) = opened.open_dir(name)
                {
                    give(wasi, dir, &part, &format!("{}/{name}", dir.guest_path), false)?;
                    many += 1;
                }
            }
        } else {
            stage(context, dir, meta.len(), &mut staged)?;
        }
    }
    for (guest_parent, host) in staged {
        wasi.preopened_dir(&host, &guest_parent, FsPerms::ReadOnly)
            .map_err(|e| WasmTaskError::Dir { path: host.clone(), reason: format!("{e:#}") })?;
        many += 1;
    }
    Ok(many)
}

fn give(
    wasi: &mut WasiCtxBuilder,
    dir: &PreopenedDir,
    opened: &Dir,
    guest_path: &str,
    read_only: bool,
) -> Result<(), WasmTaskError> {
    let perms = if read_only { FsPerms::ReadOnly } else { FsPerms::ReadWrite };
    let held = format!("/proc/self/fd/{}", opened.as_raw_fd());
    wasi.preopened_dir(&held, guest_path, perms)
        .map(drop)
        .map_err(|e| WasmTaskError::Dir { path: dir.host_path.clone(), reason: format!("{e:#}") })
}

/// Open a directory of the task. The second value says whether it must be read-only.
fn open(context: &Roots, dir: &PreopenedDir) -> Result<(Dir, bool), WasmTaskError> {
    let failed = |e: std::io::Error| WasmTaskError::Dir {
        path: dir.host_path.clone(),
        reason: e.to_string(),
    };
    if let Some(mount) = context.mounts.iter().find(|m| Path::new(&m.host_path) == dir.host_path) {
        let opened = open_without_links(&dir.host_path, OFlags::DIRECTORY).map_err(failed)?;
        return Ok((Dir::from_std_file(opened), dir.read_only || mount.read_only));
    }
    for root in [&context.task_dir, &context.alloc_dir] {
        let Ok(relative) = dir.host_path.strip_prefix(root) else { continue };
        if !is_plain(relative) {
            return Err(WasmTaskError::OutsideTask { path: dir.host_path.clone() });
        }
        let opened = Dir::open_ambient_dir(root, ambient_authority()).map_err(failed)?;
        if relative.as_os_str().is_empty() {
            return Ok((opened, dir.read_only));
        }
        let inner = opened.open_dir(relative).map_err(failed)?;
        // The real place counts, and not the path: another task may have put a link on the way.
        let own = root == &context.task_dir || is_below(root, SHARED, &inner).map_err(failed)?;
        return Ok((inner, dir.read_only || !own));
    }
    Err(WasmTaskError::OutsideTask { path: dir.host_path.clone() })
}

/// Does a path only lead down? It is empty, or has names alone.
fn is_plain(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_)))
}

/// Is an open directory one of these of `root`, or below one?
fn is_below(root: &Path, names: [&str; 2], dir: &Dir) -> std::io::Result<bool> {
    let real = std::fs::read_link(format!("/proc/self/fd/{}", dir.as_raw_fd()))?;
    let root = root.canonicalize()?;
    Ok(names.iter().any(|name| real.starts_with(root.join(name))))
}

/// Gather the file mounts of one guest directory in a directory of the agent, because WASI shows
/// only directories. The files are linked where the file system allows it, and copied otherwise.
/// The directory is always read-only. It lies beside the task's directory and the shared one: a
/// task can write into those, and a linked file is the assigned file itself. It does not count as
/// disk of the allocation (`lifecycle/alloc/size.rs`), so it stays closed to all others.
fn stage(
    context: &Roots,
    dir: &PreopenedDir,
    size: u64,
    staged: &mut Vec<(String, PathBuf)>,
) -> Result<(), WasmTaskError> {
    let failed = |reason: String| WasmTaskError::Dir { path: dir.host_path.clone(), reason };
    let assigned = context.mounts.iter().find(|m| Path::new(&m.host_path) == dir.host_path);
    let Some(assigned) = assigned else {
        return Err(WasmTaskError::OutsideTask { path: dir.host_path.clone() });
    };
    if !(assigned.read_only || dir.read_only) {
        return Err(failed(
            "a single file can only be assigned read-only to a WASM task".to_owned(),
        ));
    }
    let (parent, name) = dir.guest_path.rsplit_once('/').unwrap_or(("", dir.guest_path.as_str()));
    if name.is_empty() || name == ".." || name == "." {
        return Err(failed(format!("{:?} is not a file name", dir.guest_path)));
    }
    let guest_parent = if parent.is_empty() { "/" } else { parent };
    let known = staged.iter().find(|(guest, _)| guest == guest_parent);
    let host = match known {
        Some((_, host)) => host.clone(),
        None => {
            let beside = context.task_dir.parent().unwrap_or(&context.task_dir);
            let own = context.task_dir.file_name().unwrap_or_default();
            let host = beside.join(ASSIGNED_FILES).join(own).join(staged.len().to_string());
            // A directory of an earlier start may hold other files.
            match std::fs::remove_dir_all(&host) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                    return Err(failed(format!("cannot clear {}: {e}", host.display())));
                }
                _ => {}
            }
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&host);
            made.map_err(|e| failed(format!("cannot create {}: {e}", host.display())))?;
            staged.push((guest_parent.to_owned(), host.clone()));
            host
        }
    };
    let target = host.join(name);
    if std::fs::hard_link(&dir.host_path, &target).is_ok() {
        return Ok(());
    }
    // A file that the kernel makes up may be endless, or make a read wait, and has not this size.
    if places::kind_of_path(&dir.host_path) != FileSystemKind::Returns {
        return Err(failed("only a file of a disk can be assigned to a WASM task".to_owned()));
    }
    if size > COPIED_MOUNT_BYTES_MAX {
        return Err(failed(format!(
            "it has {size} bytes and cannot be linked into the task directory; files up to \
             {COPIED_MOUNT_BYTES_MAX} bytes are copied"
        )));
    }
    let copied = open_without_links(&dir.host_path, OFlags::NONBLOCK).and_then(|mut from| {
        let mut to =
            std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&target)?;
        std::io::copy(&mut std::io::Read::take(&mut from, COPIED_MOUNT_BYTES_MAX), &mut to)
    });
    copied.map(drop).map_err(|e| failed(e.to_string()))
}

/// Open a path of a mount step by step, and refuse links. Its links were followed when it was
/// granted, so a link that is there now was put there since.
fn open_without_links(path: &Path, kind: OFlags) -> std::io::Result<std::fs::File> {
    let mut names: Vec<_> = path
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name),
            _ => None,
        })
        .collect();
    let last = names.pop();
    let (way, none) = (OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW, Mode::empty());
    let mut at = rustix::fs::open("/", way | OFlags::CLOEXEC, none)?;
    for name in names {
        at = rustix::fs::openat(&at, name, way | OFlags::CLOEXEC, none)?;
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | kind;
    let name = last.unwrap_or(std::ffi::OsStr::new("."));
    Ok(rustix::fs::openat(&at, name, flags, none)?.into())
}

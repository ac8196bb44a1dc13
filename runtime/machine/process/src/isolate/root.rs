//! The root of an isolated process: a small file system in memory on which everything it may see is
//! mounted.
//!
//! All sources are opened before the new root is made, and all targets are made in it one name at a
//! time. So a link that a task left in its directories leads nowhere.
//!
//! ```text
//! helper: sources opened ─► empty namespace ─► its copy ─► root, with all mounts ─► entered
//! task, held:                                                                          ╰─► /proc, covers, read-only
//! ```

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::empty::{EmptyMounts, MOUNT_POINT};
use super::names::ReplacementFile;
use super::sys::{self, NO_DEV, NO_EXEC, NO_SUID, READ_ONLY};
use crate::user::Ids;

/// Most terminals of one task and the commands inside it. All tasks of a node share the kernel's
/// number of terminals.
const TERMINALS_MAX: &CStr = c"64";

/// Bytes of the root itself, which holds only links and what others are mounted on.
const ROOT_SIZE: &CStr = c"1m";
/// Bytes of `/dev/shm`; its pages count as the task's memory.
const SHM_SIZE: &CStr = c"64m";
/// Device nodes that reveal nothing of the node and change nothing on it. Their mounts are
/// read-only, which protects their owner and mode; writing to the device itself still works.
pub(super) const HARMLESS: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// Links in `/dev`, each with its target.
pub(super) const DEV_LINKS: [(&str, &str); 5] = [
    ("dev/fd", "/proc/self/fd"),
    ("dev/stdin", "/proc/self/fd/0"),
    ("dev/stdout", "/proc/self/fd/1"),
    ("dev/stderr", "/proc/self/fd/2"),
    ("dev/ptmx", "pts/ptmx"),
];
/// Entries of `/proc` through which a process of root could change the node.
const PROC_READ_ONLY: [&str; 5] = ["sys", "sysrq-trigger", "irq", "bus", "fs"];
/// Entries of `/proc` in which a process of root could read the node's memory and keys.
const PROC_HIDDEN: [&str; 7] =
    ["kcore", "keys", "kmsg", "timer_list", "sched_debug", "acpi", "scsi"];
/// Names in the new root that exist while it is made.
const BLANK_FILE: &str = ".blank-file";
const BLANK_DIR: &str = ".blank-dir";

/// What a task sees in its root.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Root {
    /// Mounts in their order: a mount below another comes after it.
    pub places: Vec<BindMount>,
    /// Links, each as its target and its path.
    pub links: Vec<(PathBuf, PathBuf)>,
    /// Device nodes beside the harmless ones.
    pub devices: Vec<Device>,
    /// Files that replace those at the same paths.
    pub instead: Vec<ReplacementFile>,
    /// Paths in the root that are hidden.
    pub hidden: Vec<PathBuf>,
    /// The root has a `/proc` of the process's own pid namespace.
    pub proc: bool,
    /// The process is root, or keeps capabilities. What only root may change in `/proc` is
    /// then protected.
    pub as_root: bool,
}

/// A directory or file of the node shown in the root.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BindMount {
    pub from: PathBuf,
    pub to: PathBuf,
    pub read_only: bool,
    /// It is a path of the system: left out when it is absent, and made a link where it is one.
    pub base: bool,
    /// Programs in it may be executed.
    pub exec: bool,
}

/// A device node shown in the root.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Device {
    pub from: PathBuf,
    pub to: PathBuf,
    pub read: bool,
    pub write: bool,
}

/// The step that failed, with its path, and the error.
pub(super) type RootError = (String, io::Error);

fn path_error_context<E: Into<io::Error>>(what: &str, path: &Path) -> impl FnOnce(E) -> RootError {
    let what = format!("{what} {}", path.display());
    move |error| (what, error.into())
}

fn error_context<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> RootError {
    move |error| (what.to_owned(), error.into())
}

enum BindSource {
    Tree(OwnedFd, bool),
    Link(PathBuf),
}

impl Root {
    /// Give this process new namespaces, one of them for mounts, and make the root of a task its own.
    /// Children then [`Root::finish`] it. `namespaces` are flags of `unshare`. `owner` owns the device
    /// nodes; without one they are bound as they are, because the process may not make any.
    ///
    /// # Errors
    /// The outer one for want of namespaces. The inner one is a step of the root's, which the task tells its
    /// driver of.
    pub fn enter(
        &self,
        empty: Option<&EmptyMounts>,
        namespaces: libc::c_int,
        owner: Option<&Ids>,
    ) -> io::Result<Result<(), RootError>> {
        let sources = match empty {
            Some(empty) => {
                let sources = self.open_sources(owner);
                empty.join()?;
                sys::unshare(namespaces)?;
                sources
            }
            None => {
                sys::unshare(namespaces)?;
                let private = sys::make_private().map_err(error_context("making mounts private"));
                private.and_then(|()| self.open_sources(owner))
            }
        };
        Ok(sources.and_then(|sources| self.mount(sources, owner)))
    }

    /// Open all that is mounted, in the namespace in which its paths are meant.
    fn open_sources(&self, owner: Option<&Ids>) -> Result<RootSources, RootError> {
        let places = self.places.iter().map(BindMount::open);
        let device = |device: &Device| {
            device
                .open(owner.is_some())
                .map_err(path_error_context("showing the device", &device.from))
        };
        Ok(RootSources {
            places: places.collect::<Result<_, _>>()?,
            harmless: HARMLESS.iter().filter_map(|name| clone_harmless(name)).collect(),
            devices: self.devices.iter().map(device).collect::<Result<_, _>>()?,
        })
    }

    /// Mount what was opened on a new root, and move there.
    fn mount(&self, sources: RootSources, owner: Option<&Ids>) -> Result<(), RootError> {
        let options: [(&CStr, &CStr); 3] =
            [(c"mode", c"0755"), (c"size", ROOT_SIZE), (c"nr_inodes", c"4096")];
        let root = sys::file_system(c"tmpfs", &options, NO_SUID)
            .map_err(error_context("making a root"))?;
        // Any directory will do, because what is below it is not needed any more.
        sys::attach(&root, CWD, MOUNT_POINT).map_err(error_context("mounting a root"))?;
        rustix::process::fchdir(&root).map_err(error_context("entering a root"))?;
        for (place, source) in self.places.iter().zip(sources.places) {
            match source {
                None => {}
                Some(BindSource::Link(target)) => make_link(&root, &target, &place.to)?,
                Some(BindSource::Tree(tree, is_dir)) => {
                    let shown = show(&tree, &root, &place.to, (is_dir, owner));
                    shown.map_err(path_error_context("showing", &place.to))?;
                }
            }
        }
        for (goal, path) in &self.links {
            make_link(&root, goal, path)?;
        }
        make_dev(&root, sources.harmless)?;
        for (device, source) in self.devices.iter().zip(sources.devices) {
            let shown = device.show(source, &root, owner);
            shown.map_err(path_error_context("showing the device", &device.from))?;
        }
        make_blanks(&root).map_err(error_context("hiding"))?;
        for (number, file) in self.instead.iter().enumerate() {
            write_new(&root, &replacement_name(number), &file.text)
                .map_err(path_error_context("writing another", &file.path))?;
        }
        sys::become_root().map_err(error_context("changing the root"))
    }

    /// Do the steps that need the new root, where links lead to what the process will see, and the
    /// process's own pid namespace.
    pub fn finish(&self) -> Result<(), RootError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(c"/", flags, Mode::empty())
            .map_err(error_context("opening the root"))?;
        if self.proc {
            make_proc(&root)?;
        }
        for (number, file) in self.instead.iter().enumerate() {
            let (name, path) = (replacement_name(number), &file.path);
            cover(path, |_| &name).map_err(path_error_context("showing another", path))?;
            rustix::fs::unlinkat(&root, name.as_str(), rustix::fs::AtFlags::empty())
                .map_err(error_context("cleaning a root"))?;
        }
        for path in &self.hidden {
            cover(path, blank_name).map_err(path_error_context("hiding", path))?;
        }
        if self.proc && self.as_root {
            for path in PROC_HIDDEN {
                let path = Path::new("/proc").join(path);
                cover(&path, blank_name).map_err(path_error_context("hiding", &path))?;
            }
            for path in PROC_READ_ONLY {
                let path = Path::new("/proc").join(path);
                protect(&path).map_err(path_error_context("protecting", &path))?;
            }
        }
        for (name, flags) in [
            (BLANK_FILE, rustix::fs::AtFlags::empty()),
            (BLANK_DIR, rustix::fs::AtFlags::REMOVEDIR),
        ] {
            rustix::fs::unlinkat(&root, name, flags).map_err(error_context("cleaning a root"))?;
        }
        // The root itself, but not the mounts in it.
        sys::set_attributes_here(&root, READ_ONLY).map_err(error_context("protecting the root"))
    }
}

/// What is mounted in a root, open.
struct RootSources {
    places: Vec<Option<BindSource>>,
    /// Each with its path in the root.
    harmless: Vec<(PathBuf, OwnedFd)>,
    devices: Vec<DeviceNodeSource>,
}

fn make_dev(root: &OwnedFd, harmless: Vec<(PathBuf, OwnedFd)>) -> Result<(), RootError> {
    for (path, tree) in harmless {
        show(&tree, root, &path, (false, None)).map_err(path_error_context("showing", &path))?;
    }
    for (path, goal) in DEV_LINKS {
        make_link(root, Path::new(goal), Path::new(path))?;
    }
    let shm: [(&CStr, &CStr); 2] = [(c"mode", c"1777"), (c"size", SHM_SIZE)];
    let shm = sys::file_system(c"tmpfs", &shm, NO_SUID | NO_DEV);
    mount_new(shm, root, "dev/shm").map_err(error_context("making /dev/shm"))?;
    let terminals: [(&CStr, &CStr); 3] =
        [(c"mode", c"0620"), (c"ptmxmode", c"0666"), (c"max", TERMINALS_MAX)];
    let terminals = sys::file_system(c"devpts", &terminals, NO_SUID | NO_EXEC);
    // Some kernels have none, and few programs need any.
    let _no_terminals = mount_new(terminals, root, "dev/pts");
    Ok(())
}

impl BindMount {
    fn open(&self) -> Result<Option<BindSource>, RootError> {
        let failed = || path_error_context::<io::Error>("opening", &self.from);
        if self.base {
            match fs::symlink_metadata(&self.from) {
                Ok(found) if found.is_symlink() => {
                    let goal = fs::read_link(&self.from).map_err(failed())?;
                    return Ok(Some(BindSource::Link(goal)));
                }
                Ok(_) => {}
                Err(_) => return Ok(None),
            }
        }
        // A link on the way could lead to another directory than the one that was meant.
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opened = if self.base {
            rustix::fs::open(&self.from, flags, Mode::empty())
        } else {
            open_without_links(&self.from, flags)
        };
        let opened = opened.map_err(path_error_context("opening", &self.from))?;
        let stat = rustix::fs::fstat(&opened).map_err(path_error_context("opening", &self.from))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Symlink {
            return Err(path_error_context("opening", &self.from)(io::Error::other(
                "it is a link",
            )));
        }
        let is_dir = kind == FileType::Directory;
        let tree = sys::clone_tree(&opened).map_err(failed())?;
        let mut attributes = NO_SUID | NO_DEV;
        if self.read_only {
            attributes |= READ_ONLY;
        }
        if !self.exec {
            attributes |= NO_EXEC;
        }
        sys::set_attributes(&tree, attributes).map_err(failed())?;
        Ok(Some(BindSource::Tree(tree, is_dir)))
    }
}

fn open_without_links(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let how = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), how)
}

fn clone_harmless(name: &str) -> Option<(PathBuf, OwnedFd)> {
    let path = Path::new("/dev").join(name);
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let opened = rustix::fs::open(&path, flags, Mode::empty()).ok()?;
    let tree = sys::clone_tree(&opened).ok()?;
    sys::set_attributes(&tree, NO_SUID | NO_EXEC | READ_ONLY).ok()?;
    Some((path, tree))
}

/// A device node of the node.
enum DeviceNodeSource {
    /// One like it is made in the root.
    Node(FileType, rustix::fs::Dev),
    /// It is shown itself.
    Tree(OwnedFd),
}

impl Device {
    /// Open it. With `made` another is made like it.
    fn open(&self, made: bool) -> io::Result<DeviceNodeSource> {
        let found = fs::metadata(&self.from)?;
        let kind = match found.file_type() {
            kind if kind.is_char_device() => FileType::CharacterDevice,
            kind if kind.is_block_device() => FileType::BlockDevice,
            _ => return Err(io::Error::other("it is not a device node")),
        };
        if made {
            return Ok(DeviceNodeSource::Node(kind, found.rdev()));
        }
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let tree = sys::clone_tree(rustix::fs::open(&self.from, flags, Mode::empty())?)?;
        sys::set_attributes(&tree, NO_SUID | NO_EXEC | READ_ONLY)?;
        Ok(DeviceNodeSource::Tree(tree))
    }

    fn show(
        &self,
        source: DeviceNodeSource,
        root: &OwnedFd,
        owner: Option<&Ids>,
    ) -> io::Result<()> {
        let (kind, number) = match source {
            DeviceNodeSource::Tree(tree) => return show(&tree, root, &self.to, (false, None)),
            DeviceNodeSource::Node(kind, number) => (kind, number),
        };
        let (dir, name) = make_parent(root, &self.to, None)?;
        let bits = if self.read { 0o400 } else { 0 } | if self.write { 0o200 } else { 0 };
        rustix::fs::mknodat(&dir, &name, kind, Mode::from_raw_mode(bits), number)?;
        let ids = owner.map(|owner| (owner.uid, owner.gid));
        let (uid, gid) = ids.map_or((None, None), |(uid, gid)| {
            (Some(rustix::fs::Uid::from_raw(uid)), Some(rustix::fs::Gid::from_raw(gid)))
        });
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        Ok(rustix::fs::chownat(&dir, &name, uid, gid, flags)?)
    }
}

fn mount_new(made: io::Result<OwnedFd>, root: &OwnedFd, path: &str) -> io::Result<()> {
    let made = made?;
    show(&made, root, Path::new(path), (true, None))
}

fn make_proc(root: &OwnedFd) -> Result<(), RootError> {
    let proc = sys::file_system(c"proc", &[], NO_SUID | NO_DEV | NO_EXEC);
    mount_new(proc, root, "proc").map_err(error_context("mounting /proc"))
}

/// Mount a tree in the root. It is mounted on what was made for it, not on what is at the path by
/// now, because another task of the allocation may put a link on the way. What is made in the
/// task's own directories belongs to `owner`.
fn show(
    tree: &OwnedFd,
    root: &OwnedFd,
    to: &Path,
    (is_dir, owner): (bool, Option<&Ids>),
) -> io::Result<()> {
    sys::attach_over(tree, make_target(root, to, is_dir, owner)?)
}

/// Make the directory or file to mount on, with its parents. No link on the way is followed.
fn make_target(
    root: &OwnedFd,
    path: &Path,
    is_dir: bool,
    owner: Option<&Ids>,
) -> io::Result<OwnedFd> {
    let (dir, name) = make_parent(root, path, owner)?;
    if is_dir {
        make_dir(dir.as_fd(), &name, owner)
    } else {
        let flags = OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        match rustix::fs::openat(&dir, &name, flags | OFlags::EXCL, Mode::from_raw_mode(0o644)) {
            Ok(_) | Err(Errno::EXIST | Errno::ROFS) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&dir, &name, flags, Mode::empty())?)
    }
}

/// Open the directory above a path in the root, which is made when absent. Returns it with the
/// last name.
fn make_parent(root: &OwnedFd, path: &Path, owner: Option<&Ids>) -> io::Result<(OwnedFd, CString)> {
    let mut names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(CString::new(name.as_bytes())),
        _ => None,
    });
    let mut dir = root.try_clone()?;
    let Some(mut name) = names.next().transpose()? else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    for next in names {
        dir = make_dir(dir.as_fd(), &name, owner)?;
        name = next?;
    }
    Ok((dir, name))
}

fn make_dir(dir: BorrowedFd<'_>, name: &CStr, owner: Option<&Ids>) -> io::Result<OwnedFd> {
    let made = match rustix::fs::mkdirat(dir, name, Mode::from_raw_mode(0o755)) {
        Ok(()) => true,
        // A directory that exists is as good, also on a read-only file system.
        Err(Errno::EXIST | Errno::ROFS) => false,
        Err(error) => return Err(error.into()),
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    if let Some(owner) = owner.filter(|_| made) {
        let ids = (rustix::fs::Uid::from_raw(owner.uid), rustix::fs::Gid::from_raw(owner.gid));
        let flags = rustix::fs::AtFlags::EMPTY_PATH;
        rustix::fs::chownat(&dir, c"", Some(ids.0), Some(ids.1), flags)?;
    }
    Ok(dir)
}

fn make_link(root: &OwnedFd, goal: &Path, path: &Path) -> Result<(), RootError> {
    let made = make_parent(root, path, None).and_then(|(dir, name)| {
        match rustix::fs::symlinkat(goal, &dir, &name) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error.into()),
        }
    });
    made.map_err(path_error_context("linking", path))
}

/// Make an empty file and an empty directory that nobody may read, to cover what is hidden.
fn make_blanks(root: &OwnedFd) -> io::Result<()> {
    rustix::fs::mkdirat(root, BLANK_DIR, Mode::empty())?;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::WRONLY;
    rustix::fs::openat(root, BLANK_FILE, flags, Mode::empty())?;
    Ok(())
}

/// Name in the new root of the replacement file with this number.
fn replacement_name(number: usize) -> String {
    format!(".instead-{number}")
}

fn write_new(root: &OwnedFd, name: &str, text: &[u8]) -> io::Result<()> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::WRONLY;
    let file = rustix::fs::openat(root, name, flags, Mode::from_raw_mode(0o644))?;
    // The mode must not depend on the agent's mask.
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))?;
    io::Write::write_all(&mut fs::File::from(file), text)
}

/// Name of the blank that covers a hidden file or directory.
fn blank_name(is_dir: bool) -> &'static str {
    if is_dir { BLANK_DIR } else { BLANK_FILE }
}

/// Mount the file or directory that `by` names in the root over a path. An absent path needs
/// no cover.
fn cover<'a>(path: &Path, by: impl FnOnce(bool) -> &'a str) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(found) => found,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let is_dir = fs::metadata(path).is_ok_and(|found| found.is_dir());
    let cover = Path::new("/").join(by(is_dir));
    let cover = sys::clone_tree(rustix::fs::open(cover, flags, Mode::empty())?)?;
    sys::set_attributes(&cover, READ_ONLY | NO_SUID | NO_DEV | NO_EXEC)?;
    // It covers what was opened, wherever links have led.
    sys::attach_over(&cover, &found)
}

/// Make a path in the root read-only.
fn protect(path: &Path) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(found) => found,
        Err(Errno::NOENT) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let tree = sys::clone_tree(&found)?;
    sys::set_attributes(&tree, READ_ONLY)?;
    sys::attach_over(&tree, &found)
}

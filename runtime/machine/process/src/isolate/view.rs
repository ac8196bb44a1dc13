//! Paths as an isolated process sees them.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

use super::root::{DEV_LINKS, HARMLESS};
use crate::command::make_executable;
use ostler_model::device::Mount;
use ostler_model::limits::TASK_ROOT_ENTRIES_MAX;
use ostler_model::task_path::OWN_FILES;

/// The task's own directories in its root, each with its name below the task's directory on
/// the node.
pub(super) const OWN: [(&str, &str); 3] =
    [("/local", "local"), ("/secrets", "secrets"), ("/tmp", "tmp")];
/// The allocation's directory in a task's root.
pub(super) const SHARED: &str = "/alloc";
/// The parts of the allocation's directory that tasks may write.
const WRITTEN: [&str; 2] = ["/alloc/data", "/alloc/tmp"];
/// Paths that no mount may cover, beside the base and other mounts.
const RESERVED: [&str; 6] = ["/local", "/secrets", "/tmp", SHARED, "/proc", "/dev"];

/// Paths that no mount may be in: those of the kernel, of the agent, and of the root while it
/// is made.
const KERNEL: [&str; 7] =
    ["/proc", "/dev/shm", "/dev/pts", "/alloc/logs", OWN_FILES, "/.blank-file", "/.blank-dir"];

/// A further entry of a task's directory, by the way in which the task's root shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TaskDirEntry {
    /// A directory, which is mounted.
    Directory(OsString),
    /// A file, shown as a link into the whole task directory, so that a file that replaces it is
    /// seen too.
    File(OsString),
    /// A link, shown as it is. It leads to a path in the task's root.
    Link(OsString, PathBuf),
}

impl TaskDirEntry {
    pub fn name(&self) -> &OsString {
        let (Self::Directory(name) | Self::File(name) | Self::Link(name, _)) = self;
        name
    }

    /// Path of the entry in the task's root.
    pub fn path_in_task(&self) -> PathBuf {
        Path::new("/").join(self.name())
    }
}

/// Entries of a task's directory that templates and artifacts made, beside those that every
/// task has.
pub(super) fn list_entries(task_dir: &Path) -> io::Result<Vec<TaskDirEntry>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(task_dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if OWN.iter().any(|(_, own)| name == *own) {
            continue;
        }
        if found.len() == TASK_ROOT_ENTRIES_MAX {
            return Err(io::Error::other(format!(
                "there are more than {TASK_ROOT_ENTRIES_MAX} files and directories beside local, secrets \
                 and tmp; put them into one"
            )));
        }
        let kind = entry.file_type()?;
        found.push(if kind.is_dir() {
            TaskDirEntry::Directory(name)
        } else if kind.is_symlink() {
            TaskDirEntry::Link(name, fs::read_link(entry.path())?)
        } else {
            TaskDirEntry::File(name)
        });
    }
    found.sort_by(|a, b| a.name().cmp(b.name()));
    Ok(found)
}

/// Why an entry of the task's directory cannot be shown where the task would look for it; `None`
/// when it can.
pub(super) fn entry_problem(entry: &TaskDirEntry, base: &[PathBuf]) -> Option<String> {
    let shown = entry.path_in_task();
    let system = base.contains(&shown);
    let own = RESERVED.iter().chain(&KERNEL).any(|own| Path::new(own) == shown);
    let what = match (system, own) {
        (true, _) => "the system's own is shown there, read-only",
        (_, true) => "something else of every task is there",
        _ => return None,
    };
    Some(format!("{what}; put it below /local"))
}

/// Why a mount cannot be shown at its path; `None` when it can.
pub(super) fn mount_problem(mount: &Mount, others: &[Mount]) -> Option<String> {
    let path = Path::new(&mount.task_path);
    if let Some(reason) = path_problem(path) {
        return Some(reason);
    }
    if let Some(covered) = RESERVED.iter().find(|own| Path::new(own).starts_with(path)) {
        return Some(format!("it covers {covered}"));
    }
    let below = |own: &str| path.starts_with(own);
    let taken = KERNEL.iter().find(|own| below(own)).map(|own| (*own).to_owned());
    let devices = HARMLESS.iter().map(|name| format!("/dev/{name}"));
    let links = DEV_LINKS.iter().map(|(name, _)| format!("/{name}"));
    if let Some(own) = taken.or_else(|| devices.chain(links).find(|own| below(own))) {
        return Some(format!("{own} is the task's own"));
    }
    let same = others.iter().filter(|other| Path::new(&other.task_path).starts_with(path)).count();
    (same > 1).then(|| "another mount is there or below".to_owned())
}

/// Why the node has nothing to mount on at the path of a mount, as nothing can be made where the
/// root is read-only; `None` when the mount is possible.
pub(super) fn missing_mount_point(mount: &Mount, base: &[PathBuf]) -> Option<String> {
    let path = Path::new(&mount.task_path);
    if path.starts_with(SHARED) && !WRITTEN.iter().any(|own| path.starts_with(own)) {
        return Some(format!("{SHARED} is read-only but for {}", WRITTEN.join(" and ")));
    }
    let base = base.iter().find(|base| path.starts_with(base))?;
    let how = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), how).is_err().then(|| {
        format!(
            "the node has nothing there, or a link on the way, and {} is shown as it is, read-only; choose a \
             path outside of it",
            base.display()
        )
    })
}

/// Why a device node cannot be made at its path; `None` when it can. In a directory of the node it
/// would stay after the end of the task, for anybody who reaches that directory.
pub(super) fn device_problem(path: &str, mounts: &[Mount]) -> Option<String> {
    let path = Path::new(path);
    let own = OWN.iter().map(|(shown, _)| *shown).chain([SHARED]);
    let mut shown = own.chain(mounts.iter().map(|mount| mount.task_path.as_str()));
    path_problem(path).or_else(|| {
        let place = shown.find(|place| path.starts_with(place))?;
        Some(format!("what is made in {place} stays on the node when the task has ended"))
    })
}

fn path_problem(path: &Path) -> Option<String> {
    let plain = path.is_absolute()
        && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    let refused = !plain || path == Path::new("/");
    refused.then(|| "it is not an absolute path without . and ..".to_owned())
}

/// The paths of the node that an isolated process sees.
pub(super) struct VisiblePaths {
    /// Pairs of a path in the task and the path on the node; the longest that fits counts.
    places: Vec<(PathBuf, PathBuf)>,
    /// Paths that are the same in the task and on the node.
    base: Vec<PathBuf>,
    /// Paths in the task that lead into the task's directory.
    own: Vec<PathBuf>,
    task_dir: PathBuf,
}

impl VisiblePaths {
    pub fn new(
        (task_dir, entries): (&Path, &[TaskDirEntry]),
        alloc_dir: &Path,
        mounts: &[Mount],
        base: &[PathBuf],
    ) -> Self {
        let entries =
            entries.iter().map(|entry| (entry.path_in_task(), task_dir.join(entry.name())));
        let own = OWN.iter().map(|(path, name)| (PathBuf::from(path), task_dir.join(name)));
        let mounts = mounts.iter().map(|m| (PathBuf::from(&m.task_path), (&m.host_path).into()));
        let shared = (PathBuf::from(SHARED), alloc_dir.to_owned());
        let own: Vec<_> = own.chain(entries).collect();
        let in_own = own.iter().map(|(shown, _)| shown.clone()).collect();
        let places = own.into_iter().chain([shared]).chain(mounts).collect();
        Self { places, base: base.to_vec(), own: in_own, task_dir: task_dir.to_owned() }
    }

    /// Make a file in the task's own directory executable.
    pub fn make_executable(&self, path: &Path) {
        let own = self.own.iter().any(|own| path.starts_with(own));
        if let (true, Ok(rest)) = (own, path.strip_prefix("/")) {
            make_executable(&self.task_dir, &self.task_dir.join(rest));
        }
    }

    /// Whether there is certainly nothing at this path, for an early error. `false` also when only
    /// the process itself can tell. Reads the file system.
    pub fn is_surely_absent(&self, path: &Path) -> bool {
        let plain = path.components().all(|c| !matches!(c, Component::ParentDir));
        if !plain {
            return false;
        }
        let places = self.places.iter().filter(|(shown, _)| path.starts_with(shown));
        if let Some((shown, host)) = places.max_by_key(|(shown, _)| shown.as_os_str().len()) {
            return path.strip_prefix(shown).is_ok_and(|rest| is_absent_below(host, rest));
        }
        let known = self.base.iter().any(|base| path.starts_with(base));
        let above = |(shown, _): &(PathBuf, PathBuf)| shown.starts_with(path);
        if known {
            return matches!(fs::metadata(path), Err(e) if e.kind() == io::ErrorKind::NotFound);
        }
        path != Path::new("/")
            && !RESERVED.iter().any(|own| path.starts_with(own))
            && !self.places.iter().any(above)
            && !self.base.iter().any(|base| base.starts_with(path))
    }
}

/// Whether `rest` does not exist below `dir`, as far as that shows without following links.
fn is_absent_below(dir: &Path, rest: &Path) -> bool {
    let mut path = dir.to_owned();
    for part in rest {
        path.push(part);
        match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return true,
            // The link leads somewhere in the task's own root.
            Ok(found) if found.is_symlink() => return false,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
    false
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn mount(task_path: &str) -> Mount {
        Mount { host_path: "/srv".into(), task_path: task_path.into(), read_only: true }
    }

    #[test]
    fn no_mount_covers_the_tasks_own_places_or_another_mount() {
        for bad in
            ["/", "/local", "/secrets", "/alloc", "/tmp", "/proc", "/dev", "srv", "/a/../local"]
                .into_iter()
                .chain([
                    "/proc/sys",
                    "/dev/shm/x",
                    "/dev/null",
                    "/dev/stdin",
                    "/alloc/logs",
                    "/.blank-dir",
                ])
        {
            assert!(mount_problem(&mount(bad), &[mount(bad)]).is_some(), "{bad}");
        }
        for good in ["/srv", "/local/devices/x", "/opt/tool"] {
            assert_eq!(mount_problem(&mount(good), &[mount(good)]), None, "{good}");
        }
        let two = [mount("/srv"), mount("/srv/x")];
        assert!(mount_problem(&two[0], &two).is_some() && mount_problem(&two[1], &two).is_none());
        assert!(mount_problem(&mount("/srv"), &[mount("/srv"), mount("/srv")]).is_some());
    }

    #[test]
    fn what_is_certainly_not_there_is_known_and_what_links_lead_to_is_left_open() {
        let dir = tempfile::tempdir().unwrap();
        let (task, alloc) = (dir.path().join("t"), dir.path().join("alloc"));
        fs::create_dir_all(task.join("local/bin")).unwrap();
        fs::write(task.join("local/bin/tool"), "").unwrap();
        std::os::unix::fs::symlink("/local/bin", task.join("local/now")).unwrap();
        let shown =
            VisiblePaths::new((&task, &[]), &alloc, &[mount("/srv/data")], &["/usr".into()]);
        let absent = |path: &str| shown.is_surely_absent(Path::new(path));
        assert!(!absent("/local/bin/tool") && absent("/local/bin/other"));
        assert!(!absent("/local/now/other"), "the link leads into the task's root");
        assert!(!absent("/usr") && absent("/usr/bin/no-such-program"));
        assert!(absent("/home/somebody/tool"), "nothing of that is shown");
        assert!(!absent("/") && !absent("/srv") && absent("/srv/other"));
        assert!(!absent("/local/../usr/bin/x"), "not looked into");
    }
}

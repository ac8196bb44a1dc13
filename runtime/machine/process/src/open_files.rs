//! Which files a process has open, as `/proc` says.
//!
//! An open directory shows for which data directory a process works, whatever became of the records
//! about it: only the process itself opens and closes its files.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// How the kernel marks the path of what was removed.
const REMOVED: &str = " (deleted)";

/// A file that a process has open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenFile {
    /// `/proc/PID/fd/N`, which reaches the file also when its path does not any more.
    pub at: PathBuf,
    /// Path of the file, or the path that it had.
    pub path: PathBuf,
    /// The file has no path any more.
    pub removed: bool,
}

/// All files that a process has open.
///
/// # Errors
/// When the files cannot be seen: the process is gone, or belongs to another user.
pub fn list_open_files(pid: u32) -> io::Result<Vec<OpenFile>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let at = entry?.path();
        // The file was closed meanwhile.
        let Ok(link) = fs::read_link(&at) else { continue };
        let whole = link.to_str().and_then(|text| text.strip_suffix(REMOVED)).map(PathBuf::from);
        let removed = whole.is_some();
        found.push(OpenFile { at, path: whole.unwrap_or(link), removed });
    }
    Ok(found)
}

/// Whether all four user ids of a process are the effective one of this process, and both are in the
/// same pid namespace. Without this check the name of a process and the paths that it has open prove
/// nothing: any user, and a task in namespaces of its own, can make those up.
#[must_use]
pub fn is_own(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let own = rustix::process::geteuid().as_raw();
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    let mut users = users.split_ascii_whitespace().map(|user| user.parse() == Ok(own));
    // The real, effective, saved and file system user. The owner of the directory in `/proc` does
    // not tell: it is root for processes that may not be looked at.
    let same_user = (0..4).all(|_| users.next() == Some(true));
    let processes = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let among = processes(&pid.to_string());
    same_user && among.is_some() && among == processes("self")
}

/// Pids of all processes. Reads `/proc`.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn list_pids() -> io::Result<Vec<u32>> {
    let entries = fs::read_dir("/proc")?.flatten();
    Ok(entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// A directory, known by its path and its inode.
#[derive(Clone, Debug)]
pub struct KnownDir {
    path: PathBuf,
    inode: Option<(u64, u64)>,
}

impl KnownDir {
    /// The directory of this path, which may not be there any more.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let inode = inode_of(&path);
        Self { path, inode }
    }

    /// Whether the open file is this directory. The path alone is enough: a directory that was
    /// removed and made anew counts as the same.
    #[must_use]
    pub fn is_same(&self, open: &OpenFile) -> bool {
        open.path == self.path
            || (self.has_same_name(&open.path)
                && self.inode.is_some_and(|own| inode_of(&open.at) == Some(own)))
    }

    /// Whether the path has the same last name as this directory.
    #[must_use]
    pub fn has_same_name(&self, path: &Path) -> bool {
        path.file_name().is_some() && path.file_name() == self.path.file_name()
    }

    /// Whether the open file lies directly in this directory.
    #[must_use]
    pub fn contains(&self, open: &OpenFile) -> bool {
        let Some(parent) = open.path.parent() else { return false };
        parent == self.path
            || (self.has_same_name(parent)
                && self.inode.is_some_and(|own| inode_of(&open.at.join("..")) == Some(own)))
    }
}

fn inode_of(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]
mod tests {
    use super::*;

    fn opened(path: &Path) -> (fs::File, OpenFile) {
        use std::os::fd::AsRawFd as _;
        let file = fs::File::open(path).unwrap();
        let at = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
        let found =
            list_open_files(std::process::id()).unwrap().into_iter().find(|open| open.at == at);
        (file, found.unwrap())
    }

    #[test]
    fn a_process_of_another_user_or_in_a_namespace_of_its_own_is_not_our_own() {
        use std::os::unix::process::CommandExt as _;
        assert!(is_own(std::process::id()));
        assert!(!is_own(u32::MAX), "there is none");
        // The process that prints a line: `who` is it, or its parent.
        let judged = |command: &mut std::process::Command, who: fn(u32) -> u32| {
            let piped = std::process::Stdio::piped;
            let mut child = command.stdin(piped()).stdout(piped()).spawn().unwrap();
            io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 1]).unwrap();
            let own = is_own(who(child.id()));
            drop(child.stdin.take());
            child.wait().unwrap();
            own
        };
        let shell = |script: &str| {
            let mut command = std::process::Command::new("/bin/sh");
            command.args(["-c", script]);
            command
        };
        assert!(judged(&mut shell("echo; read line"), |pid| pid));
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root starts processes of other users");
            return;
        }
        assert!(!judged(shell("echo; read line").uid(65_534), |pid| pid), "another user's");
        let mut apart = shell("(echo; read line); exit 0");
        // SAFETY: one system call between fork and exec.
        unsafe {
            apart.pre_exec(|| match libc::unshare(libc::CLONE_NEWPID) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
        let inside = |pid: u32| {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
            children.trim().parse().unwrap()
        };
        assert!(!judged(&mut apart, inside), "root of a namespace of its own");
    }

    #[test]
    fn a_directory_is_known_after_it_was_moved_or_removed_and_a_copy_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let (here, moved, copy) =
            (dir.path().join("a/exits"), dir.path().join("b/exits"), dir.path().join("c/exits"));
        for path in [&here, &copy] {
            fs::create_dir_all(path).unwrap();
        }
        let (_file, open) = opened(&here);
        assert!(KnownDir::new(&here).is_same(&open));
        assert!(
            !KnownDir::new(&copy).is_same(&open) && KnownDir::new(&copy).has_same_name(&open.path)
        );
        fs::rename(dir.path().join("a"), dir.path().join("b")).unwrap();
        assert!(KnownDir::new(&moved).is_same(&open), "its path is read anew by whoever looks");
        fs::remove_dir(&moved).unwrap();
        let gone =
            list_open_files(std::process::id()).unwrap().into_iter().find(|one| one.at == open.at);
        let gone = gone.unwrap();
        assert!(gone.removed && KnownDir::new(&moved).is_same(&gone));
        fs::create_dir(&moved).unwrap();
        assert!(KnownDir::new(&moved).is_same(&gone), "made anew");
    }

    #[test]
    fn what_lies_in_a_directory_is_known_also_when_it_was_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, other) = (dir.path().join("a/workers"), dir.path().join("b/workers"));
        for path in [&ours, &other] {
            fs::create_dir_all(path.join("one")).unwrap();
        }
        let (_file, open) = opened(&ours.join("one"));
        let (_other, foreign) = opened(&other.join("one"));
        let known = KnownDir::new(&ours);
        assert!(known.contains(&open) && !known.contains(&foreign));
        fs::remove_dir(ours.join("one")).unwrap();
        let gone =
            list_open_files(std::process::id()).unwrap().into_iter().find(|one| one.at == open.at);
        assert!(known.contains(&gone.unwrap()));
        fs::rename(dir.path().join("a"), dir.path().join("moved")).unwrap();
        assert!(KnownDir::new(&dir.path().join("moved/workers")).contains(&open));
    }
}

//! Which files a process has open, as `/proc` says.
//!
//! By an open directory a process says for whom it works, whatever became of what was written about it:
//! only itself opens and closes its files.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// How the kernel marks the path of what was removed.
const REMOVED: &str = " (deleted)";

/// A file that a process has open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenFile {
    /// `/proc/PID/fd/N`: reaches the file itself, also when its path does not any more.
    pub at: PathBuf,
    /// Its path, or what it was.
    pub path: PathBuf,
    /// It has no path any more.
    pub removed: bool,
}

/// All files that a process has open.
///
/// # Errors
/// When that cannot be seen: the process is gone, or another user's.
pub fn of(pid: u32) -> io::Result<Vec<OpenFile>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let at = entry?.path();
        // Closed meanwhile.
        let Ok(link) = fs::read_link(&at) else { continue };
        let whole = link.to_str().and_then(|text| text.strip_suffix(REMOVED)).map(PathBuf::from);
        let removed = whole.is_some();
        found.push(OpenFile { at, path: whole.unwrap_or(link), removed });
    }
    Ok(found)
}

/// Does a process run as this one does: as its user throughout, and among the same processes? What it is called and
/// which paths it has open proves nothing else: any user, and a task in namespaces of its own, can make that up.
#[must_use]
pub fn is_own(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let own = rustix::process::geteuid().as_raw();
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    let mut users = users.split_ascii_whitespace().map(|user| user.parse() == Ok(own));
    // Real, effective, saved and of the file system. The owner of its directory is no answer: that is root for
    // whoever may not be looked at.
    let same_user = (0..4).all(|_| users.next() == Some(true));
    let processes = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
    let among = processes(&pid.to_string());
    same_user && among.is_some() && among == processes("self")
}

/// Every process that has a number now. Reads `/proc`.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn processes() -> io::Result<Vec<u32>> {
    let entries = fs::read_dir("/proc")?.flatten();
    Ok(entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// A directory, by which path it has and which one it is.
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
        let inode = inode(&path);
        Self { path, inode }
    }

    /// Is this it? It is also by its path alone: one that was removed and made anew is the same to whoever
    /// works for it.
    #[must_use]
    pub fn is(&self, open: &OpenFile) -> bool {
        open.path == self.path
            || (self.named(&open.path)
                && self.inode.is_some_and(|own| inode(&open.at) == Some(own)))
    }

    /// Is it a directory of the same name, here or elsewhere?
    #[must_use]
    pub fn named(&self, path: &Path) -> bool {
        path.file_name().is_some() && path.file_name() == self.path.file_name()
    }

    /// Is this a directory in it?
    #[must_use]
    pub fn has(&self, open: &OpenFile) -> bool {
        let Some(parent) = open.path.parent() else { return false };
        parent == self.path
            || (self.named(parent)
                && self.inode.is_some_and(|own| inode(&open.at.join("..")) == Some(own)))
    }
}

fn inode(path: &Path) -> Option<(u64, u64)> {
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
        let found = of(std::process::id()).unwrap().into_iter().find(|open| open.at == at);
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
        assert!(KnownDir::new(&here).is(&open));
        assert!(!KnownDir::new(&copy).is(&open) && KnownDir::new(&copy).named(&open.path));
        fs::rename(dir.path().join("a"), dir.path().join("b")).unwrap();
        assert!(KnownDir::new(&moved).is(&open), "its path is read anew by whoever looks");
        fs::remove_dir(&moved).unwrap();
        let gone = of(std::process::id()).unwrap().into_iter().find(|one| one.at == open.at);
        let gone = gone.unwrap();
        assert!(gone.removed && KnownDir::new(&moved).is(&gone));
        fs::create_dir(&moved).unwrap();
        assert!(KnownDir::new(&moved).is(&gone), "made anew");
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
        assert!(known.has(&open) && !known.has(&foreign));
        fs::remove_dir(ours.join("one")).unwrap();
        let gone = of(std::process::id()).unwrap().into_iter().find(|one| one.at == open.at);
        assert!(known.has(&gone.unwrap()));
        fs::rename(dir.path().join("a"), dir.path().join("moved")).unwrap();
        assert!(KnownDir::new(&dir.path().join("moved/workers")).has(&open));
    }
}

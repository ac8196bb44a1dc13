//! Cores that some processes have for themselves, and the rest for all others.
//!
//! ```text
//! ostler/             cpuset.cpus.effective: all that there are
//!   <leaf>/           cpuset.cpus: its own            one for each process that has some
//!   share/            cpuset.cpus: what no leaf has   written anew when a leaf comes or goes
//!     <leaf>/         inherits                        every other process
//! ```
//! The files of the kernel are the only record: an agent that starts finds there what the processes of
//! an earlier one have.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::{enable, sweep};
use ostler_model::cores::CoreSet;

/// Directory of the processes without cores of their own. No leaf has this name.
pub(super) const SHARE: &str = "share";
/// The cores that a cgroup asks for.
pub(super) const CPUS: &str = "cpuset.cpus";
/// Those that it has.
const EFFECTIVE: &str = "cpuset.cpus.effective";

/// Let cores be given below `parent`, with these other controllers in its shared part. Which there are.
///
/// # Errors
/// When the controller is not delegated, or the shared part cannot be made.
pub(super) fn prepare(parent: &Path, controllers: &[&str]) -> io::Result<CoreSet> {
    enable(parent, "cpuset")?;
    let share = parent.join(SHARE);
    match fs::create_dir(&share) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    for controller in controllers {
        enable(&share, controller)?;
    }
    sweep(&share);
    share_rest(parent)
}

/// Give the shared part what no leaf beside it has. All cores that there are.
///
/// # Errors
/// When the kernel's files cannot be read or written.
pub(super) fn share_rest(parent: &Path) -> io::Result<CoreSet> {
    // Whoever comes last sees the leaves of all others.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let all = read(&parent.join(EFFECTIVE))?;
    let mut taken = CoreSet::new();
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        if entry.file_name() == SHARE || !entry.file_type()?.is_dir() {
            continue;
        }
        match read(&entry.path().join(CPUS)) {
            Ok(cores) => taken = taken.union(&cores),
            // It has just been removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    let rest = all.without(&taken);
    // To the kernel an empty list is no list, and all of them. Nobody who runs a task shares then.
    let last = || all.iter().next_back().into_iter().collect();
    let rest = if rest.is_empty() { last() } else { rest };
    super::write(&parent.join(SHARE).join(CPUS), &rest.to_string())?;
    Ok(all)
}

/// A leaf of `parent` is gone: what it had is everybody's again.
pub(super) fn given_back(parent: &Path) {
    if !parent.join(SHARE).exists() {
        return;
    }
    if let Err(error) = share_rest(parent) {
        tracing::warn!(cgroup = %parent.display(), %error, "the cores of an ended task are not shared yet");
    }
}

fn read(path: &Path) -> io::Result<CoreSet> {
    let text = fs::read_to_string(path)?;
    text.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::cgroup::{CgroupStatus, Leaf, Limits, Unavailable};

    /// What the kernel would have made.
    fn cgroup(path: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(path).unwrap();
        for (name, text) in files {
            fs::write(path.join(name), text).unwrap();
        }
    }

    #[test]
    fn what_no_leaf_has_is_shared() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let shared = || fs::read_to_string(at("share/cpuset.cpus")).unwrap();
        cgroup(dir.path(), &[(EFFECTIVE, "0-3\n")]);
        cgroup(&at("share"), &[(CPUS, "")]);
        assert_eq!(share_rest(dir.path()).unwrap().to_string(), "0-3");
        assert_eq!(shared(), "0-3");
        cgroup(&at("one"), &[(CPUS, "0\n")]);
        cgroup(&at("two"), &[(CPUS, "2-3\n")]);
        // One that is just made, or just gone.
        cgroup(&at("three"), &[]);
        share_rest(dir.path()).unwrap();
        assert_eq!(shared(), "1");
        cgroup(&at("three"), &[(CPUS, "1\n")]);
        share_rest(dir.path()).unwrap();
        assert_eq!(shared(), "3", "never empty: that would be all");
        fs::remove_dir_all(at("two")).unwrap();
        given_back(dir.path());
        assert_eq!(shared(), "2-3");
    }

    #[test]
    fn cores_that_are_not_this_nodes_are_an_error() {
        let mut status = CgroupStatus::none(Unavailable::NotMounted);
        let limits = Limits { cores: "0".parse().unwrap(), ..Limits::default() };
        let error = Leaf::create(&status, "x", &limits).unwrap_err().to_string();
        assert!(error.contains("cores 0 are not among"), "{error}");
        status.cores = "1".parse().unwrap();
        assert!(Leaf::create(&status, "x", &limits).is_err());
    }
}

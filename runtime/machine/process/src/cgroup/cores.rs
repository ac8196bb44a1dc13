//! Cores that some processes have for themselves, and the rest for all others.
//!
//! ```text
//! ostler/             cpuset.cpus.effective: all that there are
//!   <leaf>/           cpuset.cpus: its own            one for each process that has some
//!   share/            cpuset.cpus: what no leaf has   written anew when a leaf comes or goes
//!     <leaf>/         inherits                        every other process
//! ```
//! Several processes write there: the agent, each supervisor that removes its leaf, other agents.
//! So each writer reads again after it has written, and writes anew as long as something changed
//! meanwhile: the last one to write has seen all others.
//!
//! The files of the kernel are the only record: an agent that starts reads there which cores the
//! processes of an earlier agent have.

use std::fs;
use std::io;
use std::path::Path;

use super::{CgroupStatus, enable, sweep};
use ostler_model::cores::CoreSet;

/// Directory of the processes without cores of their own. No leaf has this name.
pub(super) const SHARE: &str = "share";
/// The cores that a cgroup asks for.
pub(super) const CPUS: &str = "cpuset.cpus";
/// The cores that a cgroup really has.
const EFFECTIVE: &str = "cpuset.cpus.effective";

/// Let cores be given below `parent`, with these other controllers in its shared part. Returns all
/// cores that there are.
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

/// How often a writer reads and writes anew when somebody else wrote in between.
const ROUNDS_MAX: usize = 32;

/// Give the shared part the cores that no leaf beside it has. Returns all cores that there are.
///
/// # Errors
/// When the kernel's files cannot be read or written.
pub(super) fn share_rest(parent: &Path) -> io::Result<CoreSet> {
    let (mut all, mut rest) = unclaimed_cores(parent)?;
    for _ in 0..ROUNDS_MAX {
        super::write(&parent.join(SHARE).join(CPUS), &rest.to_string())?;
        let now = unclaimed_cores(parent)?;
        let same = now.1 == rest;
        (all, rest) = now;
        if same {
            break;
        }
    }
    Ok(all)
}

/// All cores that there are, and those that no leaf has. The second set is never empty.
fn unclaimed_cores(parent: &Path) -> io::Result<(CoreSet, CoreSet)> {
    let all = read(&parent.join(EFFECTIVE))?;
    let mut taken = CoreSet::new();
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        if entry.file_name() == SHARE || !entry.file_type()?.is_dir() {
            continue;
        }
        match read(&entry.path().join(CPUS)) {
            Ok(cores) => taken = taken.union(&cores),
            Err(error) if is_gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    let rest = all.without(&taken);
    // The kernel takes an empty list for all cores. With one agent, no task shares cores then.
    let last = || all.iter().next_back().into_iter().collect();
    let rest = if rest.is_empty() { last() } else { rest };
    Ok((all, rest))
}

/// Whether the error means that a cgroup has just been removed: its file is absent, or was
/// open meanwhile.
fn is_gone(error: &io::Error) -> bool {
    let no_device = Some(rustix::io::Errno::NODEV.raw_os_error());
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == no_device
}

/// Check that the kernel gave a leaf the cores that the leaf asks for. The kernel leaves out cores
/// that are switched off, and gives other cores where none of them is left.
///
/// # Errors
/// When the leaf has other cores, or its file cannot be read.
pub(super) fn check_given(leaf: &Path, wanted: &CoreSet) -> io::Result<()> {
    let given = read(&leaf.join(EFFECTIVE))?;
    if given == *wanted {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "of the cores {wanted} the kernel gives {given}: one is switched off"
    )))
}

/// Why these cores cannot be given.
pub(super) fn cores_error(status: &CgroupStatus, wanted: &CoreSet) -> io::Error {
    let why = status.unavailable.as_ref().map(ToString::to_string).unwrap_or_default();
    io::Error::other(if status.cores.is_empty() {
        format!("cores {wanted} can no longer be given: {why}")
    } else {
        format!("cores {wanted} are not among those that can be given: {}", status.cores)
    })
}

/// Cores that can be given now: those that were found when the agent started, without those that
/// are switched off.
pub(crate) fn available_cores(status: &CgroupStatus) -> CoreSet {
    let effective = status.parent.as_ref().and_then(|parent| read(&parent.join(EFFECTIVE)).ok());
    effective.map_or_else(|| status.cores.clone(), |now| status.cores.intersection(&now))
}

/// Share the cores of a leaf of `parent` that is gone among the others again.
pub(super) fn share_freed_cores(parent: &Path) {
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
    use crate::cgroup::{CgroupUnavailable, Leaf, Limits};

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
        share_freed_cores(dir.path());
        assert_eq!(shared(), "2-3");
    }

    #[test]
    fn cores_that_are_not_this_nodes_are_an_error() {
        let mut status = CgroupStatus::none(CgroupUnavailable::NotMounted);
        let limits = Limits { cores: "0".parse().unwrap(), ..Limits::default() };
        let error = Leaf::create(&status, "x", &limits).unwrap_err().to_string();
        assert!(error.contains("cores 0 can no longer be given: no cgroup version 2"), "{error}");
        status.cores = "1".parse().unwrap();
        let error = Leaf::create(&status, "x", &limits).unwrap_err().to_string();
        assert!(error.contains("cores 0 are not among those that can be given: 1"), "{error}");
    }
}

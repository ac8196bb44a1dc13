//! What is left of a task that nobody watches over any more.
//!
//! ```text
//!   /proc ─ same session or group as the task, while its number is not another's ─► a member
//!         ─ NOMAD_ALLOC_ID and NOMAD_TASK_NAME of the run in its environment ─────► certainly of it
//!         ─ a child of its supervisor ────────────────────────────────────────────► certainly of it
//! ```
//! A process below another living supervisor belongs to the run of that supervisor, whatever its
//! environment says: to a later run of the same task, or to a copy of the data directory.
//!
//! The number of a session is not used again while a process is in it. Once all have ended it may
//! be. So a member counts as certain only when the task was known to be there a moment ago, or when
//! the environment of the member says whose it is. Only what is certain is killed; the rest is
//! reported.

use std::fs;
use std::io;

use rustix::process::{Signal, pidfd_send_signal};

use super::identity::{self, Stat};
use super::live;
use ostler_model::ids::RunId;
use ostler_model::ports::ProcessIdentity;

/// Most ancestors that are followed from a process. Nobody nests deeper on purpose, and the bound
/// ends a chain that changes while it is followed.
const ANCESTORS_MAX: usize = 64;

/// A process that may be of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemainingProcess {
    /// The process id when `/proc` was read.
    pub pid: u32,
    start_ticks: u64,
    state: u8,
    name: String,
    /// The process certainly belongs to the task.
    pub certain: bool,
}

impl RemainingProcess {
    fn new(pid: u32, stat: Stat, certain: bool) -> Self {
        let Stat { start_ticks, state, name, .. } = stat;
        Self { pid, start_ticks, state, name, certain }
    }
}

impl std::fmt::Display for RemainingProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { pid, name, state, .. } = self;
        match state {
            b'D' => write!(f, "{pid} ({name}, in uninterruptible sleep)"),
            _ => write!(f, "{pid} ({name})"),
        }
    }
}

/// How well the task is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Certainty {
    /// The task, or a part of it, was there a moment ago, so its numbers belong to nothing else.
    Now,
    /// The task is known from a record only, so its numbers may have been used again.
    Recorded,
}

/// Every living process of this boot that may belong to the process `identity` of `run`. Reads
/// `/proc`.
///
/// # Errors
/// When `/proc` cannot be read: no file descriptor is left, for example.
pub fn find_remaining(
    run: &RunId,
    identity: &ProcessIdentity,
    known: Certainty,
) -> io::Result<Vec<RemainingProcess>> {
    scan_processes(run_marks(run).as_ref(), identity, known)
}

/// As [`find_remaining`], for a process from a record that names no run.
///
/// # Errors
/// As [`find_remaining`].
pub fn find_unnamed(identity: &ProcessIdentity) -> io::Result<Vec<RemainingProcess>> {
    scan_processes(None, identity, Certainty::Recorded)
}

fn scan_processes(
    marks: Option<&[String; 2]>,
    identity: &ProcessIdentity,
    known: Certainty,
) -> io::Result<Vec<RemainingProcess>> {
    if identity::boot_id()? != identity.boot_id {
        return Ok(Vec::new());
    }
    let reused =
        identity::stat_of(identity.pid)?.is_some_and(|now| now.start_ticks != identity.start_ticks);
    let supervisor = match identity.supervisor {
        Some(who) => identity::stat_of(who.pid)?
            .filter(|now| now.start_ticks == who.start_ticks)
            .map(|_| who.pid),
        None => None,
    };
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let Some(stat) = identity::stat_of(pid)? else { continue };
        if !stat.is_alive() || stat.start_ticks < identity.start_ticks || Some(pid) == supervisor {
            continue;
        }
        let own = pid == identity.pid || supervisor.is_some_and(|shim| stat.parent == shim);
        let member = !reused && is_member(&stat, identity.pid);
        let certain = own && !(reused && pid == identity.pid)
            || member && known == Certainty::Now
            || is_marked(pid, marks)?;
        if (certain || member) && !is_watched_by_another(&stat, supervisor)? {
            found.push(RemainingProcess::new(pid, stat, certain));
        }
    }
    Ok(found)
}

/// Every living process in the group of `leader`, without `leader` itself, which is a zombie of
/// this process.
///
/// # Errors
/// As [`find_remaining`].
pub fn group_members(leader: u32) -> io::Result<Vec<RemainingProcess>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let Some(stat) = identity::stat_of(pid)? else { continue };
        if pid != leader && stat.group == leader && stat.is_alive() {
            found.push(RemainingProcess::new(pid, stat, true));
        }
    }
    Ok(found)
}

/// Whether the process is below a living supervisor other than `own`. A supervisor that is above
/// this agent too does not count: everything is below that one.
fn is_watched_by_another(stat: &Stat, own: Option<u32>) -> io::Result<bool> {
    let watcher = ancestors(stat.parent)?.into_iter().find(|pid| live::is_supervisor(*pid));
    let Some(watcher) = watcher.filter(|watcher| Some(*watcher) != own) else { return Ok(false) };
    Ok(!ancestors(std::process::id())?.contains(&watcher))
}

/// Pids of the process and of its ancestors, up to pid 1, which is left out.
fn ancestors(pid: u32) -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    let mut next = Some(pid);
    while let Some(pid) = next.filter(|pid| *pid > 1 && found.len() < ANCESTORS_MAX) {
        found.push(pid);
        next = identity::stat_of(pid)?.map(|stat| stat.parent);
    }
    Ok(found)
}

fn is_member(stat: &Stat, leader: u32) -> bool {
    stat.session == leader || stat.group == leader
}

/// The two variables that every process of a run has in its environment, unless somebody
/// changed them.
fn run_marks(run: &RunId) -> Option<[String; 2]> {
    let mut parts = run.as_str().split('/');
    let (alloc, task) = (parts.next()?, parts.next()?);
    Some([format!("NOMAD_ALLOC_ID={alloc}"), format!("NOMAD_TASK_NAME={task}")])
}

fn is_marked(pid: u32, marks: Option<&[String; 2]>) -> io::Result<bool> {
    let Some(marks) = marks else { return Ok(false) };
    let environment = match fs::read(format!("/proc/{pid}/environ")) {
        Ok(environment) => environment,
        Err(error) if identity::is_of_the_node(&error) => return Err(error),
        // It is gone, or another user's.
        Err(_) => return Ok(false),
    };
    let has = |mark: &String| {
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    Ok(marks.iter().all(has))
}

/// Kill the processes that certainly belong to the task.
pub fn kill_certain(left: &[RemainingProcess]) {
    for RemainingProcess { pid, start_ticks, .. } in left.iter().filter(|left| left.certain) {
        match identity::open_same(*pid, *start_ticks) {
            Ok(Some(pidfd)) => {
                let _gone = pidfd_send_signal(&pidfd, Signal::KILL);
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(pid, %error, "what is left of a task is not killed now"),
        }
    }
}

/// A text about the processes that may belong to a task and are left alone; `None` when there
/// are none.
pub fn describe_uncertain(left: &[RemainingProcess]) -> Option<String> {
    let names: Vec<String> =
        left.iter().filter(|left| !left.certain).map(ToString::to_string).collect();
    (!names.is_empty()).then(|| {
        format!(
            "left alone, because nothing proves that they belong to this task: {}",
            names.join(", ")
        )
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
mod tests {
    use super::*;
    use ostler_model::ids::{AllocId, TaskName};

    #[test]
    fn a_run_is_known_by_its_allocation_and_task() {
        let alloc = AllocId::new(uuid::Uuid::from_u128(7));
        let run = RunId::new(alloc, &TaskName::new("web").unwrap(), 9);
        let expected = [format!("NOMAD_ALLOC_ID={alloc}"), "NOMAD_TASK_NAME=web".to_owned()];
        assert_eq!(run_marks(&run), Some(expected));
    }

    #[test]
    fn a_process_of_another_boot_has_left_nothing() {
        let run = RunId::new(AllocId::new(uuid::Uuid::nil()), &TaskName::new("t").unwrap(), 1);
        let me = identity::read(std::process::id()).unwrap();
        let before = ProcessIdentity { boot_id: "an earlier boot".to_owned(), ..me };
        assert_eq!(find_remaining(&run, &before, Certainty::Now).unwrap(), []);
    }
}

//! Supervisors that are alive, whatever the state file knows of them.
//!
//! ```text
//! notes of runs (exits/*.run) ─ its supervisor lives (pid, start time, boot) ───────────────┐
//! /proc ─ own processes called ostler-shim that hold our directory of exit records open ─ its ┴─► LiveRun
//!         task: a child named by a record, or its only one; of which job: the task's environment
//! ```
//! The second way finds those whose notes are gone or were never written (supervisors of older
//! agents). Their task can write what its environment seems to be: at worst it is taken for one of
//! another job, which is then held back. One that has ended meanwhile is known by its exit record ([`ended`]).
//!
//! Notes and records are copied with a data directory, supervisors are not: one that works for another
//! directory is told as such.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::identity;
use super::open_files::{self, KnownDir};
use super::supervise::note::Note;
use super::supervise::record::{ExitRecordError, Records};
use ostler_model::ids::{JobId, Namespace, RunId};
use ostler_model::ports::{ProcessIdentity, RunNote, SupervisorIdentity};

/// Name of a supervisor's process.
const COMM: &str = "ostler-shim";
/// Most bytes read of an environment.
const ENVIRONMENT_BYTES_MAX: usize = 1 << 20;

/// Where a run belongs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RunPlace {
    /// The allocation.
    pub alloc: ostler_model::ids::AllocId,
    /// The task.
    pub task: ostler_model::ids::TaskName,
    /// The job.
    pub job: JobId,
    /// The group.
    pub group: ostler_model::ids::GroupName,
    /// Index in the group.
    pub index: u32,
}

/// A supervisor that is alive, with its task.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveRun {
    /// The supervisor.
    pub supervisor: SupervisorIdentity,
    /// What is needed to end it. The process is the supervisor itself where the task is not known.
    pub identity: ProcessIdentity,
    /// The run's id, from its note.
    pub run: Option<String>,
    /// Where it belongs; `None`: nothing says so.
    pub place: Option<RunPlace>,
    /// What an agent had on record of it, from its note.
    pub record: Option<serde_json::Value>,
    /// The data directory that its supervisor works for, where that is not this one.
    pub elsewhere: Option<PathBuf>,
}

impl LiveRun {
    /// One that is on record, of a supervisor that works for another data directory.
    #[must_use]
    pub fn of_elsewhere(
        run: String,
        identity: ProcessIdentity,
        place: Option<RunPlace>,
        dir: PathBuf,
    ) -> Option<Self> {
        let supervisor = identity.supervisor?;
        let run = Some(run);
        Some(Self { supervisor, identity, run, place, record: None, elsewhere: Some(dir) })
    }

    fn noted(note: Note, supervisor: SupervisorIdentity) -> Self {
        let RunNote { alloc, task, job, group, index, record } = note.about;
        Self {
            supervisor,
            identity: note.identity,
            run: Some(note.run),
            place: Some(RunPlace { alloc, task, job, group, index }),
            record: (!record.is_null()).then_some(record),
            elsewhere: None,
        }
    }

    /// End it with its task, and wait until both are gone.
    ///
    /// # Errors
    /// When the kernel refuses, or it does not end within `bound`.
    pub async fn end(&self, bound: Duration) -> io::Result<()> {
        let identity = self.identity.clone();
        // What only its environment says is not gone by: that is the task's own word.
        match (&self.run, &self.place) {
            (Some(_), Some(place)) => {
                let run = RunId::new(place.alloc, &place.task, 0);
                identity::end_leftover(run, identity, bound).await
            }
            _ => identity::end_unnamed(identity, bound).await,
        }
    }

    /// Has it ended?
    #[must_use]
    pub fn ended(&self) -> bool {
        let SupervisorIdentity { pid, start_ticks } = self.supervisor;
        // What cannot be looked at is not taken for gone.
        identity::open_same(pid, start_ticks)
            .is_ok_and(|pidfd| pidfd.is_none_or(|pidfd| identity::has_ended(&pidfd)))
    }
}

/// Every supervisor of this directory of exit records that is alive, by pid. Reads `/proc`; blocks.
/// Nothing where there is no such directory.
///
/// # Errors
/// When the directory or `/proc` cannot be read.
pub fn find(records: &Path) -> Result<Vec<LiveRun>, ExitRecordError> {
    let failed = |source| ExitRecordError::Directory { path: records.to_owned(), source };
    let boot = identity::boot_id().map_err(failed)?;
    let opened = if records.is_dir() { Some(Records::open(records)?) } else { None };
    let known = KnownDir::new(records);
    let mut found = BTreeMap::new();
    for note in opened.iter().flat_map(Records::notes) {
        let Some(supervisor) = note.identity.supervisor else { continue };
        if note.identity.boot_id != boot {
            continue;
        }
        let mut run = LiveRun::noted(note, supervisor);
        run.elsewhere = works_elsewhere(supervisor.pid, &known);
        // Asked last: what was seen is then of this supervisor.
        if !run.ended() {
            found.insert(supervisor.pid, run);
        }
    }
    let named = opened.as_ref().map(task_names).unwrap_or_default();
    for pid in supervisors(&known, |pid| found.contains_key(&pid)).map_err(failed)? {
        if let Some(run) = unnoted(pid, &boot, &named) {
            found.insert(pid, run);
        }
    }
    Ok(found.into_values().collect())
}

/// What is noted of runs, whether they live or not: by run, what an agent had on record. Blocks.
/// Nothing where there is no such directory.
///
/// # Errors
/// When the directory cannot be opened.
pub fn noted(records: &Path) -> Result<BTreeMap<String, RunNote>, ExitRecordError> {
    let opened = if records.is_dir() { Some(Records::open(records)?) } else { None };
    let notes = opened.iter().flat_map(Records::notes);
    Ok(notes.map(|note| (note.run, note.about)).collect())
}

/// The processes of these runs that were let go and have ended, as their exit records alone say: by run. Which
/// boot they are of is not known, so that nothing that lives is taken for one of them. Blocks. Nothing where there
/// is no such directory.
///
/// # Errors
/// When the directory cannot be read.
pub fn ended(
    records: &Path,
    runs: &[RunId],
) -> Result<BTreeMap<RunId, ProcessIdentity>, ExitRecordError> {
    if runs.is_empty() || !records.is_dir() {
        return Ok(BTreeMap::new());
    }
    let opened = Records::open(records)?;
    let released = opened.of_runs(runs)?.into_iter().filter(|(_, _, _, record)| record.released);
    let ended = released.map(|(run, pid, start_ticks, _)| {
        let boot_id = String::new();
        (run.clone(), ProcessIdentity { pid, start_ticks, boot_id, cgroup: None, supervisor: None })
    });
    Ok(ended.collect())
}

/// Tasks by pid and start time, as the names of records say.
fn task_names(records: &Records) -> BTreeMap<u32, u64> {
    let names = records.names().unwrap_or_default();
    let tasks = names.iter().filter_map(|name| {
        let (pid, ticks) = name.split('.').nth(1)?.split_once('-')?;
        Some((pid.parse().ok()?, ticks.parse().ok()?))
    });
    tasks.collect()
}

/// The data directory that a supervisor which lives works for, where that is not the one of these exit
/// records. `None` too where it cannot be seen. Reads `/proc`; blocks.
#[must_use]
pub fn elsewhere(supervisor: SupervisorIdentity, records: &Path) -> Option<PathBuf> {
    let SupervisorIdentity { pid, start_ticks } = supervisor;
    let same = || identity::open_same(pid, start_ticks).ok().flatten();
    let dir = works_elsewhere(pid, &KnownDir::new(records));
    // Asked last, as above.
    dir.filter(|_| same().is_some_and(|pidfd| !identity::has_ended(&pidfd)))
}

fn works_elsewhere(supervisor: u32, records: &KnownDir) -> Option<PathBuf> {
    let open = open_files::of(supervisor).ok()?;
    if open.iter().any(|open| records.is(open)) {
        return None;
    }
    let other = open.iter().find(|open| records.named(&open.path))?;
    other.path.parent().map(Path::to_owned)
}

/// Is it called as a supervisor, and of this program's user?
pub(super) fn is_supervisor(pid: u32) -> bool {
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    comm.trim_end() == COMM && open_files::is_own(pid)
}

/// Processes that are supervisors of this directory, but for those that are known.
fn supervisors(records: &KnownDir, known: impl Fn(u32) -> bool) -> io::Result<Vec<u32>> {
    let mut found = open_files::processes()?;
    found.retain(|pid| {
        let open = || open_files::of(*pid).unwrap_or_default();
        !known(*pid) && is_supervisor(*pid) && open().iter().any(|open| records.is(open))
    });
    Ok(found)
}

/// A supervisor without a note.
fn unnoted(pid: u32, boot: &str, named: &BTreeMap<u32, u64>) -> Option<LiveRun> {
    let start_ticks = identity::start_ticks(pid).ok()?;
    let listed = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let numbers = listed.as_deref().unwrap_or_default().split_ascii_whitespace();
    let children: Vec<u32> = numbers.filter_map(|child| child.parse().ok()).collect();
    // Its task is over, or was never let go and is ended by it: nobody is left to let it go.
    if listed.is_ok() && children.iter().all(|child| is_copy_of(pid, *child)) {
        return None;
    }
    let ticks = |child: &u32| identity::start_ticks(*child).ok();
    let task = children
        .iter()
        .find(|child| named.get(child).copied() == ticks(child))
        .or_else(|| children.iter().find(|child| place_of(**child).is_some()))
        .and_then(|child| Some((*child, ticks(child)?)));
    let supervisor = SupervisorIdentity { pid, start_ticks };
    let (process, process_ticks) = task.unwrap_or((pid, start_ticks));
    let run = LiveRun {
        supervisor,
        identity: ProcessIdentity {
            pid: process,
            start_ticks: process_ticks,
            boot_id: boot.to_owned(),
            cgroup: None,
            supervisor: Some(supervisor),
        },
        run: None,
        place: task.and_then(|(task, _)| place_of(task)),
        record: None,
        elsewhere: None,
    };
    (!run.ended()).then_some(run)
}

/// Is the child a fork of the supervisor that has not executed its program?
fn is_copy_of(supervisor: u32, child: u32) -> bool {
    let line = |pid: u32| fs::read(format!("/proc/{pid}/cmdline")).ok();
    let program = |pid: u32| fs::read_link(format!("/proc/{pid}/exe")).ok();
    line(child).is_some_and(|own| !own.is_empty() && line(supervisor) == Some(own))
        && program(child) == program(supervisor)
}

/// Where a task belongs by its environment.
fn place_of(task: u32) -> Option<RunPlace> {
    let mut environment = fs::read(format!("/proc/{task}/environ")).ok()?;
    environment.truncate(ENVIRONMENT_BYTES_MAX);
    let lines = environment.split(|byte| *byte == 0);
    place_in(lines.filter_map(|line| std::str::from_utf8(line).ok()?.split_once('=')))
}

/// Where a task of this environment belongs; of a name that is there twice, the last counts.
pub fn place_in<'a>(variables: impl Iterator<Item = (&'a str, &'a str)>) -> Option<RunPlace> {
    let values: BTreeMap<&str, &str> = variables.collect();
    let value = |name: &str| values.get(name).copied();
    let namespace = value("NOMAD_NAMESPACE").and_then(|name| Namespace::new(name).ok());
    let namespace = namespace.unwrap_or_default();
    Some(RunPlace {
        alloc: value("NOMAD_ALLOC_ID")?.parse().ok()?,
        task: value("NOMAD_TASK_NAME")?.parse().ok()?,
        job: JobId::within(&namespace, value("NOMAD_JOB_ID")?).ok()?,
        group: value("NOMAD_GROUP_NAME")?.parse().ok()?,
        index: value("NOMAD_ALLOC_INDEX")?.parse().ok()?,
    })
}

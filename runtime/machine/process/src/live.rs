//! Supervisors that are alive, whatever the state file knows of them.
//!
//! ```text
//! notes of runs (exits/*.run) ─ its supervisor lives (pid, start time, boot) ───────────────┐
//! /proc ─ own processes called ostler-shim that hold our directory of exit records open ─ its ┴─► LiveRun
//!         task: a child named by a record, or its only one; of which job: the task's environment
//! ```
//! The second way finds supervisors whose notes are gone or were never written (by older agents).
//! The task below can overwrite its own environment: at worst it is taken for a task of another
//! job, which is then held back. A task that has ended meanwhile is known by its exit record
//! ([`find_ended_runs`]).
//!
//! Notes and records are copied with a data directory, supervisors are not: a supervisor that works
//! for another directory is reported with that directory.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::identity;
use super::open_files::{self, KnownDir};
use super::supervise::note::Note;
use super::supervise::record::{ExitRecordError, ExitRecords};
use ostler_model::ids::{JobId, Namespace, RunId};
use ostler_model::ports::{ProcessIdentity, RunNote, SupervisorIdentity};

/// Name of a supervisor's process.
const COMM: &str = "ostler-shim";
/// Most bytes read of an environment.
const ENVIRONMENT_BYTES_MAX: usize = 1 << 20;

/// The job, group and allocation that a run belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RunPlace {
    /// Id of the allocation that the task is part of.
    pub alloc: ostler_model::ids::AllocId,
    /// Name of the task in its group.
    pub task: ostler_model::ids::TaskName,
    /// Id of the job, with its namespace.
    pub job: JobId,
    /// Name of the task group in the job.
    pub group: ostler_model::ids::GroupName,
    /// Index of the allocation in the group.
    pub index: u32,
}

/// A supervisor that is alive, with its task.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveRun {
    /// Pid and start time of the living supervisor.
    pub supervisor: SupervisorIdentity,
    /// What is needed to end the run. The process is the supervisor itself where the task is
    /// not known.
    pub identity: ProcessIdentity,
    /// The run's id, from its note.
    pub run: Option<String>,
    /// Where the run belongs; `None` where neither a note nor the task's environment says so.
    pub place: Option<RunPlace>,
    /// What an agent had on record of the run, from its note.
    pub record: Option<serde_json::Value>,
    /// The data directory that the supervisor works for, where that is not this one.
    pub elsewhere: Option<PathBuf>,
}

impl LiveRun {
    /// A run that is on record here and whose supervisor works for the data directory
    /// `dir` instead.
    #[must_use]
    pub fn from_other_dir(
        run: String,
        identity: ProcessIdentity,
        place: Option<RunPlace>,
        dir: PathBuf,
    ) -> Option<Self> {
        let supervisor = identity.supervisor?;
        let run = Some(run);
        Some(Self { supervisor, identity, run, place, record: None, elsewhere: Some(dir) })
    }

    fn from_note(note: Note, supervisor: SupervisorIdentity) -> Self {
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

    /// End the supervisor with its task, and wait until both are gone.
    ///
    /// # Errors
    /// When the kernel refuses, or they do not end within `bound`.
    pub async fn end(&self, bound: Duration) -> io::Result<()> {
        let identity = self.identity.clone();
        // A place that is known from the environment alone is not used: the task may have written
        // it.
        match (&self.run, &self.place) {
            (Some(_), Some(place)) => {
                let run = RunId::new(place.alloc, &place.task, 0);
                identity::end_leftover(run, identity, bound).await
            }
            _ => identity::end_unnamed(identity, bound).await,
        }
    }

    /// Whether the supervisor has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let SupervisorIdentity { pid, start_ticks } = self.supervisor;
        // A process that cannot be looked at does not count as ended.
        identity::open_same(pid, start_ticks)
            .is_ok_and(|pidfd| pidfd.is_none_or(|pidfd| identity::has_ended(&pidfd)))
    }
}

/// Every living supervisor of this directory of exit records, by pid. Empty where there is no such
/// directory. Reads `/proc`; blocks.
///
/// # Errors
/// When the directory or `/proc` cannot be read.
pub fn find_live_runs(records: &Path) -> Result<Vec<LiveRun>, ExitRecordError> {
    let failed = |source| ExitRecordError::Directory { path: records.to_owned(), source };
    let boot = identity::boot_id().map_err(failed)?;
    let opened = if records.is_dir() { Some(ExitRecords::open(records)?) } else { None };
    let known = KnownDir::new(records);
    let mut found = BTreeMap::new();
    for note in opened.iter().flat_map(ExitRecords::notes) {
        let Some(supervisor) = note.identity.supervisor else { continue };
        if note.identity.boot_id != boot {
            continue;
        }
        let mut run = LiveRun::from_note(note, supervisor);
        run.elsewhere = find_other_dir(supervisor.pid, &known);
        // Asked last: what was seen is then of this supervisor.
        if !run.has_ended() {
            found.insert(supervisor.pid, run);
        }
    }
    let named = opened.as_ref().map(task_names).unwrap_or_default();
    for pid in list_supervisors(&known, |pid| found.contains_key(&pid)).map_err(failed)? {
        if let Some(run) = run_without_note(pid, &boot, &named) {
            found.insert(pid, run);
        }
    }
    Ok(found.into_values().collect())
}

/// The notes of all runs, living or not, by the id of the run. Empty where there is no such
/// directory. Blocks.
///
/// # Errors
/// When the directory cannot be opened.
pub fn read_notes(records: &Path) -> Result<BTreeMap<String, RunNote>, ExitRecordError> {
    let opened = if records.is_dir() { Some(ExitRecords::open(records)?) } else { None };
    let notes = opened.iter().flat_map(ExitRecords::notes);
    Ok(notes.map(|note| (note.run, note.about)).collect())
}

/// The processes of these runs that were let go and have ended, by run, as the exit records alone
/// say. Their boot id is empty, because it is not known; so no living process is taken for one of
/// them. Empty where there is no such directory. Blocks.
///
/// # Errors
/// When the directory cannot be read.
pub fn find_ended_runs(
    records: &Path,
    runs: &[RunId],
) -> Result<BTreeMap<RunId, ProcessIdentity>, ExitRecordError> {
    if runs.is_empty() || !records.is_dir() {
        return Ok(BTreeMap::new());
    }
    let opened = ExitRecords::open(records)?;
    let released =
        opened.read_for_runs(runs)?.into_iter().filter(|(_, _, _, record)| record.released);
    let ended = released.map(|(run, pid, start_ticks, _)| {
        let boot_id = String::new();
        (run.clone(), ProcessIdentity { pid, start_ticks, boot_id, cgroup: None, supervisor: None })
    });
    Ok(ended.collect())
}

/// The start time of each task by its pid, as the names of the records say.
fn task_names(records: &ExitRecords) -> BTreeMap<u32, u64> {
    let names = records.names().unwrap_or_default();
    let tasks = names.iter().filter_map(|name| {
        let (pid, ticks) = name.split('.').nth(1)?.split_once('-')?;
        Some((pid.parse().ok()?, ticks.parse().ok()?))
    });
    tasks.collect()
}

/// The data directory that a living supervisor works for, where that is not the one of these exit
/// records. `None` too where it cannot be seen. Reads `/proc`; blocks.
#[must_use]
pub fn other_data_dir(supervisor: SupervisorIdentity, records: &Path) -> Option<PathBuf> {
    let SupervisorIdentity { pid, start_ticks } = supervisor;
    let same = || identity::open_same(pid, start_ticks).ok().flatten();
    let dir = find_other_dir(pid, &KnownDir::new(records));
    // Asked last, as above.
    dir.filter(|_| same().is_some_and(|pidfd| !identity::has_ended(&pidfd)))
}

fn find_other_dir(supervisor: u32, records: &KnownDir) -> Option<PathBuf> {
    let open = open_files::list_open_files(supervisor).ok()?;
    if open.iter().any(|open| records.is_same(open)) {
        return None;
    }
    let other = open.iter().find(|open| records.has_same_name(&open.path))?;
    other.path.parent().map(Path::to_owned)
}

/// Whether the process has the name of a supervisor and runs as this program's user.
pub(super) fn is_supervisor(pid: u32) -> bool {
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    comm.trim_end() == COMM && open_files::is_own(pid)
}

/// Pids of the supervisors of this directory, without those that are known.
fn list_supervisors(records: &KnownDir, known: impl Fn(u32) -> bool) -> io::Result<Vec<u32>> {
    let mut found = open_files::list_pids()?;
    found.retain(|pid| {
        let open = || open_files::list_open_files(*pid).unwrap_or_default();
        !known(*pid) && is_supervisor(*pid) && open().iter().any(|open| records.is_same(open))
    });
    Ok(found)
}

/// The run of a supervisor without a note; `None` when its task is over.
fn run_without_note(pid: u32, boot: &str, named: &BTreeMap<u32, u64>) -> Option<LiveRun> {
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
        .or_else(|| children.iter().find(|child| place_of_task(**child).is_some()))
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
        place: task.and_then(|(task, _)| place_of_task(task)),
        record: None,
        elsewhere: None,
    };
    (!run.has_ended()).then_some(run)
}

/// Whether the child is a fork of the supervisor that has not executed its program.
fn is_copy_of(supervisor: u32, child: u32) -> bool {
    let line = |pid: u32| fs::read(format!("/proc/{pid}/cmdline")).ok();
    let program = |pid: u32| fs::read_link(format!("/proc/{pid}/exe")).ok();
    line(child).is_some_and(|own| !own.is_empty() && line(supervisor) == Some(own))
        && program(child) == program(supervisor)
}

/// Where the task of this pid belongs, as its environment says.
fn place_of_task(task: u32) -> Option<RunPlace> {
    let mut environment = fs::read(format!("/proc/{task}/environ")).ok()?;
    environment.truncate(ENVIRONMENT_BYTES_MAX);
    let lines = environment.split(|byte| *byte == 0);
    place_from_env(lines.filter_map(|line| std::str::from_utf8(line).ok()?.split_once('=')))
}

/// Where a task with this environment belongs. Where a name is there twice, the last value counts.
pub fn place_from_env<'a>(variables: impl Iterator<Item = (&'a str, &'a str)>) -> Option<RunPlace> {
    let values: BTreeMap<&str, &str> = variables.collect();
    let value = |name: &str| values.get(name).copied();
    let namespace = value("NOMAD_NAMESPACE").and_then(|name| Namespace::new(name).ok());
    let namespace = namespace.unwrap_or_default();
    Some(RunPlace {
        alloc: value("NOMAD_ALLOC_ID")?.parse().ok()?,
        task: value("NOMAD_TASK_NAME")?.parse().ok()?,
        job: JobId::in_namespace(&namespace, value("NOMAD_JOB_ID")?).ok()?,
        group: value("NOMAD_GROUP_NAME")?.parse().ok()?,
        index: value("NOMAD_ALLOC_INDEX")?.parse().ok()?,
    })
}

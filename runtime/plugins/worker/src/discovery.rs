//! Finds the workers that live, whatever their records on the disk say.
//!
//! ```text
//! /proc ─ processes whose first argument is `__worker` ─ have a directory below ours open ─► FoundWorker
//!            its socket: by the descriptor that the worker holds of it, also where its name is gone
//! ```
//! The record of a worker (`worker.json`) may be lost or wrong. The directory that a process
//! has open is known from the kernel, and nobody else decides it. A copy of the data directory
//! has no worker.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ostler_process::identity;
use ostler_process::open_files::{self, KnownDir, OpenFile};

use super::connect::SOCKET;
use super::record::WorkerRecord;
use super::{ARGUMENT, notes};
use ostler_model::ports::{ProcessIdentity, RunNote};

/// Name of the directory of all workers in a data directory.
pub(crate) const WORKERS: &str = "workers";
/// Longest command line that is read, bytes. The command line of a worker is its directory and a
/// few bytes more.
const LINE_BYTES_MAX: usize = 8 * 1024;

/// A worker that lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundWorker {
    /// Process id of the worker.
    pub pid: u32,
    /// Start time of the process, clock ticks since boot.
    pub start_ticks: u64,
    /// The directory of the worker, which has its socket, record and log.
    pub dir: PathBuf,
    /// Whether the directory was removed while the worker has it open.
    pub removed: bool,
    /// A path that reaches the socket by the descriptor that the worker holds. Absent: only its
    /// name reaches it.
    pub socket: Option<PathBuf>,
}

/// What is in a directory of workers, and which processes work for it.
pub(crate) struct WorkerSurvey {
    /// Workers that live.
    pub living: Vec<FoundWorker>,
    /// Directories whose worker does not live any more, with the ids of the runs that have notes there.
    pub left: Vec<(PathBuf, BTreeSet<String>)>,
    /// The notes of runs in all directories, by the ids of the runs.
    pub notes: BTreeMap<String, RunNote>,
    /// Workers (pid, start time) that live, have a record here and work for another data directory:
    /// this directory is a copy of that one.
    pub elsewhere: Vec<(u32, u64)>,
}

/// Find the workers of this directory. Reads `/proc`; blocks.
pub(crate) fn survey(workers: &Path) -> io::Result<WorkerSurvey> {
    let living = find_living(workers)?;
    let (mut left, mut elsewhere, mut notes) = (Vec::new(), Vec::new(), BTreeMap::new());
    for dir in list_dirs(workers)? {
        let here = notes::read_notes(&dir);
        let is_this = |found: &FoundWorker| found.dir.file_name() == dir.file_name();
        if !living.iter().any(|found| is_this(found) && !found.removed) {
            let record = WorkerRecord::read(&dir).ok().flatten();
            match record.filter(|record| is_elsewhere(workers, record)) {
                Some(record) => elsewhere.push((record.pid, record.start_ticks)),
                None => left.push((dir, here.keys().cloned().collect())),
            }
        }
        notes.extend(here);
    }
    Ok(WorkerSurvey { living, left, elsewhere, notes })
}

/// The directories below `dir`; none where `dir` does not exist.
fn list_dirs(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// All workers that live and have a directory below this one open.
fn find_living(workers: &Path) -> io::Result<Vec<FoundWorker>> {
    let ours = KnownDir::new(workers);
    let found = open_files::list_pids()?.into_iter().filter(|pid| is_worker(*pid));
    Ok(found.filter_map(|pid| own_worker(pid, &ours)).collect())
}

/// Is this the record of a worker that lives and works for another directory?
fn is_elsewhere(workers: &Path, record: &WorkerRecord) -> bool {
    let same = |now: ProcessIdentity| {
        (now.start_ticks, now.boot_id) == (record.start_ticks, record.boot_id.clone())
    };
    let lives = identity::read(record.pid).is_ok_and(same);
    lives && is_worker(record.pid) && own_worker(record.pid, &KnownDir::new(workers)).is_none()
}

/// The data directory that a worker works for, found by the worker's own directory, which it has
/// open. Reads `/proc`; blocks.
#[must_use]
pub fn data_dir_of(worker: u32) -> Option<PathBuf> {
    let open = open_files::list_open_files(worker).ok()?;
    let of_worker = |open: &OpenFile| {
        let workers = open.path.parent().filter(|dir| dir.ends_with(WORKERS))?;
        // The worker's own directory, not one that a task has open.
        let socket = open.path.join(SOCKET);
        socket.exists().then(|| workers.parent().map(Path::to_owned))?
    };
    open.iter().filter(|open| !open.removed).find_map(of_worker)
}

fn own_worker(pid: u32, ours: &KnownDir) -> Option<FoundWorker> {
    let start_ticks = identity::read(pid).ok()?.start_ticks;
    let open = open_files::list_open_files(pid).ok()?;
    let is_dir = |open: &&OpenFile| fs::metadata(&open.at).is_ok_and(|meta| meta.is_dir());
    let dir = open.iter().filter(|open| ours.contains(open)).find(is_dir)?;
    let socket = open.iter().find(|open| open.path == dir.path.join(SOCKET));
    Some(FoundWorker {
        pid,
        start_ticks,
        dir: dir.path.clone(),
        removed: dir.removed,
        socket: socket.map(|open| open.at.clone()),
    })
}

/// Is this process a worker of this user? A worker has [`ARGUMENT`] as its first argument.
fn is_worker(pid: u32) -> bool {
    let Ok(mut line) = fs::read(format!("/proc/{pid}/cmdline")) else { return false };
    line.truncate(LINE_BYTES_MAX);
    line.split(|byte| *byte == 0).nth(1) == Some(ARGUMENT.as_bytes()) && open_files::is_own(pid)
}

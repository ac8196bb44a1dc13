//! Workers that live, whatever is kept of them on the disk.
//!
//! ```text
//! /proc ─ processes whose first argument is `__worker` ─ have a directory below ours open ─► FoundWorker
//!            its socket: by the descriptor that the worker holds of it, also where its name is gone
//! ```
//! What is written about a worker (`worker.json`) may be lost or wrong. Which directory a process has open
//! nobody else decides, and a copy of the data directory has no worker.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ostler_process::identity;
use ostler_process::open_files::{self, KnownDir, OpenFile};

use super::ARGUMENT;
use super::connect::SOCKET;
use super::record::WorkerRecord;
use ostler_model::ports::ProcessIdentity;

/// Directory of the workers in a data directory.
pub(crate) const WORKERS: &str = "workers";
/// Longest command line that is looked at, bytes: that of a worker is its directory and a few.
const LINE_BYTES_MAX: usize = 8 * 1024;

/// A worker that lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundWorker {
    /// Its pid.
    pub pid: u32,
    /// Its start time.
    pub start_ticks: u64,
    /// Its directory.
    pub dir: PathBuf,
    /// The directory is there no more.
    pub removed: bool,
    /// What reaches its socket; absent: only the name does.
    pub socket: Option<PathBuf>,
}

/// What is in a directory of workers, and what works for it.
pub(crate) struct Survey {
    /// Workers that live.
    pub living: Vec<FoundWorker>,
    /// Directories of which no worker lives.
    pub left: Vec<PathBuf>,
    /// Workers (pid, start time) that live and of which a record is here, and that work for another data
    /// directory: this one is a copy.
    pub elsewhere: Vec<(u32, u64)>,
}

/// Look for them. Reads `/proc`; blocks.
pub(crate) fn survey(workers: &Path) -> io::Result<Survey> {
    let living = living(workers)?;
    let (mut left, mut elsewhere) = (Vec::new(), Vec::new());
    for dir in dirs_of(workers)? {
        if living.iter().any(|found| found.dir.file_name() == dir.file_name() && !found.removed) {
            continue;
        }
        match WorkerRecord::read(&dir).ok().flatten().filter(|record| is_elsewhere(workers, record))
        {
            Some(record) => elsewhere.push((record.pid, record.start_ticks)),
            None => left.push(dir),
        }
    }
    Ok(Survey { living, left, elsewhere })
}

/// Directories below one; none where it is not there.
fn dirs_of(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    entries.map(|entry| Ok(entry?.path())).collect()
}

/// All workers of this directory that live.
fn living(workers: &Path) -> io::Result<Vec<FoundWorker>> {
    let ours = KnownDir::new(workers);
    let found = open_files::processes()?.into_iter().filter(|pid| is_worker(*pid));
    Ok(found.filter_map(|pid| of_ours(pid, &ours)).collect())
}

/// Is the record of a worker that lives and works for another directory?
fn is_elsewhere(workers: &Path, record: &WorkerRecord) -> bool {
    let same = |now: ProcessIdentity| {
        (now.start_ticks, now.boot_id) == (record.start_ticks, record.boot_id.clone())
    };
    let lives = identity::read(record.pid).is_ok_and(same);
    lives && is_worker(record.pid) && of_ours(record.pid, &KnownDir::new(workers)).is_none()
}

/// The data directory that a worker works for, by the directory of its own that it has open. Reads `/proc`; blocks.
#[must_use]
pub fn data_dir_of(worker: u32) -> Option<PathBuf> {
    let open = open_files::of(worker).ok()?;
    let of_worker = |open: &OpenFile| {
        let workers = open.path.parent().filter(|dir| dir.ends_with(WORKERS))?;
        // Its own, not one that a task has open.
        let socket = open.path.join(SOCKET);
        socket.exists().then(|| workers.parent().map(Path::to_owned))?
    };
    open.iter().filter(|open| !open.removed).find_map(of_worker)
}

fn of_ours(pid: u32, ours: &KnownDir) -> Option<FoundWorker> {
    let start_ticks = identity::read(pid).ok()?.start_ticks;
    let open = open_files::of(pid).ok()?;
    let is_dir = |open: &&OpenFile| fs::metadata(&open.at).is_ok_and(|meta| meta.is_dir());
    let dir = open.iter().filter(|open| ours.has(open)).find(is_dir)?;
    let socket = open.iter().find(|open| open.path == dir.path.join(SOCKET));
    Some(FoundWorker {
        pid,
        start_ticks,
        dir: dir.path.clone(),
        removed: dir.removed,
        socket: socket.map(|open| open.at.clone()),
    })
}

/// Is the process one that this program became by its first argument, and of its user?
fn is_worker(pid: u32) -> bool {
    let Ok(mut line) = fs::read(format!("/proc/{pid}/cmdline")) else { return false };
    line.truncate(LINE_BYTES_MAX);
    line.split(|byte| *byte == 0).nth(1) == Some(ARGUMENT.as_bytes()) && open_files::is_own(pid)
}

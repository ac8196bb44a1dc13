//! Exit records: what a shim leaves for whichever agent comes.
//!
//! ```text
//! <data directory>/exits/<hash of the run>.<pid>-<start ticks>        complete
//!                        <hash of the run>.<pid>-<start ticks>.new    room kept while the task runs
//!                        <hash of the run>.<pid>-<start ticks>.run    what the run is of: `note`
//! /proc/<supervisor>/fd  a memory file named `ostler-exit`            kept while the disk refuses it
//! ```
//! Text (JSON) of one version number; a newer agent reads the older versions for ever, an older
//! agent says that it does not know a newer one. Fields may be added to a version, never changed.
//! The room is written when the task starts, so that a disk that fills up meanwhile does not cost
//! the exit code. Where there was no room, or the disk takes no writes, the shim stays with the
//! record until it can be written or an agent has read it. Nothing is synced: a crash of the
//! machine ends the task as well.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cap_std::fs::Dir;
use rustix::fs::{
    AtFlags, MemfdFlags, Mode, OFlags, fstat, memfd_create, open, openat, renameat, unlinkat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use ostler_model::clock::Timestamp;
use ostler_model::digest::Digest;
use ostler_model::ids::RunId;
use ostler_model::task::RawExit;

/// The version of the records that this program writes.
const VERSION: u32 = 1;
/// Bytes of room kept for a record, and most bytes that are read of one.
const RECORD_BYTES_MAX: usize = 4096;
/// Name of the memory file with a record that cannot be written to the disk. Never changes.
const KEPT_NAME: &str = "ostler-exit";
/// Most names looked at by one sweep.
const ENTRIES_MAX: usize = 100_000;

/// Why an exit record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ExitRecordError {
    /// The directory of the records, or a file in it, cannot be used.
    #[error("exit records in {path} cannot be used; look at the data directory", path = path.display())]
    Directory {
        /// Path of the directory of the records.
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The file is no record, or the record of another run.
    #[error("exit record {name} is not readable: {reason}")]
    Unreadable {
        /// Name of the record's file in the directory.
        name: String,
        /// What is wrong with the record, in words.
        reason: String,
    },
    /// A newer program wrote the record.
    #[error(
        "exit record {name} has version {version}; this program knows versions up to {VERSION}"
    )]
    Newer {
        /// Name of the record's file in the directory.
        name: String,
        /// Version that the record has.
        version: u32,
    },
}

/// How a supervised task ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    /// Version of the record's form.
    pub version: u32,
    /// Id of the run.
    pub run: String,
    /// The task was let go. `false`: not one instruction of the program has run.
    pub released: bool,
    /// Exit code of a task that ended by itself.
    pub exit_code: Option<i32>,
    /// Number of the signal that killed the task.
    pub signal: Option<u32>,
    /// Something in the task's cgroup was killed for memory.
    pub oom_killed: bool,
    /// When the task ended, in nanoseconds since the epoch.
    pub finished_at: u64,
    /// Bytes of the task's output that could not be written.
    pub dropped_bytes: u64,
    /// Descendants that had not died when the supervisor gave up.
    pub survivors: u32,
}

impl ExitRecord {
    /// A record in the present version of a task that has not run.
    pub(super) fn new(run: String) -> Self {
        Self {
            version: VERSION,
            run,
            released: false,
            exit_code: None,
            signal: None,
            oom_killed: false,
            finished_at: 0,
            dropped_bytes: 0,
            survivors: 0,
        }
    }

    /// Log output that was dropped and descendants that did not die.
    pub fn complain(&self) {
        let Self { run, dropped_bytes, survivors, .. } = self;
        if *dropped_bytes > 0 {
            tracing::warn!(
                run,
                dropped_bytes,
                "output of a task was dropped: its log could not be written"
            );
        }
        if *survivors > 0 {
            tracing::warn!(
                run,
                survivors,
                "descendants of a task did not die when they were killed"
            );
        }
    }

    /// The exit as the task runner takes it.
    pub fn into_exit(self) -> RawExit {
        RawExit {
            exit_code: self.exit_code,
            signal: self.signal,
            oom_killed: self.oom_killed,
            error: (!self.released)
                .then(|| "the process was ended before it was let go; it has not run".to_owned()),
            finished_at: Timestamp::from_nanos(self.finished_at),
        }
    }
}

/// File name of the record of a process.
pub fn name(run: &str, pid: u32, start_ticks: u64) -> String {
    format!("{}.{pid}-{start_ticks}", hash(run))
}

/// Whether a file of this name belongs to the process: its record, or a file beside that.
fn is_of_process(name: &str, pid: u32, start_ticks: u64) -> bool {
    let process = format!("{pid}-{start_ticks}");
    name.split('.').nth(1) == Some(&process)
}

fn hash(run: &str) -> String {
    let mut text = Digest::compute(run.as_bytes()).to_string();
    text.truncate(32);
    text
}

/// The directory of the records. Clones share it.
#[derive(Clone, Debug)]
pub struct ExitRecords {
    path: PathBuf,
    dir: Arc<OwnedFd>,
}

impl ExitRecords {
    /// Open the directory. An absent one is made, for this user alone.
    ///
    /// # Errors
    /// When the directory cannot be made or opened.
    pub fn open(path: &Path) -> Result<Self, ExitRecordError> {
        let failed = |source| ExitRecordError::Directory { path: path.to_owned(), source };
        match std::fs::DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed(error));
            }
            _ => {}
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = open(path, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
        Ok(Self { path: path.to_owned(), dir: Arc::new(dir) })
    }

    /// Path of the directory, as it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open directory, for calls relative to it.
    pub(super) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    /// The record of a process; `None` when there is none (yet).
    ///
    /// # Errors
    /// When there is a record that cannot be read.
    pub fn read(
        &self,
        run: &RunId,
        pid: u32,
        start_ticks: u64,
    ) -> Result<Option<ExitRecord>, ExitRecordError> {
        let name = name(run.as_str(), pid, start_ticks);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&*self.dir, &name, flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.directory_error(errno.into())),
        };
        let mut bytes = vec![0; RECORD_BYTES_MAX];
        let count = file.read_at(&mut bytes, 0).map_err(|error| self.directory_error(error))?;
        bytes.truncate(count);
        parse(&bytes, run.as_str(), name).map(Some)
    }

    /// Remove the record of a process, and the room kept for it.
    pub fn remove(&self, run: &RunId, pid: u32, start_ticks: u64) {
        let name = name(run.as_str(), pid, start_ticks);
        self.unlink(&name);
        self.unlink(&format!("{name}.new"));
        self.remove_note(&name);
    }

    /// Remove all files of a process, whatever run it belongs to.
    pub fn remove_process(&self, pid: u32, start_ticks: u64) {
        for name in self.names().unwrap_or_default() {
            if is_of_process(&name, pid, start_ticks) {
                self.unlink(&name);
            }
        }
    }

    /// Remove the files of runs that are not `known`, but for those of `live` processes (pid, start
    /// ticks). Returns how many were removed.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn sweep(&self, known: &[RunId], live: &[(u32, u64)]) -> Result<usize, ExitRecordError> {
        let known: HashSet<_> = known.iter().map(|run| hash(run.as_str())).collect();
        let mut removed = 0;
        for name in self.names()? {
            if let Some((run, _)) = name.split_once('.')
                && !known.contains(run)
                && !live.iter().any(|(pid, ticks)| is_of_process(&name, *pid, *ticks))
            {
                self.unlink(&name);
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Remove those records of these runs that say that a process was never let go, because nobody
    /// asks for them. Returns how many were removed.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn remove_unreleased(&self, runs: &[RunId]) -> Result<usize, ExitRecordError> {
        let mut removed = 0;
        for (run, pid, ticks, record) in self.read_for_runs(runs)? {
            if !record.released {
                self.remove(run, pid, ticks);
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// The records of these runs that can be read, each with the pid and the start time of its process.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn read_for_runs<'a>(
        &self,
        runs: &'a [RunId],
    ) -> Result<Vec<(&'a RunId, u32, u64, ExitRecord)>, ExitRecordError> {
        let known: HashMap<_, _> = runs.iter().map(|run| (hash(run.as_str()), run)).collect();
        let mut found = Vec::new();
        for name in self.names()? {
            let Some((of_run, process)) = name.split_once('.') else { continue };
            // A file that is not whole yet, or is no record, has a further ending.
            let (pid, ticks) = process.split_once('-').unwrap_or_default();
            let (Some(run), Ok(pid), Ok(ticks)) = (known.get(of_run), pid.parse(), ticks.parse())
            else {
                continue;
            };
            if let Ok(Some(record)) = self.read(run, pid, ticks) {
                found.push((*run, pid, ticks, record));
            }
        }
        Ok(found)
    }

    /// Whether the directory was removed. Then no record comes any more.
    pub fn is_removed(&self) -> bool {
        is_removed(&self.dir)
    }

    /// Names of all files in the directory.
    pub fn names(&self) -> Result<Vec<String>, ExitRecordError> {
        let dir = self.dir.try_clone().map_err(|error| self.directory_error(error))?;
        let entries = Dir::from_std_file(File::from(dir))
            .entries()
            .map_err(|error| self.directory_error(error))?;
        let mut names = Vec::new();
        for entry in entries.take(ENTRIES_MAX) {
            let name = entry.map_err(|error| self.directory_error(error))?.file_name();
            names.extend(name.into_string().ok());
        }
        Ok(names)
    }

    fn unlink(&self, name: &str) {
        if let Err(errno) = unlinkat(&*self.dir, name, AtFlags::empty())
            && errno != Errno::NOENT
        {
            tracing::debug!(name, %errno, "an exit record cannot be removed");
        }
    }

    fn directory_error(&self, source: io::Error) -> ExitRecordError {
        ExitRecordError::Directory { path: self.path.clone(), source }
    }
}

fn is_removed(dir: &OwnedFd) -> bool {
    fstat(dir).is_ok_and(|stat| stat.st_nlink == 0)
}

/// The record that a supervisor keeps in memory because it cannot write it to the disk. `None` when
/// it keeps none of this run. The caller knows that the pid is the supervisor's.
pub fn read_from_supervisor(supervisor: u32, run: &str) -> Option<ExitRecord> {
    let path = super::find_memory_file(supervisor, KEPT_NAME)?;
    let mut bytes = vec![0; RECORD_BYTES_MAX];
    let count = File::open(path).ok()?.read_at(&mut bytes, 0).ok()?;
    bytes.truncate(count);
    parse(&bytes, run, KEPT_NAME.to_owned()).ok()
}

/// A memory file with a record. An agent finds it in `/proc` as long as it is open.
pub(super) fn to_memory_file(record: &ExitRecord) -> io::Result<File> {
    let text = serde_json::to_vec(record).map_err(io::Error::other)?;
    let file = File::from(memfd_create(KEPT_NAME, MemfdFlags::CLOEXEC)?);
    file.write_all_at(&text, 0)?;
    Ok(file)
}

fn parse(bytes: &[u8], run: &str, name: String) -> Result<ExitRecord, ExitRecordError> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let unreadable =
        |reason: String, name: &str| ExitRecordError::Unreadable { name: name.to_owned(), reason };
    let version = serde_json::from_slice::<Versioned>(bytes)
        .map_err(|error| unreadable(error.to_string(), &name))?
        .version;
    if version > VERSION {
        return Err(ExitRecordError::Newer { name, version });
    }
    let record: ExitRecord =
        serde_json::from_slice(bytes).map_err(|error| unreadable(error.to_string(), &name))?;
    if record.run != run {
        return Err(unreadable("it is of another run".to_owned(), &name));
    }
    Ok(record)
}

/// The shim's side: room for the record of its task, filled at the end.
#[derive(Debug)]
pub(super) struct Room {
    dir: OwnedFd,
    name: String,
    file: Option<File>,
}

impl Room {
    /// Write the room for a record. Where that fails, [`Room::fill`] tries again.
    pub(super) fn keep(dir: OwnedFd, name: String) -> Self {
        let mut room = Self { dir, name, file: None };
        room.file = room.make().ok();
        room
    }

    fn new_name(&self) -> String {
        format!("{}.new", self.name)
    }

    fn make(&self) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        // A file of this name can only be left by a process of an earlier boot.
        let _absent = unlinkat(&self.dir, self.new_name(), AtFlags::empty());
        let file = File::from(openat(&self.dir, self.new_name(), flags, mode)?);
        file.write_all_at(&[b' '; RECORD_BYTES_MAX], 0)?;
        Ok(file)
    }

    /// Put the record where an agent finds it.
    pub(super) fn fill(&mut self, record: &ExitRecord) -> io::Result<()> {
        let text = serde_json::to_vec(record).map_err(io::Error::other)?;
        let place = |room: &Self, file: &File| -> io::Result<()> {
            file.write_all_at(&text, 0)?;
            file.set_len(text.len() as u64)?;
            Ok(renameat(&room.dir, room.new_name(), &room.dir, &room.name)?)
        };
        if let Some(file) = self.file.take()
            && place(self, &file).is_ok()
        {
            return Ok(());
        }
        let file = self.make()?;
        place(self, &file)
    }

    /// Whether the directory was removed. Then no agent looks there any more.
    pub(super) fn is_removed(&self) -> bool {
        is_removed(&self.dir)
    }

    /// Remove the room, so that no file is left.
    pub(super) fn give_up(&mut self) {
        self.file = None;
        let _absent = unlinkat(&self.dir, self.new_name(), AtFlags::empty());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
mod tests {
    use super::*;
    use ostler_model::ids::{AllocId, TaskName};

    fn run(number: u32) -> RunId {
        RunId::new(AllocId::new(uuid::Uuid::from_u128(7)), &TaskName::new("t").unwrap(), number)
    }

    fn records(dir: &Path) -> ExitRecords {
        ExitRecords::open(&dir.join("exits")).unwrap()
    }

    fn ended(run: &RunId, code: i32) -> ExitRecord {
        ExitRecord {
            released: true,
            exit_code: Some(code),
            finished_at: 42,
            ..ExitRecord::new(run.to_string())
        }
    }

    fn put(records: &ExitRecords, run: &RunId, pid: u32, record: &ExitRecord) {
        let dir = records.dir().try_clone_to_owned().unwrap();
        Room::keep(dir, name(run.as_str(), pid, 9)).fill(record).unwrap();
    }

    #[test]
    fn a_record_is_found_under_its_process_only_and_gone_when_removed() {
        let dir = tempfile::tempdir().unwrap();
        let records = records(dir.path());
        put(&records, &run(1), 5, &ended(&run(1), 7));
        let found = records.read(&run(1), 5, 9).unwrap().unwrap();
        assert_eq!(found.into_exit().exit_code, Some(7));
        assert_eq!(records.read(&run(1), 6, 9).unwrap(), None);
        assert_eq!(records.read(&run(2), 5, 9).unwrap(), None);
        records.remove(&run(1), 5, 9);
        assert_eq!(records.read(&run(1), 5, 9).unwrap(), None);
        assert_eq!(std::fs::read_dir(dir.path().join("exits")).unwrap().count(), 0);
    }

    #[test]
    fn the_text_of_version_one_is_read_for_ever() {
        let text = br#"{"version":1,"run":"r","released":true,"exit_code":null,"signal":9,
            "oom_killed":true,"finished_at":17,"dropped_bytes":3,"survivors":0,"later":"ignored"}"#;
        let exit = parse(text, "r", "n".to_owned()).unwrap().into_exit();
        assert_eq!((exit.exit_code, exit.signal, exit.oom_killed), (None, Some(9), true));
        assert_eq!((exit.error, exit.finished_at), (None, Timestamp::from_nanos(17)));
    }

    #[test]
    fn what_is_no_record_of_the_run_is_refused_with_a_reason() {
        let parse = |text: &str| parse(text.as_bytes(), "r", "n".to_owned()).unwrap_err();
        assert!(matches!(parse("    "), ExitRecordError::Unreadable { .. }));
        assert!(matches!(parse(r#"{"version":2}"#), ExitRecordError::Newer { version: 2, .. }));
        let other = serde_json::to_string(&ExitRecord::new("another".to_owned())).unwrap();
        assert!(parse(&other).to_string().contains("another run"));
    }

    #[test]
    fn a_sweep_removes_what_belongs_to_no_known_run_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let records = records(dir.path());
        for number in 0..4 {
            put(&records, &run(number), 5, &ended(&run(number), 0));
        }
        drop(Room::keep(records.dir().try_clone_to_owned().unwrap(), name("gone", 1, 1)));
        assert_eq!(records.sweep(&[run(1), run(3), run(9)], &[(1, 2)]).unwrap(), 3);
        let left = [0, 1, 2, 3].map(|number| records.read(&run(number), 5, 9).unwrap().is_some());
        assert_eq!(left, [false, true, false, true]);
        assert_eq!(records.sweep(&[run(1), run(3)], &[]).unwrap(), 0);
    }

    #[test]
    fn what_was_never_let_go_leaves_no_record_and_what_ran_keeps_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let records = records(dir.path());
        let held = |number| ExitRecord { released: false, ..ended(&run(number), 0) };
        put(&records, &run(1), 5, &held(1));
        put(&records, &run(2), 5, &held(2));
        put(&records, &run(3), 5, &ended(&run(3), 0));
        drop(Room::keep(records.dir().try_clone_to_owned().unwrap(), name(run(1).as_str(), 6, 9)));
        assert_eq!(records.remove_unreleased(&[run(1), run(3)]).unwrap(), 1);
        let left = [1, 2, 3].map(|number| records.read(&run(number), 5, 9).unwrap().is_some());
        assert_eq!(left, [false, true, true]);
        assert_eq!(records.names().unwrap().len(), 3, "and the room of one that lives");
    }

    #[test]
    fn a_sweep_leaves_what_belongs_to_a_process_that_lives() {
        let dir = tempfile::tempdir().unwrap();
        let records = records(dir.path());
        drop(Room::keep(records.dir().try_clone_to_owned().unwrap(), name("a", 7, 9)));
        drop(Room::keep(records.dir().try_clone_to_owned().unwrap(), name("b", 7, 8)));
        assert_eq!(records.sweep(&[], &[(7, 9)]).unwrap(), 1);
        assert_eq!(records.names().unwrap(), [format!("{}.new", name("a", 7, 9))]);
        records.remove_process(7, 9);
        assert!(records.names().unwrap().is_empty());
    }

    #[test]
    fn a_record_is_placed_also_when_its_room_was_taken_away() {
        let dir = tempfile::tempdir().unwrap();
        let records = records(dir.path());
        let name = name(run(1).as_str(), 5, 9);
        let mut room = Room::keep(records.dir().try_clone_to_owned().unwrap(), name.clone());
        std::fs::remove_file(dir.path().join(format!("exits/{name}.new"))).unwrap();
        room.fill(&ended(&run(1), 3)).unwrap();
        assert_eq!(records.read(&run(1), 5, 9).unwrap().unwrap().exit_code, Some(3));
    }
}

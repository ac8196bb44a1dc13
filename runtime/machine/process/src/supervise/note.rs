//! Notes of runs: what an agent needs to own or to name a run that its state file does not know.
//!
//! ```text
//! <data directory>/exits/<hash of the run>.<pid>-<start ticks>.run    while the run is not forgotten
//! ```
//! Written by the agent before the task is let go, beside the exit record of the same process. Text
//! (JSON) of one version number, as the record. Not synced: a crash of the machine ends the run too.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};
use serde::{Deserialize, Serialize};

use super::record::{ExitRecords, name};
use ostler_model::limits::RUN_NOTE_BYTES_MAX;
use ostler_model::ports::{ProcessIdentity, RunNote};

/// The version of the notes that this program writes.
const VERSION: u32 = 1;
/// How the name of a note's file ends.
const SUFFIX: &str = ".run";

/// A note as it stands in its file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Note {
    /// Version of the note's form.
    version: u32,
    /// Id of the run.
    pub run: String,
    /// The run's process; pid 0 where the run has none.
    pub identity: ProcessIdentity,
    /// The allocation, task and job that the run belongs to, and what the state file has of it.
    pub about: RunNote,
}

/// Name of a note's file while it is written.
fn unfinished_name(name: &str) -> String {
    format!("{name}.new")
}

impl Note {
    /// The note of a process of a run, in the present version.
    pub fn new(run: String, identity: ProcessIdentity, about: RunNote) -> Self {
        Self { version: VERSION, run, identity, about }
    }

    /// Name of the note's file in the directory of records.
    fn file_name(&self) -> String {
        format!("{}{SUFFIX}", name(&self.run, self.identity.pid, self.identity.start_ticks))
    }
}

impl ExitRecords {
    /// Write a note to its file. Returns `false` when the record of the run is left out, because it
    /// is too long.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn put_note(&self, note: &Note) -> io::Result<bool> {
        let mut text = serde_json::to_vec(note).map_err(io::Error::other)?;
        let whole = text.len() <= RUN_NOTE_BYTES_MAX;
        if !whole {
            // Without it the run is still named, and not owned again.
            let about = RunNote { record: serde_json::Value::Null, ..note.about.clone() };
            text = serde_json::to_vec(&Note { about, ..note.clone() }).map_err(io::Error::other)?;
        }
        let (name, unfinished) = (note.file_name(), unfinished_name(&note.file_name()));
        let written = self.write_note(&text, &unfinished, &name);
        if written.is_err() {
            let _absent = unlinkat(self.dir(), &unfinished, AtFlags::empty());
        }
        written.map(|()| whole)
    }

    fn write_note(&self, text: &[u8], unfinished: &str, name: &str) -> io::Result<()> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(self.dir(), unfinished, flags, Mode::from_raw_mode(0o600))?;
        File::from(file).write_all_at(text, 0)?;
        Ok(renameat(self.dir(), unfinished, self.dir(), name)?)
    }

    /// Whether there is a note of this process.
    pub fn has_note(&self, run: &str, identity: &ProcessIdentity) -> bool {
        let name = format!("{}{SUFFIX}", name(run, identity.pid, identity.start_ticks));
        rustix::fs::statat(self.dir(), name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Remove the note of a process, also one that is not whole because its agent was killed.
    pub(super) fn remove_note(&self, name_of_record: &str) {
        let note = format!("{name_of_record}{SUFFIX}");
        for name in [unfinished_name(&note), note] {
            let _absent = unlinkat(self.dir(), name, AtFlags::empty());
        }
    }

    /// Every note that can be read, of runs that live and of others.
    pub fn notes(&self) -> Vec<Note> {
        let names = self.names().unwrap_or_default();
        let notes = names.iter().filter(|name| name.ends_with(SUFFIX));
        notes.filter_map(|name| self.read_note(name)).collect()
    }

    fn read_note(&self, name: &str) -> Option<Note> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(self.dir(), name, flags, Mode::empty()).ok()?);
        let mut text = vec![0; RUN_NOTE_BYTES_MAX];
        let count = file.read_at(&mut text, 0).ok()?;
        let note = serde_json::from_slice::<Note>(text.get(..count)?);
        match note {
            // A newer program may mean something else by the same fields.
            Ok(note) if note.version <= VERSION && note.file_name() == name => Some(note),
            Ok(_) => None,
            Err(error) => {
                tracing::warn!(name, %error, "the note of a run is not readable");
                None
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use ostler_model::ids::{AllocId, GroupName, JobId, RunId, TaskName};

    fn note() -> (RunId, Note) {
        let (alloc, task) = (AllocId::new(uuid::Uuid::from_u128(7)), TaskName::new("t").unwrap());
        let run = RunId::new(alloc, &task, 1);
        let identity = ProcessIdentity {
            pid: 5,
            start_ticks: 9,
            boot_id: "b".to_owned(),
            cgroup: None,
            supervisor: None,
        };
        let about = RunNote {
            alloc,
            task,
            job: JobId::new("j").unwrap(),
            group: GroupName::new("g").unwrap(),
            index: 0,
            record: serde_json::Value::Null,
        };
        let note = Note::new(run.to_string(), identity, about);
        (run, note)
    }

    #[test]
    fn a_note_that_an_agent_was_killed_while_writing_goes_with_its_run() {
        let dir = tempfile::tempdir().unwrap();
        let records = ExitRecords::open(&dir.path().join("exits")).unwrap();
        let (run, note) = note();
        records.put_note(&note).unwrap();
        assert_eq!(records.notes(), std::slice::from_ref(&note));
        let half = dir.path().join("exits").join(unfinished_name(&note.file_name()));
        std::fs::write(half, "{").unwrap();
        records.remove(&run, 5, 9);
        assert!(records.names().unwrap().is_empty());
    }

    #[test]
    fn a_note_of_a_run_without_a_process_is_read_again_and_goes_with_its_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("exits");
        let records = ExitRecords::open(&path).unwrap();
        let (run, note) = note();
        let identity = ProcessIdentity { pid: 0, start_ticks: 0, ..note.identity };
        let note = Note::new(run.to_string(), identity, note.about);
        assert!(records.put_note(&note).unwrap(), "it is whole");
        let noted = crate::live::read_notes(&path).unwrap();
        assert_eq!(noted.get(run.as_str()), Some(&note.about));
        let live = crate::live::find_live_runs(&path).unwrap();
        assert!(live.is_empty(), "no supervisor watches over it: {live:?}");
        records.remove(&run, 0, 0);
        assert!(records.names().unwrap().is_empty());
    }

    #[test]
    fn a_note_whose_record_is_too_long_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let records = ExitRecords::open(&dir.path().join("exits")).unwrap();
        let (_, note) = note();
        let record = serde_json::Value::String("r".repeat(RUN_NOTE_BYTES_MAX));
        let note = Note { about: RunNote { record, ..note.about }, ..note };
        assert!(!records.put_note(&note).unwrap());
        let kept = records.notes();
        assert!(kept.iter().all(|kept| kept.about.record.is_null()) && kept.len() == 1);
    }

    #[test]
    fn a_note_that_cannot_be_written_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let records = ExitRecords::open(&dir.path().join("exits")).unwrap();
        let (_, note) = note();
        // Something that cannot be replaced by a file.
        std::fs::create_dir(dir.path().join("exits").join(note.file_name())).unwrap();
        records.put_note(&note).unwrap_err();
        assert_eq!(records.names().unwrap(), [note.file_name()]);
    }
}

//! The notes of the runs in a worker: what an agent needs to own or to name a run that its state
//! file does not know.
//!
//! ```text
//! release, with a note ─► worker: a line is appended ─► the task runs
//!                              │ the file is long: the lines of runs that are not forgotten go to the other file,
//!                              └─ then this one is emptied
//! next agent ─► reads both files of every worker, also of one that is gone
//! ```
//! A line is one object of JSON. Nothing is synced: a crash of the machine ends the runs too. A line
//! that is not whole belongs to a task that never ran.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use serde::Deserialize;

use ostler_model::limits::{RUN_NOTE_BYTES_MAX, WORKER_NOTES_BYTES, WORKER_NOTES_BYTES_MAX};
use ostler_model::ports::RunNote;

/// Names of the two files in the directory of a worker.
const NAMES: [&str; 2] = ["notes.0", "notes.1"];
/// Longest line, bytes: that is a note, and less than as much again for the id of its run.
const LINE_BYTES_MAX: u64 = 2 * RUN_NOTE_BYTES_MAX as u64;

/// One line.
#[derive(Deserialize)]
struct NoteLine<'a, T> {
    /// Id of the run.
    #[serde(borrow)]
    run: Cow<'a, str>,
    /// What the run belongs to, and what the state file has of it.
    note: T,
}

/// The text of a note. `None`: it is too long to be kept.
pub(crate) fn note_text(note: &RunNote) -> Option<String> {
    let text = serde_json::to_string(note).ok()?;
    (text.len() <= RUN_NOTE_BYTES_MAX).then_some(text)
}

/// The files that a worker appends notes to.
pub(crate) struct NoteFiles {
    files: [File; 2],
    /// Index of the file that is appended to.
    now: usize,
    /// Length of that file, bytes.
    length: u64,
    /// Length at which the file is gone through.
    limit: u64,
}

impl NoteFiles {
    /// Make the files in the directory of a new worker.
    pub fn create(dir: &Path) -> io::Result<Self> {
        let [first, second] = NAMES.map(|name| {
            let mut options = File::options();
            options.create(true).read(true).append(true).mode(0o600).open(dir.join(name))
        });
        let files = [first?, second?];
        Ok(Self { files, now: 0, length: 0, limit: WORKER_NOTES_BYTES })
    }

    /// Append the note of a run. `lives` says which runs are not forgotten.
    pub fn add(&mut self, run: &str, note: &str, lives: impl Fn(&str) -> bool) -> io::Result<()> {
        if self.length >= self.limit {
            self.go_through(lives)?;
        }
        if note.contains('\n') {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a note of more than one line"));
        }
        let run = serde_json::to_string(run)?;
        self.append(format!("{{\"run\":{run},\"note\":{note}}}\n").as_bytes())
    }

    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        let Some(file) = self.files.get_mut(self.now) else { return Ok(()) };
        let written = file.write_all(line);
        if written.is_err() {
            // A line that is not whole must not take the next one along.
            let _shorter = file.set_len(self.length);
        }
        written?;
        self.length = self.length.saturating_add(line.len() as u64);
        Ok(())
    }

    /// Move the lines of runs that are not forgotten to the other file, and empty this one.
    fn go_through(&mut self, lives: impl Fn(&str) -> bool) -> io::Result<()> {
        let before = match self.files.get(self.now) {
            Some(file) => file.try_clone()?,
            None => return Ok(()),
        };
        let length = std::mem::take(&mut self.length);
        self.now = 1 - self.now;
        if let Err(error) = self.move_lines(&before, lives) {
            // The next agent reads both files, so it is no harm if some lines are in both.
            self.now = 1 - self.now;
            self.length = length;
            return Err(error);
        }
        // Many runs that go on must not make every note go through all of them.
        self.limit = self.length.saturating_mul(2).max(WORKER_NOTES_BYTES);
        Ok(())
    }

    /// Make the present file hold the lines of `before` whose runs are not forgotten, and empty that one.
    fn move_lines(&mut self, before: &File, lives: impl Fn(&str) -> bool) -> io::Result<()> {
        if let Some(next) = self.files.get(self.now) {
            next.set_len(0)?;
        }
        each_line(before, |line| match line_run(line) {
            Some(run) if lives(&run) => self.append(line),
            _ => Ok(()),
        })?;
        before.set_len(0)
    }
}

fn line_run(line: &[u8]) -> Option<Cow<'_, str>> {
    let line: NoteLine<'_, serde::de::IgnoredAny> = serde_json::from_slice(line).ok()?;
    Some(line.run)
}

/// Show every whole line of a file, with its end, one after the other. A line that is too long is no
/// note.
fn each_line(mut file: &File, mut see: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    file.rewind()?;
    let mut reader = BufReader::new(file.take(WORKER_NOTES_BYTES_MAX));
    let mut line = Vec::new();
    loop {
        line.clear();
        let count = reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        if line.last() == Some(&b'\n') {
            see(&line)?;
        } else if (count as u64) < LINE_BYTES_MAX {
            return Ok(());
        } else {
            reader.skip_until(b'\n')?;
        }
    }
}

/// The notes that a worker left in its directory, by the ids of the runs. What cannot be read is
/// left out: a guest that broke out of its engine may have written it.
pub(crate) fn read_notes(dir: &Path) -> BTreeMap<String, RunNote> {
    let files = NAMES.iter().filter_map(|name| {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        rustix::fs::open(dir.join(name), flags, Mode::empty()).ok().map(File::from)
    });
    let mut notes = BTreeMap::new();
    for file in files {
        // What was read before an error counts.
        let _unreadable = each_line(&file, |line| {
            if let Ok(NoteLine { run, note }) =
                serde_json::from_slice::<NoteLine<'_, RunNote>>(line)
            {
                notes.insert(run.into_owned(), note);
            }
            Ok(())
        });
    }
    notes
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use ostler_model::ids::{AllocId, GroupName, JobId, TaskName};
    use ostler_model::rng::Rng;

    fn note(number: u32) -> RunNote {
        RunNote {
            alloc: AllocId::new(Rng::from_seed(1).uuid()),
            task: TaskName::new("web").unwrap(),
            job: JobId::new("site").unwrap(),
            group: GroupName::new("web").unwrap(),
            index: number,
            record: serde_json::json!({ "text": "\n\"" }),
        }
    }

    fn add(files: &mut NoteFiles, number: u32, lives: impl Fn(&str) -> bool) {
        files.add(&format!("run-{number}"), &note_text(&note(number)).unwrap(), lives).unwrap();
    }

    #[test]
    fn every_note_that_was_added_is_read_again_and_one_that_is_not_whole_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = NoteFiles::create(dir.path()).unwrap();
        for number in 0..3 {
            add(&mut files, number, |_| true);
        }
        let mut cut = File::options().append(true).open(dir.path().join("notes.0")).unwrap();
        cut.write_all(b"{\"run\":\"cut\",\"no").unwrap();
        let read = read_notes(dir.path());
        assert_eq!(read.len(), 3);
        assert_eq!(read.get("run-2"), Some(&note(2)));
    }

    #[test]
    fn what_is_forgotten_leaves_the_files_and_what_lives_stays() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = NoteFiles::create(dir.path()).unwrap();
        let length = || {
            NAMES.iter().map(|name| dir.path().join(name).metadata().unwrap().len()).sum::<u64>()
        };
        for number in 0..50_000 {
            add(&mut files, number, |run| run == "run-7");
        }
        assert!(length() < 2 * WORKER_NOTES_BYTES, "{}", length());
        assert_eq!(read_notes(dir.path()).get("run-7"), Some(&note(7)));
        assert!(read_notes(dir.path()).contains_key("run-49999"));
    }

    #[test]
    fn a_line_that_is_too_long_is_left_out_and_the_next_one_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = NoteFiles::create(dir.path()).unwrap();
        add(&mut files, 0, |_| true);
        let long = "x".repeat(usize::try_from(LINE_BYTES_MAX).unwrap());
        let long = RunNote { record: serde_json::json!(long), ..note(2) };
        files.add("long", &serde_json::to_string(&long).unwrap(), |_| true).unwrap();
        files.add("a \"quoted\" run", &note_text(&note(1)).unwrap(), |_| true).unwrap();
        let read = read_notes(dir.path());
        assert_eq!(read.keys().collect::<Vec<_>>(), ["a \"quoted\" run", "run-0"]);
    }

    #[test]
    fn files_that_are_no_notes_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read_notes(dir.path()).is_empty());
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("notes.0")).unwrap();
        std::fs::write(dir.path().join("notes.1"), "no\n{}\n[1]\n").unwrap();
        assert!(read_notes(dir.path()).is_empty());
    }
}

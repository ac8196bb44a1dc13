//! Notes of runs: what an agent whose state file does not know a run needs to own it or to name it.
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

use super::record::{Records, name};
use crate::driver::api::{ProcessIdentity, RunNote};
use crate::limits::RUN_NOTE_BYTES_MAX;

/// The version written.
const VERSION: u32 = 1;
/// How its file ends.
const SUFFIX: &str = ".run";

/// A note as it stands in its file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Note {
    /// See the module.
    version: u32,
    /// The run.
    pub run: String,
    /// Its process.
    pub identity: ProcessIdentity,
    /// What it is of.
    pub about: RunNote,
}

impl Note {
    /// Of a process of a run.
    pub fn new(run: String, identity: ProcessIdentity, about: RunNote) -> Self {
        Self { version: VERSION, run, identity, about }
    }

    /// Name of its file.
    fn file(&self) -> String {
        format!("{}{SUFFIX}", name(&self.run, self.identity.pid, self.identity.start_ticks))
    }
}

impl Records {
    /// Keep a note.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn put_note(&self, note: &Note) -> io::Result<()> {
        let mut text = serde_json::to_vec(note).map_err(io::Error::other)?;
        if text.len() > RUN_NOTE_BYTES_MAX {
            // Without it the run is still named, and not owned again.
            let about = RunNote { record: serde_json::Value::Null, ..note.about.clone() };
            text = serde_json::to_vec(&Note { about, ..note.clone() }).map_err(io::Error::other)?;
        }
        let (name, unfinished) = (note.file(), format!("{}.new", note.file()));
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(self.dir(), &unfinished, flags, Mode::from_raw_mode(0o600))?;
        File::from(file).write_all_at(&text, 0)?;
        Ok(renameat(self.dir(), &unfinished, self.dir(), &name)?)
    }

    /// Is there a note of this process?
    pub fn has_note(&self, run: &str, identity: &ProcessIdentity) -> bool {
        let name = format!("{}{SUFFIX}", name(run, identity.pid, identity.start_ticks));
        rustix::fs::statat(self.dir(), name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Remove the note of a process.
    pub(super) fn remove_note(&self, name_of_record: &str) {
        let _absent = unlinkat(self.dir(), format!("{name_of_record}{SUFFIX}"), AtFlags::empty());
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
            // One of a newer program may mean something else by the same fields.
            Ok(note) if note.version <= VERSION && note.file() == name => Some(note),
            Ok(_) => None,
            Err(error) => {
                tracing::warn!(name, %error, "the note of a run is not readable");
                None
            }
        }
    }
}

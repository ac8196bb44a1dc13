//! Compares the age of a state file with what its directory knows.
//!
//! ```text
//! commit ─► the file: number of the commit, in a table of its own ─► durable
//!                                                                     └─► <file>.commits: the same number
//! open: file's number < directory's number ─► the file is older than what was acknowledged
//!       no file, and a number              ─► the file that was here is gone
//! ```
//! A file that went back in time looks in order. This happens when an older copy is put back, when
//! the newest commit cannot be read and the engine falls back to the one before, or when a disk
//! lost what it had acknowledged. Only something beside the file can tell. The number beside it is
//! written after the commit and not synced: a crash of the machine leaves an older number there,
//! never a newer one, so a good file is never reported as old.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::files::with_suffix;
use crate::own_file;

/// The suffix after the name of the state file.
const SUFFIX: &str = ".commits";
/// The size of the number file: digits and a line end. It is written as a whole, within one sector.
const BYTES: usize = 21;

/// How a state file compares with what its directory knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "age")]
pub enum Age {
    /// The file is as new as expected, or its directory knows nothing of it.
    #[default]
    Newest,
    /// Acknowledged changes are missing from the file.
    Older {
        /// The number of commits that the file lacks.
        commits: u64,
    },
    /// The file was made just now, in the place of another one.
    Gone {
        /// The number of commits of the file that is gone.
        commits: u64,
    },
}

impl Age {
    /// Compare the number in a file with the one beside it. `there` says whether the file was
    /// there before.
    #[must_use]
    pub fn compare(there: bool, file: Option<u64>, beside: Option<u64>) -> Self {
        let Some(beside) = beside.filter(|beside| *beside > 0) else { return Self::Newest };
        match beside.checked_sub(file.unwrap_or_default()) {
            _ if !there => Self::Gone { commits: beside },
            Some(commits @ 1..) => Self::Older { commits },
            _ => Self::Newest,
        }
    }

    /// Whether an acknowledged change is missing from the file.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        *self != Self::Newest
    }
}

/// The file beside a state file that holds the number of commits.
#[derive(Debug)]
pub struct Witness {
    path: PathBuf,
    file: Option<File>,
}

impl Witness {
    /// The number file of this state file. Nothing is created yet.
    #[must_use]
    pub fn for_state_file(state_file: &Path) -> Self {
        Self { path: with_suffix(state_file, SUFFIX), file: None }
    }

    /// The number of commits; `None` if there is no readable one.
    #[must_use]
    pub fn read(&self) -> Option<u64> {
        let file = own_file::read(&self.path).ok()?;
        let mut bytes = [0; BYTES];
        file.read_exact_at(&mut bytes, 0).ok()?;
        std::str::from_utf8(&bytes).ok()?.trim_end().parse().ok()
    }

    /// Record that this many commits are durable. A write that fails here matters only if something
    /// is wrong with the state file as well.
    pub fn note_commits(&mut self, commits: u64) {
        if let Err(error) = self.write(commits) {
            self.file = None;
            tracing::debug!(path = %self.path.display(), %error, "number of commits not noted");
        }
    }

    fn write(&mut self, commits: u64) -> io::Result<()> {
        let file = match &self.file {
            Some(file) => file,
            None => {
                let mut options = OpenOptions::new();
                options.write(true).create(true).truncate(false).mode(0o600);
                self.file.insert(own_file::open(&mut options, &self.path)?)
            }
        };
        file.write_all_at(format!("{commits:020}\n").as_bytes(), 0)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_older_only_where_more_commits_were_acknowledged_than_it_has() {
        let of = |file, beside| Age::compare(true, file, beside);
        assert_eq!(of(Some(7), Some(7)), Age::Newest);
        assert_eq!(of(Some(8), Some(7)), Age::Newest, "a crash before the number beside it");
        assert_eq!(of(Some(7), None), Age::Newest);
        assert_eq!(of(None, None), Age::Newest);
        assert_eq!(of(Some(6), Some(7)), Age::Older { commits: 1 });
        assert_eq!(of(None, Some(7)), Age::Older { commits: 7 });
        assert_eq!(Age::compare(false, None, Some(7)), Age::Gone { commits: 7 });
        assert_eq!(Age::compare(false, None, None), Age::Newest);
    }

    #[test]
    fn a_number_is_read_as_it_was_noted_and_one_that_is_torn_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.redb");
        let mut witness = Witness::for_state_file(&path);
        assert_eq!(witness.read(), None);
        for commits in [1, 12_345, 9, u64::MAX] {
            witness.note_commits(commits);
            assert_eq!(Witness::for_state_file(&path).read(), Some(commits));
        }
        for torn in
            ["", "123", "0000000000000000000x\n", "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"]
        {
            std::fs::write(dir.path().join("state.redb.commits"), torn).unwrap();
            assert_eq!(Witness::for_state_file(&path).read(), None, "{torn:?}");
        }
    }
}

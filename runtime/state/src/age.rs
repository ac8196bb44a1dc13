//! Is a state file as new as what its directory knows of it?
//!
//! ```text
//! commit ─► the file: number of the commit, in a table of its own ─► durable
//!                                                                     └─► <file>.commits: the same number
//! open: file's number < directory's number ─► the file is older than what was acknowledged
//!       no file, and a number              ─► the file that was here is gone
//! ```
//! A file that went back in time looks in order: an older copy put back, a newest commit that cannot
//! be read and from which the engine falls back to the one before, a disk that lost what it had
//! acknowledged. Only something beside it can tell. The number beside it is written after the commit
//! and not synced: a crash of the machine leaves an older number there, never a newer one, so it never
//! accuses a good file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::files::with_suffix;
use crate::own_file;

/// What is put after the name of the state file.
const SUFFIX: &str = ".commits";
/// Digits and a line end: written as a whole, within one sector.
const BYTES: usize = 21;

/// How a state file compares with what its directory knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "age")]
pub enum Age {
    /// As new, or its directory knows nothing of it.
    #[default]
    Newest,
    /// Changes that were acknowledged are not in it.
    Older {
        /// Commits it lacks.
        commits: u64,
    },
    /// It was made just now, where another one had been.
    Gone {
        /// Commits of the one that is gone.
        commits: u64,
    },
}

impl Age {
    /// Compare the number in a file with the one beside it. `there`: the file was there.
    #[must_use]
    pub fn of(there: bool, file: Option<u64>, beside: Option<u64>) -> Self {
        let Some(beside) = beside.filter(|beside| *beside > 0) else { return Self::Newest };
        match beside.checked_sub(file.unwrap_or_default()) {
            _ if !there => Self::Gone { commits: beside },
            Some(commits @ 1..) => Self::Older { commits },
            _ => Self::Newest,
        }
    }

    /// Something that was acknowledged is not in the file.
    #[must_use]
    pub fn lacks(&self) -> bool {
        *self != Self::Newest
    }
}

/// The number beside a state file.
#[derive(Debug)]
pub struct Witness {
    path: PathBuf,
    file: Option<File>,
}

impl Witness {
    /// Of this state file. Nothing is made yet.
    #[must_use]
    pub fn of(state_file: &Path) -> Self {
        Self { path: with_suffix(state_file, SUFFIX), file: None }
    }

    /// The number; `None` where there is none that can be read.
    #[must_use]
    pub fn read(&self) -> Option<u64> {
        let file = own_file::read(&self.path).ok()?;
        let mut bytes = [0; BYTES];
        file.read_exact_at(&mut bytes, 0).ok()?;
        std::str::from_utf8(&bytes).ok()?.trim_end().parse().ok()
    }

    /// So many commits are durable. What cannot be written is not missed before something is wrong
    /// with the state file as well.
    pub fn note(&mut self, commits: u64) {
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
        let of = |file, beside| Age::of(true, file, beside);
        assert_eq!(of(Some(7), Some(7)), Age::Newest);
        assert_eq!(of(Some(8), Some(7)), Age::Newest, "a crash before the number beside it");
        assert_eq!(of(Some(7), None), Age::Newest);
        assert_eq!(of(None, None), Age::Newest);
        assert_eq!(of(Some(6), Some(7)), Age::Older { commits: 1 });
        assert_eq!(of(None, Some(7)), Age::Older { commits: 7 });
        assert_eq!(Age::of(false, None, Some(7)), Age::Gone { commits: 7 });
        assert_eq!(Age::of(false, None, None), Age::Newest);
    }

    #[test]
    fn a_number_is_read_as_it_was_noted_and_one_that_is_torn_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.redb");
        let mut witness = Witness::of(&path);
        assert_eq!(witness.read(), None);
        for commits in [1, 12_345, 9, u64::MAX] {
            witness.note(commits);
            assert_eq!(Witness::of(&path).read(), Some(commits));
        }
        for torn in
            ["", "123", "0000000000000000000x\n", "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"]
        {
            std::fs::write(dir.path().join("state.redb.commits"), torn).unwrap();
            assert_eq!(Witness::of(&path).read(), None, "{torn:?}");
        }
    }
}

//! The file that keeps events over restarts. Each write of an event adds a line of JSON; of several
//! lines of the same event the last one counts.
//!
//! The file is read once, at the start, and only up to a bound. What lies beyond the bound, and
//! lines that are not whole, are left out. Nothing else depends on the file, so it is not synced.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::event::KeptEvent;
use ostler_model::limits::EVENTS_FILE_BYTES_MAX;

/// Mode of the file: only the agent's user reads and writes it.
const MODE: u32 = 0o600;

/// See the module.
#[derive(Debug)]
pub(crate) struct EventsFile {
    path: PathBuf,
    /// Size of the file in bytes, as far as the agent knows.
    bytes: u64,
    /// The content may not be whole, so the next write replaces the file.
    anew: bool,
}

impl EventsFile {
    pub const fn new(path: PathBuf) -> Self {
        Self { path, bytes: 0, anew: false }
    }

    /// The events of the file in the order in which they were written; none where there is no file.
    pub fn read(&mut self) -> io::Result<Vec<KeptEvent>> {
        let file = match open_own(File::options().read(true), &self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        self.bytes = file.metadata()?.len();
        let mut lines = BufReader::new(file.take(2 * EVENTS_FILE_BYTES_MAX));
        let mut events: BTreeMap<u64, KeptEvent> = BTreeMap::new();
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line)? > 0 {
            match serde_json::from_slice::<KeptEvent>(&line) {
                Ok(event) if event.seq > 0 => {
                    events.insert(event.seq, event);
                }
                _ => self.anew = true,
            }
            line.clear();
        }
        Ok(events.into_values().collect())
    }

    /// Append events, or replace the file where it gets too large or is not whole.
    pub fn write(
        &mut self,
        new: &[KeptEvent],
        all: impl FnOnce() -> Vec<KeptEvent>,
    ) -> io::Result<()> {
        let text = lines(new)?;
        let grown = self.bytes.saturating_add(u64::try_from(text.len()).unwrap_or(u64::MAX));
        let written = if self.anew || grown > EVENTS_FILE_BYTES_MAX {
            self.replace(&lines(&all())?)
        } else {
            append(&self.path, &text).map(|()| grown)
        };
        self.anew = written.is_err();
        self.bytes = written?;
        Ok(())
    }

    fn replace(&self, text: &[u8]) -> io::Result<u64> {
        let beside = self.path.with_extension("new");
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(MODE);
        let mut file = open_own(options, &beside)?;
        file.write_all(text)?;
        std::fs::rename(&beside, &self.path)?;
        Ok(u64::try_from(text.len()).unwrap_or(u64::MAX))
    }
}

fn append(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    open_own(options.append(true).create(true).mode(MODE), path)?.write_all(text)
}

/// Open a file of the data directory: a link in its place is not followed.
fn open_own(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

fn lines(events: &[KeptEvent]) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    for event in events {
        serde_json::to_writer(&mut text, event).map_err(io::Error::other)?;
        text.push(b'\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::events::event::EventNote;

    fn event(seq: u64, message: &str) -> KeptEvent {
        let what = EventNote { message: message.to_owned(), ..EventNote::default() };
        KeptEvent { seq, times: 1, what, ..KeptEvent::default() }
    }

    #[test]
    fn what_was_written_is_read_again_and_a_torn_line_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        let mut file = EventsFile::new(path.clone());
        assert_eq!(file.read().unwrap(), []);
        file.write(&[event(1, "a"), event(2, "b")], Vec::new).unwrap();
        file.write(&[event(3, "c")], Vec::new).unwrap();
        let torn = std::fs::read(&path).unwrap();
        std::fs::write(&path, &torn[..torn.len() - 5]).unwrap();
        let mut again = EventsFile::new(path.clone());
        assert_eq!(again.read().unwrap(), [event(1, "a"), event(2, "b")]);
        again.write(&[event(4, "d")], || vec![event(2, "b"), event(4, "d")]).unwrap();
        assert_eq!(EventsFile::new(path).read().unwrap(), [event(2, "b"), event(4, "d")]);
    }

    #[test]
    fn it_is_written_anew_before_it_is_too_large() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("events.jsonl");
        let mut file = EventsFile::new(path.clone());
        let long = "x".repeat(64 * 1024);
        for seq in 1..100 {
            file.write(&[event(seq, &long)], || vec![event(seq, "short")]).unwrap();
            assert!(std::fs::metadata(&path).unwrap().len() <= EVENTS_FILE_BYTES_MAX);
        }
    }
}

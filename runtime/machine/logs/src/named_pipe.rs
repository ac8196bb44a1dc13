//! Writes the output of a task into a named pipe that a foreign process reads and keeps.
//!
//! ```text
//! write ─► open? ─ no reader yet ─► waited for, once ─► dropped, counted
//!            └─► pipe full ─► waited for a while ─► dropped, counted; then not waited until it takes again
//! ```
//! The reader may be slow, gone or new at any time. A task waits for it only for a limited time.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;

use super::files::open_log_dir;
use ostler_model::limits::{PIPE_LOOK_PAUSE_MS, PIPE_READER_LOOKS, PIPE_WRITE_WAIT_MS};
use ostler_model::ports::{LogDir, SinkFiles};

/// Nanoseconds of a millisecond.
const NANOS: i64 = 1_000_000;

/// A writer of one named pipe. See the module.
#[derive(Debug)]
pub(crate) struct PipeWriter {
    dir: LogDir,
    name: String,
    pipe: Option<OwnedFd>,
    /// Whether the writer has waited for a reader in vain.
    alone: bool,
    /// Whether the reader did not take the output in time.
    full: bool,
    dropped_bytes: u64,
}

impl PipeWriter {
    /// A writer that has not opened the pipe yet.
    pub(crate) const fn new(dir: LogDir, name: String) -> Self {
        Self { dir, name, pipe: None, alone: false, full: false, dropped_bytes: 0 }
    }

    /// Write all of the bytes, unless nobody reads them.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        // A new reader may have opened the pipe under the same name.
        for _ in 0..2 {
            if rest.is_empty() {
                return;
            }
            if self.pipe.is_none() {
                self.pipe = self.open_pipe();
            }
            let Some(pipe) = &self.pipe else { break };
            match write_pipe(pipe, &mut rest, self.full) {
                PipeWrite::All => self.full = false,
                PipeWrite::Full => {
                    self.full = true;
                    break;
                }
                PipeWrite::Gone => self.pipe = None,
            }
        }
        self.dropped_bytes = self.dropped_bytes.saturating_add(rest.len() as u64);
    }

    /// The number of bytes that nobody read.
    pub(crate) const fn dropped_bytes(&self) -> u64 {
        self.dropped_bytes
    }

    /// Open the pipe, if it has a reader.
    fn open_pipe(&mut self) -> Option<OwnedFd> {
        let dir = open_log_dir(&self.dir)
            .inspect_err(
                |error| tracing::debug!(%error, "the directory of a log pipe cannot be opened"),
            )
            .ok()?;
        let looks = if self.alone { 1 } else { PIPE_READER_LOOKS };
        for look in 0..looks {
            if look > 0 {
                pause(PIPE_LOOK_PAUSE_MS);
            }
            // Anything else under the name is not written to, and a link is not followed.
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match openat(&dir, &self.name, flags, Mode::empty()) {
                Ok(pipe) => {
                    let is_pipe = fstat(&pipe)
                        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo);
                    return is_pipe.then_some(pipe);
                }
                // The pipe has no reader.
                Err(Errno::NXIO | Errno::INTR) => {}
                Err(errno) => {
                    tracing::debug!(%errno, pipe = self.name, "a log pipe cannot be opened");
                    return None;
                }
            }
        }
        self.alone = true;
        None
    }
}

/// Note that the task of this pipe has ended. A process that opened the pipe to read, and had
/// nothing to read yet, waits for a first writer; that writer has come and gone now. This never
/// waits, and does nothing for files.
pub fn end_pipe(files: &SinkFiles) {
    if files.files_max > 0 {
        return;
    }
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // Without a reader nobody needs to be told.
    if let Ok(dir) = open_log_dir(&files.dir) {
        drop(openat(&dir, &files.prefix, flags, Mode::empty()));
    }
}

/// The result of a write into the pipe.
enum PipeWrite {
    All,
    Full,
    Gone,
}

/// Write what fits. Wait for room once in a row, unless an earlier wait was in vain.
fn write_pipe(pipe: &OwnedFd, rest: &mut &[u8], full: bool) -> PipeWrite {
    let mut waited = full;
    while !rest.is_empty() {
        match rustix::io::write(pipe, rest) {
            Ok(written) => {
                *rest = rest.get(written..).unwrap_or_default();
                waited = full;
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if waited => return PipeWrite::Full,
            Err(Errno::AGAIN) => {
                let mut fds = [PollFd::new(pipe, PollFlags::OUT)];
                let _ready_or_not = poll(&mut fds, Some(&millis(PIPE_WRITE_WAIT_MS)));
                waited = true;
            }
            Err(_) => return PipeWrite::Gone,
        }
    }
    PipeWrite::All
}

fn millis(millis: i64) -> Timespec {
    Timespec { tv_sec: millis / 1_000, tv_nsec: millis % 1_000 * NANOS }
}

fn pause(for_ms: i64) {
    let _over = poll(&mut [], Some(&millis(for_ms)));
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn writer(dir: &std::path::Path) -> PipeWriter {
        let dir = OwnedFd::from(std::fs::File::open(dir).unwrap());
        PipeWriter::new(dir.into(), "out".to_owned())
    }

    fn made(dir: &std::path::Path) {
        let dir = std::fs::File::open(dir).unwrap();
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(&dir, "out", FileType::Fifo, mode, 0).unwrap();
    }

    #[test]
    fn everything_comes_through_and_a_new_reader_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        made(dir.path());
        let path = dir.path().join("out");
        let (told, hears) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            for (count, end) in [(300_000, false), (5, true)] {
                let mut file = std::fs::File::open(&path).unwrap();
                let mut bytes = vec![0; count];
                file.read_exact(&mut bytes).unwrap();
                assert!(bytes.iter().all(|byte| *byte == b'x'));
                drop(file);
                told.send(end).unwrap();
            }
        });
        let mut writer = writer(dir.path());
        writer.write(&vec![b'x'; 300_000]);
        hears.recv().unwrap();
        while !reader.is_finished() {
            writer.write(b"xxxxx");
            pause(5);
        }
        reader.join().unwrap();
    }

    #[test]
    fn a_reader_that_waits_for_a_first_writer_is_told_that_there_will_be_none() {
        let dir = tempfile::tempdir().unwrap();
        made(dir.path());
        let path = dir.path().join("out");
        let reader = std::thread::spawn(move || std::fs::read(path).unwrap());
        let opened = std::sync::Arc::new(std::fs::File::open(dir.path()).unwrap().into());
        let files = SinkFiles::pipe(opened, "out".to_owned());
        while !reader.is_finished() {
            end_pipe(&files);
            pause(5);
        }
        assert!(reader.join().unwrap().is_empty());
    }

    #[test]
    fn what_is_no_pipe_is_not_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let other = dir.path().join("other");
        std::fs::write(&other, "").unwrap();
        for linked in [false, true] {
            let path = dir.path().join("out");
            if linked {
                std::os::unix::fs::symlink(&other, &path).unwrap();
            } else {
                std::fs::write(&path, "").unwrap();
            }
            let mut writer = writer(dir.path());
            writer.write(b"text");
            assert_eq!(writer.dropped_bytes(), 4);
            assert!(std::fs::read(&other).unwrap().is_empty());
            assert!(std::fs::read(&path).unwrap().is_empty());
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn nobody_waits_for_a_reader_that_takes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        made(dir.path());
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let _reader = rustix::fs::open(dir.path().join("out"), flags, Mode::empty()).unwrap();
        let mut writer = writer(dir.path());
        let begun = ostler_model::clock::Stopwatch::start();
        for _ in 0..20 {
            writer.write(&[0; 100_000]);
        }
        assert!(writer.dropped_bytes() > 1_000_000);
        assert!(begun.elapsed() < std::time::Duration::from_secs(10), "waited for once");
    }
}

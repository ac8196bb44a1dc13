//! Readers of a stream, while it is written and after.
//!
//! A cursor (file, offset) walks the files in order of their index. It keeps the file it reads
//! open, so that a pruned file is read to its end; files pruned before their turn are skipped, and
//! the bytes missed are told with the next chunk.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use cap_std::fs::Dir;
use tokio::sync::watch;

use super::files::{LogError, LogFiles, StreamKind};
use super::pace::Pace;
use super::stream::Standing;
use ostler_model::ids::TaskName;
use ostler_model::limits::LOG_READ_BYTES;

/// Longest line [`LineFollower`] gives out in one piece, bytes. Longer ones come in pieces.
pub const LINE_BYTES_MAX: usize = 64 * 1024;

/// Where a follower begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    /// At the oldest byte kept.
    Start,
    /// At what is written next.
    Now,
}

/// Bytes of a stream, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The bytes; empty only in a last chunk that reports skipped ones.
    pub bytes: Vec<u8>,
    /// Bytes lost to pruning immediately before these.
    pub skipped_bytes: u64,
}

/// Reads a stream from its files.
#[derive(Debug)]
pub struct Follower {
    files: LogFiles,
    /// Absent: the files are all there is and will be.
    live: Option<watch::Receiver<Standing>>,
    index: u64,
    offset: u64,
    /// Stream position of the cursor; only with `live`.
    position: u64,
    open: Option<Arc<File>>,
    pace: Pace,
    skipped_bytes: u64,
    /// Without `live`: files still to come, highest first.
    pending: Vec<u64>,
    ended: bool,
}

impl Follower {
    /// Read the files of a task that is not running: ends at the end of the last file.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn of_files(dir: &Dir, task: &TaskName, kind: StreamKind) -> Result<Self, LogError> {
        let files = LogFiles::new(dir, task, kind)?;
        let mut pending = files.indices()?;
        pending.reverse();
        let mut follower = Self::at(files, None, 0, 0, 0);
        follower.ended = pending.is_empty();
        follower.index = pending.pop().unwrap_or(0);
        follower.pending = pending;
        Ok(follower)
    }

    pub(super) fn live(files: LogFiles, live: watch::Receiver<Standing>, from: From) -> Self {
        let standing = *live.borrow();
        let ((index, start), offset) = match from {
            From::Start => (standing.first, 0),
            From::Now => (standing.current, standing.position.saturating_sub(standing.current.1)),
        };
        Self::at(files, Some(live), index, offset, start + offset)
    }

    fn at(
        files: LogFiles,
        live: Option<watch::Receiver<Standing>>,
        index: u64,
        offset: u64,
        position: u64,
    ) -> Self {
        Self {
            files,
            live,
            index,
            offset,
            position,
            open: None,
            pace: Pace::new(),
            skipped_bytes: 0,
            pending: Vec::new(),
            ended: false,
        }
    }

    /// The next bytes, at most `max` (at least 1, at most 64 KiB); waits for them while the stream
    /// is open. `None` when it is closed and all was read. May be dropped and called again.
    pub async fn next(&mut self, max: usize) -> Option<Chunk> {
        let max = max.clamp(1, LOG_READ_BYTES);
        while !self.ended {
            // Seen before reading: whatever comes after this wakes the wait below.
            let seen = self.live.as_mut().map(|live| *live.borrow_and_update());
            let closed = self.live.as_ref().is_none_or(|live| live.has_changed().is_err());
            if let Some(seen) = &seen {
                self.reconcile(seen);
            }
            if self.open.is_none() {
                self.enter();
            }
            let read = self.read(max).await.unwrap_or_else(|error| {
                tracing::warn!(file = self.files.name(self.index), %error, "reading a log failed");
                Vec::new()
            });
            if !read.is_empty() {
                self.offset += read.len() as u64;
                self.position += read.len() as u64;
                return Some(self.chunk(read));
            }
            match seen {
                Some(seen) if self.index < seen.current.0 => self.leave(self.index + 1),
                Some(seen) => {
                    // A task may cut its own file short: then there is nothing to wait for here.
                    if seen.closed || closed {
                        self.ended = true;
                    } else if let Some(live) = &mut self.live {
                        if let Some(pause) = self.pace.pause() {
                            ostler_model::clock::sleep(pause).await;
                        }
                        // An error is the stream dropped: the next round reads the rest and ends.
                        let _wake_up = live.changed().await;
                    }
                }
                None => match self.pending.pop() {
                    Some(next) => self.leave(next),
                    None => self.ended = true,
                },
            }
        }
        (self.skipped_bytes > 0).then(|| self.chunk(Vec::new()))
    }

    /// Pass over up to `bytes` of what is there now, without reading it; how many it was. Files
    /// pruned on the way are told with the next chunk.
    pub fn skip(&mut self, bytes: u64) -> u64 {
        let mut passed = 0;
        while !self.ended {
            let seen = self.live.as_ref().map(|live| *live.borrow());
            if let Some(seen) = &seen {
                self.reconcile(seen);
            }
            if self.open.is_none() {
                self.enter();
            }
            let size =
                self.open.as_ref().and_then(|file| file.metadata().ok()).map_or(0, |m| m.len());
            let step = size.saturating_sub(self.offset).min(bytes - passed);
            self.offset += step;
            self.position += step;
            passed += step;
            let next = match seen {
                _ if passed == bytes => None,
                Some(seen) => (self.index < seen.current.0).then_some(self.index + 1),
                None => self.pending.pop(),
            };
            match next {
                Some(next) => self.leave(next),
                None => break,
            }
        }
        passed
    }

    /// The name of the file the cursor is in, and its offset there: after [`Follower::next`] the end
    /// of what that gave out.
    #[must_use]
    pub fn place(&self) -> (String, u64) {
        (self.files.name(self.index), self.offset)
    }

    fn chunk(&mut self, bytes: Vec<u8>) -> Chunk {
        Chunk { bytes, skipped_bytes: std::mem::take(&mut self.skipped_bytes) }
    }

    /// Jump over what was pruned before its turn, and count what is missing before the cursor: a
    /// file can vanish a moment before the stream says so.
    fn reconcile(&mut self, seen: &Standing) {
        if self.open.is_none() && self.index < seen.first.0 {
            self.leave(seen.first.0);
        }
        for (index, start) in [seen.first, seen.current] {
            let position = start.saturating_add(self.offset);
            if index == self.index && position > self.position {
                self.skipped_bytes += position - self.position;
                self.position = position;
            }
        }
    }

    /// Open the file of the cursor; what is not a plain file counts as empty.
    fn enter(&mut self) {
        match self.files.read(self.index) {
            Ok(file) => self.open = file.map(Arc::new),
            Err(error) => tracing::warn!(%error, "a log file is passed over"),
        }
    }

    fn leave(&mut self, next: u64) {
        self.open = None;
        self.index = next;
        self.offset = 0;
    }

    async fn read(&self, max: usize) -> io::Result<Vec<u8>> {
        let Some(file) = self.open.clone() else {
            return Ok(Vec::new());
        };
        let offset = self.offset;
        let read = ostler_model::clock::blocking(move || {
            let mut buffer = vec![0; max];
            let count = file.read_at(&mut buffer, offset)?;
            buffer.truncate(count);
            Ok(buffer)
        });
        read.await.map_err(io::Error::other)?
    }
}

/// A line of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Without its newline.
    pub bytes: Vec<u8>,
    /// A newline ended it. Not so for a piece of an over-long line, the unfinished last line, and
    /// what stands before skipped bytes.
    pub complete: bool,
    /// Bytes lost to pruning before this line.
    pub skipped_bytes: u64,
}

/// Gives out whole lines of a [`Follower`], for a terminal.
#[derive(Debug)]
pub struct LineFollower {
    follower: Follower,
    /// Bytes read; those before `start` were given out.
    held: Vec<u8>,
    start: usize,
    /// Bytes after `start` known to have no newline.
    searched: usize,
    /// Skipped before `held`, not told yet.
    skipped_bytes: u64,
    /// A chunk that follows skipped bytes, while what stood before them is given out.
    after_gap: Option<Chunk>,
}

impl LineFollower {
    /// Lines of `follower`.
    #[must_use]
    pub const fn new(follower: Follower) -> Self {
        Self {
            follower,
            held: Vec::new(),
            start: 0,
            searched: 0,
            skipped_bytes: 0,
            after_gap: None,
        }
    }

    /// The next line, waiting for it; an unfinished last line comes when the stream ends. May be
    /// dropped and called again.
    pub async fn next(&mut self) -> Option<Line> {
        loop {
            if let Some(line) = self.held_line() {
                return Some(line);
            }
            if let Some(chunk) = self.after_gap.take() {
                if self.waiting().is_empty() {
                    self.skipped_bytes += chunk.skipped_bytes;
                    self.add(&chunk.bytes);
                    continue;
                }
                self.after_gap = Some(chunk);
                return Some(self.give(self.waiting().len(), false));
            }
            match self.follower.next(LOG_READ_BYTES).await {
                Some(chunk) if chunk.skipped_bytes > 0 => self.after_gap = Some(chunk),
                Some(chunk) => self.add(&chunk.bytes),
                None if self.waiting().is_empty() && self.skipped_bytes == 0 => return None,
                None => return Some(self.give(self.waiting().len(), false)),
            }
        }
    }

    fn waiting(&self) -> &[u8] {
        self.held.get(self.start..).unwrap_or_default()
    }

    fn add(&mut self, bytes: &[u8]) {
        self.held.drain(..self.start);
        self.start = 0;
        self.held.extend_from_slice(bytes);
    }

    fn held_line(&mut self) -> Option<Line> {
        let unsearched = self.waiting().get(self.searched..).unwrap_or_default();
        let newline = unsearched.iter().position(|byte| *byte == b'\n');
        let len = newline.map_or(self.waiting().len(), |at| self.searched + at);
        if len > LINE_BYTES_MAX {
            return Some(self.give(LINE_BYTES_MAX, false));
        }
        self.searched = len;
        newline.map(|_| self.give(len, true))
    }

    /// Give out the first `len` waiting bytes; `complete`: a newline follows and goes with them.
    fn give(&mut self, len: usize, complete: bool) -> Line {
        let bytes = self.waiting().get(..len).unwrap_or_default().to_vec();
        self.start += bytes.len() + usize::from(complete);
        self.searched = 0;
        Line { bytes, complete, skipped_bytes: std::mem::take(&mut self.skipped_bytes) }
    }
}

#[cfg(test)]
#[path = "tail_tests.rs"]
mod tests;

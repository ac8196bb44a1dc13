//! Readers of a stream, while it is written and after.
//!
//! A cursor (file, offset) walks the files in the order of their index. It keeps its file open, so
//! that a pruned file is read to its end. Files that are pruned before their turn are skipped, and
//! the next chunk reports the missed bytes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use cap_std::fs::Dir;
use tokio::sync::watch;

use super::files::{LogError, LogFiles, StreamKind};
use super::pace::WakePace;
use super::stream::StreamPosition;
use ostler_model::ids::TaskName;
use ostler_model::limits::LOG_READ_BYTES;

/// The longest line in bytes that [`LineFollower`] returns in one piece. Longer lines come
/// in pieces.
pub const LINE_BYTES_MAX: usize = 64 * 1024;

/// Where a follower begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowFrom {
    /// At the oldest byte that is kept.
    Start,
    /// At the next byte that is written.
    Now,
}

/// Some bytes of a stream, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The bytes; empty only in a last chunk that reports skipped bytes.
    pub bytes: Vec<u8>,
    /// The number of bytes that were lost to pruning immediately before these.
    pub skipped_bytes: u64,
}

/// Reads a stream from its files.
#[derive(Debug)]
pub struct StreamFollower {
    files: LogFiles,
    /// The position of a stream that is still written; `None` if no more files will come.
    live: Option<watch::Receiver<StreamPosition>>,
    index: u64,
    offset: u64,
    /// The stream position of the cursor; used only with `live`.
    position: u64,
    open: Option<Arc<File>>,
    pace: WakePace,
    skipped_bytes: u64,
    /// The files still to come, highest first; used only without `live`.
    pending: Vec<u64>,
    ended: bool,
}

impl StreamFollower {
    /// Read the files of a task that is not running. The follower ends at the end of the last file.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn of_files(dir: &Dir, task: &TaskName, kind: StreamKind) -> Result<Self, LogError> {
        let files = LogFiles::new(dir, task, kind)?;
        let mut pending = files.indices()?;
        pending.reverse();
        let mut follower = Self::new_at(files, None, 0, 0, 0);
        follower.ended = pending.is_empty();
        follower.index = pending.pop().unwrap_or(0);
        follower.pending = pending;
        Ok(follower)
    }

    pub(super) fn follow_live(
        files: LogFiles,
        live: watch::Receiver<StreamPosition>,
        from: FollowFrom,
    ) -> Self {
        let standing = *live.borrow();
        let ((index, start), offset) = match from {
            FollowFrom::Start => (standing.first, 0),
            FollowFrom::Now => {
                (standing.current, standing.position.saturating_sub(standing.current.1))
            }
        };
        Self::new_at(files, Some(live), index, offset, start + offset)
    }

    fn new_at(
        files: LogFiles,
        live: Option<watch::Receiver<StreamPosition>>,
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
            pace: WakePace::new(),
            skipped_bytes: 0,
            pending: Vec::new(),
            ended: false,
        }
    }

    /// The next bytes, at most `max` (at least 1, at most 64 KiB). This waits for them while the
    /// stream is open. It returns `None` when the stream is closed and all was read. The future may
    /// be dropped and the call repeated.
    pub async fn next(&mut self, max: usize) -> Option<Chunk> {
        let max = max.clamp(1, LOG_READ_BYTES);
        while !self.ended {
            // This is marked as seen before reading, so that whatever comes later wakes the wait
            // below.
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
                    // A task may cut its own file short, and then there is nothing to wait for
                    // here.
                    if seen.closed || closed {
                        self.ended = true;
                    } else if let Some(live) = &mut self.live {
                        if let Some(pause) = self.pace.pause() {
                            ostler_model::clock::sleep(pause).await;
                        }
                        // An error means that the stream was dropped. The next round reads the rest
                        // and ends.
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

    /// Skip up to `bytes` of what is there now, without reading it. Returns how many bytes were
    /// skipped. The next chunk reports files that were pruned on the way.
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

    /// The name of the file with the cursor, and the offset in it. After [`Follower::next`] this is
    /// the end of the chunk that it returned.
    #[must_use]
    pub fn file_position(&self) -> (String, u64) {
        (self.files.name(self.index), self.offset)
    }

    fn chunk(&mut self, bytes: Vec<u8>) -> Chunk {
        Chunk { bytes, skipped_bytes: std::mem::take(&mut self.skipped_bytes) }
    }

    /// Jump over files that were pruned before their turn, and count what is missing before the
    /// cursor. A file can vanish a moment before the stream says so.
    fn reconcile(&mut self, seen: &StreamPosition) {
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

    /// Open the file of the cursor. Anything that is no plain file counts as empty.
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
        let read = ostler_model::clock::run_blocking(move || {
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
pub struct StreamLine {
    /// The bytes of the line, without its newline.
    pub bytes: Vec<u8>,
    /// Whether a newline ended the line. It is false for a piece of an over-long line, for the
    /// unfinished last line, and for what stands before skipped bytes.
    pub complete: bool,
    /// The number of bytes that were lost to pruning before this line.
    pub skipped_bytes: u64,
}

/// Splits the output of a [`StreamFollower`] into whole lines, for a terminal.
#[derive(Debug)]
pub struct LineFollower {
    follower: StreamFollower,
    /// The bytes that were read. Those before `start` were returned already.
    held: Vec<u8>,
    start: usize,
    /// The number of bytes after `start` that are known to have no newline.
    searched: usize,
    /// The number of bytes skipped before `held` that are not reported yet.
    skipped_bytes: u64,
    /// A chunk that follows skipped bytes, while the bytes before them are returned.
    after_gap: Option<Chunk>,
}

impl LineFollower {
    /// The lines of `follower`.
    #[must_use]
    pub const fn new(follower: StreamFollower) -> Self {
        Self {
            follower,
            held: Vec::new(),
            start: 0,
            searched: 0,
            skipped_bytes: 0,
            after_gap: None,
        }
    }

    /// Wait for the next line. An unfinished last line comes when the stream ends. The future may
    /// be dropped and the call repeated.
    pub async fn next(&mut self) -> Option<StreamLine> {
        loop {
            if let Some(line) = self.held_line() {
                return Some(line);
            }
            if let Some(chunk) = self.after_gap.take() {
                if self.pending_bytes().is_empty() {
                    self.skipped_bytes += chunk.skipped_bytes;
                    self.add(&chunk.bytes);
                    continue;
                }
                self.after_gap = Some(chunk);
                return Some(self.take_line(self.pending_bytes().len(), false));
            }
            match self.follower.next(LOG_READ_BYTES).await {
                Some(chunk) if chunk.skipped_bytes > 0 => self.after_gap = Some(chunk),
                Some(chunk) => self.add(&chunk.bytes),
                None if self.pending_bytes().is_empty() && self.skipped_bytes == 0 => return None,
                None => return Some(self.take_line(self.pending_bytes().len(), false)),
            }
        }
    }

    fn pending_bytes(&self) -> &[u8] {
        self.held.get(self.start..).unwrap_or_default()
    }

    fn add(&mut self, bytes: &[u8]) {
        self.held.drain(..self.start);
        self.start = 0;
        self.held.extend_from_slice(bytes);
    }

    fn held_line(&mut self) -> Option<StreamLine> {
        let unsearched = self.pending_bytes().get(self.searched..).unwrap_or_default();
        let newline = unsearched.iter().position(|byte| *byte == b'\n');
        let len = newline.map_or(self.pending_bytes().len(), |at| self.searched + at);
        if len > LINE_BYTES_MAX {
            return Some(self.take_line(LINE_BYTES_MAX, false));
        }
        self.searched = len;
        newline.map(|_| self.take_line(len, true))
    }

    /// Take a line of the first `len` waiting bytes. `complete` says that a newline follows, which
    /// is taken too.
    fn take_line(&mut self, len: usize, complete: bool) -> StreamLine {
        let bytes = self.pending_bytes().get(..len).unwrap_or_default().to_vec();
        self.start += bytes.len() + usize::from(complete);
        self.searched = 0;
        StreamLine { bytes, complete, skipped_bytes: std::mem::take(&mut self.skipped_bytes) }
    }
}

#[cfg(test)]
#[path = "tail_tests.rs"]
mod tests;

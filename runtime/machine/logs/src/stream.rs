//! The logs of one task while it may still print.
//!
//! The supervisor of a native task writes them ([`OutsideWriter`](crate::OutsideWriter), in another
//! process). The agent then scans the files while somebody follows (inotify, with a slow poll in
//! addition):
//!
//! ```text
//! pipe ─ supervisor ─► OutsideWriter ─► <task>.stdout.N ─ inotify ─► OutsideFiles::scan_files ─► position ─► StreamFollower
//! ```
//! A stream counts as written outside until its first byte is written here. Followers read the
//! files, not a copy in memory: a slow reader costs nothing, and what was pruned before it got
//! there is reported as skipped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::watch;

use super::files::{LogFiles, StreamKind};
use super::outside::{self, OutsideFiles};
use super::rotate::RotatingWriter;
use super::tail::{FollowFrom, StreamFollower};
use ostler_model::ids::TaskName;
use ostler_model::job::LogConfig;
use ostler_model::limits::MIB;
use ostler_model::ports::{ByteSink, LogDir, SinkFiles};

/// Both streams of one task. They stay open over its restarts.
#[derive(Clone, Debug)]
pub struct TaskLogs {
    /// Standard output.
    pub stdout: Arc<LogStream>,
    /// Standard error.
    pub stderr: Arc<LogStream>,
}

impl TaskLogs {
    /// The streams of a task in the allocation's log directory. Nothing is opened before somebody
    /// writes or reads. With `config.disabled` all output is discarded. `fresh`: the task has no
    /// files yet.
    #[must_use]
    pub fn new(dir: &LogDir, task: &TaskName, config: &LogConfig, fresh: bool) -> Self {
        let files = |kind| LogFiles::in_dir(dir.clone(), task, kind);
        let stream = |kind| Arc::new(LogStream::from_config(files(kind), config, fresh));
        Self { stdout: stream(StreamKind::Stdout), stderr: stream(StreamKind::Stderr) }
    }

    /// Does somebody follow one of the streams? Then closing reads the disk.
    #[must_use]
    pub fn is_followed(&self) -> bool {
        self.stdout.shared.is_followed() || self.stderr.shared.is_followed()
    }

    /// Close both streams: nothing more will be written, and followers end after the last byte.
    pub fn close(&self) {
        self.stdout.close();
        self.stderr.close();
    }
}

/// The position of a stream, as followers need it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StreamPosition {
    /// The lowest index that is kept, and the stream position of its first byte.
    pub first: (u64, u64),
    /// The index that is written, and the stream position of its first byte.
    pub current: (u64, u64),
    /// The number of bytes of the stream so far.
    pub position: u64,
    /// Whether no more bytes will come.
    pub closed: bool,
}

/// One stream of a task. Writing appends to the files at once and wakes followers. Followers see
/// what another process writes a moment later.
#[derive(Debug)]
pub struct LogStream {
    shared: Arc<StreamShared>,
}

/// The state that a stream shares with the task that scans its files.
#[derive(Debug)]
pub(super) struct StreamShared {
    files: LogFiles,
    writer: Mutex<StreamWriter>,
    /// The position that the last scan found. For a stream that is written here, it is updated only
    /// while somebody follows. It is created when somebody asks for it, because most streams are
    /// never followed.
    standing: OnceLock<watch::Sender<StreamPosition>>,
    /// Whether nothing more will be written. It is set under the lock.
    closed: AtomicBool,
    /// Whether the files were scanned after the stream was closed. It is set under the lock.
    settled: AtomicBool,
    /// Whether somebody scans the files.
    watched: AtomicBool,
}

/// The writer of a stream.
#[derive(Debug)]
enum StreamWriter {
    /// Nobody writes, because logs are disabled.
    Nobody,
    /// Another process, or nobody yet.
    Outside {
        seen: OutsideFiles,
        files_max: u32,
        file_bytes_max: u64,
        dropped_bytes: u64,
        /// No file was made yet.
        fresh: bool,
    },
    /// This process.
    Here(RotatingWriter),
}

impl LogStream {
    fn from_config(files: LogFiles, config: &LogConfig, fresh: bool) -> Self {
        if config.disabled {
            return Self::new(files, None);
        }
        let file_bytes_max = u64::from(config.max_file_size_mb.max(1)) * MIB;
        let (seen, files_max, dropped_bytes) = (OutsideFiles::default(), config.max_files, 0);
        let writer =
            StreamWriter::Outside { seen, files_max, file_bytes_max, dropped_bytes, fresh };
        Self::from_writer(files, writer)
    }

    pub(super) fn new(files: LogFiles, writer: Option<RotatingWriter>) -> Self {
        let stands = writer.as_ref().map(writer_position);
        let new = Self::from_writer(files, writer.map_or(StreamWriter::Nobody, StreamWriter::Here));
        if let Some(stands) = stands {
            new.shared.position_sender().send_replace(stands);
        }
        new
    }

    fn from_writer(files: LogFiles, writer: StreamWriter) -> Self {
        let (writer, standing) = (Mutex::new(writer), OnceLock::new());
        let (closed, settled, watched) = (false.into(), false.into(), false.into());
        let shared = StreamShared { files, writer, standing, closed, settled, watched };
        Self { shared: Arc::new(shared) }
    }

    /// Read the stream from its oldest kept byte, or from now on, until it is closed and all was
    /// read. The follower does not keep the stream open: dropping the last `Arc` closes it. Call
    /// this in a tokio runtime.
    #[must_use]
    pub fn follow(&self, from: FollowFrom) -> StreamFollower {
        let shared = &self.shared;
        // This is done under the lock, so that this follower is also told of what is written after
        // it.
        let mut writer = shared.lock();
        let standing = shared.position_sender().subscribe();
        shared.tell_followers(&mut writer);
        let outside = matches!(*writer, StreamWriter::Outside { .. });
        drop(writer);
        let follower = StreamFollower::follow_live(shared.files.clone(), standing, from);
        if outside && !shared.is_closed() && !shared.watched.swap(true, Ordering::SeqCst) {
            match tokio::runtime::Handle::try_current() {
                Ok(runtime) => drop(runtime.spawn(outside::watch_stream(Arc::downgrade(shared)))),
                Err(_) => shared.watched.store(false, Ordering::SeqCst),
            }
        }
        follower
    }

    /// Close the stream: nothing more will be written, here or by another process. Later writes
    /// are discarded.
    pub fn close(&self) {
        // This is done under the lock, because no write may come between the last byte and the
        // mark.
        let mut writer = self.shared.lock();
        self.shared.closed.store(true, Ordering::SeqCst);
        // Without a follower the files are scanned when somebody asks.
        if self.shared.is_followed() {
            self.shared.tell_followers(&mut writer);
        }
    }

    /// The number of bytes that could not be written here.
    #[must_use]
    pub fn dropped_bytes(&self) -> u64 {
        match &*self.shared.lock() {
            StreamWriter::Nobody => 0,
            StreamWriter::Outside { dropped_bytes, .. } => *dropped_bytes,
            StreamWriter::Here(writer) => writer.dropped_bytes(),
        }
    }

    /// The number of bytes of the stream so far, including those found at opening.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.shared.scan_files();
        self.shared.position_sender().borrow().position
    }
}

impl Drop for LogStream {
    /// Let followers end at what is there now. They have something left to read as long as it is
    /// scanned for.
    fn drop(&mut self) {
        if self.shared.is_followed() {
            let shared = Arc::clone(&self.shared);
            ostler_model::clock::spawn_blocking_work(move || {
                shared.scan_files();
            });
        }
    }
}

impl StreamShared {
    pub(super) const fn files(&self) -> &LogFiles {
        &self.files
    }

    fn position_sender(&self) -> &watch::Sender<StreamPosition> {
        self.standing.get_or_init(|| watch::Sender::new(StreamPosition::default()))
    }

    fn lock(&self) -> MutexGuard<'_, StreamWriter> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_followed(&self) -> bool {
        self.standing.get().is_some_and(|told| told.receiver_count() > 0)
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Tell followers the position of the stream. Returns whether it has changed.
    fn tell_followers(&self, writer: &mut StreamWriter) -> bool {
        let closed = self.is_closed();
        if closed && self.settled.swap(true, Ordering::SeqCst) {
            return false;
        }
        let now = match writer {
            StreamWriter::Nobody if closed => StreamPosition::default(),
            StreamWriter::Nobody => return false,
            StreamWriter::Outside { seen, .. } => seen.scan_files(&self.files),
            StreamWriter::Here(here) => writer_position(here),
        };
        let now = StreamPosition { closed, ..now };
        self.position_sender().send_if_modified(|before| std::mem::replace(before, now) != now)
    }

    fn scan_files(&self) {
        self.tell_followers(&mut self.lock());
    }

    /// Scan the files that another process writes. Returns whether there is anything new, or `None`
    /// if nobody follows any more or nothing more will come; the next follower then needs a new
    /// task that scans.
    pub(super) fn scan_for_followers(&self) -> Option<bool> {
        let mut writer = self.lock();
        let outside = matches!(*writer, StreamWriter::Outside { .. });
        let news = outside && self.tell_followers(&mut writer);
        drop(writer);
        let wanted = || outside && !self.is_closed() && self.is_followed();
        if !wanted() {
            self.watched.store(false, Ordering::SeqCst);
            // A follower that came while the mark was still set has relied on this task.
            return (wanted() && !self.watched.swap(true, Ordering::SeqCst)).then_some(news);
        }
        Some(news)
    }
}

impl ByteSink for LogStream {
    fn write(&self, bytes: &[u8]) {
        let mut writer = self.shared.lock();
        if self.shared.is_closed() || bytes.is_empty() {
            return;
        }
        if let StreamWriter::Outside { files_max, file_bytes_max, dropped_bytes, fresh, .. } =
            &mut *writer
        {
            let open = if *fresh { RotatingWriter::begin } else { RotatingWriter::open };
            match open(self.shared.files.clone(), *files_max, *file_bytes_max) {
                Ok(opened) => *writer = StreamWriter::Here(opened),
                Err(error) => {
                    if *dropped_bytes == 0 {
                        tracing::warn!(%error, "output of a task is dropped: its log cannot be opened");
                    }
                    *dropped_bytes = dropped_bytes.saturating_add(bytes.len() as u64);
                }
            }
        }
        if let StreamWriter::Here(here) = &mut *writer {
            here.write(bytes);
            if let Some(told) = self.shared.standing.get().filter(|told| told.receiver_count() > 0)
            {
                told.send_replace(writer_position(here));
            }
        }
    }

    fn files(&self) -> Option<SinkFiles> {
        let mut writer = self.shared.lock();
        let StreamWriter::Outside { files_max, file_bytes_max, fresh, .. } = &mut *writer else {
            return None;
        };
        let (files_max, file_bytes_max) = (*files_max, *file_bytes_max);
        // Whoever gets the files next may find what the first one wrote.
        let fresh = std::mem::take(fresh);
        let (dir, prefix) = self.shared.files.hand_over();
        Some(SinkFiles { dir, prefix, files_max, file_bytes_max, fresh })
    }
}

fn writer_position(writer: &RotatingWriter) -> StreamPosition {
    let (first, current) = writer.bounds();
    StreamPosition {
        first: (first.index, first.start),
        current: (current.index, current.start),
        position: writer.position(),
        closed: false,
    }
}

#[cfg(test)]
#[path = "outside_tests.rs"]
mod tests;

//! The logs of one task while it may still print.
//!
//! A supervised native task is written by its supervisor ([`OutsideWriter`](crate::OutsideWriter), in
//! another process); the agent then looks at the files while somebody follows (inotify, with a slow poll
//! besides):
//!
//! ```text
//! pipe ─ supervisor ─► OutsideWriter ─► <task>.stdout.N ─ inotify ─► Outside::look ─► position ─► Follower
//! ```
//! A stream is taken for one written outside until the first byte is written to it here. Followers read
//! the files, not a copy in memory: a slow reader costs nothing, and what was pruned before it came by is
//! reported as skipped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cap_std::fs::Dir;
use tokio::sync::watch;

use super::files::{LogError, LogFiles, StreamKind};
use super::outside::{self, Outside};
use super::rotate::RotatingWriter;
use super::tail::{Follower, From};
use ostler_model::ids::TaskName;
use ostler_model::job::LogConfig;
use ostler_model::limits::MIB;
use ostler_model::ports::{ByteSink, SinkFiles};

/// Both streams of one task; they stay open over its restarts.
#[derive(Clone, Debug)]
pub struct TaskLogs {
    /// Standard output.
    pub stdout: Arc<LogStream>,
    /// Standard error.
    pub stderr: Arc<LogStream>,
}

impl TaskLogs {
    /// Open the files of a task in the allocation's log directory, going on where they end. With
    /// `config.disabled` nothing is opened and all output is discarded.
    ///
    /// # Errors
    /// When the directory cannot be read or a file not be made.
    pub fn open(dir: &Dir, task: &TaskName, config: &LogConfig) -> Result<Self, LogError> {
        let dir = Arc::new(dir.try_clone().map_err(LogError::Directory)?);
        let files = |kind| LogFiles::within(Arc::clone(&dir), task, kind);
        let stream = |kind| LogStream::open(files(kind), config);
        Ok(Self {
            stdout: Arc::new(stream(StreamKind::Stdout)?),
            stderr: Arc::new(stream(StreamKind::Stderr)?),
        })
    }

    /// Nothing more will be written: followers end after the last byte.
    pub fn close(&self) {
        self.stdout.close();
        self.stderr.close();
    }
}

/// What followers need to know: where the stream stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Standing {
    /// Lowest index kept, and the stream position of its first byte.
    pub first: (u64, u64),
    /// Index being written, and the stream position of its first byte.
    pub current: (u64, u64),
    /// Bytes of the stream so far.
    pub position: u64,
    /// No more will come.
    pub closed: bool,
}

/// One stream of a task. Writing appends to the files at once and wakes followers; what another
/// process writes is seen by followers a moment later.
#[derive(Debug)]
pub struct LogStream {
    shared: Arc<Shared>,
}

/// What a stream and whoever looks at its files for it have in common.
#[derive(Debug)]
pub(super) struct Shared {
    files: LogFiles,
    writer: Mutex<Writer>,
    /// As the last look found it; of what is written here, only while somebody follows. Made when
    /// somebody asks: most streams are never followed.
    standing: OnceLock<watch::Sender<Standing>>,
    /// Nothing more will be written. Set under the lock.
    closed: AtomicBool,
    /// Somebody looks at the files.
    watched: AtomicBool,
}

/// Who writes.
#[derive(Debug)]
enum Writer {
    /// Logs are disabled.
    Nobody,
    /// Another process, or nobody yet.
    Outside { seen: Outside, files_max: u32, file_bytes_max: u64, dropped_bytes: u64 },
    /// This one.
    Here(RotatingWriter),
}

impl LogStream {
    fn open(files: LogFiles, config: &LogConfig) -> Result<Self, LogError> {
        if config.disabled {
            return Ok(Self::new(files, None));
        }
        let file_bytes_max = u64::from(config.max_file_size_mb.max(1)) * MIB;
        // Says now what is wrong, and makes the first file. Not kept: another process may write.
        drop(RotatingWriter::open(files.clone(), config.max_files, file_bytes_max)?);
        let (seen, files_max) = (Outside::default(), config.max_files);
        let writer = Writer::Outside { seen, files_max, file_bytes_max, dropped_bytes: 0 };
        Ok(Self::with(files, writer))
    }

    pub(super) fn new(files: LogFiles, writer: Option<RotatingWriter>) -> Self {
        let stands = writer.as_ref().map(standing);
        let new = Self::with(files, writer.map_or(Writer::Nobody, Writer::Here));
        if let Some(stands) = stands {
            new.shared.standing().send_replace(stands);
        }
        new
    }

    fn with(files: LogFiles, writer: Writer) -> Self {
        let (writer, standing) = (Mutex::new(writer), OnceLock::new());
        let (closed, watched) = (false.into(), false.into());
        Self { shared: Arc::new(Shared { files, writer, standing, closed, watched }) }
    }

    /// Read the stream from its oldest kept byte or from now on, until it is closed and all was
    /// read. The follower does not keep the stream open: dropping the last `Arc` closes it.
    /// To be called in a tokio runtime.
    #[must_use]
    pub fn follow(&self, from: From) -> Follower {
        let shared = &self.shared;
        // Under the lock: what is written after it is told to this one too.
        let mut writer = shared.lock();
        let standing = shared.standing().subscribe();
        shared.tell(&mut writer);
        let outside = matches!(*writer, Writer::Outside { .. });
        drop(writer);
        let follower = Follower::live(shared.files.clone(), standing, from);
        if outside && !shared.closed() && !shared.watched.swap(true, Ordering::SeqCst) {
            match tokio::runtime::Handle::try_current() {
                Ok(runtime) => drop(runtime.spawn(outside::watch(Arc::downgrade(shared)))),
                Err(_) => shared.watched.store(false, Ordering::SeqCst),
            }
        }
        follower
    }

    /// Nothing more will be written, here or by another process. Later writes are discarded.
    pub fn close(&self) {
        // Under the lock: no write may come between the last byte and the mark.
        let mut writer = self.shared.lock();
        self.shared.tell(&mut writer);
        self.shared.closed.store(true, Ordering::SeqCst);
        self.shared.standing().send_modify(|standing| standing.closed = true);
    }

    /// Bytes that could not be written here.
    #[must_use]
    pub fn dropped_bytes(&self) -> u64 {
        match &*self.shared.lock() {
            Writer::Nobody => 0,
            Writer::Outside { dropped_bytes, .. } => *dropped_bytes,
            Writer::Here(writer) => writer.dropped_bytes(),
        }
    }

    /// Bytes of the stream so far, those found at opening included.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.shared.look();
        self.shared.standing().borrow().position
    }
}

impl Drop for LogStream {
    /// Followers end at what is there now: they have something left as long as it is looked for.
    fn drop(&mut self) {
        let shared = Arc::clone(&self.shared);
        ostler_model::clock::blocking_beside(move || {
            shared.look();
        });
    }
}

impl Shared {
    pub(super) const fn files(&self) -> &LogFiles {
        &self.files
    }

    fn standing(&self) -> &watch::Sender<Standing> {
        self.standing.get_or_init(|| watch::Sender::new(Standing::default()))
    }

    fn lock(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Tell followers how the files stand; whether that is news.
    fn tell(&self, writer: &mut Writer) -> bool {
        if self.closed() {
            return false;
        }
        let now = match writer {
            Writer::Nobody => return false,
            Writer::Outside { seen, .. } => seen.look(&self.files),
            Writer::Here(here) => standing(here),
        };
        self.standing().send_if_modified(|before| std::mem::replace(before, now) != now)
    }

    fn look(&self) {
        self.tell(&mut self.lock());
    }

    /// Look at the files that another process writes, unless nobody follows any more or nothing more
    /// will come: then nothing, and the next follower needs somebody new to look. Otherwise whether there
    /// was news.
    pub(super) fn look_for_followers(&self) -> Option<bool> {
        let mut writer = self.lock();
        let outside = matches!(*writer, Writer::Outside { .. });
        let news = outside && self.tell(&mut writer);
        drop(writer);
        let wanted = || {
            outside
                && !self.closed()
                && self.standing.get().is_some_and(|told| told.receiver_count() > 0)
        };
        if !wanted() {
            self.watched.store(false, Ordering::SeqCst);
            // One that came while the mark still stood has counted on us.
            return (wanted() && !self.watched.swap(true, Ordering::SeqCst)).then_some(news);
        }
        Some(news)
    }
}

impl ByteSink for LogStream {
    fn write(&self, bytes: &[u8]) {
        let mut writer = self.shared.lock();
        if self.shared.closed() || bytes.is_empty() {
            return;
        }
        if let Writer::Outside { files_max, file_bytes_max, dropped_bytes, .. } = &mut *writer {
            match RotatingWriter::open(self.shared.files.clone(), *files_max, *file_bytes_max) {
                Ok(opened) => *writer = Writer::Here(opened),
                Err(error) => {
                    if *dropped_bytes == 0 {
                        tracing::warn!(%error, "output of a task is dropped: its log cannot be opened");
                    }
                    *dropped_bytes = dropped_bytes.saturating_add(bytes.len() as u64);
                }
            }
        }
        if let Writer::Here(here) = &mut *writer {
            here.write(bytes);
            if let Some(told) = self.shared.standing.get().filter(|told| told.receiver_count() > 0)
            {
                told.send_replace(standing(here));
            }
        }
    }

    fn files(&self) -> Option<SinkFiles> {
        let Writer::Outside { files_max, file_bytes_max, .. } = &*self.shared.lock() else {
            return None;
        };
        let (files_max, file_bytes_max) = (*files_max, *file_bytes_max);
        let handed = self.shared.files.hand_over().inspect_err(|error| {
            tracing::warn!(%error, "output of a task is dropped: its logs cannot be handed over");
        });
        let (dir, prefix) = handed.ok()?;
        Some(SinkFiles { dir: Arc::new(dir), prefix, files_max, file_bytes_max })
    }
}

fn standing(writer: &RotatingWriter) -> Standing {
    let (first, current) = writer.bounds();
    Standing {
        first: (first.index, first.start),
        current: (current.index, current.start),
        position: writer.position(),
        closed: false,
    }
}

#[cfg(test)]
#[path = "outside_tests.rs"]
mod tests;

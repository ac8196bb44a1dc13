//! The logs of one task while it may still print.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cap_std::fs::Dir;
use tokio::sync::watch;

use super::files::{LogError, LogFiles, StreamKind};
use super::rotate::RotatingWriter;
use super::tail::{Follower, From};
use crate::driver::api::ByteSink;
use crate::limits::MIB;
use crate::model::ids::TaskName;
use crate::model::job::LogConfig;

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
        let stream = |kind| LogStream::open(LogFiles::new(dir, task, kind)?, config);
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

/// One stream of a task. Writing appends to the files at once and wakes followers.
#[derive(Debug)]
pub struct LogStream {
    files: LogFiles,
    /// `None` when logs are disabled.
    writer: Option<Mutex<RotatingWriter>>,
    standing: watch::Sender<Standing>,
}

impl LogStream {
    fn open(files: LogFiles, config: &LogConfig) -> Result<Self, LogError> {
        let writer = if config.disabled {
            None
        } else {
            let file_bytes_max = u64::from(config.max_file_size_mb.max(1)) * MIB;
            Some(RotatingWriter::open(files.clone(), config.max_files, file_bytes_max)?)
        };
        Ok(Self::new(files, writer))
    }

    pub(super) fn new(files: LogFiles, writer: Option<RotatingWriter>) -> Self {
        let standing =
            writer.as_ref().map_or_else(Standing::default, |writer| standing(writer, false));
        Self { files, writer: writer.map(Mutex::new), standing: watch::Sender::new(standing) }
    }

    /// Read the stream from its oldest kept byte or from now on, until it is closed and all was
    /// read. The follower does not keep the stream open: dropping the last `Arc` closes it.
    #[must_use]
    pub fn follow(&self, from: From) -> Follower {
        Follower::live(self.files.clone(), self.standing.subscribe(), from)
    }

    /// Nothing more will be written. Later writes are discarded.
    pub fn close(&self) {
        // Under the lock: no write may come between the last byte and the mark.
        let _writer = self.lock();
        self.standing.send_modify(|standing| standing.closed = true);
    }

    /// Bytes that could not be written.
    #[must_use]
    pub fn dropped_bytes(&self) -> u64 {
        self.lock().map_or(0, |writer| writer.dropped_bytes())
    }

    /// Bytes of the stream so far, those found at opening included.
    #[must_use]
    pub fn written_bytes(&self) -> u64 {
        self.standing.borrow().position
    }

    fn lock(&self) -> Option<MutexGuard<'_, RotatingWriter>> {
        self.writer.as_ref().map(|writer| writer.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ByteSink for LogStream {
    fn write(&self, bytes: &[u8]) {
        let Some(mut writer) = self.lock() else {
            return;
        };
        if self.standing.borrow().closed {
            return;
        }
        writer.write(bytes);
        self.standing.send_replace(standing(&writer, false));
    }
}

fn standing(writer: &RotatingWriter, closed: bool) -> Standing {
    let (first, current) = writer.bounds();
    Standing {
        first: (first.index, first.start),
        current: (current.index, current.start),
        position: writer.position(),
        closed,
    }
}

//! The path of a line of the log to its outputs: a thread that logs never waits for them.
//!
//! ```text
//! any thread ─ one line ─► queue (bounded; what does not fit is counted) ─► thread ─┬► standard
//! error                                                                                  └► log
//! file, if any
//! ```

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use tracing_subscriber::fmt::MakeWriter;

use super::file::LogFile;
use ostler_model::limits::{LOG_END_WAIT, LOG_QUEUE_BYTES_MAX};

/// Hands lines to the thread that writes them. The thread is started for the first line.
#[derive(Clone, Default)]
pub(super) struct LogLines {
    queue: Arc<LineQueue>,
    thread: Arc<OnceLock<bool>>,
    file: Arc<Mutex<Option<LogFile>>>,
}

#[derive(Default)]
struct LineQueue {
    waiting: Mutex<QueuedLines>,
    changed: Condvar,
}

#[derive(Default)]
struct QueuedLines {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Number of lines that did not fit since the last one that did.
    lost: u64,
    /// Whether the thread is writing lines that it took out.
    busy: bool,
}

impl LineQueue {
    fn lock(&self) -> MutexGuard<'_, QueuedLines> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, line: &[u8]) {
        let mut waiting = self.lock();
        if waiting.bytes.saturating_add(line.len()) > LOG_QUEUE_BYTES_MAX {
            waiting.lost += 1;
            return;
        }
        if waiting.lost > 0 {
            let lost = std::mem::take(&mut waiting.lost);
            let text = format!("{lost} lines of the log were lost: writing it was too slow\n");
            waiting.bytes += text.len();
            waiting.lines.push_back(text.into_bytes());
        }
        waiting.bytes += line.len();
        waiting.lines.push_back(line.to_vec());
        drop(waiting);
        self.changed.notify_all();
    }

    /// Write the lines of the queue, for ever.
    fn write_to(&self, mut out: impl Write) {
        loop {
            let mut waiting = self.lock();
            waiting.busy = false;
            self.changed.notify_all();
            while waiting.lines.is_empty() {
                waiting = self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            }
            waiting.busy = true;
            waiting.bytes = 0;
            let lines = std::mem::take(&mut waiting.lines);
            drop(waiting);
            for line in lines {
                // There is nowhere to report this failure.
                let _closed = out.write_all(&line);
            }
            let _closed = out.flush();
        }
    }

    /// Wait until all lines are written, but not for long.
    fn wait(&self) {
        let waiting = self.lock();
        let unwritten = |waiting: &mut QueuedLines| waiting.busy || !waiting.lines.is_empty();
        let waited = self.changed.wait_timeout_while(waiting, LOG_END_WAIT, unwritten);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

impl LogLines {
    /// From now on also write to this file, or to no file.
    pub(super) fn set_file(&self, file: Option<LogFile>) {
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = file;
    }

    fn outputs(&self) -> Outputs {
        Outputs { stderr: io::stderr(), file: Arc::clone(&self.file) }
    }

    fn put(&self, line: &[u8]) {
        let begun = self.thread.get_or_init(|| {
            let (queue, outputs) = (Arc::clone(&self.queue), self.outputs());
            let thread = std::thread::Builder::new().name("ostler-log".to_owned());
            thread.spawn(move || queue.write_to(outputs)).is_ok()
        });
        if *begun {
            self.queue.put(line);
        } else {
            // Without a thread the line is written here.
            let _closed = self.outputs().write_all(line);
        }
    }

    /// Wait until all lines are written, but not for long.
    pub(super) fn wait(&self) {
        if self.thread.get() == Some(&true) {
            self.queue.wait();
        }
    }
}

/// The outputs that take the lines.
struct Outputs {
    stderr: io::Stderr,
    file: Arc<Mutex<Option<LogFile>>>,
}

impl Write for Outputs {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // An error of standard error is no reason to leave out the file.
        let _closed = self.stderr.write_all(line);
        if let Some(file) = self.file.lock().unwrap_or_else(PoisonError::into_inner).as_mut()
            && let Some(trouble) = file.write_line(line)
        {
            let _closed = self.stderr.write_all(trouble.as_bytes());
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stderr.flush()
    }
}

/// A writer for one line of the log, as the subscriber formats it.
pub(super) struct LogLineWriter<'a>(&'a LogLines);

impl Write for LogLineWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.put(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogLines {
    type Writer = LogLineWriter<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        LogLineWriter(self)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// A place that takes nothing until it is let.
    struct Stuck(std::sync::mpsc::Receiver<()>, Arc<Mutex<Vec<u8>>>);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _let_go = self.0.recv();
            self.1.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn whoever_logs_does_not_wait_for_who_reads_and_what_is_lost_is_told() {
        let (let_go, stuck) = std::sync::mpsc::channel();
        let (queue, written) = (Arc::new(LineQueue::default()), Arc::new(Mutex::default()));
        let (writing, out) = (Arc::clone(&queue), Stuck(stuck, Arc::clone(&written)));
        let _for_ever = std::thread::spawn(move || writing.write_to(out));
        let line = vec![b'x'; 1 << 10];
        queue.put(&line);
        while !queue.lock().busy {
            std::thread::yield_now();
        }
        for _ in 0..3 * LOG_QUEUE_BYTES_MAX / line.len() {
            queue.put(&line);
        }
        assert!(queue.lock().bytes <= LOG_QUEUE_BYTES_MAX);
        assert!(queue.lock().lost > 0);
        drop(let_go);
        queue.wait();
        queue.put(b"after\n");
        queue.wait();
        let text = String::from_utf8(written.lock().unwrap().clone()).unwrap();
        assert!(text.ends_with("lines of the log were lost: writing it was too slow\nafter\n"));
    }
}

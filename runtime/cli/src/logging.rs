//! The agent's own log, on standard error.
//!
//! ```text
//! any thread ─┬ one line ─► Queue (bounded; what does not fit is counted) ─► thread ─► standard error
//!             └ where somebody follows: AgentLog ─► the API
//! ```
//! Standard error may be a file on a disk that hangs, or a pipe that nobody reads: whoever logs never
//! waits for it, least of all the threads that have timers.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry};

use super::logging_followed;
use super::logging_hclog::HcLog;
use super::output;
use super::terminal::Terminal;
use ostler_model::limits::{LOG_END_WAIT, LOG_QUEUE_BYTES_MAX};

/// Variable with a filter that replaces `-v`, in the syntax of `RUST_LOG`.
const FILTER_VARIABLE: &str = "OSTLER_LOG";

/// Start logging: warnings, with `-v` more, or what `OSTLER_LOG` says. What is logged is written by
/// the time the result is dropped, unless standard error takes it too slowly.
pub(super) fn start(verbose: u8, terminal: &Terminal) -> Written {
    let lines = Lines::to(io::stderr);
    let written = tracing_subscriber::fmt::layer()
        .with_writer(lines.clone())
        .with_ansi(terminal.stderr_colours())
        .with_target(verbose > 1)
        // It would be written with a macro that panics when standard error is closed.
        .log_internal_errors(false)
        .with_filter(filter(verbose, terminal));
    let subscriber = Registry::default().with(written).with(logging_followed::layer());
    // Only fails when there is a subscriber already.
    let _there_already = subscriber.try_init();
    Written(lines)
}

/// As [`start`], in the lines that Nomad reads of its plugins.
pub(super) fn start_for_nomad(verbose: u8, terminal: &Terminal) -> Written {
    let lines = Lines::to(io::stderr);
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter(verbose, terminal))
        .with_writer(lines.clone())
        .log_internal_errors(false)
        .event_format(HcLog)
        .finish();
    // Only fails when there is a subscriber already.
    let _there_already = subscriber.try_init();
    Written(lines)
}

/// What is logged.
fn filter(verbose: u8, terminal: &Terminal) -> EnvFilter {
    let given = std::env::var(FILTER_VARIABLE).ok().filter(|text| !text.is_empty());
    let filter = given.map_or_else(|| EnvFilter::try_new(level(verbose)), EnvFilter::try_new);
    filter.unwrap_or_else(|error| {
        output::warning(terminal, &format!("{FILTER_VARIABLE} is no filter ({error}); try debug"));
        EnvFilter::new(level(verbose))
    })
}

/// The filter of `-v` given so often. Libraries stay one level quieter than the agent.
const fn level(verbose: u8) -> &'static str {
    match verbose {
        0 => "warn",
        1 => "warn,ostler=info",
        2 => "info,ostler=debug",
        _ => "debug,ostler=trace",
    }
}

/// See [`start`].
#[must_use]
pub(super) struct Written(Lines);

impl Drop for Written {
    fn drop(&mut self) {
        self.0.wait();
    }
}

/// The way to the thread that writes; it begins with the first line.
#[derive(Clone)]
struct Lines {
    queue: Arc<Queue>,
    thread: Arc<OnceLock<bool>>,
    open: fn() -> io::Stderr,
}

#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
    /// Lines that did not fit since one did.
    lost: u64,
    /// The thread writes what it took out.
    busy: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
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
            let text = format!("{lost} lines of the log were lost: it was written too slowly\n");
            waiting.bytes += text.len();
            waiting.lines.push_back(text.into_bytes());
        }
        waiting.bytes += line.len();
        waiting.lines.push_back(line.to_vec());
        drop(waiting);
        self.changed.notify_all();
    }

    /// Write what comes, for ever.
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

    /// Wait until all is written, for a while.
    fn wait(&self) {
        let waiting = self.lock();
        let unwritten = |waiting: &mut Waiting| waiting.busy || !waiting.lines.is_empty();
        let waited = self.changed.wait_timeout_while(waiting, LOG_END_WAIT, unwritten);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

impl Lines {
    fn to(open: fn() -> io::Stderr) -> Self {
        Self { queue: Arc::default(), thread: Arc::default(), open }
    }

    fn put(&self, line: &[u8]) {
        let begun = self.thread.get_or_init(|| {
            let (queue, open) = (Arc::clone(&self.queue), self.open);
            let thread = std::thread::Builder::new().name("ostler-log".to_owned());
            thread.spawn(move || queue.write_to(open())).is_ok()
        });
        if *begun {
            self.queue.put(line);
        } else {
            // Without a thread there is nobody else to do it.
            let _closed = (self.open)().write_all(line);
        }
    }

    fn wait(&self) {
        if self.thread.get() == Some(&true) {
            self.queue.wait();
        }
    }
}

/// One line of the log, as the subscriber formats it.
struct Line<'a>(&'a Lines);

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.put(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        Line(self)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn every_level_is_a_valid_filter() {
        for verbose in 0..5 {
            assert!(EnvFilter::try_new(level(verbose)).is_ok(), "{verbose}");
        }
    }

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
        let (queue, written) = (Arc::new(Queue::default()), Arc::new(Mutex::default()));
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
        assert!(text.ends_with("lines of the log were lost: it was written too slowly\nafter\n"));
    }
}

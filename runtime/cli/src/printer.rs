//! The thread that prints what a run has to tell.
//!
//! ```text
//! watchers, followers, run ── Report (bounded) ──► printer thread ─► stdout, stderr
//!                                                       │
//!                                                       └─► OutputState (watch): open, failed
//! ```
//! A terminal or pipe that does not take more holds up this thread and, through the queue, those
//! who tell; never timers or signals. When nobody reads standard output any more, what would go
//! there is thrown away.

use std::io::{self, Write};

use tokio::sync::{mpsc, oneshot, watch};

use super::exit::Exit;
use super::human::human;
use super::output;
use super::report::{Rendered, Report, json};
use super::terminal::Terminal;

/// Reports waiting to be printed. Those who tell wait when it is full.
const QUEUE_MAX: usize = 256;
/// Text collected before it is written, bytes, while there is more to print.
const BUFFER_BYTES: usize = 32 * 1024;

/// How reports look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// One JSON object per line, all on standard output.
    Json,
    /// For people.
    Human(Terminal),
}

/// The way to the thread.
pub(super) struct Printer {
    failed: watch::Receiver<Option<Exit>>,
    ended: oneshot::Receiver<()>,
}

impl Printer {
    /// Start the thread on the process's streams. It ends when every sender is gone.
    pub(super) fn start(format: Format) -> io::Result<(mpsc::Sender<Report>, Self)> {
        Self::start_on(format, io::stdout(), io::stderr())
    }

    fn start_on(
        format: Format,
        stdout: impl Write + Send + 'static,
        stderr: impl Write + Send + 'static,
    ) -> io::Result<(mpsc::Sender<Report>, Self)> {
        let (sender, queue) = mpsc::channel(QUEUE_MAX);
        let (failure, failed) = watch::channel(None);
        let (end, ended) = oneshot::channel();
        let print = move || {
            run(format, queue, stdout, stderr, &failure);
            // Nobody waits when a signal ended the wait.
            let _nobody = end.send(());
        };
        std::thread::Builder::new().name("ostler-printer".to_owned()).spawn(print)?;
        Ok((sender, Self { failed, ended }))
    }

    /// Wait until standard output takes no more, and why. Never returns while it does.
    pub(super) async fn failed(&mut self) -> Exit {
        let failed = self.failed.wait_for(Option::is_some).await.map(|failed| *failed);
        match failed {
            Ok(Some(exit)) => exit,
            // The thread ended in order.
            _ => std::future::pending().await,
        }
    }

    /// Wait until everything told is printed; why standard output failed, if it did. All senders
    /// must be gone.
    pub(super) async fn drained(&mut self) -> Option<Exit> {
        // An error means the thread died; then there is nothing to wait for either.
        let _died = (&mut self.ended).await;
        *self.failed.borrow()
    }
}

/// Print a report at once, for people; for commands that show nothing of what tasks print.
pub(super) fn tell(report: &Report, terminal: &Terminal) {
    let mut rendered = Rendered::default();
    human(report, terminal, &mut rendered);
    let _closed = io::stderr().lock().write_all(&rendered.stderr);
}

fn run(
    format: Format,
    mut queue: mpsc::Receiver<Report>,
    mut stdout: impl Write,
    mut stderr: impl Write,
    failure: &watch::Sender<Option<Exit>>,
) {
    let terminal = match format {
        Format::Json => Terminal::default(),
        Format::Human(terminal) => terminal,
    };
    let mut rendered = Rendered::default();
    let mut failed = false;
    while let Some(report) = queue.blocking_recv() {
        let mut next = Some(report);
        while let Some(report) = next {
            match format {
                Format::Json => json(&report, &mut rendered),
                Format::Human(terminal) => human(&report, &terminal, &mut rendered),
            }
            let full = rendered.stdout.len().max(rendered.stderr.len()) >= BUFFER_BYTES;
            // On a terminal both streams are one screen: what was told first stands first.
            let mixed = !rendered.stdout.is_empty() && !rendered.stderr.is_empty();
            next = if full || mixed { None } else { queue.try_recv().ok() };
        }
        // A closed standard error is no reason to stop: it has only what is for people.
        let _closed = stderr.write_all(&rendered.stderr).and_then(|()| stderr.flush());
        if !failed && !rendered.stdout.is_empty() {
            let written = stdout.write_all(&rendered.stdout).and_then(|()| stdout.flush());
            if let Err(error) = written {
                failed = true;
                failure.send_replace(Some(output::output_failed(&error, &terminal)));
            }
        }
        rendered.stdout.clear();
        rendered.stderr.clear();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Shared {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn progress(number: usize) -> Report {
        Report::Progress { message: format!("step {number}") }
    }

    #[tokio::test]
    async fn everything_told_is_printed_in_order_before_the_end() {
        let (out, err) = (Shared::default(), Shared::default());
        let format = Format::Human(Terminal::default());
        let (sender, mut printer) = Printer::start_on(format, out.clone(), err.clone()).unwrap();
        for number in 0..10 * QUEUE_MAX {
            sender.send(progress(number)).await.unwrap();
        }
        drop(sender);
        assert_eq!(printer.drained().await, None);
        let expected: String = (0..10 * QUEUE_MAX).map(|n| format!("step {n}\n")).collect();
        assert_eq!((out.text(), err.text()), (String::new(), expected));
    }

    #[tokio::test]
    async fn with_json_everything_is_one_object_per_line_on_standard_output() {
        let (out, err) = (Shared::default(), Shared::default());
        let (sender, mut printer) =
            Printer::start_on(Format::Json, out.clone(), err.clone()).unwrap();
        sender.send(progress(1)).await.unwrap();
        drop(sender);
        printer.drained().await;
        assert_eq!(out.text(), "{\"type\":\"progress\",\"message\":\"step 1\"}\n");
        assert_eq!(err.text(), "");
    }

    #[tokio::test]
    async fn a_reader_that_left_is_noticed_and_the_senders_are_not_held_up() {
        let (sender, mut printer) = Printer::start_on(Format::Json, Closed, io::sink()).unwrap();
        sender.send(progress(0)).await.unwrap();
        assert_eq!(printer.failed().await, Exit::OutputClosed);
        for number in 0..2 * QUEUE_MAX {
            sender.send(progress(number)).await.unwrap();
        }
        drop(sender);
        assert_eq!(printer.drained().await, Some(Exit::OutputClosed));
    }
}

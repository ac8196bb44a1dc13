//! The thread that prints the reports of a run.
//!
//! ```text
//! watchers, followers, run ── reports (bounded) ──► printer thread ─► stdout, stderr
//!                                                        │
//!                                                        └─► failure of stdout (watch)
//! ```
//! A terminal or pipe that takes no more holds up this thread and, through the queue, the tasks
//! that send reports, but never timers or signals. When nobody reads standard output any more,
//! further text for it is thrown away.

use std::io::{self, Write};

use tokio::sync::{mpsc, oneshot, watch};

use super::exit::Exit;
use super::human::render_human;
use super::output;
use super::report::{RenderBuffers, RunReport, render_json};
use super::terminal::TerminalInfo;

/// Most reports that wait to be printed. Senders wait when the queue is full.
const QUEUE_MAX: usize = 256;
/// Bytes of text that are collected before they are written, while there is more to print.
const BUFFER_BYTES: usize = 32 * 1024;

/// The format of the reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReportFormat {
    /// One JSON object per line, all on standard output.
    Json,
    /// Text for people, for a terminal with these properties.
    Human(TerminalInfo),
}

/// A handle of the thread that prints.
pub(super) struct Printer {
    failed: watch::Receiver<Option<Exit>>,
    ended: oneshot::Receiver<()>,
}

impl Printer {
    /// Start the thread on the streams of the process. It ends when every sender is gone.
    pub(super) fn start(format: ReportFormat) -> io::Result<(mpsc::Sender<RunReport>, Self)> {
        Self::start_on(format, io::stdout(), io::stderr())
    }

    fn start_on(
        format: ReportFormat,
        stdout: impl Write + Send + 'static,
        stderr: impl Write + Send + 'static,
    ) -> io::Result<(mpsc::Sender<RunReport>, Self)> {
        let (sender, queue) = mpsc::channel(QUEUE_MAX);
        let (failure, failed) = watch::channel(None);
        let (end, ended) = oneshot::channel();
        let print = move || {
            print_reports(format, queue, stdout, stderr, &failure);
            // Nobody waits when a signal ended the wait.
            let _nobody = end.send(());
        };
        std::thread::Builder::new().name("ostler-printer".to_owned()).spawn(print)?;
        Ok((sender, Self { failed, ended }))
    }

    /// Wait until writing to standard output fails. Returns the exit code for that.
    pub(super) async fn wait_for_failure(&mut self) -> Exit {
        let failed = self.failed.wait_for(Option::is_some).await.map(|failed| *failed);
        match failed {
            Ok(Some(exit)) => exit,
            // The thread ended in order.
            _ => std::future::pending().await,
        }
    }

    /// Wait until every report is printed. Returns the exit code for standard output if it failed.
    /// All senders must be gone.
    pub(super) async fn wait_until_drained(&mut self) -> Option<Exit> {
        // An error means the thread died; then there is nothing to wait for either.
        let _died = (&mut self.ended).await;
        *self.failed.borrow()
    }
}

/// Print a report for people at once, without the thread; for commands that show no
/// output of tasks.
pub(super) fn print_report(report: &RunReport, terminal: &TerminalInfo) {
    let mut rendered = RenderBuffers::default();
    render_human(report, terminal, &mut rendered);
    let _closed = io::stderr().lock().write_all(&rendered.stderr);
}

fn print_reports(
    format: ReportFormat,
    mut queue: mpsc::Receiver<RunReport>,
    mut stdout: impl Write,
    mut stderr: impl Write,
    failure: &watch::Sender<Option<Exit>>,
) {
    let terminal = match format {
        ReportFormat::Json => TerminalInfo::default(),
        ReportFormat::Human(terminal) => terminal,
    };
    let mut rendered = RenderBuffers::default();
    let mut failed = false;
    while let Some(report) = queue.blocking_recv() {
        let mut next = Some(report);
        while let Some(report) = next {
            match format {
                ReportFormat::Json => render_json(&report, &mut rendered),
                ReportFormat::Human(terminal) => render_human(&report, &terminal, &mut rendered),
            }
            let full = rendered.stdout.len().max(rendered.stderr.len()) >= BUFFER_BYTES;
            // On a terminal both streams are one screen: reports stay in their order.
            let mixed = !rendered.stdout.is_empty() && !rendered.stderr.is_empty();
            next = if full || mixed { None } else { queue.try_recv().ok() };
        }
        // A closed standard error is no reason to stop: it has only text for people.
        let _closed = stderr.write_all(&rendered.stderr).and_then(|()| stderr.flush());
        if !failed && !rendered.stdout.is_empty() {
            let written = stdout.write_all(&rendered.stdout).and_then(|()| stdout.flush());
            if let Err(error) = written {
                failed = true;
                failure.send_replace(Some(output::report_output_error(&error, &terminal)));
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

    fn progress(number: usize) -> RunReport {
        RunReport::Progress { message: format!("step {number}") }
    }

    #[tokio::test]
    async fn everything_told_is_printed_in_order_before_the_end() {
        let (out, err) = (Shared::default(), Shared::default());
        let format = ReportFormat::Human(TerminalInfo::default());
        let (sender, mut printer) = Printer::start_on(format, out.clone(), err.clone()).unwrap();
        for number in 0..10 * QUEUE_MAX {
            sender.send(progress(number)).await.unwrap();
        }
        drop(sender);
        assert_eq!(printer.wait_until_drained().await, None);
        let expected: String = (0..10 * QUEUE_MAX).map(|n| format!("step {n}\n")).collect();
        assert_eq!((out.text(), err.text()), (String::new(), expected));
    }

    #[tokio::test]
    async fn with_json_everything_is_one_object_per_line_on_standard_output() {
        let (out, err) = (Shared::default(), Shared::default());
        let (sender, mut printer) =
            Printer::start_on(ReportFormat::Json, out.clone(), err.clone()).unwrap();
        sender.send(progress(1)).await.unwrap();
        drop(sender);
        printer.wait_until_drained().await;
        assert_eq!(out.text(), "{\"type\":\"progress\",\"message\":\"step 1\"}\n");
        assert_eq!(err.text(), "");
    }

    #[tokio::test]
    async fn a_reader_that_left_is_noticed_and_the_senders_are_not_held_up() {
        let (sender, mut printer) =
            Printer::start_on(ReportFormat::Json, Closed, io::sink()).unwrap();
        sender.send(progress(0)).await.unwrap();
        assert_eq!(printer.wait_for_failure().await, Exit::OutputClosed);
        for number in 0..2 * QUEUE_MAX {
            sender.send(progress(number)).await.unwrap();
        }
        drop(sender);
        assert_eq!(printer.wait_until_drained().await, Some(Exit::OutputClosed));
    }
}

//! The agent's own log: standard error, and a file where the configuration names one.
//!
//! ```text
//! any thread ─┬ event ─► filter (changes with the configuration) ─► text or JSON ─► lines
//!             └ where somebody follows: AgentLog ─► the API
//! ```
//! Standard error may be a file on a disk that hangs, or a pipe that nobody reads. A thread that
//! logs never waits for it, least of all the threads that have timers.

mod api;
mod file;
mod hclog;
mod lines;
mod traces;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{Format, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry, reload};

use super::output;
use super::terminal::TerminalInfo;
use file::LogFile;
use hclog::HcLog;
use lines::LogLines;
use ostler_model::log_config::{AgentLogConfig, LogLevel};

/// Variable with a filter that replaces `-v`, in the syntax of `RUST_LOG`.
const FILTER_VARIABLE: &str = "OSTLER_LOG";

/// The parts of this process's log that can be changed; empty before [`start`].
static CONTROL: OnceLock<Control> = OnceLock::new();

struct Control {
    filter: reload::Handle<EnvFilter, Registry>,
    form: LineFormat,
    lines: LogLines,
    /// `OSTLER_LOG` says how much is logged, so the configuration does not.
    level_given: bool,
}

/// Start logging: warnings, with `-v` more, or what `OSTLER_LOG` says. Dropping the result waits
/// until every line is written, unless standard error takes the lines too slowly.
pub(super) fn start(verbose: u8, terminal: &TerminalInfo) -> LogGuard {
    let (lines, form) = (LogLines::default(), LineFormat::default());
    form.targets.store(verbose > 1, Ordering::Relaxed);
    let (filter, handle) = reload::Layer::new(filter(verbose, terminal));
    let written = tracing_subscriber::fmt::layer()
        .event_format(form.clone())
        .with_writer(lines.clone())
        .with_ansi(terminal.stderr_colours())
        // Such errors would be written with a macro that panics when standard error is closed.
        .log_internal_errors(false)
        .with_filter(filter);
    let subscriber = Registry::default().with(written).with(api::layer());
    #[cfg(feature = "otel")]
    let subscriber = subscriber.with(ostler_trace::layer());
    // Only fails when there is a subscriber already.
    let _there_already = subscriber.try_init();
    let level_given = filter_variable().is_some();
    let _there_already =
        CONTROL.set(Control { filter: handle, form, lines: lines.clone(), level_given });
    LogGuard(lines)
}

/// As [`start`], with lines in the format that Nomad reads from its plugins.
pub(super) fn start_for_nomad(verbose: u8, terminal: &TerminalInfo) -> LogGuard {
    let lines = LogLines::default();
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter(verbose, terminal))
        .with_writer(lines.clone())
        .log_internal_errors(false)
        .event_format(HcLog)
        .finish();
    // Only fails when there is a subscriber already.
    let _there_already = subscriber.try_init();
    LogGuard(lines)
}

/// Log as the configuration says from now on. The caller has already applied what the command line
/// overrides; a level that `OSTLER_LOG` sets stays. May wait for the disk.
///
/// # Errors
/// When the file cannot be opened. Nothing is changed then.
pub(super) fn configure(config: &AgentLogConfig) -> Result<(), String> {
    let Some(control) = CONTROL.get() else { return Ok(()) };
    let file = config.file.clone().map(LogFile::open).transpose()?;
    control.lines.set_file(file);
    control.form.json.store(config.json.unwrap_or(false), Ordering::Relaxed);
    if let Some(level) = config.level.filter(|_| !control.level_given) {
        control.form.targets.store(level >= LogLevel::Debug, Ordering::Relaxed);
        // An error means that there is no subscriber any more.
        let filter = EnvFilter::new(traces::exclude_spans(level_filter(level)));
        let _gone = control.filter.reload(filter);
    }
    Ok(())
}

/// The format of the lines: text or JSON.
#[derive(Clone, Default)]
struct LineFormat {
    json: Arc<AtomicBool>,
    /// Whether lines of text name the module that logs.
    targets: Arc<AtomicBool>,
}

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if self.json.load(Ordering::Relaxed) {
            return HcLog.format_event(context, writer, event);
        }
        let text = Format::default().with_target(self.targets.load(Ordering::Relaxed));
        let Some([trace, span]) = traces::ids() else {
            return text.format_event(context, writer, event);
        };
        let mut line = String::new();
        let text = text.with_ansi(writer.has_ansi_escapes());
        text.format_event(context, Writer::new(&mut line), event)?;
        let line = line.trim_end_matches('\n');
        writeln!(writer, "{line} {}={} {}={}", trace.0, trace.1, span.0, span.1)
    }
}

/// The name of the variable that says how much is logged, where it is set.
pub(super) fn level_variable() -> Option<&'static str> {
    filter_variable().map(|_| FILTER_VARIABLE)
}

fn filter_variable() -> Option<String> {
    std::env::var(FILTER_VARIABLE).ok().filter(|text| !text.is_empty())
}

/// The filter of the log, from `OSTLER_LOG` or else from `-v`.
fn filter(verbose: u8, terminal: &TerminalInfo) -> EnvFilter {
    let wanted = filter_variable().unwrap_or_else(|| verbosity_filter(verbose).to_owned());
    EnvFilter::try_new(traces::exclude_spans(&wanted)).unwrap_or_else(|error| {
        output::warning(
            terminal,
            &format!("{FILTER_VARIABLE} is not a valid filter ({error}); try debug"),
        );
        EnvFilter::new(traces::exclude_spans(verbosity_filter(verbose)))
    })
}

/// The filter for this number of `-v`.
const fn verbosity_filter(verbose: u8) -> &'static str {
    level_filter(match verbose {
        0 => LogLevel::Warn,
        1 => LogLevel::Info,
        2 => LogLevel::Debug,
        _ => LogLevel::Trace,
    })
}

/// The filter for a level. Libraries stay one level quieter than the agent.
const fn level_filter(level: LogLevel) -> &'static str {
    match level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "warn,ostler=info",
        LogLevel::Debug => "info,ostler=debug",
        LogLevel::Trace => "debug,ostler=trace",
    }
}

/// Waits, when it is dropped, until the log is written. See [`start`].
#[must_use]
pub(super) struct LogGuard(LogLines);

impl Drop for LogGuard {
    fn drop(&mut self) {
        self.0.wait();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
pub(crate) mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;

    /// Run a function whose events and spans go to a subscriber, while no other test has one.
    /// Whether an event is enabled is kept for the whole process, and asked of every subscriber
    /// that lives.
    pub(crate) fn with_own_subscriber<S, T>(subscriber: S, run: impl FnOnce() -> T) -> T
    where
        S: tracing::Subscriber + Send + Sync + 'static,
    {
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        tracing::subscriber::with_default(subscriber, run)
    }

    #[test]
    fn every_level_is_a_valid_filter() {
        for verbose in 0..5 {
            assert!(EnvFilter::try_new(verbosity_filter(verbose)).is_ok(), "{verbose}");
        }
        for (name, level) in LogLevel::ALL {
            assert!(EnvFilter::try_new(level_filter(level)).is_ok(), "{name}");
        }
    }

    #[test]
    fn the_form_changes_while_it_is_used_and_has_colours_only_where_they_are_wanted() {
        #[derive(Clone, Default)]
        struct SharedBuffer(Arc<std::sync::Mutex<Vec<u8>>>);
        impl std::io::Write for SharedBuffer {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().unwrap().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        for ansi in [false, true] {
            let (kept, form) = (SharedBuffer::default(), LineFormat::default());
            let out = kept.clone();
            let layer = tracing_subscriber::fmt::layer()
                .event_format(form.clone())
                .with_ansi(ansi)
                .with_writer(move || out.clone());
            with_own_subscriber(Registry::default().with(layer), || {
                tracing::info!(task = "web", "it runs");
                form.json.store(true, Ordering::Relaxed);
                tracing::info!(task = "web", "it runs");
            });
            let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines.len(), 2, "{text}");
            assert!(lines[0].contains("it runs"), "{text}");
            assert_eq!(lines[0].contains('\u{1b}'), ansi, "{text:?}");
            let json: serde_json::Value = serde_json::from_str(lines[1]).unwrap();
            let said = (&json["@level"], &json["@message"], &json["task"]);
            assert_eq!(said, (&"info".into(), &"it runs".into(), &"web".into()), "{json}");
        }
    }
}

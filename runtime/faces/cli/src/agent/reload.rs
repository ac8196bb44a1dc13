//! SIGHUP: the configuration is read again while the agent runs.
//!
//! ```text
//! SIGHUP ─► RELOADING=1 ─► file, command line ─► AgentHandle::reload ─► a line for each key ─► READY=1
//!                                                   └─► LogReload: level, form, file
//! ```

use std::sync::Arc;

use super::config::AgentInvocation;
use super::notify;
use crate::args::agent::AgentCommandArgs;
use crate::input::InputError;
use crate::logging;
use crate::start::AgentStartError;
use ostler_agent::AgentHandle;
use ostler_agent::reload::{KeyReport, KeyVerdict, ReloadPart, ReloadReport};
use ostler_model::clock;
use ostler_model::config::AgentConfig;
use ostler_model::log_config::AgentLogConfig;
use ostler_model::ports::BoxFuture;

/// Read the configuration again and say what became of each key that differs.
pub(super) async fn reload(agent: &AgentHandle, given: &AgentInvocation<'_>) -> ReloadReport {
    let now = clock::monotonic_micros();
    notify::notify_manager(&format!(
        "RELOADING=1\nMONOTONIC_USEC={now}\nSTATUS=reading the configuration again"
    ));
    tracing::info!("SIGHUP: reading the configuration and the jobs directory again");
    // A small file of the operator's, on this task: nothing else of the agent waits for it.
    let config = given.read_config().map_err(|error| error_text(&error));
    let report = agent.reload(config).await;
    let refused = |one: &KeyReport| matches!(one.verdict, KeyVerdict::Refused(_));
    let wrong = report.refused.is_some() || report.keys.iter().any(refused);
    for line in report.lines() {
        if wrong {
            tracing::warn!("configuration: {line}");
        } else {
            tracing::info!("configuration: {line}");
        }
    }
    let status = if wrong { "ready; the new configuration is wrong, see the log" } else { "ready" };
    notify::notify_manager(&format!("READY=1\nSTATUS={status}"));
    report
}

fn error_text(error: &AgentStartError) -> String {
    match error {
        AgentStartError::Input(InputError::Invalid { diagnostics, .. }) => {
            let words = diagnostics.iter().map(ToString::to_string);
            words.collect::<Vec<_>>().join("; ")
        }
        AgentStartError::Input(error) => error.to_string(),
        AgentStartError::Agent(text) => text.clone(),
    }
}

/// Applies changes of the `log_…` keys. The file is opened again each time, so that a program that
/// moves logs away can ask for a new file.
pub(super) struct LogReload {
    args: Arc<AgentCommandArgs>,
    verbose: u8,
}

impl LogReload {
    pub(super) fn new(args: Arc<AgentCommandArgs>, verbose: u8) -> Self {
        Self { args, verbose }
    }
}

impl ReloadPart for LogReload {
    fn keys(&self) -> &'static [&'static str] {
        &["log_level", "log_json", "log_file"]
    }

    fn reload<'a>(
        &'a self,
        running: &'a AgentConfig,
        new: &'a AgentConfig,
    ) -> BoxFuture<'a, Vec<KeyReport>> {
        Box::pin(async move {
            let given = AgentInvocation { args: &self.args, verbose: self.verbose };
            let (old, new) = (&running.log, &new.log);
            let refused = match configure_log(given.log_config(new)).await {
                Ok(()) => None,
                Err(why) => {
                    // The other keys apply without the new file.
                    let file = old.file.clone();
                    let again =
                        configure_log(AgentLogConfig { file, ..given.log_config(new) }).await;
                    Some(again.err().unwrap_or(why))
                }
            };
            log_key_reports(old, new, refused, given.level_override(), given.format_override())
        })
    }
}

async fn configure_log(log: AgentLogConfig) -> Result<(), String> {
    let set = tokio::task::spawn_blocking(move || logging::configure(&log)).await;
    set.unwrap_or_else(|_| {
        Err("the log could not be changed: the agent is shutting down".to_owned())
    })
}

/// A report for each key that differs. `file` says why the log file could not be opened;
/// `level_from` and `form_from` name what overrides the configuration.
fn log_key_reports(
    old: &AgentLogConfig,
    new: &AgentLogConfig,
    file: Option<String>,
    level_from: Option<&str>,
    form_from: Option<&str>,
) -> Vec<KeyReport> {
    let unless = |before: Option<&str>| match before {
        Some(what) => KeyVerdict::Refused(format!("{what} comes before it")),
        None => KeyVerdict::Applied,
    };
    let mut reports = Vec::new();
    let mut tell = |key: &str, verdict| reports.push(KeyReport { key: key.to_owned(), verdict });
    if old.level != new.level {
        tell("log_level", unless(level_from));
    }
    if old.json != new.json {
        tell("log_json", unless(form_from));
    }
    match file {
        Some(why) => tell("log_file", KeyVerdict::Refused(why)),
        None if old.file != new.file => tell("log_file", KeyVerdict::Applied),
        None => {}
    }
    reports
}

#[cfg(test)]
#[path = "reload_keys_tests.rs"]
mod keys_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use ostler_model::log_config::LogLevel;

    #[test]
    fn a_key_that_the_command_line_replaces_is_refused_and_a_file_that_cannot_be_opened_too() {
        let old = AgentLogConfig::default();
        let new = AgentLogConfig { level: Some(LogLevel::Debug), json: Some(true), file: None };
        let said = |file: Option<&str>, level, form| {
            let reports = log_key_reports(&old, &new, file.map(str::to_owned), level, form);
            let at = ostler_model::time::Timestamp::from_nanos(0);
            ReloadReport { at, refused: None, keys: reports }.lines()
        };
        assert_eq!(said(None, None, None), ["log_level: applied", "log_json: applied"]);
        assert_eq!(
            said(Some("no such directory"), Some("-v"), None),
            [
                "log_level: refused, stays as it was: -v comes before it",
                "log_json: applied",
                "log_file: refused, stays as it was: no such directory",
            ]
        );
        assert_eq!(log_key_reports(&old, &old, None, None, None), []);
    }
}

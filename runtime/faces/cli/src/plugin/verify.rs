//! `ostler plugin verify`: who signed a plugin, and whether the agent would run it.

use std::fmt::Write as _;
use std::path::Path;

use crate::answer;
use crate::args::trust::VerifyArgs;
use crate::connect::CliError;
use crate::exit::Exit;
use crate::input;
use crate::output::{self};
use crate::terminal::{TerminalInfo, plain};
use ostler_agent::{SignatureReport, VerifyReport};
use ostler_model::config::AgentConfig;
use ostler_model::trust::PluginSource;
use ostler_model::words::format_bytes;

/// Verify a plugin file.
pub(super) fn verify(args: &VerifyArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let mut config = input::read_config(args.config.as_deref())?;
    if let Some(trust) = &args.trust {
        apply_trust(&mut config, trust, args.config.is_none());
    }
    let report = ostler_agent::verify(&config, &args.file);
    let report = report.map_err(|error| CliError::Wrong(error.to_string()))?;
    answer::show(&report, || text(&report), terminal)?;
    Ok(if report.trusted { Exit::Success } else { Exit::Failed })
}

/// Use the trust file of the command line. `alone` says that no configuration says
/// what is required.
fn apply_trust(config: &mut AgentConfig, trust: &Path, alone: bool) {
    config.trust.file = Some(trust.to_owned());
    if alone {
        config.trust.require_signature = PluginSource::OUTSIDE.iter().map(|(_, s)| *s).collect();
    }
}

fn text(report: &VerifyReport) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| output::fact(&mut text, 11, name, value);
    line("file", &report.file.display().to_string());
    line("plugin", &report.name);
    let kind = report.kind.map_or_else(|| "no plugin".to_owned(), |kind| format!("{kind} plugin"));
    line("kind", &kind);
    line("size", &format!("{} ({} bytes)", format_bytes(report.size_bytes), report.size_bytes));
    line("digest", &report.digest.to_tagged());
    line("signature", &signature(&report.signature));
    if let SignatureReport::Good { comment, .. } = &report.signature {
        line("comment", comment);
    }
    match (&report.by, &report.reason) {
        (Some(by), _) => line("verdict", &format!("would run: {by}")),
        (None, reason) => {
            line("verdict", "would not run");
            let _ = writeln!(text, "\n{}", plain(reason.as_deref().unwrap_or_default()));
        }
    }
    text
}

fn signature(report: &SignatureReport) -> String {
    match report {
        SignatureReport::None => "none".to_owned(),
        SignatureReport::Damaged { reason } => format!("damaged: {reason}"),
        SignatureReport::UnknownKey { key_id } => {
            format!("by the key {key_id}, which is not in the trust file")
        }
        SignatureReport::Wrong { key, key_id } => {
            format!("of other bytes, by {key} (key {key_id})")
        }
        SignatureReport::Good { key, key_id, revoked: None, .. } => {
            format!("good, by {key} (key {key_id})")
        }
        SignatureReport::Good { key, key_id, revoked: Some(reason), .. } => {
            format!("by {key} (key {key_id}), which is revoked: {reason}")
        }
    }
}

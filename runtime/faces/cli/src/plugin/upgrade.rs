//! `ostler plugin upgrade`

use std::fmt::Write as _;

use crate::answer;
use crate::args::plugin::PluginUpgradeArgs;
use crate::connect::{self, CliError};
use crate::exit::Exit;
use crate::terminal::{TerminalInfo, one_line, plain};
use ostler_agent::{Release, UpgradeOptions, UpgradeOutcome, UpgradeReport};
use ostler_api::routes::endpoints as routes;
use ostler_model::words::count_noun;

/// Digits of a digest that are shown, for people to compare.
const DIGEST_SHOWN: usize = 12;

/// Replace a plugin with another version.
pub(super) async fn upgrade(
    args: &PluginUpgradeArgs,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    let client = connect::connect(&args.agent)?;
    // The agent may have another working directory.
    let absolute = |file: &std::path::PathBuf| {
        std::fs::canonicalize(file).map_err(|e| CliError::Wrong(format!("{}: {e}", file.display())))
    };
    let file = args.file.as_ref().map(absolute).transpose()?;
    let options = UpgradeOptions { file, consents: args.yes };
    let report =
        client.send_body(&routes::UpgradePlugin::request([&args.plugin]), &options).await?;
    answer::show(&report, || text(&report), terminal)?;
    Ok(exit(&report.outcome))
}

const fn exit(outcome: &UpgradeOutcome) -> Exit {
    match outcome {
        UpgradeOutcome::Same | UpgradeOutcome::Switched | UpgradeOutcome::Accepted => Exit::Success,
        UpgradeOutcome::ConsentNeeded { .. } => Exit::Consent,
        UpgradeOutcome::Refused { .. } | UpgradeOutcome::RolledBack { .. } => Exit::Failed,
    }
}

/// The version of a release and the beginning of its digest.
pub(super) fn release(release: &Release) -> String {
    let digest: String = release.digest.chars().take(DIGEST_SHOWN).collect();
    let version = release.version.as_deref().unwrap_or("an unknown version");
    one_line(&format!("{version} ({digest})"))
}

/// The result of an upgrade in a sentence; several lines where it needs consent.
pub(super) fn text(report: &UpgradeReport) -> String {
    let UpgradeReport { name, from, to, tasks_tried, .. } = report;
    let (name, from, to) = (one_line(name), release(from), release(to));
    match &report.outcome {
        UpgradeOutcome::Same => format!("{name} {from} is already this file\n"),
        UpgradeOutcome::Switched => {
            let mut text = format!(
                "{name} is {to} now, was {from}; it was tried with {}; it is now proving itself, see \
                 `ostler plugin status {name}`\n",
                count_noun(*tasks_tried, "running task")
            );
            for new in &report.announces {
                let _ = writeln!(text, "  + announces {}", one_line(new));
            }
            text
        }
        UpgradeOutcome::Accepted => format!("{name} {to} proved itself\n"),
        UpgradeOutcome::ConsentNeeded { asks, downgrade } => {
            let mut text = format!("{name} was not upgraded:\n");
            if let Some((old, new)) = downgrade {
                let (old, new) = (one_line(old), one_line(new));
                let _ = writeln!(text, "  - version {old}\n  + version {new}, which is older");
            }
            for ask in asks {
                let _ = writeln!(text, "  + asks for {}", one_line(ask));
            }
            text.push_str("give --yes to accept this\n");
            text
        }
        UpgradeOutcome::Refused { reason } => {
            format!("{name} was not upgraded, {from} stays: {}\n", plain(reason))
        }
        UpgradeOutcome::RolledBack { reason } => {
            format!("{name} {to} was rolled back to {from}: {}\n", plain(reason))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostler_model::time::Timestamp;

    fn report(outcome: UpgradeOutcome) -> UpgradeReport {
        let release = |version: &str, digest: &str| Release {
            version: Some(version.to_owned()),
            digest: digest.repeat(64),
        };
        UpgradeReport {
            name: "exec".to_owned(),
            at: Timestamp::from_nanos(1),
            by_itself: false,
            from: release("1.0.0", "a"),
            to: release("1.1.0", "b"),
            file: "/p/exec.wasm".into(),
            tasks_tried: 3,
            announces: vec!["device group a/b/c".to_owned()],
            outcome,
        }
    }

    #[test]
    fn what_a_person_must_agree_to_is_shown_and_has_a_code_of_its_own() {
        let outcome = UpgradeOutcome::ConsentNeeded {
            asks: vec!["ostler:plugin/command".to_owned()],
            downgrade: Some(("1.0.0".to_owned(), "0.9.0\u{1b}".to_owned())),
        };
        assert_eq!(exit(&outcome).code(), 4);
        assert_eq!(
            text(&report(outcome)),
            "exec was not upgraded:\n  - version 1.0.0\n  + version 0.9.0\\u{1b}, which is older\n  \
             + asks for ostler:plugin/command\ngive --yes to accept this\n"
        );
    }

    #[test]
    fn a_switch_and_a_refusal_name_both_releases() {
        let switched = text(&report(UpgradeOutcome::Switched));
        assert!(
            switched.contains("1.1.0 (bbbbbbbbbbbb) now, was 1.0.0 (aaaaaaaaaaaa)"),
            "{switched}"
        );
        assert!(switched.ends_with("\n  + announces device group a/b/c\n"), "{switched}");
        let refused = UpgradeOutcome::Refused { reason: "no".to_owned() };
        assert_eq!(exit(&refused), Exit::Failed);
        let refused = text(&report(refused));
        assert!(refused.contains("1.0.0 (aaaaaaaaaaaa) stays: no"), "{refused}");
    }
}

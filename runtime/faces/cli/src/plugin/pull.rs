//! `ostler plugin pull`: pull a plugin from a registry and pin its reference.

use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use tokio::sync::watch;

use crate::answer;
use crate::args::trust::PullArgs;
use crate::connect::CliError;
use crate::exit::Exit;
use crate::input;
use crate::output::{self, say};
use crate::terminal::TerminalInfo;
use ostler_agent::{PullProgress, PullReport};
use ostler_model::clock;
use ostler_model::config::AgentConfig;
use ostler_model::oci::OciReference;
use ostler_model::words::format_bytes;

/// The directory of the pins in a directory for plugins, where no other place for them is given.
const BESIDE: &str = ".ostler";

/// Time between two updates of the line on a terminal.
const DRAW: Duration = Duration::from_millis(250);
/// Time between two lines where there is no terminal.
const LINE: Duration = Duration::from_secs(5);

/// Pull a plugin.
pub(super) async fn pull(args: &PullArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let config = input::read_config(args.config.as_deref())?;
    let reference: Result<OciReference, _> = args.reference.parse();
    let reference =
        reference.map_err(|error| CliError::Wrong(format!("{}: {error}", args.reference)))?;
    let store = store(args, &config).ok_or_else(|| {
        let message = "nowhere to keep it: give --data-dir DIR, --config FILE or --to DIR";
        CliError::Wrong(message.to_owned())
    })?;
    let to = args.to.as_deref();
    let (tell, progress) = watch::channel(PullProgress::default());
    let pulled = ostler_agent::pull(&config, &store, &reference, args.update, to, Some(tell));
    let pulled = show_progress(pulled, &progress, &args.reference, terminal).await;
    let report = pulled.map_err(|error| CliError::Failed(error.to_string(), Exit::Failed))?;
    answer::show(&report, || text(&report), terminal)
}

/// Wait for the pull, and show its progress on standard error.
async fn show_progress<T>(
    work: impl Future<Output = T>,
    progress: &watch::Receiver<PullProgress>,
    reference: &str,
    terminal: &TerminalInfo,
) -> T {
    let mut work = pin!(work);
    let mut drawn = false;
    let pause = if terminal.stderr { DRAW } else { LINE };
    loop {
        tokio::select! {
            ended = &mut work => {
                if drawn {
                    output::draw("");
                }
                return ended;
            }
            () = clock::sleep(pause) => {
                let text = progress_text(*progress.borrow(), reference);
                if terminal.stderr {
                    output::draw(&text);
                    drawn = true;
                } else {
                    say(&text);
                }
            }
        }
    }
}

fn progress_text(PullProgress { received, total }: PullProgress, reference: &str) -> String {
    let Some(percent) = (received.saturating_mul(100)).checked_div(total) else {
        return format!("asking for {reference}");
    };
    format!(
        "pulling {reference}: {} of {} ({percent} %)",
        format_bytes(received),
        format_bytes(total)
    )
}

/// The directory that has the pins.
fn store(args: &PullArgs, config: &AgentConfig) -> Option<PathBuf> {
    let beside = || args.to.as_ref().map(|dir| dir.join(BESIDE));
    args.data_dir.clone().or_else(|| config.data_dir.clone()).or_else(beside)
}

fn text(report: &PullReport) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| output::fact(&mut text, 11, name, value);
    let news = if report.new { "pulled" } else { "unchanged" };
    line(news, &report.reference);
    line("manifest", &report.manifest.to_tagged());
    line("digest", &report.digest.to_tagged());
    line("size", &format!("{} ({} bytes)", format_bytes(report.size_bytes), report.size_bytes));
    line("signature", if report.signed { "pulled with it" } else { "none" });
    line("file", &report.file.display().to_string());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_far_a_pull_is_is_said_in_bytes_and_in_parts_of_a_hundred() {
        let at = |received, total| progress_text(PullProgress { received, total }, "oci://r/p:1");
        assert_eq!(at(0, 0), "asking for oci://r/p:1");
        assert_eq!(at(1 << 20, 4 << 20), "pulling oci://r/p:1: 1.0 MiB of 4.0 MiB (25 %)");
    }
}

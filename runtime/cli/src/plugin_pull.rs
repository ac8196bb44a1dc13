//! `ostler plugin pull`: a plugin out of a registry, pinned.

use std::path::PathBuf;

use super::args::trust::PullArgs;
use super::connect::Stop;
use super::exit::Exit;
use super::input;
use super::output::{self, size};
use super::terminal::Terminal;
use ostler_agent::PullReport;
use ostler_model::config::AgentConfig;
use ostler_model::oci::Reference;

/// Where pins are kept when only a directory for plugins is given.
const BESIDE: &str = ".ostler";

/// Pull a plugin.
pub(super) async fn pull(args: &PullArgs, terminal: &Terminal) -> Result<Exit, Stop> {
    let config = input::config(args.config.as_deref())?;
    let reference: Result<Reference, _> = args.reference.parse();
    let reference =
        reference.map_err(|error| Stop::Wrong(format!("{}: {error}", args.reference)))?;
    let store = store(args, &config).ok_or_else(|| {
        let message = "nowhere to keep it: give --data-dir DIR, --config FILE or --to DIR";
        Stop::Wrong(message.to_owned())
    })?;
    let to = args.to.as_deref();
    let pulled = ostler_agent::pull(&config, &store, &reference, args.update, to).await;
    let report = pulled.map_err(|error| Stop::Failed(error.to_string(), Exit::Failed))?;
    output::show(args.json, &report, || text(&report), terminal)?;
    Ok(Exit::Success)
}

/// The directory with the pins.
fn store(args: &PullArgs, config: &AgentConfig) -> Option<PathBuf> {
    let beside = || args.to.as_ref().map(|dir| dir.join(BESIDE));
    args.data_dir.clone().or_else(|| config.data_dir.clone()).or_else(beside)
}

fn text(report: &PullReport) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| output::fact(&mut text, 11, name, value);
    let news = if report.new { "pulled" } else { "unchanged" };
    line(news, &report.reference);
    line("manifest", &report.manifest.tagged());
    line("digest", &report.digest.tagged());
    line("size", &format!("{} ({} bytes)", size(report.size_bytes), report.size_bytes));
    line("signature", if report.signed { "came with it" } else { "none" });
    line("file", &report.file.display().to_string());
    text
}

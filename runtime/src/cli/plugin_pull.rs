//! `ostler plugin pull`: a plugin out of a registry, pinned.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::args::trust::PullArgs;
use super::exit::Exit;
use super::input;
use super::output::{self, size};
use super::terminal::{Terminal, one_line};
use crate::agent::PullReport;
use ostler_model::config::AgentConfig;
use ostler_model::oci::Reference;

/// Where pins are kept when only a directory for plugins is given.
const BESIDE: &str = ".ostler";

/// Pull a plugin.
pub(super) async fn pull(args: &PullArgs, terminal: &Terminal) -> Exit {
    let config = match input::config(args.config.as_deref()) {
        Ok(config) => config,
        Err(error) => {
            output::input_error(terminal, &error);
            return Exit::Input;
        }
    };
    let wrong = |message: &str| {
        output::error(terminal, message);
        Exit::Input
    };
    let reference: Reference = match args.reference.parse() {
        Ok(reference) => reference,
        Err(error) => return wrong(&format!("{}: {error}", args.reference)),
    };
    let Some(store) = store(args, &config) else {
        return wrong("nowhere to keep it: give --data-dir DIR, --config FILE or --to DIR");
    };
    let to = args.to.as_deref();
    match crate::agent::pull(&config, &store, &reference, args.update, to).await {
        Ok(report) => {
            let printed = match args.json {
                true => output::print_json(&report, terminal),
                false => output::print(&text(&report), terminal),
            };
            printed.map_or_else(|failed| failed, |()| Exit::Success)
        }
        Err(error) => {
            output::error(terminal, &error.to_string());
            Exit::Failed
        }
    }
}

/// The directory with the pins.
fn store(args: &PullArgs, config: &AgentConfig) -> Option<PathBuf> {
    let beside = || args.to.as_ref().map(|dir| dir.join(BESIDE));
    args.data_dir.clone().or_else(|| config.data_dir.clone()).or_else(beside)
}

fn text(report: &PullReport) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<11}{}", one_line(value));
    };
    let news = if report.new { "pulled" } else { "unchanged" };
    line(news, &report.reference);
    line("manifest", &report.manifest.tagged());
    line("digest", &report.digest.tagged());
    line("size", &format!("{} ({} bytes)", size(report.size_bytes), report.size_bytes));
    line("signature", if report.signed { "came with it" } else { "none" });
    line("file", &report.file.display().to_string());
    text
}

//! `ostler plugin list`

use std::fmt::Write as _;

use crate::answer;
use crate::args::PluginListArgs;
use crate::connect::{self, CliError};
use crate::exit::Exit;
use crate::output::table;
use crate::terminal::{TerminalInfo, one_line, plain};
use ostler_agent::{PluginEntry, PluginStatus};
use ostler_api::routes::endpoints as routes;
use ostler_model::grants::lines::{answer_words, granted_words};
use ostler_model::grants::{Authority, Grants};
use ostler_model::trust::Voucher;
use ostler_model::words::format_bytes;

/// Hex digits of a digest that a table shows.
const DIGEST_CHARS: usize = 12;

/// List the plugins of an agent.
pub(super) async fn list(args: &PluginListArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let request = routes::ListPlugins::request([]);
    let entries = connect::ask_agent(&args.of, &request, |agent| agent.plugins().to_vec()).await?;
    answer::show(&entries, || list_text(&entries, terminal), terminal)
}

fn list_text(entries: &[PluginEntry], terminal: &TerminalInfo) -> String {
    let rows = entries.iter().map(|entry| {
        let status = match &entry.status {
            PluginStatus::Loaded => "loaded",
            PluginStatus::Refused(_) => "refused",
            PluginStatus::Disabled => "disabled",
            PluginStatus::Loading => "loading",
            PluginStatus::Waiting => "waiting",
        };
        [
            entry.own_name().to_owned(),
            entry.kind.map(|kind| kind.to_string()).unwrap_or_default(),
            entry.version.clone().unwrap_or_default(),
            status.to_owned(),
            // The file was not read yet, or never is.
            Some(entry.size_bytes).filter(|bytes| *bytes > 0).map(format_bytes).unwrap_or_default(),
            grants_text(entry),
            entry.digest.iter().flat_map(|digest| digest.chars().take(DIGEST_CHARS)).collect(),
            entry.trust.as_ref().map(voucher_text).unwrap_or_default(),
            entry.source.clone(),
        ]
    });
    let header = ["NAME", "KIND", "VERSION", "STATUS", "SIZE", "MAY", "DIGEST", "TRUST", "SOURCE"];
    let mut text = table(header, rows, terminal);
    if entries.iter().any(|entry| entry.status == PluginStatus::Waiting) {
        text.push_str("\nthose that wait come into use when all are loaded\n");
    }
    text.push_str(&answers_text(entries));
    for entry in entries {
        if let PluginStatus::Refused(reason) = &entry.status {
            let name = one_line(entry.own_name());
            let block = if entry.name == entry.own_name() {
                String::new()
            } else {
                format!(" (block {})", one_line(&entry.name))
            };
            let _ = write!(text, "\n{name}{block} is refused: {}\n", plain(reason));
        }
    }
    text
}

/// Who vouches for a plugin, in a word or two.
fn voucher_text(voucher: &Voucher) -> String {
    match voucher {
        Voucher::Agent => "agent".to_owned(),
        Voucher::Key { name, .. } => format!("key {name}"),
        Voucher::Digest { .. } => "digest".to_owned(),
        Voucher::Pin => "pin".to_owned(),
        Voucher::Nobody => "-".to_owned(),
    }
}

/// The grants that a plugin has of those that its imports need. A grant that it lacks has a `!`
/// before it, a denied one a `-`.
fn grants_text(entry: &PluginEntry) -> String {
    let asks = entry.asks.iter().filter(|ask| !ask.is_harmless());
    let words = asks.map(|ask| match granted_words(&entry.grants, *ask) {
        words if !words.is_empty() => words,
        _ if is_denied(&entry.grants, *ask) => format!("-{}", ask.word()),
        _ => format!("!{}", ask.word()),
    });
    one_line(&words.collect::<Vec<_>>().join(" "))
}

/// A line for each plugin whose answers may have effects outside its own names.
fn answers_text(entries: &[PluginEntry]) -> String {
    let mut text = String::new();
    for entry in entries {
        let words = answer_words(&entry.grants);
        if words.is_empty() || matches!(entry.status, PluginStatus::Refused(_)) {
            continue;
        }
        if text.is_empty() {
            text.push_str("\nanswers may cause, outside a plugin's own names:\n");
        }
        let _ = writeln!(text, "  {}: {}", one_line(entry.own_name()), one_line(&words.join(" ")));
    }
    text
}

/// Do the grants deny this authority, as a whole or by the name of an interface?
fn is_denied(grants: &Grants, ask: Authority) -> bool {
    grants.denies_all_of(ask)
        || grants.deny.iter().any(|name| Authority::of_import(&format!("{name}/")) == ask)
}

#[cfg(test)]
#[path = "list_tests.rs"]
mod tests;

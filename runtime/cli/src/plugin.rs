//! `ostler plugin …`

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde::Serialize;

use super::args::{InspectArgs, PluginListArgs};
use super::connect::{self, CliError};
use super::exit::Exit;
use super::input;
use super::output::{self, headline, size, table};
use super::terminal::{TerminalInfo, one_line, plain};
use ostler_agent::{PluginEntry, PluginStatus, SignatureReport, verify};
use ostler_model::config::AgentConfig;
use ostler_model::grants::lines::{answer_words, block_lines, granted_words};
use ostler_model::grants::{Authority, GrantAddition, Grants, grant_lines};
use ostler_model::limits::PLUGIN_FILE_BYTES_MAX;
use ostler_model::plugin::{PluginKind, PluginManifest};
use ostler_model::trust::Voucher;
use ostler_model::variables::own_of;

/// Hex digits of a digest that a table shows.
const DIGEST_CHARS: usize = 12;

/// List the plugins of an agent.
pub(super) async fn list(args: &PluginListArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let entries: Vec<PluginEntry> =
        connect::ask_agent(&args.of, "/v1/ostler/plugins", |agent| agent.plugins().to_vec())
            .await?;
    output::show(args.json, &entries, || list_text(&entries, terminal), terminal)?;
    Ok(Exit::Success)
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
            Some(entry.size_bytes).filter(|bytes| *bytes > 0).map(size).unwrap_or_default(),
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

/// The imports of a plugin that one authority covers.
#[derive(Debug, Serialize)]
struct ImportGroup<'a> {
    authority: Authority,
    /// What the authority lets the plugin do.
    meaning: &'static str,
    /// Whether every plugin has the authority without a grant.
    always_granted: bool,
    /// Configuration lines that grant the authority; empty where none are needed or none exist.
    grant: String,
    /// Words for `deny` in the grants, with which the plugin loads without the imports; calls of
    /// them are refused.
    deny: Vec<String>,
    imports: Vec<&'a str>,
}

/// The effects that the answers of a plugin may have without any grant, and the keys of `grants`
/// that allow more.
#[derive(Debug, Serialize)]
struct HarmlessAnswers {
    /// For device plugins: the vendor whose device groups it may announce.
    #[serde(skip_serializing_if = "Option::is_none")]
    groups_of_vendor: Option<String>,
    /// For device plugins: variables of tasks that it may set; `…*` stands for all that begin so.
    #[serde(skip_serializing_if = "Option::is_none")]
    variables: Option<Vec<String>>,
    /// For drivers: the name of the driver that it may be.
    #[serde(skip_serializing_if = "Option::is_none")]
    driver: Option<String>,
    /// Keys of `grants` that allow more.
    keys: &'static [&'static str],
}

impl HarmlessAnswers {
    fn new(name: &str, kind: PluginKind) -> Self {
        match kind {
            PluginKind::Driver => Self {
                groups_of_vendor: None,
                variables: None,
                driver: Some(name.to_owned()),
                keys: &["driver", "attributes"],
            },
            PluginKind::Device => Self {
                groups_of_vendor: Some(name.to_owned()),
                variables: Some(own_of(name)),
                driver: None,
                keys: &["groups", "task_env", "mounts", "device_nodes"],
            },
        }
    }

    fn text(&self) -> String {
        let what = match (&self.groups_of_vendor, &self.variables, &self.driver) {
            (Some(vendor), Some(variables), _) => format!(
                "  announce device groups {}/*, set {} of tasks; show them no path of the node, give them no \
                 device node",
                one_line(vendor),
                if variables.is_empty() {
                    "no variables".to_owned()
                } else {
                    format!("variables {}", one_line(&variables.join(", ")))
                }
            ),
            (_, _, Some(driver)) => {
                let driver = one_line(driver);
                format!("  be the driver {driver}, publish attributes below driver.{driver}.")
            }
            _ => String::new(),
        };
        format!("{what}\n  more is granted by {}", self.keys.join(", "))
    }
}

/// What a plugin file says about itself, as `--json` prints it.
#[derive(Debug, Serialize)]
struct PluginInspection<'a> {
    file: String,
    #[serde(flatten)]
    manifest: &'a PluginManifest,
    /// The signature file beside the plugin, which is not checked against any key.
    signature: SignatureReport,
    asks: Vec<ImportGroup<'a>>,
    /// The effects that the answers may have without a grant, for a plugin with the name
    /// of the file.
    answers: HarmlessAnswers,
}

/// Show what a plugin could do.
pub(super) fn inspect(args: &InspectArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let bytes = input::read_file(&args.file, PLUGIN_FILE_BYTES_MAX)?;
    let manifest = ostler_plugin::manifest::read(&bytes).map_err(|error| {
        CliError::Wrong(format!("{} is not a plugin: {error}", args.file.display()))
    })?;
    let stem = args.file.file_stem().unwrap_or_default().to_string_lossy();
    // Without a trust file no key is known: this only says which signature is there.
    let signature = verify(&AgentConfig::default(), &args.file);
    let signature = signature.map_or(SignatureReport::None, |report| report.signature);
    let inspected = PluginInspection {
        signature,
        ..inspect_manifest(&args.file.display().to_string(), &stem, &manifest)
    };
    let text = || inspect_text(&inspected, &stem, terminal);
    output::show(args.json, &inspected, text, terminal)?;
    Ok(Exit::Success)
}

fn inspect_manifest<'a>(
    file: &str,
    name: &str,
    manifest: &'a PluginManifest,
) -> PluginInspection<'a> {
    let asks = manifest.asks().into_iter().map(|(authority, imports)| ImportGroup {
        authority,
        meaning: authority.meaning(),
        always_granted: authority.is_harmless(),
        grant: grant_lines(name, &Grants::default(), &[GrantAddition::Ask(authority)]),
        deny: deny_words(authority, &imports),
        imports,
    });
    let (signature, answers) = (SignatureReport::None, HarmlessAnswers::new(name, manifest.kind));
    PluginInspection { file: file.to_owned(), manifest, signature, asks: asks.collect(), answers }
}

fn inspect_text(inspected: &PluginInspection<'_>, name: &str, terminal: &TerminalInfo) -> String {
    let PluginInspection { file, manifest, signature, asks, answers } = inspected;
    let mut text = String::new();
    let mut fact = |name: &str, value: &str| output::fact(&mut text, 11, name, value);
    fact("file", file);
    fact("kind", &format!("{} plugin", manifest.kind));
    fact("interface", &format!("ostler:plugin@{}", manifest.interface_version));
    fact("size", &format!("{} ({} bytes)", size(manifest.size_bytes), manifest.size_bytes));
    fact("digest", &format!("sha256:{}", manifest.digest));
    match signature {
        SignatureReport::None => fact("signature", "none"),
        SignatureReport::Damaged { reason } => fact("signature", &format!("damaged: {reason}")),
        SignatureReport::UnknownKey { key_id }
        | SignatureReport::Wrong { key_id, .. }
        | SignatureReport::Good { key_id, .. } => {
            fact("signature", &format!("by the key {key_id}; `ostler plugin verify` checks it"));
        }
    }
    let mut line = |line: &str| {
        text.push_str(line);
        text.push('\n');
    };
    line(&format!("\n{}", headline("exports", terminal)));
    for export in &manifest.exports {
        line(&format!("  {}", one_line(export)));
    }
    line(&format!("\n{}", headline("imports, by what they let it do", terminal)));
    for ask in asks {
        let condition = match (ask.always_granted, ask.grant.is_empty()) {
            (true, _) => "always granted",
            (false, false) => "needs a grant",
            (false, true) => "cannot be granted: the plugin is refused, or does without by deny",
        };
        line(&format!("  {} ({condition})", ask.meaning));
        for import in &ask.imports {
            line(&format!("    {}", one_line(import)));
        }
    }
    line(&format!("\n{}", headline("without any grant its answers may", terminal)));
    line(&answers.text());
    if let Some(lines) = all_grants(name, asks) {
        line(&format!("\n{}", headline("to grant all of it, configure", terminal)));
        line(plain(&lines).trim_end());
    }
    let deny: Vec<String> = asks.iter().flat_map(|ask| &ask.deny).cloned().collect();
    if !deny.is_empty() {
        let what = "to load it without any of it, or list in deny only what it does not need";
        line(&format!("\n{}", headline(what, terminal)));
        let grants = Grants { deny, ..Grants::default() };
        line(plain(&block_lines(name, &grants)).trim_end());
    }
    text
}

/// The words for `deny` that refuse the imports of an authority.
fn deny_words(authority: Authority, imports: &[&str]) -> Vec<String> {
    match authority {
        _ if authority.is_harmless() => Vec::new(),
        Authority::Unknown => {
            let package = |import: &&str| import.split(['/', '@']).next().map(str::to_owned);
            imports.iter().filter_map(package).collect::<BTreeSet<_>>().into_iter().collect()
        }
        _ => vec![authority.word().to_owned()],
    }
}

/// A `plugin` block with every grant that the plugin needs; `None` where it needs none.
fn all_grants(name: &str, asks: &[ImportGroup<'_>]) -> Option<String> {
    let added: Vec<GrantAddition> =
        asks.iter().map(|ask| GrantAddition::Ask(ask.authority)).collect();
    let lines = grant_lines(name, &Grants::default(), &added);
    (!lines.is_empty()).then_some(lines)
}

#[cfg(test)]
#[path = "plugin_tests.rs"]
mod tests;

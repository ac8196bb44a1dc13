//! `ostler plugin inspect`

use std::collections::BTreeSet;

use serde::Serialize;

use crate::answer;
use crate::args::InspectArgs;
use crate::connect::CliError;
use crate::exit::Exit;
use crate::input;
use crate::output::{self, headline};
use crate::terminal::{TerminalInfo, one_line, plain};
use ostler_agent::{SignatureReport, verify};
use ostler_model::config::AgentConfig;
use ostler_model::grants::lines::block_lines;
use ostler_model::grants::{Authority, GrantAddition, Grants, grant_lines};
use ostler_model::limits::PLUGIN_FILE_BYTES_MAX;
use ostler_model::plugin::{PluginKind, PluginManifest};
use ostler_model::variables::own_of;
use ostler_model::words::format_bytes;

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
    answer::show(&inspected, text, terminal)
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
    fact("size", &format!("{} ({} bytes)", format_bytes(manifest.size_bytes), manifest.size_bytes));
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
#[path = "inspect_tests.rs"]
mod tests;

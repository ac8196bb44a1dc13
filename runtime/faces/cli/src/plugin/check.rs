//! `ostler plugin check`

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::answer;
use crate::args::plugin_check::PluginCheckArgs;
use crate::connect::CliError;
use crate::exit::Exit;
use crate::input;
use crate::output::{self, section, table};
use crate::start::{private_temporary_dir, user_code_dir};
use crate::terminal::{TerminalInfo, one_line, paint, plain};
use ostler_agent::offline::{
    self, ConformanceReport, Costs, Finding, OfflinePlace, RuleVerdict, Subject,
};
use ostler_model::causes;
use ostler_model::config::PluginBlock;
use ostler_model::config::{CommandGrant, FileGrant, Grants};
use ostler_model::grants::Authority;
use ostler_model::grants::lines::{answer_words, granted_words};
use ostler_model::json::JsonObject;
use ostler_model::limits::{CONFIG_FILE_BYTES_MAX, PLUGIN_FILE_BYTES_MAX, PluginLimits};
use ostler_model::words::{format_bytes, format_nanos};

/// The pattern of a command grant that allows any arguments.
const ANY_ARGUMENTS: &str = "**";
const GREEN: &str = "32";
const YELLOW: &str = "33";
const RED: &str = "1;31";
const DIM: &str = "2";

/// Check a plugin, and print the findings.
pub(super) async fn check(
    args: &PluginCheckArgs,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    let subject = subject(args).map_err(CliError::Wrong)?;
    let (code_dir, _temporary) = code_dir()?;
    let checked = offline::check(&subject, OfflinePlace { code_dir, compiler: None }).await;
    let report = checked.map_err(|error| CliError::Cannot(causes::chain(&error)))?;
    answer::show(&report, || text(&report, &args.file, terminal), terminal)?;
    Ok(if report.conforms { Exit::Success } else { Exit::Failed })
}

/// The directory for compiled code; a temporary one where the user has none.
pub(super) fn code_dir() -> Result<(PathBuf, Option<tempfile::TempDir>), CliError> {
    if let Some(dir) = user_code_dir() {
        return Ok((dir, None));
    }
    let dir = private_temporary_dir()
        .map_err(|error| CliError::Cannot(format!("cannot make a temporary directory: {error}")))?;
    Ok((dir.path().to_owned(), Some(dir)))
}

fn subject(args: &PluginCheckArgs) -> Result<Subject, String> {
    let bytes = input::read_file(&args.file, PLUGIN_FILE_BYTES_MAX).map_err(|e| e.to_string())?;
    let stem = args.file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let name = args.name.clone().unwrap_or(stem);
    let block = find_block(args.agent_config.as_deref(), &name)?;
    let config = match &args.config {
        Some(given) => read_object("--config", given)?,
        None => block.config.unwrap_or_default(),
    };
    let mut grants = block.grants.unwrap_or_default();
    add_grants(&mut grants, args)?;
    let task_config = args.task_config.as_deref().map(|given| read_object("--task-config", given));
    Ok(Subject {
        name,
        bytes: Arc::from(bytes),
        config,
        grants,
        limits: block.limits.apply(PluginLimits::default()),
        task_config: task_config.transpose()?,
    })
}

fn find_block(file: Option<&Path>, name: &str) -> Result<PluginBlock, String> {
    let Some(file) = file else { return Ok(PluginBlock::default()) };
    let mut config = input::read_config(Some(file)).map_err(|error| error.to_string())?;
    config.plugins.remove(name).ok_or_else(|| {
        format!("{} has no block plugin \"{name}\"; give its name with --name", file.display())
    })
}

/// Add the grants of the command line to those of the block.
fn add_grants(grants: &mut Grants, args: &PluginCheckArgs) -> Result<(), String> {
    for path in &args.grant_file {
        let path = std::path::absolute(path);
        let path = path.map_err(|error| format!("cannot use --grant-file: {error}"))?;
        grants.files.push(FileGrant { path, write: false });
    }
    for program in &args.grant_command {
        let args = vec![vec![ANY_ARGUMENTS.to_owned()]];
        grants.commands.push(CommandGrant { program: program.clone(), args });
    }
    grants.process |= args.grant_process;
    grants.wasm_task |= args.grant_wasm_task;
    Ok(())
}

/// Read a JSON object, which is given as it is or as the path of a file.
fn read_object(option: &str, given: &str) -> Result<JsonObject, String> {
    let text = if given.trim_start().starts_with('{') {
        given.as_bytes().to_vec()
    } else {
        input::read_file(Path::new(given), CONFIG_FILE_BYTES_MAX)
            .map_err(|error| format!("{option}: {error}"))?
    };
    let map: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&text).map_err(|error| format!("{option}: {error}"))?;
    Ok(JsonObject::from(map))
}

fn text(report: &ConformanceReport, file: &Path, terminal: &TerminalInfo) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| output::fact(&mut text, 8, name, value);
    line("file", &file.display().to_string());
    line("kind", &report.kind.map(|kind| format!("{kind} plugin")).unwrap_or_default());
    line("digest", &report.digest.as_ref().map(|d| format!("sha256:{d}")).unwrap_or_default());
    line("grants", &grants(&report.grants));
    text.push('\n');
    for finding in &report.findings {
        write_finding(finding, &mut text, terminal);
    }
    if let Some(costs) = &report.costs {
        let costs = costs_text("CALL", costs, terminal);
        text.push_str(&section("what its calls cost", &costs, terminal));
    }
    let count = |verdict| report.count(verdict);
    let _ = writeln!(
        text,
        "\n{} passed, {} warnings, {} skipped, {} failed",
        count(RuleVerdict::Pass),
        count(RuleVerdict::Warn),
        count(RuleVerdict::Skip),
        count(RuleVerdict::Fail)
    );
    text
}

fn grants(grants: &Grants) -> String {
    use Authority::{Command, Files, Network, Process, WasmTask};
    let words = [Files, Command, Process, WasmTask, Network];
    let words = words.map(|authority| granted_words(grants, authority));
    let mut words: Vec<String> = words.into_iter().filter(|words| !words.is_empty()).collect();
    words.extend(answer_words(grants));
    if words.is_empty() { "none".to_owned() } else { one_line(&words.join(" ")) }
}

fn write_finding(finding: &Finding, text: &mut String, terminal: &TerminalInfo) {
    let (word, colour) = match finding.verdict {
        RuleVerdict::Pass => ("pass", GREEN),
        RuleVerdict::Warn => ("warn", YELLOW),
        RuleVerdict::Skip => ("skip", DIM),
        RuleVerdict::Fail => ("FAIL", RED),
    };
    let word = paint(word, colour, terminal.stdout_colours());
    let detail = plain(&finding.detail);
    let mut lines = detail.lines();
    let first = lines.next().unwrap_or_default();
    let _ = writeln!(text, "{word}  {:<22} {first}", finding.rule.id);
    for line in lines {
        let _ = writeln!(text, "      {line}");
    }
    if matches!(finding.verdict, RuleVerdict::Fail | RuleVerdict::Warn) {
        let _ = writeln!(text, "      why: {}", finding.rule.why);
        let _ = writeln!(text, "      do:  {}", finding.rule.advice);
    }
}

/// A table of what calls cost, by function. `head` is the title of its first column.
pub(super) fn costs_text(head: &str, costs: &Costs, terminal: &TerminalInfo) -> String {
    let rows = costs.calls.iter().map(|(name, call)| {
        [
            name.clone(),
            call.calls.to_string(),
            call.failed.to_string(),
            format_nanos(call.p50_nanos),
            format_nanos(call.p99_nanos),
            format_bytes(call.bytes_in),
            format_bytes(call.bytes_out),
        ]
    });
    table([head, "CALLS", "FAILED", "P50", "P99", "IN", "OUT"], rows, terminal)
}

//! `ostler state check`

use std::fmt::Write as _;

use crate::answer;
use crate::args::state::CheckArgs;
use crate::connect::CliError;
use crate::exit::Exit;
use crate::output::{section, table};
use crate::terminal::{TerminalInfo, one_line};
use ostler_agent::inspect::{self, Age, BadRecord, CheckReport, KindCount};
use ostler_model::words::{count_noun, format_bytes};

/// Check a state file.
pub(super) fn check(args: &CheckArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let report = inspect::check(&super::target(&args.which)?)?;
    answer::show(&report, || text(&report, terminal), terminal)?;
    Ok(if report.healthy { Exit::Success } else { Exit::Damaged })
}

/// A table of records and bytes by kind, with the sum.
pub(super) fn kinds(kinds: &[KindCount], terminal: &TerminalInfo) -> String {
    let sum = |of: fn(&KindCount) -> u64| kinds.iter().map(of).fold(0, u64::saturating_add);
    let all = KindCount { kind: "all", records: sum(|k| k.records), bytes: sum(|k| k.bytes) };
    let rows = kinds.iter().chain([&all]);
    let rows = rows.map(|k| [k.kind.to_owned(), k.records.to_string(), format_bytes(k.bytes)]);
    table(["KIND", "RECORDS", "BYTES"], rows, terminal)
}

/// The version of the schema of a file's content, as text.
pub(super) fn schema(schema: Option<u16>) -> String {
    schema.map_or_else(|| "none yet".to_owned(), |schema| schema.to_string())
}

fn text(report: &CheckReport, terminal: &TerminalInfo) -> String {
    let mut text = String::new();
    let path = one_line(&report.path.display().to_string());
    let _ = writeln!(text, "file    {path} ({})", format_bytes(report.file_bytes));
    if let Some(damage) = &report.damage {
        let _ = writeln!(
            text,
            "result  DAMAGED or not a state file: {}\n\n\
             No record can be read, and an agent does not start with it. Put back the newest copy there \
             is,\nor keep the file under another name to start with an empty state. What a copy does \
             not know is\nnot done again by itself; jobs whose tasks still run are held back until \
             these are ended\n(`ostler state runs`).",
            one_line(damage)
        );
        write_unknown_runs(&mut text, report, terminal);
        write_hindrances(&mut text, report, terminal);
        return text;
    }
    let _ = writeln!(text, "schema  {}", schema(report.schema));
    if report.recovered {
        text.push_str("closed  no: recovered here in memory; the next agent does it on disk\n");
    }
    let _ = writeln!(text, "result  {}", result_text(report));
    let _ = write!(text, "\n{}", kinds(&report.kinds, terminal));
    write_unknown_runs(&mut text, report, terminal);
    write_hindrances(&mut text, report, terminal);
    write_bad_records(&mut text, "damaged", &report.damaged, report.damaged_total, terminal);
    write_bad_records(
        &mut text,
        "in quarantine",
        &report.quarantined,
        report.quarantined_total,
        terminal,
    );
    text
}

fn write_unknown_runs(text: &mut String, report: &CheckReport, terminal: &TerminalInfo) {
    if !report.unknown_runs.is_empty() {
        let runs = super::runs::text(&report.unknown_runs, "", terminal);
        text.push_str(&section("live runs that are not in it", &runs, terminal));
    }
}

fn write_hindrances(text: &mut String, report: &CheckReport, terminal: &TerminalInfo) {
    if !report.hindrances.is_empty() {
        let lines = report.hindrances.iter().map(|what| one_line(what) + "\n");
        let title = "an agent does not start with this directory";
        text.push_str(&section(title, &lines.collect::<String>(), terminal));
    }
}

fn result_text(report: &CheckReport) -> String {
    let mut found = Vec::new();
    match report.age {
        Age::Older { commits } => found.push(format!(
            "the file is older than what was acknowledged: it lacks the last {}",
            count_noun(commits, "change")
        )),
        _ if report.repaired => {
            found.push("the file is inconsistent; its last writes may be missing".to_owned());
        }
        _ if report.fell_back => found.push(
            "its newest change cannot be read as a whole, and the one before is used".to_owned(),
        ),
        _ => {}
    }
    if report.foreign_journal {
        found.push("the journal beside it belongs to another state file".to_owned());
    }
    if !report.unknown_runs.is_empty() {
        found.push(format!("{} run(s) are alive that it does not know", report.unknown_runs.len()));
    }
    if report.damaged_total > 0 {
        found.push(format!("{} cannot be read", count_noun(report.damaged_total, "record")));
    }
    if found.is_empty() && !report.hindrances.is_empty() {
        return "every record can be read, and no agent can start with the directory".to_owned();
    }
    match (report.healthy, found.is_empty()) {
        (true, true) => "healthy: every record can be read".to_owned(),
        // A crash leaves this.
        (true, false) => {
            "healthy: the last change was never acknowledged and is incomplete, all others are whole".to_owned()
        }
        (false, _) => format!("DAMAGED: {}", found.join(", and ")),
    }
}

fn write_bad_records(
    text: &mut String,
    title: &str,
    bad: &[BadRecord],
    total: u64,
    terminal: &TerminalInfo,
) {
    if bad.is_empty() {
        return;
    }
    let rows = bad.iter().map(|bad| [bad.key.clone(), format_bytes(bad.bytes), bad.reason.clone()]);
    let rows = table(["KEY", "BYTES", "REASON"], rows, terminal);
    text.push_str(&section(title, &rows, terminal));
    let listed = u64::try_from(bad.len()).unwrap_or(u64::MAX);
    if let Some(more @ 1..) = total.checked_sub(listed) {
        let _ = writeln!(text, "and {more} more");
    }
}

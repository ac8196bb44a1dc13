//! `ostler state check`

use std::fmt::Write as _;

use super::super::args::state::CheckArgs;
use super::super::exit::Exit;
use super::super::output::{self, headline, size, table};
use super::super::terminal::{Terminal, one_line};
use crate::agent::inspect::{self, BadRecord, CheckReport, KindCount};
use crate::model::words::counted;

/// Check a state file.
pub(super) fn check(args: &CheckArgs, terminal: &Terminal) -> Result<Exit, Exit> {
    let target = super::target(&args.which, terminal)?;
    let report = inspect::check(&target).map_err(|error| super::failed(&error, terminal))?;
    match args.json {
        true => output::print_json(&report, terminal)?,
        false => output::print(&text(&report, terminal), terminal)?,
    }
    Ok(if report.healthy { Exit::Success } else { Exit::Damaged })
}

/// Records and bytes by kind, with the sum.
pub(super) fn kinds(kinds: &[KindCount], terminal: &Terminal) -> String {
    let sum = |of: fn(&KindCount) -> u64| kinds.iter().map(of).fold(0, u64::saturating_add);
    let all = KindCount { kind: "all", records: sum(|k| k.records), bytes: sum(|k| k.bytes) };
    let rows = kinds.iter().chain([&all]);
    let rows = rows.map(|k| [k.kind.to_owned(), k.records.to_string(), size(k.bytes)]);
    table(["KIND", "RECORDS", "BYTES"], rows, terminal)
}

/// The schema of a file's content.
pub(super) fn schema(schema: Option<u16>) -> String {
    schema.map_or_else(|| "none yet".to_owned(), |schema| schema.to_string())
}

fn text(report: &CheckReport, terminal: &Terminal) -> String {
    let mut text = String::new();
    let path = one_line(&report.path.display().to_string());
    let _ = writeln!(text, "file    {path} ({})", size(report.file_bytes));
    if let Some(damage) = &report.damage {
        let _ = writeln!(
            text,
            "result  DAMAGED or not a state file: {}\n\n\
             No record can be read, and an agent does not start with it. Restore a copy of it, or \
             keep it\nunder another name to start with an empty state (running tasks are then not \
             found again).",
            one_line(damage)
        );
        return text;
    }
    let _ = writeln!(text, "schema  {}", schema(report.schema));
    if report.recovered {
        text.push_str("closed  no: recovered here in memory; the next agent does it on disk\n");
    }
    let _ = writeln!(text, "result  {}", result(report));
    let _ = write!(text, "\n{}", kinds(&report.kinds, terminal));
    records(&mut text, "damaged", &report.damaged, report.damaged_total, terminal);
    records(&mut text, "in quarantine", &report.quarantined, report.quarantined_total, terminal);
    text
}

fn result(report: &CheckReport) -> String {
    let mut found = Vec::new();
    if report.repaired {
        found.push("the file is inconsistent; its last writes may be missing".to_owned());
    }
    if report.damaged_total > 0 {
        found.push(format!("{} cannot be read", counted(report.damaged_total, "record")));
    }
    match found.is_empty() {
        true => "healthy: every record can be read".to_owned(),
        false => format!("DAMAGED: {}", found.join(", and ")),
    }
}

fn records(text: &mut String, title: &str, bad: &[BadRecord], total: u64, terminal: &Terminal) {
    if bad.is_empty() {
        return;
    }
    let rows = bad.iter().map(|bad| [bad.key.clone(), size(bad.bytes), bad.reason.clone()]);
    let rows = table(["KEY", "BYTES", "REASON"], rows, terminal);
    let _ = write!(text, "\n{}\n{rows}", headline(title, terminal));
    let listed = u64::try_from(bad.len()).unwrap_or(u64::MAX);
    if let Some(more @ 1..) = total.checked_sub(listed) {
        let _ = writeln!(text, "and {more} more");
    }
}

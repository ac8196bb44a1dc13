//! `ostler state stats`

use std::fmt::Write as _;

use super::super::args::state::StatsArgs;
use super::super::exit::Exit;
use super::super::output::{self, headline, size, table};
use super::super::terminal::{Terminal, one_line};
use super::check::{kinds, schema};
use crate::agent::inspect::{self, Counted, StatsReport};

/// Measure a state file.
pub(super) fn stats(args: &StatsArgs, terminal: &Terminal) -> Result<Exit, Exit> {
    let target = super::target(&args.which, terminal)?;
    let report = inspect::stats(&target).map_err(|error| super::failed(&error, terminal))?;
    match args.json {
        true => output::print_json(&report, terminal)?,
        false => output::print(&text(&report, terminal), terminal)?,
    }
    Ok(Exit::Success)
}

fn text(report: &StatsReport, terminal: &Terminal) -> String {
    let mut text = String::new();
    let path = one_line(&report.path.display().to_string());
    let times = |ratio: Option<f64>| ratio.map_or(String::new(), |ratio| format!(" ({ratio:.1}×)"));
    let engine = &report.engine;
    let _ = writeln!(text, "file        {path}");
    let _ = writeln!(text, "schema      {}", schema(report.schema));
    let of_live = times(report.file_to_live);
    let live = size(report.live_bytes);
    let _ =
        writeln!(text, "size        {} for {live} of records{of_live}", size(report.file_bytes));
    let _ = writeln!(
        text,
        "pages       {} in use, {} free for later writes; trees of {} level(s)",
        size(engine.allocated_bytes),
        size(report.file_bytes.saturating_sub(engine.allocated_bytes)),
        engine.tree_height
    );
    let aside = report.quarantined;
    let _ = writeln!(text, "quarantine  {} record(s), {}", aside.records, size(aside.bytes));
    let _ = write!(text, "\n{}", kinds(&report.kinds, terminal));
    let _ = write!(text, "\n{}\n", headline("since the file was made", terminal));
    match &report.counted {
        Some(counted) => done(&mut text, counted, terminal),
        None => text.push_str("nothing was counted yet\n"),
    }
    text
}

fn done(text: &mut String, counted: &Counted, terminal: &Terminal) {
    let percent = counted.duplicate_ratio.unwrap_or_default() * 100.0;
    let _ = writeln!(
        text,
        "values      {} given, {} unchanged ({percent:.1} %), {} of destroyed allocations",
        counted.puts, counted.unchanged, counted.destroyed
    );
    let _ = writeln!(
        text,
        "may lag     {} of them, {} replaced before they were written, {} lost with a failed commit",
        counted.later, counted.replaced, counted.later_lost
    );
    let each = counted.writes_per_commit.unwrap_or_default();
    let _ = writeln!(
        text,
        "commits     {} of {} changes ({each:.1} each, at most {}), {}; {} failed",
        counted.commits,
        counted.writes,
        counted.batch_largest,
        size(counted.bytes),
        counted.commits_failed
    );
    let mut from = 1;
    let rows = counted.batch_sizes.iter().filter_map(|class| {
        let changes = match class.up_to {
            up_to if up_to == from => format!("{up_to}"),
            up_to => format!("{from} to {up_to}"),
        };
        from = class.up_to.saturating_add(1);
        (class.commits > 0).then(|| [changes, class.commits.to_string()])
    });
    let rows: Vec<_> = rows.collect();
    if !rows.is_empty() {
        let _ = write!(text, "\n{}", table(["CHANGES", "COMMITS"], rows, terminal));
    }
}

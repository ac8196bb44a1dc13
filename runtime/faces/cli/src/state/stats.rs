//! `ostler state stats`

use std::fmt::Write as _;
use std::path::PathBuf;

use serde::Serialize;

use super::check::{kinds, schema};
use crate::answer;
use crate::args::client::AddressArgs;
use crate::args::state::StatsArgs;
use crate::connect::{self, CliError};
use crate::exit::Exit;
use crate::output::{headline, table};
use crate::terminal::{TerminalInfo, one_line};
use ostler_agent::inspect::{self, InspectError, StatsReport, StoreCounts, Target};
use ostler_api::routes::endpoints as routes;
use ostler_model::words::{count_noun, format_bytes};

/// What a running agent says about its state.
#[derive(Debug, Serialize)]
struct LiveStats {
    path: PathBuf,
    running: bool,
    /// Size of the file, bytes; absent when it cannot be read.
    file_bytes: Option<u64>,
    /// Counters of the writes since the agent started.
    since_start: StoreCounts,
}

/// Measure a state file, or ask the agent that has it open.
pub(super) async fn stats(args: &StatsArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let target = super::target(&args.which)?;
    match inspect::stats(&target) {
        Ok(report) => answer::show(&report, || text(&report, terminal), terminal),
        Err(error @ InspectError::Running { .. }) => {
            let running = ask_agent(&target).await.ok_or(error)?;
            answer::show(&running, || live_text(&running, terminal), terminal)
        }
        Err(error) => Err(error.into()),
    }
}

/// Ask the agent of a data directory. `None` when it cannot be asked: an embedded agent
/// has no socket.
async fn ask_agent(target: &Target) -> Option<LiveStats> {
    let Target::DataDir(dir) = target else { return None };
    let at = AddressArgs { data_dir: Some(dir.clone()), ..AddressArgs::default() };
    let client = connect::connect(&at).ok()?;
    let stats = client.send(&routes::ReadState::request([])).await.ok()?;
    let path = target.file();
    let file_bytes = std::fs::metadata(&path).ok().map(|file| file.len());
    Some(LiveStats {
        path,
        running: true,
        file_bytes,
        since_start: StoreCounts::from_stats(&stats),
    })
}

fn live_text(running: &LiveStats, terminal: &TerminalInfo) -> String {
    let mut text = String::new();
    let path = one_line(&running.path.display().to_string());
    let _ = writeln!(text, "file        {path} (its agent runs)");
    if let Some(bytes) = running.file_bytes {
        let _ = writeln!(text, "size        {}", format_bytes(bytes));
    }
    let _ = write!(text, "\n{}\n", headline("since the agent started", terminal));
    write_counts(&mut text, &running.since_start, terminal);
    text
}

fn text(report: &StatsReport, terminal: &TerminalInfo) -> String {
    let mut text = String::new();
    let path = one_line(&report.path.display().to_string());
    let times = |ratio: Option<f64>| ratio.map_or(String::new(), |ratio| format!(" ({ratio:.1}×)"));
    let engine = &report.engine;
    let _ = writeln!(text, "file        {path}");
    let _ = writeln!(text, "schema      {}", schema(report.schema));
    let of_live = times(report.file_to_live);
    let live = format_bytes(report.live_bytes);
    let _ = writeln!(
        text,
        "size        {} for {live} of records{of_live}",
        format_bytes(report.file_bytes)
    );
    let _ = writeln!(
        text,
        "pages       {} in use, {} free for later writes; trees of {}",
        format_bytes(engine.allocated_bytes),
        format_bytes(report.file_bytes.saturating_sub(engine.allocated_bytes)),
        count_noun(engine.tree_height, "level")
    );
    let aside = report.quarantined;
    let _ = writeln!(
        text,
        "quarantine  {}, {}",
        count_noun(aside.records, "record"),
        format_bytes(aside.bytes)
    );
    let _ = write!(text, "\n{}", kinds(&report.kinds, terminal));
    let _ = write!(text, "\n{}\n", headline("since the file was made", terminal));
    match &report.counted {
        Some(counted) => write_counts(&mut text, counted, terminal),
        None => text.push_str("nothing was counted yet\n"),
    }
    text
}

fn write_counts(text: &mut String, counted: &StoreCounts, terminal: &TerminalInfo) {
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
        format_bytes(counted.bytes),
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

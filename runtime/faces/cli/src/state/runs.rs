//! `ostler state runs`, `ostler state end-run`

use std::fmt::Write as _;
use std::path::PathBuf;

use serde::Serialize;

use crate::answer;
use crate::args::client::AddressArgs;
use crate::args::state::{EndRunArgs, RunsArgs, StateDirArgs};
use crate::connect::{self, CliError};
use crate::exit::Exit;
use crate::output::{short_id, table};
use crate::terminal::{TerminalInfo, one_line};
use ostler_agent::HeldRun;
use ostler_agent::inspect;
use ostler_api::client::{ApiClient, default_data_dir};
use ostler_api::routes::endpoints as routes;

/// The list of runs, as `--json` prints it.
#[derive(Debug, Serialize)]
struct RunList<'a, T: Serialize> {
    /// Whether a running agent was asked.
    running: bool,
    runs: &'a [T],
}

/// List the runs that are held back by a running agent, or that are alive without one.
pub(super) async fn runs(args: &RunsArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    if let Some(client) = find_serving_agent(&args.which).await {
        let held = client.send(&routes::ListHeldRuns::request([])).await?;
        let text = || text(&held.runs, "no run is held back\n", terminal);
        return answer::show(&RunList { running: true, runs: &held.runs }, text, terminal);
    }
    let found = inspect::runs(&data_dir(&args.which)?)?;
    let text = || {
        let runs: Vec<HeldRun> = found.iter().map(|found| found.run.clone()).collect();
        text(&runs, "no run is alive\n", terminal)
    };
    answer::show(&RunList { running: false, runs: &found }, text, terminal)
}

/// End a run.
pub(super) async fn end_run(args: &EndRunArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let run: HeldRun = match find_serving_agent(&args.which).await {
        Some(client) => client.send(&routes::EndHeldRun::request([&args.run])).await?,
        None => inspect::end_run(&data_dir(&args.which)?, &args.run).await?,
    };
    let text = || format!("ended: {}\n", one_line(&run.to_string()));
    answer::show(&run, text, terminal)
}

/// A client of the agent that uses the directory, when it answers.
async fn find_serving_agent(which: &StateDirArgs) -> Option<ApiClient> {
    let at = AddressArgs { data_dir: which.data_dir.clone(), ..AddressArgs::default() };
    let client = connect::connect(&at).ok()?;
    client.is_there().await.then_some(client)
}

fn data_dir(which: &StateDirArgs) -> Result<PathBuf, CliError> {
    let dir = which.data_dir.clone().or_else(default_data_dir);
    let dir = dir.ok_or_else(|| {
        CliError::Wrong("no data directory is given: use --data-dir DIR".to_owned())
    })?;
    if dir.is_dir() {
        return Ok(dir);
    }
    Err(CliError::Wrong(format!(
        "there is no data directory {}: give the one of the agent with --data-dir DIR",
        dir.display()
    )))
}

/// The supervisor or worker process that keeps a run.
fn supervising_process(run: &HeldRun) -> String {
    match (run.supervisor, run.worker) {
        (Some(supervisor), _) => format!("supervisor {supervisor}"),
        (None, Some(worker)) => format!("worker {worker}"),
        (None, None) => "-".to_owned(),
    }
}

/// A table of runs, with the commands that end them.
pub(super) fn text(runs: &[HeldRun], none: &str, terminal: &TerminalInfo) -> String {
    if runs.is_empty() {
        return none.to_owned();
    }
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let rows = runs.iter().map(|run| {
        let place = match (&run.job, &run.group, run.index) {
            (Some(job), Some(group), Some(index)) => Some(format!("{job}.{group}[{index}]")),
            _ => None,
        };
        let short = run.alloc.as_deref().map(short_id);
        [
            supervising_process(run),
            or_dash(run.pid.map(|pid| pid.to_string())),
            or_dash(place),
            or_dash(run.task.clone()),
            or_dash(short),
            run.reason.clone(),
        ]
    });
    let mut text = table(["KEPT BY", "PROCESS", "OF", "TASK", "ALLOC", "WHY"], rows, terminal);
    text.push_str("\nend one with its command; until then nothing is started in its place:\n");
    for run in runs {
        let _ = writeln!(text, "  {}", one_line(&run.end_with));
    }
    text
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_not_there_is_an_error_and_not_one_without_runs() {
        let dir = tempfile::tempdir().unwrap();
        let of = |name: &str| data_dir(&StateDirArgs { data_dir: Some(dir.path().join(name)) });
        assert!(matches!(of("wrong"), Err(CliError::Wrong(text)) if text.contains("wrong: give")));
        assert_eq!(of("").unwrap(), dir.path().join(""));
    }
}

//! `ostler state runs`, `ostler state end-run`

use std::fmt::Write as _;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::json;

use super::super::args::client::AddressArgs;
use super::super::args::state::{EndRunArgs, RunsArgs, StateDirArgs};
use super::super::asking::{self, Stop, ended};
use super::super::client::{Client, default_data_dir};
use super::super::exit::Exit;
use super::super::output::{self, table};
use super::super::terminal::{Terminal, one_line};
use crate::agent::inspect;
use crate::agent::{HeldReport, HeldRun};

/// What is printed as JSON.
#[derive(Debug, Serialize)]
struct Listed<'a, T: Serialize> {
    /// An agent was asked.
    running: bool,
    runs: &'a [T],
}

/// List what lives.
pub(super) async fn runs(args: &RunsArgs, terminal: &Terminal) -> Result<Exit, Exit> {
    if let Some(client) = serving(&args.which).await {
        return Ok(ended(of_agent(&client, args, terminal).await, terminal));
    }
    let dir = dir(&args.which, terminal)?;
    let found = inspect::runs(&dir).map_err(|error| super::failed(&error, terminal))?;
    if args.json {
        output::print_json(&Listed { running: false, runs: &found }, terminal)?;
        return Ok(Exit::Success);
    }
    let runs: Vec<HeldRun> = found.into_iter().map(|found| found.run).collect();
    output::print(&text(&runs, "no run is alive\n", terminal), terminal)?;
    Ok(Exit::Success)
}

async fn of_agent(client: &Client, args: &RunsArgs, terminal: &Terminal) -> Result<Exit, Stop> {
    let held: HeldReport = client.get("/v1/ostler/runs").await?;
    match args.json {
        true => output::print_json(&Listed { running: true, runs: &held.runs }, terminal)?,
        false => output::print(&text(&held.runs, "no run is held back\n", terminal), terminal)?,
    }
    Ok(Exit::Success)
}

/// End one.
pub(super) async fn end(args: &EndRunArgs, terminal: &Terminal) -> Result<Exit, Exit> {
    let run = match serving(&args.which).await {
        Some(client) => {
            let path = format!("/v1/ostler/run/{}/end", args.supervisor);
            let asked = client.put(&path, &json!({})).await;
            asked.map_err(|error| ended(Err(Stop::Client(error)), terminal))?
        }
        None => {
            let dir = dir(&args.which, terminal)?;
            let done = inspect::end_run(&dir, args.supervisor).await;
            done.map_err(|error| super::failed(&error, terminal))?
        }
    };
    match args.json {
        true => output::print_json(&run, terminal)?,
        false => output::print(&format!("ended: {}\n", one_line(&run.to_string())), terminal)?,
    }
    Ok(Exit::Success)
}

/// The agent that has the directory, when one answers.
async fn serving(which: &StateDirArgs) -> Option<Client> {
    let at = AddressArgs { address: None, data_dir: which.data_dir.clone() };
    let client = asking::connect(&at).ok()?;
    client.is_there().await.then_some(client)
}

fn dir(which: &StateDirArgs, terminal: &Terminal) -> Result<PathBuf, Exit> {
    which.data_dir.clone().or_else(default_data_dir).ok_or_else(|| {
        output::error(terminal, "no data directory is given: use --data-dir DIR");
        Exit::Input
    })
}

/// A table of runs, with what can be done.
pub(super) fn text(runs: &[HeldRun], none: &str, terminal: &Terminal) -> String {
    if runs.is_empty() {
        return none.to_owned();
    }
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let rows = runs.iter().map(|run| {
        let place = match (&run.job, &run.group, run.index) {
            (Some(job), Some(group), Some(index)) => Some(format!("{job}.{group}[{index}]")),
            _ => None,
        };
        let short = run.alloc.as_ref().map(|id| id.chars().take(8).collect::<String>());
        [
            run.supervisor.to_string(),
            or_dash(run.pid.map(|pid| pid.to_string())),
            or_dash(place),
            or_dash(run.task.clone()),
            or_dash(short),
            run.reason.clone(),
        ]
    });
    let mut text = table(["SUPERVISOR", "PROCESS", "OF", "TASK", "ALLOC", "WHY"], rows, terminal);
    text.push_str("\nend one with its command; until then nothing is started in its place:\n");
    for run in runs {
        let _ = writeln!(text, "  {}", one_line(&run.end_with));
    }
    text
}

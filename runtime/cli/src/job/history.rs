//! `ostler job history`, `revert`, `promote`

use serde_json::{Value, json};

use super::super::args::deployment::{JobHistoryArgs, JobPromoteArgs, JobRevertArgs};
use super::super::connect::{self, CliError, age_text};
use super::super::consent::{self, ConsentRequest};
use super::super::deployment::promote_one;
use super::super::exit::Exit;
use super::super::output::{self, say, table};
use super::super::terminal::{TerminalInfo, one_line};
use ostler_api::client::segment;
use ostler_model::clock::Clock;
use ostler_model::time::Timestamp;
use ostler_wire::{JobRegisterResponse, JobVersionsResponse, WireDeployment, WireJob};

/// List the versions of a job.
pub(super) async fn history(
    args: &JobHistoryArgs,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    let client = connect::connect(&args.answer.agent)?;
    let (client, job) = connect::find_job(client, &args.job).await?;
    let path = format!("/v1/job/{}/versions", segment(&job));
    if args.answer.json {
        let all: Value = client.get(&path).await?;
        output::print_json(&all, terminal)?;
        return Ok(Exit::Success);
    }
    let all: JobVersionsResponse<WireJob> = client.get(&path).await?;
    let text = history_text(&all.versions, Clock::system().now(), terminal);
    output::print(&text, terminal)?;
    Ok(Exit::Success)
}

fn history_text(versions: &[WireJob], now: Timestamp, terminal: &TerminalInfo) -> String {
    let rows = versions.iter().map(|job| {
        let facts = &job.facts;
        let stable = if facts.stable { "yes" } else { "no" };
        let (version, index) = (facts.version.to_string(), facts.job_modify_index.to_string());
        [version, stable.to_owned(), age_text(facts.submit_time, now), index]
    });
    table(["VERSION", "STABLE", "SUBMITTED", "JOB MODIFY INDEX"], rows, terminal)
}

/// Go back to an earlier version.
pub(super) async fn revert(
    args: &JobRevertArgs,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    let client = connect::connect(&args.answer.agent)?;
    let change = ConsentRequest { verb: "revert", agree: args.agree, terminal };
    let (client, job) = consent::find_job(client, &args.job, change).await?;
    let path = format!("/v1/job/{}/revert", segment(&job));
    let body = json!({ "JobID": job, "JobVersion": args.earlier });
    if args.answer.json {
        let answer: Value = client.put(&path, &body).await?;
        output::print_json(&answer, terminal)?;
        return Ok(Exit::Success);
    }
    let answer: JobRegisterResponse = client.put(&path, &body).await?;
    let (shown, from, to) = (one_line(&job), args.earlier, answer.registered.version);
    say(&format!("job {shown} is at version {to}, which is what version {from} was"));
    if !answer.new_warnings().is_empty() {
        output::warning(terminal, &answer.new_warnings());
    }
    Ok(Exit::Success)
}

/// Accept the canaries of the newest deployment of a job.
pub(super) async fn promote(
    args: &JobPromoteArgs,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    let client = connect::connect(&args.answer.agent)?;
    let change = ConsentRequest { verb: "promote", agree: args.agree, terminal };
    let (client, job) = consent::find_job(client, &args.job, change).await?;
    let path = format!("/v1/job/{}/deployment", segment(&job));
    let newest: Option<WireDeployment> = client.get(&path).await?;
    let Some(newest) = newest else {
        return Err(CliError::Wrong(format!("job {} has no deployment", one_line(&job))));
    };
    promote_one(&client, &newest.id, &args.group, args.answer.json, terminal).await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn versions_are_listed_with_what_is_stable() {
        let versions: Vec<WireJob> = serde_json::from_value(json!([
            { "ID": "web", "Version": 4, "Stable": false, "SubmitTime": 90_000_000_000_u64, "JobModifyIndex": 9 },
            { "ID": "web", "Version": 3, "Stable": true, "SubmitTime": 0, "JobModifyIndex": 7 },
        ]))
        .unwrap();
        let now = Timestamp::from_nanos(100_000_000_000);
        let text = history_text(&versions, now, &TerminalInfo::default());
        let rows: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["4", "no", "10s", "ago", "9"]);
        assert_eq!(rows[2][..2], ["3", "yes"]);
    }
}

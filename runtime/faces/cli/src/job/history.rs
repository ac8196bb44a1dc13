//! `ostler job history`, `revert`, `promote`

use crate::answer;
use crate::args::deployment::{JobHistoryArgs, JobPromoteArgs, JobRevertArgs};
use crate::connect::{self, CliError};
use crate::consent::{self, ConsentRequest};
use crate::deployment::promote_one;
use crate::exit::Exit;
use crate::output::{self, age_text, say, table};
use crate::terminal::{TerminalInfo, one_line};
use ostler_api::routes::endpoints as routes;
use ostler_model::clock::Clock;
use ostler_model::time::Timestamp;
use ostler_wire::{JobRegisterResponse, JobVersionsResponse, RevertRequest, WireJob};

/// List the versions of a job.
pub(super) async fn history(
    args: &JobHistoryArgs,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    let client = connect::connect(&args.answer.agent)?;
    let (client, job) = connect::find_job(client, &args.job).await?;
    let text = |all: JobVersionsResponse<WireJob>| {
        history_text(&all.versions, Clock::system().now(), terminal)
    };
    answer::get(&client, routes::ListJobVersions::request([&job]), text, terminal).await
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
    let body = RevertRequest {
        job_id: job.clone(),
        job_version: args.earlier,
        enforce_prior_version: None,
    };
    let report = |answer: JobRegisterResponse| {
        let (shown, from, to) = (one_line(&job), args.earlier, answer.registered.version);
        say(&format!("job {shown} is at version {to}, which is what version {from} was"));
        if !answer.new_warnings().is_empty() {
            output::warning(terminal, &answer.new_warnings());
        }
    };
    answer::put(&client, routes::RevertJob::request([&job]), &body, report, terminal).await
}

/// Accept the canaries of the newest deployment of a job.
pub(super) async fn promote(
    args: &JobPromoteArgs,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    let client = connect::connect(&args.answer.agent)?;
    let change = ConsentRequest { verb: "promote", agree: args.agree, terminal };
    let (client, job) = consent::find_job(client, &args.job, change).await?;
    let newest = client.send(&routes::ReadJobDeployment::request([&job])).await?;
    let Some(newest) = newest else {
        return Err(CliError::Wrong(format!("job {} has no deployment", one_line(&job))));
    };
    promote_one(&client, &newest.id, &args.group, terminal).await
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

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

//! `ostler job status`

use std::fmt::Write as _;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer;
use crate::args::job::JobStatusArgs;
use crate::connect::{self, CliError};
use crate::exit::Exit;
use crate::output::{self, age_text, section, table};
use crate::terminal::{TerminalInfo, one_line};
use ostler_api::client::ApiClient;
use ostler_api::routes::endpoints as routes;
use ostler_model::clock::Clock;
use ostler_model::printable::printable_line;
use ostler_model::saved::JobOrigin;
use ostler_model::time::Timestamp;
use ostler_wire::{Alloc, GroupSummary, JobStub, JobSummary, WireJob};

/// List jobs, or show one.
pub(super) async fn status(
    args: &JobStatusArgs,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    let client = connect::connect(&args.agent)?;
    match &args.job {
        None => {
            list(&client, args, terminal).await?;
        }
        Some(given) => {
            let (client, job) = connect::find_job(client.clone(), given).await?;
            show_job(&client, &job, args, terminal).await?;
        }
    }
    warn_of_jobs_dir(&client, terminal).await;
    Ok(Exit::Success)
}

/// The part of the state of the jobs directory that says what is wrong with it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct JobsDirProblem {
    /// A problem of the directory as a whole; absent where there is none.
    problem: Option<String>,
}

/// Warn of a problem of the jobs directory as a whole: the jobs may differ from its files then.
async fn warn_of_jobs_dir(client: &ApiClient, terminal: &TerminalInfo) {
    let request = routes::ReadJobsDir::request([]).read_as::<Option<JobsDirProblem>>();
    match client.send(&request).await {
        Ok(Some(JobsDirProblem { problem: Some(problem) })) => output::warning(terminal, &problem),
        Ok(_) => {}
        Err(error) => tracing::debug!(%error, "the state of the jobs directory is not known"),
    }
}

async fn list(
    client: &ApiClient,
    args: &JobStatusArgs,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    let request = connect::in_namespaces(client, routes::ListJobs::request([]));
    let text = |jobs: Vec<JobStub>| match args.agent.namespace.as_deref() {
        Some(namespace) if jobs.is_empty() && !namespace.is_empty() => {
            format!("no jobs in namespace {}\n", one_line(namespace))
        }
        _ => list_text(&jobs, Clock::system().now(), terminal),
    };
    answer::get(client, request, text, terminal).await
}

/// Longest text in a list about what a job waits for, bytes. The status of the job has all of it.
const WAITS_FOR_BYTES_MAX: usize = 160;

fn list_text(jobs: &[JobStub], now: Timestamp, terminal: &TerminalInfo) -> String {
    if jobs.is_empty() {
        return "no jobs\n".to_owned();
    }
    let rows = jobs.iter().map(|job| {
        let GroupSummary { queued, starting, running, failed, complete, lost: _ } =
            job.job_summary.total();
        [
            job.id.to_string(),
            job.namespace.to_string(),
            job.kind.to_string(),
            job.priority.to_string(),
            state(&job.status, job.stop),
            running.to_string(),
            starting.saturating_add(queued).to_string(),
            failed.to_string(),
            complete.to_string(),
            age_text(job.submit_time, now),
            printable_line(job.status_description.to_string(), WAITS_FOR_BYTES_MAX),
        ]
    });
    let header = [
        "ID",
        "NAMESPACE",
        "TYPE",
        "PRIORITY",
        "STATUS",
        "RUNNING",
        "WAITING",
        "FAILED",
        "COMPLETE",
        "SUBMITTED",
        "WAITS FOR",
    ];
    table(header, rows, terminal)
}

fn state(status: &str, stopped: bool) -> String {
    if stopped { format!("{status} (stopped)") } else { status.to_owned() }
}

async fn show_job(
    client: &ApiClient,
    job: &str,
    args: &JobStatusArgs,
    terminal: &TerminalInfo,
) -> Result<(), CliError> {
    let (read, list) = (routes::ReadJob::request([&job]), routes::ListJobAllocs::request([&job]));
    if terminal.json {
        let job = client.send(&read.read_as::<Value>()).await?;
        let allocs = client.send(&list.read_as::<Value>()).await?;
        return Ok(output::print_json(&json!({ "job": job, "allocations": allocs }), terminal)?);
    }
    let summary = routes::SummarizeJob::request([&job]);
    let (job, summary) = (client.send(&read).await?, client.send(&summary).await?);
    let mut allocs = client.send(&list).await?;
    let all = allocs.len();
    if !args.all_allocs {
        allocs.retain(|alloc| alloc.version() == job.facts.version || !alloc.is_terminal());
    }
    let hidden = all - allocs.len();
    let now = Clock::system().now();
    let text =
        job_text(&job, &summary, terminal) + &allocs_text(&mut allocs, hidden, now, terminal);
    Ok(output::print(&text, terminal)?)
}

fn job_text(job: &WireJob, summary: &JobSummary, terminal: &TerminalInfo) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| output::fact(&mut text, 13, name, value);
    let facts = &job.facts;
    line("job", &job.id);
    if job.name != job.id {
        line("name", &job.name);
    }
    line("type", &job.kind);
    line("priority", &job.priority.to_string());
    line("data centers", &job.datacenters.join(", "));
    line("namespace", &job.namespace);
    line("status", &state(&facts.status, facts.stop));
    line("waits for", &facts.status_description);
    let (version, index) = (facts.version, facts.job_modify_index);
    line("version", &format!("{version} (job modify index {index})"));
    line("submitted", &facts.submit_time.to_string());
    if let Some(JobOrigin::File(path)) = &facts.origin {
        line("given by", &format!("the file {}", path.display()));
    }
    let rows = summary.summary.iter().map(|(name, group)| {
        let GroupSummary { queued, starting, running, failed, complete, lost: _ } = *group;
        let counts = [queued, starting, running, failed, complete].map(|count| count.to_string());
        let [queued, starting, running, failed, complete] = counts;
        [name.to_string(), queued, starting, running, failed, complete]
    });
    let header = ["GROUP", "QUEUED", "STARTING", "RUNNING", "FAILED", "COMPLETE"];
    text + &section("groups", &table(header, rows, terminal), terminal)
}

fn allocs_text(
    allocs: &mut [Alloc],
    hidden: usize,
    now: Timestamp,
    terminal: &TerminalInfo,
) -> String {
    let mut text = section("allocations", "", terminal);
    // Newest first: people mostly look for those.
    allocs.sort_by(|a, b| b.create_time.cmp(&a.create_time).then(a.name.cmp(&b.name)));
    if allocs.is_empty() {
        text.push_str("none\n");
    } else {
        let rows = allocs.iter().map(|alloc| {
            [
                alloc.id.short(),
                alloc.task_group.to_string(),
                alloc.version().to_string(),
                alloc.desired_word().to_owned(),
                alloc.client_status.to_string(),
                age_text(alloc.create_time, now),
                age_text(alloc.modify_time, now),
                alloc.description().to_owned(),
            ]
        });
        let header = ["ID", "GROUP", "VERSION", "DESIRED", "STATUS", "CREATED", "MODIFIED", "WHY"];
        text.push_str(&table(header, rows, terminal));
    }
    if hidden > 0 {
        let _ = writeln!(text, "{hidden} of older versions; --all-allocs shows them");
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const NOW: Timestamp = Timestamp::from_nanos(100_000_000_000);

    fn row<'a>(text: &'a str, begin: &str) -> Vec<&'a str> {
        text.lines().find(|l| l.starts_with(begin)).unwrap().split_whitespace().collect()
    }

    #[test]
    fn a_list_has_one_line_per_job_and_escapes_what_they_say() {
        let jobs: Vec<JobStub> = serde_json::from_value(json!([
            {
                "ID": "web", "Type": "service", "Priority": 50, "Status": "running",
                "StatusDescription": "port\x1b[2J taken", "SubmitTime": 40_000_000_000_u64,
                "JobSummary": { "Summary": {
                    "a": { "Running": 2, "Queued": 1 }, "b": { "Running": 1, "Starting": 1 },
                } },
            },
            { "ID": "old", "Type": "batch", "Status": "dead", "Stop": true, "JobSummary": { "Summary": null } },
        ]))
        .unwrap();
        let text = list_text(&jobs, NOW, &TerminalInfo::default());
        let web = row(&text, "web");
        let expected = [
            "web",
            "service",
            "50",
            "running",
            "3",
            "2",
            "0",
            "0",
            "1m00s",
            "ago",
            "port\\u{1b}[2J",
            "taken",
        ];
        assert_eq!(web, expected);
        assert!(row(&text, "old").starts_with(&["old", "batch", "0", "dead", "(stopped)"]));
        assert_eq!(list_text(&[], NOW, &TerminalInfo::default()), "no jobs\n");
    }

    #[test]
    fn a_job_shows_its_groups_who_gave_it_and_what_it_waits_for() {
        let job: WireJob = serde_json::from_value(json!({
            "ID": "web", "Name": "web", "Type": "service", "Priority": 50, "Datacenters": ["dc1"],
            "Namespace": "default", "Status": "pending", "StatusDescription": "group g waits: memory",
            "Version": 4, "JobModifyIndex": 9, "SubmitTime": 0, "Origin": { "file": "/jobs/web.hcl" },
            "Unknown": { "to": ["this", "version"] },
        }))
        .unwrap();
        let summary =
            serde_json::from_value(json!({ "Summary": { "g": { "Queued": 1 } } })).unwrap();
        let text = job_text(&job, &summary, &TerminalInfo::default());
        for line in [
            "waits for    group g waits: memory",
            "version      4 (job modify index 9)",
            "given by     the file /jobs/web.hcl",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in {text}");
        }
        assert!(!text.contains("\nname "), "the same as the id: {text}");
        assert_eq!(row(&text, "g "), ["g", "1", "0", "0", "0", "0"]);
    }

    #[test]
    fn allocations_are_listed_newest_first_with_why() {
        let alloc = |id: u32, made: u64| {
            json!({
                "ID": format!("{id:08x}-0000-4000-8000-000000000000"), "TaskGroup": "g",
                "JobVersion": 1, "DesiredStatus": "run", "ClientStatus": "running",
                "ClientDescription": "Tasks are running", "CreateTime": made, "ModifyTime": made,
            })
        };
        let mut allocs: Vec<Alloc> =
            serde_json::from_value(json!([alloc(1, 5_000_000_000), alloc(2, 90_000_000_000)]))
                .unwrap();
        let text = allocs_text(&mut allocs, 3, NOW, &TerminalInfo::default());
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[3].starts_with("00000002") && lines[4].starts_with("00000001"), "{text}");
        assert!(lines[3].contains("10s ago") && lines[3].ends_with("Tasks are running"), "{text}");
        assert_eq!(lines[5], "3 of older versions; --all-allocs shows them");
    }
}

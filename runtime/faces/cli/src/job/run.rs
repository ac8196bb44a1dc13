//! `ostler job run`
//!
//! ```text
//! file ─► parse (all that is wrong) ─► register ─┬─ --detach ─► ids
//!                                                └─► its deployment to its end; without one the
//!                                                    allocations, until they run and go on, are
//!                                                    complete, one failed, or the rest waits for room
//! ```

use std::cell::Cell;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::next_command::{next_command, own_words};
use super::watch::{JobSnapshot, JobVerdict, JobWatch};
use crate::args::job::JobRunArgs;
use crate::connect::{self, CliError, run_until_interrupted};
use crate::exit::Exit;
use crate::input::JobInput;
use crate::output::{self, say, warning};
use crate::printer::print_report;
use crate::terminal::{TerminalInfo, one_line};
use ostler_api::client::{ApiClient, ClientError};
use ostler_api::routes::{QueryKey, endpoints as routes};
use ostler_jobspec::FileDiagnostic;
use ostler_model::clock::{self, Stopwatch};
use ostler_model::ids::AllocId;
use ostler_model::job;
use ostler_wire::{JobRegisterResponse, JobRequest, WireJob};

/// Time between two requests for a job that waits while plugins are loaded.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The part of an agent's readiness that says which plugins are still to come.
#[derive(Debug, Deserialize)]
struct PluginReadiness {
    waiting: Vec<String>,
    loading: Vec<String>,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct RunOutcome<'a> {
    job: &'a str,
    version: u64,
    job_modify_index: u64,
    placed: &'a [AllocId],
    updated: &'a [AllocId],
    stopped: &'a [AllocId],
    /// What the file asks for and the agent does not do, with the places.
    warnings: &'a [FileDiagnostic],
    /// Warnings of the agent.
    agent_warnings: &'a [String],
    /// `taken` with `--detach`, else `runs`, `complete`, `canaries`, `unjudged`, `waits`, `failed`, `unhealthy` or
    /// `overtaken`.
    outcome: &'static str,
}

/// Register a job and follow it.
pub(super) async fn run(args: &JobRunArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let client = connect::connect(&args.agent)?;
    let input = super::read_with_warnings(&args.source, terminal)?;
    let job = input.job();
    let client = client.or_in_namespace(job.namespace());
    let answer = register(&client, job, args).await;
    let registered = super::check_answer(answer, &client, &input).await?;
    if !registered.new_warnings().is_empty() {
        warning(terminal, &registered.new_warnings());
    }
    if !terminal.json {
        say(&registered_text(job, &registered));
    }
    if args.detach {
        print_outcome(&input, &registered, "taken", terminal)?;
        return Ok(Exit::Success);
    }
    let hint = format!("job {} keeps running; `ostler job stop {}` stops it", job.id, job.id);
    let follow = follow_job(&client, args, job, &registered, (!terminal.json).then_some(terminal));
    let end = run_until_interrupted(&hint, follow).await?;
    let (outcome, exit) = outcome_and_exit(&end.verdict);
    if terminal.json {
        print_outcome(&input, &registered, outcome, terminal)?;
        return Ok(exit);
    }
    let again = next_command(own_words(), "run", "run --rerun");
    let message = end.message(job, &again, registered.is_unchanged());
    if exit == Exit::Success {
        say(&message);
        return Ok(exit);
    }
    Err(CliError::Failed(message, exit))
}

/// The outcome in a word, and the exit code.
const fn outcome_and_exit(verdict: &JobVerdict) -> (&'static str, Exit) {
    match verdict {
        JobVerdict::Runs | JobVerdict::Going | JobVerdict::Settling(_) => ("runs", Exit::Success),
        JobVerdict::Done => ("complete", Exit::Success),
        JobVerdict::Canaries => ("canaries", Exit::Success),
        JobVerdict::ByHand(_) => ("unjudged", Exit::Success),
        JobVerdict::Failed(_) | JobVerdict::GivenUp { .. } => ("failed", Exit::Failed),
        JobVerdict::Unhealthy(_) => ("unhealthy", Exit::Failed),
        JobVerdict::Waits => ("waits", Exit::Agent),
        JobVerdict::Overtaken(_) => ("overtaken", Exit::Failed),
    }
}

/// The result of following a job.
struct FollowEnd {
    verdict: JobVerdict,
    /// A line for each task that failed.
    failures: String,
    /// The version that was followed; `version` is the one that the job has at the end.
    followed: u64,
    version: u64,
}

impl FollowEnd {
    /// The message about the result. `again` is the command that runs the job once more;
    /// `unchanged` says that the agent had nothing to do for the job.
    fn message(&self, job: &job::Job, again: &str, unchanged: bool) -> String {
        let (id, failures) = (&job.id, &self.failures);
        let again = format!("`{again}` runs it again");
        match &self.verdict {
            JobVerdict::Runs | JobVerdict::Done
                if job.groups.iter().all(|group| group.count == 0) =>
            {
                nothing_to_run_text(job)
            }
            JobVerdict::Runs | JobVerdict::Going | JobVerdict::Settling(_) => {
                format!("job {id} runs")
            }
            JobVerdict::Done if unchanged => format!(
                "nothing of job {id} was started: it has not changed, and all of it is complete; {again}"
            ),
            JobVerdict::Done => format!("all of job {id} is complete"),
            JobVerdict::Canaries => format!(
                "the canaries of job {id} are healthy and the deployment waits: `ostler job promote {id}` \
                 lets the rest follow"
            ),
            JobVerdict::ByHand(deployment) => format!(
                "what was placed of job {id} runs, and the deployment waits until its health is reported by \
                 PUT {} (docs/updates.md shows the whole request); see `ostler job status {id}`",
                routes::SetAllocHealth::request([deployment]).target()
            ),
            JobVerdict::Overtaken(how) => format!("{how} while it was followed"),
            JobVerdict::Waits => format!(
                "job {id} is registered and does not fit on the node now: what waits starts by itself when it \
                 does; see `ostler job status {id}`"
            ),
            JobVerdict::Unhealthy(alloc) => format!(
                "an allocation of job {id} was judged unhealthy; see `ostler alloc status {}`",
                alloc.short()
            ),
            JobVerdict::GivenUp { deployment, why } => {
                let short = output::short_id(deployment);
                let now = match self.version {
                    version if version > self.followed => {
                        format!("; the job is at version {version} now")
                    }
                    _ => String::new(),
                };
                format!(
                    "the deployment of job {id} failed: {}{now}; see `ostler deployment status {short}`\
                     {failures}",
                    one_line(why)
                )
            }
            JobVerdict::Failed(None) => {
                format!("an allocation of job {id} failed and was collected; its logs are gone")
            }
            JobVerdict::Failed(Some(alloc)) if unchanged => format!(
                "nothing of job {id} was started: it has not changed, and an allocation of it failed; {again}; see \
                 `ostler alloc status {}`{failures}",
                alloc.short()
            ),
            JobVerdict::Failed(Some(alloc)) => format!(
                "an allocation of job {id} failed; see `ostler alloc status {alloc}`, `ostler alloc logs \
                 {alloc}`{failures}",
                alloc = alloc.short()
            ),
        }
    }
}

/// The message about a job whose counts are all 0, with the command that changes one of them.
fn nothing_to_run_text(job: &job::Job) -> String {
    let id = &job.id;
    let scale = job.groups.first().map(|group| {
        let group = &group.name;
        format!("; `ostler job scale {id} {group} 1` runs one of group {group}")
    });
    let scale = scale.unwrap_or_default();
    format!("nothing of job {id} should run: the counts of its groups are 0{scale}")
}

async fn register(
    client: &ApiClient,
    job: &job::Job,
    args: &JobRunArgs,
) -> Result<JobRegisterResponse, ClientError> {
    let body = JobRequest {
        enforce_index: args.check_index.map(|_| true),
        job_modify_index: args.check_index,
        rerun: args.rerun.then_some(true),
        ..super::job_request(job)
    };
    client.send_body(&routes::RegisterJob::request([]), &body).await
}

/// What the agent did at once, as text for people.
fn registered_text(job: &job::Job, registered: &JobRegisterResponse) -> String {
    let effects = &registered.registered;
    let (version, index) = (effects.version, registered.job_modify_index);
    let counts = [
        (effects.placed.len(), "placed"),
        (effects.updated.len(), "updated in place"),
        (effects.stopped.len(), "stopping"),
    ];
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let more: String = counts.map(|(count, what)| format!(", {count} {what}")).collect();
    format!("job {} is at version {version} (job modify index {index}){more}", job.id)
}

/// Print the outcome: ids for people and scripts, or JSON.
fn print_outcome(
    input: &JobInput,
    registered: &JobRegisterResponse,
    outcome: &'static str,
    terminal: &TerminalInfo,
) -> Result<(), Exit> {
    let effects = &registered.registered;
    if !terminal.json {
        let ids = effects.placed.iter().chain(&effects.updated);
        let lines: String = ids.map(|id| format!("{id}\n")).collect();
        return output::print(&lines, terminal);
    }
    let outcome = RunOutcome {
        job: input.job().id.as_str(),
        version: effects.version,
        job_modify_index: registered.job_modify_index,
        placed: &effects.placed,
        updated: &effects.updated,
        stopped: &effects.stopped,
        warnings: &input.warnings().diagnostics,
        agent_warnings: registered.agent_warnings.as_deref().unwrap_or_default(),
        outcome,
    };
    output::print_json(&outcome, terminal)
}

/// Follow the job until its outcome is known. News is printed if a terminal is given.
async fn follow_job(
    client: &ApiClient,
    args: &JobRunArgs,
    job: &job::Job,
    registered: &JobRegisterResponse,
    terminal: Option<&TerminalInfo>,
) -> Result<FollowEnd, CliError> {
    let effects = &registered.registered;
    let followed = effects.version;
    let mut watch = JobWatch::new(followed, effects.placed.clone(), job, args.settle);
    let request = routes::ReadJob::request([&job.id]);
    let allocs = routes::ListJobAllocs::request([&job.id]).with(QueryKey::Resources, true);
    let deployments = routes::ListJobDeployments::request([&job.id]);
    let since = Stopwatch::start();
    // How long the allocations still have to run: no change of the job marks the end of that time.
    let left: Cell<Option<Duration>> = Cell::new(None);
    // The index of a job covers its allocations and its deployment. A change between these answers
    // ends the next wait at once.
    let look = async |now: WireJob<'static>| {
        let allocs = client.send(&allocs).await?;
        let deployments = client.send(&deployments).await?;
        let looked = JobSnapshot {
            job: &now,
            allocs: &allocs,
            deployments: &deployments,
            now: since.elapsed(),
        };
        let (news, verdict) = watch.update(&looked);
        if let Some(terminal) = terminal {
            news.iter().for_each(|report| print_report(report, terminal));
        }
        let goes_on = match &verdict {
            JobVerdict::Going => true,
            JobVerdict::Settling(_) => left.get().is_some(),
            _ => false,
        };
        let ended = matches!(verdict, JobVerdict::GivenUp { .. });
        let failures = watch.failures(&allocs, ended);
        let version = now.facts.version;
        Ok((!goes_on).then_some(FollowEnd { verdict, failures, followed, version }))
    };
    let mut look = look;
    loop {
        let watched = client.watch_until(&request, &mut look);
        let seen = match left.get() {
            None => watched.await,
            Some(patience) => match clock::timeout(patience, watched).await {
                Some(seen) => seen,
                None => {
                    left.set(None);
                    continue;
                }
            },
        };
        match seen {
            Ok(FollowEnd { verdict: JobVerdict::Settling(more), .. }) => left.set(Some(more)),
            Err(CliError::Client(error)) if error.is_not_found() => {
                let verdict = JobVerdict::Overtaken("the job was purged".to_owned());
                return Ok(FollowEnd {
                    verdict,
                    failures: String::new(),
                    followed,
                    version: followed,
                });
            }
            // A plugin that was loaded changes what fits, but is no change of the job.
            Ok(FollowEnd { verdict: JobVerdict::Waits, .. })
                if has_loading_plugins(client).await? =>
            {
                clock::sleep(LOOK_AGAIN).await
            }
            other => return other,
        }
    }
}

/// Is a plugin still being loaded, or is it not known yet whether it can be used?
async fn has_loading_plugins(client: &ApiClient) -> Result<bool, ClientError> {
    let request = routes::ReadReadiness::request([]).read_as::<PluginReadiness>();
    let PluginReadiness { waiting, loading } = client.send(&request).await?;
    Ok(!(waiting.is_empty() && loading.is_empty()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::path::Path;

    use super::*;

    /// The message about a job with this count.
    fn said(count: u32, verdict: JobVerdict, unchanged: bool) -> String {
        let group = "task \"t\" { driver = \"mock\" }";
        let text = format!("job \"b2\" {{\n group \"g\" {{\n count = {count}\n {group}\n }}\n}}\n");
        let job = ostler_jobspec::parse(text.as_bytes(), Path::new("b2.hcl"), None).unwrap();
        let end = FollowEnd { verdict, failures: String::new(), followed: 0, version: 0 };
        end.message(&job, "ostler job run --rerun --var 'a=b c' b2.hcl", unchanged)
    }

    #[test]
    fn of_a_job_without_places_it_is_not_said_that_it_is_complete() {
        let expected = "nothing of job b2 should run: the counts of its groups are 0; `ostler job scale b2 g \
                        1` runs one of group g";
        for unchanged in [true, false] {
            assert_eq!(said(0, JobVerdict::Done, unchanged), expected);
        }
        assert_eq!(said(1, JobVerdict::Done, false), "all of job b2 is complete");
    }

    #[test]
    fn who_is_to_say_what_is_healthy_is_told_where() {
        let said = said(1, JobVerdict::ByHand("0d010000-0000".to_owned()), false);
        assert!(
            said.contains("by PUT /v1/deployment/allocation-health/0d010000-0000 (docs/"),
            "{said}"
        );
    }

    #[test]
    fn the_command_that_runs_it_again_is_the_whole_one() {
        let again = "`ostler job run --rerun --var 'a=b c' b2.hcl` runs it again";
        let done = said(1, JobVerdict::Done, true);
        assert!(done.ends_with(&format!("all of it is complete; {again}")), "{done}");
        let failed = said(1, JobVerdict::Failed(Some(AllocId::default())), true);
        assert!(failed.contains(&format!("an allocation of it failed; {again}; see")), "{failed}");
    }
}

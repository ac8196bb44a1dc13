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

use super::super::args::job::JobRunArgs;
use super::super::connect::{self, Stop, until_interrupted};
use super::super::exit::Exit;
use super::super::input::JobInput;
use super::super::output::{self, say, warning};
use super::super::printer::tell;
use super::super::terminal::{Terminal, one_line};
use super::proposed::{own_words, proposed};
use super::watch::{Looked, Verdict, Watch};
use ostler_api::client::{ApiClient, ClientError, segment};
use ostler_jobspec::FileDiagnostic;
use ostler_model::clock::{self, Stopwatch};
use ostler_model::ids::AllocId;
use ostler_model::job;
use ostler_wire::{Alloc, Deployment, Job, JobRequest, Registered};

/// How long between two looks at a job that waits while plugins are loaded.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// What is asked of an agent's readiness.
#[derive(Debug, Deserialize)]
struct Readiness {
    waiting: Vec<String>,
    loading: Vec<String>,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Outcome<'a> {
    job: &'a str,
    version: u64,
    job_modify_index: u64,
    placed: &'a [AllocId],
    updated: &'a [AllocId],
    stopped: &'a [AllocId],
    /// What the file asks for that is not done, with the places.
    warnings: &'a [FileDiagnostic],
    /// What else the agent has to say.
    agent_warnings: &'a [String],
    /// `taken` with `--detach`, else `runs`, `complete`, `canaries`, `unjudged`, `waits`, `failed`, `unhealthy` or
    /// `overtaken`.
    outcome: &'static str,
}

/// Register a job and follow it.
pub(super) async fn run(args: &JobRunArgs, terminal: &Terminal) -> Result<Exit, Stop> {
    let client = connect::connect(&args.agent)?;
    let input = super::read(&args.source, terminal)?;
    let job = input.job();
    let client = client.or_within(job.namespace());
    let answer = register(&client, job, args).await;
    let registered = super::told(answer, &client, &input).await?;
    if !registered.told().is_empty() {
        warning(terminal, &registered.told());
    }
    if !args.json {
        say(&taken(job, &registered));
    }
    if args.detach {
        show(args, &input, &registered, "taken", terminal)?;
        return Ok(Exit::Success);
    }
    let hint = format!("job {} goes on; `ostler job stop {}` stops it", job.id, job.id);
    let follow = follow(&client, args, job, &registered, (!args.json).then_some(terminal));
    let end = until_interrupted(&hint, follow).await?;
    let (outcome, exit) = ended(&end.verdict);
    if args.json {
        show(args, &input, &registered, outcome, terminal)?;
        return Ok(exit);
    }
    let again = proposed(own_words(), "run", "run --rerun");
    let message = end.message(job, &again, registered.nothing_done());
    if exit == Exit::Success {
        say(&message);
        return Ok(exit);
    }
    Err(Stop::Failed(message, exit))
}

/// The outcome in a word, and how the program ends.
const fn ended(verdict: &Verdict) -> (&'static str, Exit) {
    match verdict {
        Verdict::Runs | Verdict::Going | Verdict::Settling(_) => ("runs", Exit::Success),
        Verdict::Done => ("complete", Exit::Success),
        Verdict::Canaries => ("canaries", Exit::Success),
        Verdict::ByHand(_) => ("unjudged", Exit::Success),
        Verdict::Failed(_) | Verdict::GivenUp { .. } => ("failed", Exit::Failed),
        Verdict::Unhealthy(_) => ("unhealthy", Exit::Failed),
        Verdict::Waits => ("waits", Exit::Agent),
        Verdict::Overtaken(_) => ("overtaken", Exit::Failed),
    }
}

/// How the following ended.
struct End {
    verdict: Verdict,
    /// A line for each task that failed.
    failures: String,
    /// The version that was followed, and the one that the job has then.
    followed: u64,
    version: u64,
}

impl End {
    /// What is said of it. `again`: the command that runs the job once more; `unchanged`: nothing was to be done
    /// for it.
    fn message(&self, job: &job::Job, again: &str, unchanged: bool) -> String {
        let (id, failures) = (&job.id, &self.failures);
        let again = format!("`{again}` runs it again");
        match &self.verdict {
            Verdict::Runs | Verdict::Done if job.groups.iter().all(|group| group.count == 0) => {
                asks_for_nothing(job)
            }
            Verdict::Runs | Verdict::Going | Verdict::Settling(_) => format!("job {id} runs"),
            Verdict::Done if unchanged => format!(
                "nothing of job {id} runs: it is as it was, and all of it is complete; {again}"
            ),
            Verdict::Done => format!("all of job {id} is complete"),
            Verdict::Canaries => format!(
                "the canaries of job {id} are healthy and the deployment waits: `ostler job promote {id}` \
                 lets the rest follow"
            ),
            Verdict::ByHand(deployment) => format!(
                "what was placed of job {id} runs, and the deployment waits until somebody says whether it \
                 is healthy, by PUT {} (docs/updates.md shows the whole request); see `ostler job status {id}`",
                one_line(&format!("/v1/deployment/allocation-health/{deployment}"))
            ),
            Verdict::Overtaken(how) => format!("{how} while it was followed"),
            Verdict::Waits => format!(
                "job {id} is registered and does not fit on the node now: what waits starts by itself when it \
                 does; see `ostler job status {id}`"
            ),
            Verdict::Unhealthy(alloc) => format!(
                "an allocation of job {id} was judged unhealthy; see `ostler alloc status {}`",
                alloc.short()
            ),
            Verdict::GivenUp { deployment, why } => {
                let short: String = deployment.chars().take(8).collect();
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
            Verdict::Failed(None) => {
                format!("an allocation of job {id} failed and was collected; its logs are gone")
            }
            Verdict::Failed(Some(alloc)) if unchanged => format!(
                "nothing of job {id} is started: it is as it was, and an allocation of it failed; {again}; see \
                 `ostler alloc status {}`{failures}",
                alloc.short()
            ),
            Verdict::Failed(Some(alloc)) => format!(
                "an allocation of job {id} failed; see `ostler alloc status {alloc}`, `ostler alloc logs \
                 {alloc}`{failures}",
                alloc = alloc.short()
            ),
        }
    }
}

/// Of a job that has no allocations, and how it gets one.
fn asks_for_nothing(job: &job::Job) -> String {
    let id = &job.id;
    let scale = job.groups.first().map(|group| {
        let group = &group.name;
        format!("; `ostler job scale {id} {group} 1` has one of group {group} run")
    });
    let scale = scale.unwrap_or_default();
    format!("nothing of job {id} is to run: the counts of its groups are 0{scale}")
}

async fn register(
    client: &ApiClient,
    job: &job::Job,
    args: &JobRunArgs,
) -> Result<Registered, ClientError> {
    let body = JobRequest {
        enforce_index: args.check_index.map(|_| true),
        job_modify_index: args.check_index,
        rerun: args.rerun.then_some(true),
        ..super::request(job)
    };
    client.put("/v1/jobs", &body).await
}

/// What the agent did at once, for people.
fn taken(job: &job::Job, registered: &Registered) -> String {
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

/// Print what was done: ids for people and scripts, or JSON.
fn show(
    args: &JobRunArgs,
    input: &JobInput,
    registered: &Registered,
    outcome: &'static str,
    terminal: &Terminal,
) -> Result<(), Exit> {
    let effects = &registered.registered;
    if !args.json {
        let ids = effects.placed.iter().chain(&effects.updated);
        let lines: String = ids.map(|id| format!("{id}\n")).collect();
        return output::print(&lines, terminal);
    }
    let outcome = Outcome {
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

/// How it went on. What is new is told where there is a terminal to tell it on.
async fn follow(
    client: &ApiClient,
    args: &JobRunArgs,
    job: &job::Job,
    registered: &Registered,
    terminal: Option<&Terminal>,
) -> Result<End, Stop> {
    let effects = &registered.registered;
    let followed = effects.version;
    let mut watch = Watch::new(followed, effects.placed.clone(), job, args.settle);
    let path = format!("/v1/job/{}", segment(job.id.as_str()));
    let since = Stopwatch::start();
    // How long what runs still has to run: nothing wakes who waits for that.
    let left: Cell<Option<Duration>> = Cell::new(None);
    // The index of a job covers its allocations and its deployment. What changes between the answers wakes the
    // next.
    let look = async |now: Job<'static>| {
        let allocs: Vec<Alloc> = client.get(&format!("{path}/allocations?resources=true")).await?;
        let deployments: Vec<Deployment> = client.get(&format!("{path}/deployments")).await?;
        let looked =
            Looked { job: &now, allocs: &allocs, deployments: &deployments, now: since.elapsed() };
        let (news, verdict) = watch.look(&looked);
        if let Some(terminal) = terminal {
            news.iter().for_each(|report| tell(report, terminal));
        }
        let goes_on = match &verdict {
            Verdict::Going => true,
            Verdict::Settling(_) => left.get().is_some(),
            _ => false,
        };
        let ended = matches!(verdict, Verdict::GivenUp { .. });
        let failures = watch.failures(&allocs, ended);
        let version = now.facts.version;
        Ok((!goes_on).then_some(End { verdict, failures, followed, version }))
    };
    let mut look = look;
    loop {
        let watched = client.watch(&path, &mut look);
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
            Ok(End { verdict: Verdict::Settling(more), .. }) => left.set(Some(more)),
            Err(Stop::Client(error)) if error.not_found() => {
                let verdict = Verdict::Overtaken("the job was purged".to_owned());
                return Ok(End { verdict, failures: String::new(), followed, version: followed });
            }
            // A plugin that comes changes what fits, and is no change of the job.
            Ok(End { verdict: Verdict::Waits, .. }) if plugins_come(client).await? => {
                clock::sleep(LOOK_AGAIN).await
            }
            other => return other,
        }
    }
}

/// Is a plugin still being loaded, or has not said yet whether it can be used?
async fn plugins_come(client: &ApiClient) -> Result<bool, ClientError> {
    let Readiness { waiting, loading } = client.get("/v1/ostler/readiness").await?;
    Ok(!(waiting.is_empty() && loading.is_empty()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::path::Path;

    use super::*;

    /// What is said of a job with this count.
    fn said(count: u32, verdict: Verdict, unchanged: bool) -> String {
        let group = "task \"t\" { driver = \"mock\" }";
        let text = format!("job \"b2\" {{\n group \"g\" {{\n count = {count}\n {group}\n }}\n}}\n");
        let job = ostler_jobspec::parse(text.as_bytes(), Path::new("b2.hcl"), None).unwrap();
        let end = End { verdict, failures: String::new(), followed: 0, version: 0 };
        end.message(&job, "ostler job run --rerun --var 'a=b c' b2.hcl", unchanged)
    }

    #[test]
    fn of_a_job_without_places_it_is_not_said_that_it_is_complete() {
        let expected = "nothing of job b2 is to run: the counts of its groups are 0; `ostler job scale b2 g 1` \
                        has one of group g run";
        for unchanged in [true, false] {
            assert_eq!(said(0, Verdict::Done, unchanged), expected);
        }
        assert_eq!(said(1, Verdict::Done, false), "all of job b2 is complete");
    }

    #[test]
    fn who_is_to_say_what_is_healthy_is_told_where() {
        let said = said(1, Verdict::ByHand("0d010000-0000".to_owned()), false);
        assert!(
            said.contains("by PUT /v1/deployment/allocation-health/0d010000-0000 (docs/"),
            "{said}"
        );
    }

    #[test]
    fn the_command_that_runs_it_again_is_the_whole_one() {
        let again = "`ostler job run --rerun --var 'a=b c' b2.hcl` runs it again";
        let done = said(1, Verdict::Done, true);
        assert!(done.ends_with(&format!("all of it is complete; {again}")), "{done}");
        let failed = said(1, Verdict::Failed(Some(AllocId::default())), true);
        assert!(failed.contains(&format!("an allocation of it failed; {again}; see")), "{failed}");
    }
}

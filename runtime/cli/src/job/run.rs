//! `ostler job run`
//!
//! ```text
//! file ─► parse (all that is wrong) ─► register ─┬─ --detach ─► ids
//!                                                └─► allocations, until they run (and are healthy,
//!                                                    where somebody judges), one failed, or the
//!                                                    rest waits for room
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::super::args::job::JobRunArgs;
use super::super::connect::{self, Stop, until_interrupted};
use super::super::exit::Exit;
use super::super::input::JobInput;
use super::super::output::{self, say, warning};
use super::super::printer::tell;
use super::super::terminal::Terminal;
use super::watch::{Verdict, Watch};
use ostler_api::client::{ApiClient, ClientError, segment};
use ostler_jobspec::FileDiagnostic;
use ostler_model::clock;
use ostler_model::ids::AllocId;
use ostler_model::job;
use ostler_wire::{Alloc, Job, JobRequest, Registered};

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
    /// `taken` with `--detach`, else `runs`, `waits`, `failed`, `unhealthy` or `overtaken`.
    outcome: &'static str,
}

/// Register a job and follow it.
pub(super) async fn run(args: &JobRunArgs, terminal: &Terminal) -> Result<Exit, Stop> {
    let client = connect::connect(&args.agent)?;
    let input = super::read(&args.source, terminal)?;
    let job = input.job();
    let client = client.or_within(job.namespace());
    let answer = register(&client, job, args.check_index).await;
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
    let follow = follow(&client, job, &registered, (!args.json).then_some(terminal));
    let (verdict, failures) = until_interrupted(&hint, follow).await?;
    let (outcome, exit) = match &verdict {
        Verdict::Runs | Verdict::Going => ("runs", Exit::Success),
        Verdict::Canaries => ("canaries", Exit::Success),
        Verdict::Failed(_) => ("failed", Exit::Failed),
        Verdict::Unhealthy(_) => ("unhealthy", Exit::Failed),
        Verdict::Waits => ("waits", Exit::Agent),
        Verdict::Overtaken(_) => ("overtaken", Exit::Failed),
    };
    if args.json {
        show(args, &input, &registered, outcome, terminal)?;
        return Ok(exit);
    }
    let id = &job.id;
    let message = match verdict {
        Verdict::Runs | Verdict::Going => {
            say(&format!("job {id} runs"));
            return Ok(exit);
        }
        Verdict::Canaries => {
            say(&format!(
                "the canaries of job {id} are healthy; `ostler job promote {id}` lets the rest follow"
            ));
            return Ok(exit);
        }
        Verdict::Overtaken(how) => format!("{how} while it was followed"),
        Verdict::Waits => format!(
            "job {id} is registered and does not fit on the node now: what waits starts by itself when it \
             does; see `ostler job status {id}`"
        ),
        Verdict::Unhealthy(alloc) => format!(
            "an allocation of job {id} was judged unhealthy; see `ostler alloc status {}`",
            alloc.short()
        ),
        Verdict::Failed(None) => {
            format!("an allocation of job {id} failed and was collected; its logs are gone")
        }
        Verdict::Failed(Some(alloc)) => format!(
            "an allocation of job {id} failed; see `ostler alloc status {alloc}`, `ostler alloc logs \
             {alloc}`{failures}",
            alloc = alloc.short()
        ),
    };
    Err(Stop::Failed(message, exit))
}

async fn register(
    client: &ApiClient,
    job: &job::Job,
    check_index: Option<u64>,
) -> Result<Registered, ClientError> {
    let body = JobRequest {
        enforce_index: check_index.map(|_| true),
        job_modify_index: check_index,
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

/// How it went on, and a line for each task that failed. What is new is told where there is a
/// terminal to tell it on.
async fn follow(
    client: &ApiClient,
    job: &job::Job,
    registered: &Registered,
    terminal: Option<&Terminal>,
) -> Result<(Verdict, String), Stop> {
    let effects = &registered.registered;
    let mut watch = Watch::new(effects.version, effects.placed.clone(), job);
    let path = format!("/v1/job/{}", segment(job.id.as_str()));
    // The index of a job covers its allocations. What changes between the two answers wakes the next.
    let look = async |now: Job<'static>| {
        let allocs: Vec<Alloc> = client.get(&format!("{path}/allocations?resources=true")).await?;
        let (news, verdict) = watch.look(&now, &allocs);
        if let Some(terminal) = terminal {
            news.iter().for_each(|report| tell(report, terminal));
        }
        Ok((verdict != Verdict::Going).then(|| (verdict, watch.failures(&allocs))))
    };
    let mut look = look;
    loop {
        match client.watch(&path, &mut look).await {
            Err(Stop::Client(error)) if error.not_found() => {
                return Ok((Verdict::Overtaken("the job was purged".to_owned()), String::new()));
            }
            // A plugin that comes changes what fits, and is no change of the job.
            Ok((Verdict::Waits, _)) if plugins_come(client).await? => {
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

//! `ostler job run`
//!
//! ```text
//! file ─► parse (all that is wrong) ─► register ─┬─ --detach ─► ids
//!                                                └─► allocations, until they run (and are healthy,
//!                                                    where somebody judges), one failed, or the
//!                                                    rest waits for room
//! ```

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde::Serialize;

use super::super::args::job::JobRunArgs;
use super::super::connect::{self, Stop, until_interrupted};
use super::super::exit::Exit;
use super::super::input::JobInput;
use super::super::output::{self, say, warning};
use super::super::terminal::{Terminal, one_line};
use super::watch::{Verdict, Watch};
use ostler_api::client::{ApiClient, ClientError, segment};
use ostler_jobspec::FileDiagnostic;
use ostler_model::ids::AllocId;
use ostler_model::job::{self, HealthCheck};
use ostler_wire::{Alloc, Job, JobRequest, Registered};

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
    let input = super::read(&args.file, terminal)?;
    let job = input.job();
    let answer = register(&client, job, args.check_index).await;
    let registered = super::told(answer, &client, &input).await?;
    if !registered.told().is_empty() {
        warning(terminal, &registered.told());
    }
    if !args.json {
        say(&taken(job, &registered));
    }
    if args.detach {
        tell(args, &input, &registered, "taken", terminal)?;
        return Ok(Exit::Success);
    }
    let hint = format!("job {} goes on; `ostler job stop {}` stops it", job.id, job.id);
    let follow = follow(&client, job, &registered, args.json);
    let (verdict, why) = until_interrupted(&hint, follow).await?;
    let (outcome, exit) = match &verdict {
        Verdict::Runs | Verdict::Going => ("runs", Exit::Success),
        Verdict::Failed => ("failed", Exit::Failed),
        Verdict::Unhealthy => ("unhealthy", Exit::Failed),
        Verdict::Waits => ("waits", Exit::Agent),
        Verdict::Overtaken(_) => ("overtaken", Exit::Failed),
    };
    if args.json {
        tell(args, &input, &registered, outcome, terminal)?;
        return Ok(exit);
    }
    let id = &job.id;
    let message = match verdict {
        Verdict::Runs | Verdict::Going => {
            say(&format!("job {id} runs"));
            return Ok(exit);
        }
        Verdict::Overtaken(how) => format!("{how} while it was followed"),
        Verdict::Waits => format!(
            "job {id} is taken and does not fit on the node now: what waits starts by itself when it \
             does; see `ostler job status {id}`"
        ),
        Verdict::Unhealthy => {
            format!("an allocation of job {id} was judged unhealthy; see `ostler alloc status ID`")
        }
        Verdict::Failed => format!(
            "an allocation of job {id} failed{}; see `ostler alloc status ID`, `ostler alloc logs ID`",
            why.map(|why| format!(": {why}")).unwrap_or_default()
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
    let mut text = format!(
        "job {} is at version {} (job modify index {})",
        job.id, effects.version, registered.job_modify_index
    );
    let mut more = |count: usize, what: &str| {
        if count > 0 {
            let _ = write!(text, ", {count} {what}");
        }
    };
    more(effects.placed.len(), "placed");
    more(effects.updated.len(), "updated in place");
    more(effects.stopped.len(), "stopping");
    text
}

/// Print what was done: ids for people and scripts, or JSON.
fn tell(
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

/// Groups on whose allocations a verdict comes by itself.
fn judged(job: &job::Job) -> BTreeSet<String> {
    let judges = |group: &&job::TaskGroup| {
        group.health.is_some_and(|policy| policy.check != HealthCheck::Manual)
    };
    job.groups.iter().filter(judges).map(|group| group.name.to_string()).collect()
}

/// How it went on, and what failed, if something did.
async fn follow(
    client: &ApiClient,
    job: &job::Job,
    registered: &Registered,
    quiet: bool,
) -> Result<(Verdict, Option<String>), Stop> {
    let effects = &registered.registered;
    let mut watch = Watch::new(effects.version, effects.placed.clone(), judged(job));
    let path = format!("/v1/job/{}", segment(job.id.as_str()));
    // The index of a job covers its allocations. What changes between the two answers wakes the next.
    let look = async |now: Job<'static>| {
        let allocs: Vec<Alloc> = client.get(&format!("{path}/allocations")).await?;
        let (news, verdict) = watch.look(&now, &allocs);
        for line in news.iter().filter(|_| !quiet) {
            say(&one_line(line));
        }
        Ok((verdict != Verdict::Going).then(|| (verdict, watch.why_failed(&allocs))))
    };
    match client.watch(&path, look).await {
        Err(Stop::Client(error)) if error.not_found() => {
            Ok((Verdict::Overtaken("the job was purged".to_owned()), None))
        }
        other => other,
    }
}

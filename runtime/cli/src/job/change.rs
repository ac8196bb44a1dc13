//! `ostler job stop`

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::super::args::job::JobStopArgs;
use super::super::connect::{self, Stop, until_interrupted};
use super::super::consent::{self, Change};
use super::super::exit::Exit;
use super::super::output::{self, say};
use super::super::printer::tell;
use super::super::report::Report;
use super::super::terminal::{Terminal, one_line};
use ostler_api::client::{ApiClient, segment};
use ostler_model::ids::AllocId;
use ostler_wire::{Alloc, Deregistered};

/// Stop a job, and wait for its end.
pub(super) async fn stop(args: &JobStopArgs, terminal: &Terminal) -> Result<Exit, Stop> {
    let client = connect::connect(&args.agent)?;
    let change = Change { verb: "stop", agree: args.agree, terminal };
    let (client, job) = consent::find_job(client, &args.job, change).await?;
    let path = format!("/v1/job/{}", segment(&job));
    let (purge, no_delay) = (args.purge, args.no_shutdown_delay);
    let asked = format!("{path}?purge={purge}&no_shutdown_delay={no_delay}");
    // Before the stop: what ends quickly has ended when the answer comes.
    let live = live_of(&client.get::<Vec<Alloc>>(&format!("{path}/allocations")).await?);
    let stopped: Deregistered = client.delete(&asked).await?;
    let shown = one_line(&job);
    say(&format!("job {shown} is stopping"));
    if let Some(warning) = &stopped.warnings {
        say(&format!("warning: {}", one_line(warning)));
    }
    let told = || {
        json!({
            "ID": job, "EvalID": stopped.eval_id, "JobModifyIndex": stopped.job_modify_index,
            "Warnings": stopped.warnings, "Waited": !args.detach,
        })
    };
    if args.detach {
        return shown_as_json(args, told, terminal);
    }
    let hint = format!("job {shown} goes on stopping; `ostler job status {shown}` shows how far");
    until_interrupted(&hint, ended(&client, &path, live, terminal)).await?;
    say(&format!("job {shown} is stopped"));
    shown_as_json(args, told, terminal)
}

/// Print what was done, where that is asked for.
fn shown_as_json(
    args: &JobStopArgs,
    told: impl FnOnce() -> Value,
    terminal: &Terminal,
) -> Result<Exit, Stop> {
    if args.json {
        output::print_json(&told(), terminal)?;
    }
    Ok(Exit::Success)
}

/// Say once of each task that it was killed and does not end: that is what is waited for.
fn tell_unkillable(alloc: &Alloc, told: &mut BTreeSet<(AllocId, String)>) {
    for (task, state) in &alloc.task_states {
        let last = state.events.iter().rev().find(|event| event.kind == "Killing");
        let unkillable = last.filter(|event| event.details.contains_key("kill_error"));
        if let Some(event) = unkillable.filter(|_| told.insert((alloc.id, task.to_string()))) {
            let (short, why) = (alloc.id.short(), one_line(&event.display_message));
            say(&format!("allocation {short}, task {}: {why}", one_line(task)));
        }
    }
}

fn live_of(allocs: &[Alloc]) -> Vec<AllocId> {
    allocs.iter().filter(|alloc| !alloc.terminal()).map(|alloc| alloc.id).collect()
}

/// Wait until every allocation of the job is terminal or removed; says how those that were `live` ended.
async fn ended(
    client: &ApiClient,
    job: &str,
    mut live: Vec<AllocId>,
    terminal: &Terminal,
) -> Result<(), Stop> {
    let mut told = BTreeSet::new();
    let look = async |allocs: Vec<Alloc<'static>>| {
        for alloc in allocs.iter().filter(|alloc| !alloc.terminal()) {
            tell_unkillable(alloc, &mut told);
        }
        for alloc in allocs.iter().filter(|alloc| live.contains(&alloc.id) && alloc.terminal()) {
            let (name, description) = (alloc.name.to_string(), alloc.why().to_owned());
            let status = alloc.client_status;
            tell(&Report::Status { alloc: alloc.id, name, status, description }, terminal);
        }
        live = live_of(&allocs);
        Ok(live.is_empty().then_some(()))
    };
    client.watch(&format!("{job}/allocations"), look).await
}

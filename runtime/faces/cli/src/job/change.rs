//! `ostler job stop`

use std::collections::BTreeSet;

use serde_json::json;

use crate::answer;
use crate::args::job::JobStopArgs;
use crate::connect::{self, CliError, run_until_interrupted};
use crate::consent::{self, ConsentRequest};
use crate::exit::Exit;
use crate::output::say;
use crate::printer::print_report;
use crate::report::RunReport;
use crate::terminal::{TerminalInfo, one_line};
use ostler_api::client::ApiClient;
use ostler_api::routes::{QueryKey, endpoints as routes};
use ostler_model::ids::AllocId;
use ostler_wire::Alloc;

/// Stop a job, and wait for its end.
pub(super) async fn stop(args: &JobStopArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let client = connect::connect(&args.agent)?;
    let change = ConsentRequest { verb: "stop", agree: args.agree, terminal };
    let (client, job) = consent::find_job(client, &args.job, change).await?;
    let request = routes::StopJob::request([&job])
        .with(QueryKey::Purge, args.purge)
        .with(QueryKey::NoShutdownDelay, args.no_shutdown_delay);
    // Asked before the stop: what ends quickly has ended when the answer to the stop comes.
    let live = live_allocs(&client.send(&routes::ListJobAllocs::request([&job])).await?);
    let stopped = client.send(&request).await?;
    let shown = one_line(&job);
    say(&format!("job {shown} is stopping"));
    if let Some(warning) = &stopped.warnings {
        say(&format!("warning: {}", one_line(warning)));
    }
    let outcome = || {
        json!({
            "ID": job, "EvalID": stopped.eval_id, "JobModifyIndex": stopped.job_modify_index,
            "Warnings": stopped.warnings, "Waited": !args.detach,
        })
    };
    if args.detach {
        return answer::show_json(outcome, terminal);
    }
    let hint =
        format!("job {shown} is still stopping; `ostler job status {shown}` shows how far it is");
    run_until_interrupted(&hint, wait_until_stopped(&client, &job, live, terminal)).await?;
    say(&format!("job {shown} is stopped"));
    answer::show_json(outcome, terminal)
}

/// Print, once for each task, that it was killed and does not end: the command waits
/// for such tasks.
fn report_unkillable(alloc: &Alloc, told: &mut BTreeSet<(AllocId, String)>) {
    for (task, state) in &alloc.task_states {
        let last = state.events.iter().rev().find(|event| event.kind == "Killing");
        let unkillable = last.filter(|event| event.details.contains_key("kill_error"));
        if let Some(event) = unkillable.filter(|_| told.insert((alloc.id, task.to_string()))) {
            let (short, why) = (alloc.id.short(), one_line(&event.display_message));
            say(&format!("allocation {short}, task {}: {why}", one_line(task)));
        }
    }
}

fn live_allocs(allocs: &[Alloc]) -> Vec<AllocId> {
    allocs.iter().filter(|alloc| !alloc.is_terminal()).map(|alloc| alloc.id).collect()
}

/// Wait until every allocation of the job is terminal or removed, and print how those that were
/// `live` ended.
async fn wait_until_stopped(
    client: &ApiClient,
    job: &str,
    mut live: Vec<AllocId>,
    terminal: &TerminalInfo,
) -> Result<(), CliError> {
    let mut told = BTreeSet::new();
    let look = async |allocs: Vec<Alloc<'static>>| {
        for alloc in allocs.iter().filter(|alloc| !alloc.is_terminal()) {
            report_unkillable(alloc, &mut told);
        }
        for alloc in allocs.iter().filter(|alloc| live.contains(&alloc.id) && alloc.is_terminal()) {
            let (name, description) = (alloc.name.to_string(), alloc.description().to_owned());
            let status = alloc.client_status;
            print_report(
                &RunReport::Status { alloc: alloc.id, name, status, description },
                terminal,
            );
        }
        live = live_allocs(&allocs);
        Ok(live.is_empty().then_some(()))
    };
    client.watch_until(&routes::ListJobAllocs::request([&job]), look).await
}

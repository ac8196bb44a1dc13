//! `ostler alloc stop`, `restart`, `signal`

use serde_json::{Value, json};

use super::restart_watch::{RestartProgress, RestartWatch, kill_timeout};
use crate::answer;
use crate::args::alloc::{AllocRestartArgs, AllocSignalArgs, AllocStopArgs};
use crate::connect::{self, CliError, run_until_interrupted};
use crate::consent::{self, ConsentRequest};
use crate::exit::Exit;
use crate::output::say;
use crate::terminal::{TerminalInfo, one_line};
use ostler_api::client::ApiClient;
use ostler_api::routes::{QueryKey, endpoints as routes};
use ostler_model::clock;
use ostler_model::ids::AllocId;
use ostler_model::limits::{CLIENT_QUIET_WALL_MAX, CLIENT_RESTART_WALL_MAX};
use ostler_model::signal::full_name;
use ostler_wire::{Alloc, RestartRequest, SignalRequest};

/// Stop an allocation, and wait for its end.
pub(super) async fn stop(args: &AllocStopArgs, of: &TerminalInfo) -> Result<Exit, CliError> {
    let client = connect::connect(&args.answer.agent)?;
    let change = ConsentRequest { verb: "stop", agree: args.agree, terminal: of };
    let id = consent::find_alloc(&client, &args.alloc, change).await?;
    let request =
        routes::StopAlloc::request([&id]).with(QueryKey::NoShutdownDelay, args.no_shutdown_delay);
    let stopped = client.send(&request).await?;
    let short = id.short();
    say(&format!("allocation {short} is stopping"));
    if let Some(warning) = &stopped.warnings {
        say(&format!("warning: {}", one_line(warning)));
    }
    // The agent's answer as JSON, with the end of the allocation if the command waited for it.
    let outcome = |alloc: Option<&Alloc>| {
        json!({
            "ID": id, "EvalID": stopped.eval_id, "Warnings": stopped.warnings, "Waited": !args.detach,
            "ClientStatus": alloc.map(|alloc| alloc.client_status),
            "ClientDescription": alloc.map(|alloc| alloc.description().to_owned()),
        })
    };
    if args.detach {
        return answer::show_json(|| outcome(None), of);
    }
    let hint = format!("allocation {short} is still stopping");
    let ended = run_until_interrupted(&hint, wait_until_terminal(&client, id)).await?;
    answer::show_json(|| outcome(ended.as_ref()), of)?;
    match ended {
        Some(alloc) => {
            say(&format!(
                "allocation {short} is {}: {}",
                alloc.client_status,
                one_line(alloc.description())
            ));
        }
        None => say(&format!("allocation {short} is gone")),
    }
    Ok(Exit::Success)
}

/// Wait until the allocation is terminal; none when it was removed meanwhile.
async fn wait_until_terminal(
    client: &ApiClient,
    id: AllocId,
) -> Result<Option<Alloc<'static>>, CliError> {
    let look = async |alloc: Alloc<'static>| Ok(Some(alloc).filter(|alloc| alloc.is_terminal()));
    match client.watch_until(&routes::ReadAlloc::request([&id]), look).await {
        Err(CliError::Client(error)) if error.is_not_found() => Ok(None),
        other => other.map(Some),
    }
}

/// Find the allocation, and check the name of the task; without a name all tasks are meant.
async fn find_alloc_and_task<'a>(
    client: &ApiClient,
    alloc: &str,
    task: Option<&'a str>,
    change: ConsentRequest<'_>,
) -> Result<(Alloc<'static>, Option<&'a str>), CliError> {
    let id = consent::find_alloc(client, alloc, change).await?;
    let alloc = client.send(&routes::ReadAlloc::request([&id])).await?;
    let task = super::check_task(&alloc, task)?;
    Ok((alloc, task))
}

/// Restart tasks in place, and wait until they have started again.
pub(super) async fn restart(
    args: &AllocRestartArgs,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    let client = connect::connect(&args.agent)?;
    let task = args.task.as_deref().or(args.task_option.as_deref());
    let change = ConsentRequest { verb: "restart", agree: args.agree, terminal };
    let (alloc, task) = find_alloc_and_task(&client, &args.alloc, task, change).await?;
    let body = RestartRequest {
        task_name: task.map(|task| task.to_owned().into()),
        all_tasks: Some(args.all),
    };
    let asked = RestartWatch::from_alloc(&alloc, task, args.all);
    client.send_body(&routes::RestartAlloc::request([&alloc.id]), &body).await?;
    let what = match (task, args.all) {
        (Some(task), _) => format!("task {}", one_line(task)),
        (None, true) => "every task".to_owned(),
        (None, false) => "the running tasks".to_owned(),
    };
    let short = alloc.id.short();
    if args.detach {
        say(&format!("the restart of {what} of allocation {short} is under way"));
        return Ok(Exit::Success);
    }
    let hint = format!("the restart of {what} of allocation {short} is still under way");
    let seen = async {
        let waited = wait_for_restart(&client, alloc.id, &asked);
        tokio::pin!(waited);
        if let Some(seen) = clock::timeout(CLIENT_QUIET_WALL_MAX, &mut waited).await {
            return seen;
        }
        let request = routes::ReadAlloc::request([&alloc.id]).read_as::<Alloc<'static, Value>>();
        let now = client.send(&request).await?;
        let waits_for = asked.late_tasks_text(&now, |task| kill_timeout(&now, task));
        say(&format!("still waiting: {waits_for}"));
        let rest = CLIENT_RESTART_WALL_MAX.saturating_sub(CLIENT_QUIET_WALL_MAX);
        clock::timeout(rest, waited).await.unwrap_or(Ok(RestartProgress::Going))
    };
    match run_until_interrupted(&hint, seen).await? {
        RestartProgress::Restarted => {
            say(&format!("{what} of allocation {short} restarted"));
            Ok(Exit::Success)
        }
        RestartProgress::Ended => {
            say(&format!("allocation {short} ended before {what} of it restarted"));
            Ok(Exit::Failed)
        }
        RestartProgress::Going => {
            let waited = CLIENT_RESTART_WALL_MAX.as_secs();
            say(&format!(
                "{what} of allocation {short} did not restart within {waited} s and may still; see \
                 `ostler alloc status {short}`"
            ));
            Ok(Exit::Failed)
        }
    }
}

/// Wait until the restart has happened, or cannot happen any more.
async fn wait_for_restart(
    client: &ApiClient,
    id: AllocId,
    asked: &RestartWatch,
) -> Result<RestartProgress, CliError> {
    let look = async |alloc: Alloc<'static>| {
        Ok(Some(asked.progress(&alloc)).filter(|progress| *progress != RestartProgress::Going))
    };
    match client.watch_until(&routes::ReadAlloc::request([&id]), look).await {
        Err(CliError::Client(error)) if error.is_not_found() => Ok(RestartProgress::Ended),
        other => other,
    }
}

/// Send a signal to tasks.
pub(super) async fn signal(
    args: &AllocSignalArgs,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    let signal = full_name(&args.signal).map_err(|error| CliError::Wrong(error.to_string()))?;
    let client = connect::connect(&args.agent)?;
    let task = args.task.as_deref().or(args.task_option.as_deref());
    let change = ConsentRequest { verb: "signal", agree: args.agree, terminal };
    let (alloc, task) = find_alloc_and_task(&client, &args.alloc, task, change).await?;
    let body = SignalRequest {
        task: task.map(|task| task.to_owned().into()),
        signal: Some(signal.into()),
    };
    client.send_body(&routes::SignalAlloc::request([&alloc.id]), &body).await?;
    let whom =
        task.map_or_else(|| "the running tasks".to_owned(), |t| format!("task {}", one_line(t)));
    let short = alloc.id.short();
    say(&format!("{signal} sent to {whom} of allocation {short}"));
    Ok(Exit::Success)
}

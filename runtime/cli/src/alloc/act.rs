//! `ostler alloc stop`, `restart`, `signal`

use serde_json::{Value, json};

use super::super::args::alloc::{AllocRestartArgs, AllocSignalArgs, AllocStopArgs};
use super::super::connect::{self, Stop, until_interrupted};
use super::super::consent::{self, Change};
use super::super::exit::Exit;
use super::super::output::{self, say};
use super::super::terminal::{Terminal, one_line};
use super::restarted::{Progress, RestartWatch, kill_timeout};
use ostler_api::client::ApiClient;
use ostler_model::clock;
use ostler_model::limits::{CLIENT_QUIET_WALL_MAX, CLIENT_RESTART_WALL_MAX};
use ostler_model::signal::full_name;
use ostler_wire::{Alloc, Done, RestartRequest, SignalRequest, Stopped};

/// Stop an allocation, and wait for its end.
pub(super) async fn stop(args: &AllocStopArgs, of: &Terminal) -> Result<Exit, Stop> {
    let client = connect::connect(&args.answer.agent)?;
    let change = Change { verb: "stop", agree: args.agree, terminal: of };
    let id = consent::find_alloc(&client, &args.alloc, change).await?;
    let no_delay = args.no_shutdown_delay;
    let path = format!("/v1/allocation/{id}");
    let stopped: Stopped =
        client.put(&format!("{path}/stop?no_shutdown_delay={no_delay}"), &json!({})).await?;
    let short = id.short();
    say(&format!("allocation {short} is stopping"));
    if let Some(warning) = &stopped.warnings {
        say(&format!("warning: {}", one_line(warning)));
    }
    // As the agent tells of it; with what became of it where that is waited for.
    let told = |alloc: Option<&Alloc>| match args.answer.json {
        true => output::print_json(
            &json!({
                "ID": id, "EvalID": stopped.eval_id, "Warnings": stopped.warnings, "Waited": !args.detach,
                "ClientStatus": alloc.map(|alloc| alloc.client_status),
                "ClientDescription": alloc.map(|alloc| alloc.why().to_owned()),
            }),
            of,
        ),
        false => Ok(()),
    };
    if args.detach {
        told(None)?;
        return Ok(Exit::Success);
    }
    let hint = format!("allocation {short} goes on stopping");
    let ended = until_interrupted(&hint, terminal(&client, &path)).await?;
    told(ended.as_ref())?;
    match ended {
        Some(alloc) => {
            say(&format!(
                "allocation {short} is {}: {}",
                alloc.client_status,
                one_line(alloc.why())
            ));
        }
        None => say(&format!("allocation {short} is gone")),
    }
    Ok(Exit::Success)
}

/// Wait until the allocation is terminal; none when it was removed meanwhile.
async fn terminal(client: &ApiClient, path: &str) -> Result<Option<Alloc<'static>>, Stop> {
    let look = async |alloc: Alloc<'static>| Ok(Some(alloc).filter(|alloc| alloc.terminal()));
    match client.watch(path, look).await {
        Err(Stop::Client(error)) if error.not_found() => Ok(None),
        other => other.map(Some),
    }
}

/// The allocation and the task that are meant; without a task all of them.
async fn meant<'a>(
    client: &ApiClient,
    alloc: &str,
    task: Option<&'a str>,
    change: Change<'_>,
) -> Result<(Alloc<'static>, Option<&'a str>), Stop> {
    let id = consent::find_alloc(client, alloc, change).await?;
    let alloc: Alloc = client.get(&format!("/v1/allocation/{id}")).await?;
    let task = super::task(&alloc, task)?;
    Ok((alloc, task))
}

/// Restart tasks in place, and wait until they started anew.
pub(super) async fn restart(args: &AllocRestartArgs, terminal: &Terminal) -> Result<Exit, Stop> {
    let client = connect::connect(&args.agent)?;
    let task = args.task.as_deref().or(args.task_option.as_deref());
    let change = Change { verb: "restart", agree: args.agree, terminal };
    let (alloc, task) = meant(&client, &args.alloc, task, change).await?;
    let body = RestartRequest { task_name: task.map(Into::into), all_tasks: Some(args.all) };
    let asked = RestartWatch::of(&alloc, task, args.all);
    let _done: Done =
        client.put(&format!("/v1/client/allocation/{}/restart", alloc.id), &body).await?;
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
    let hint = format!("the restart of {what} of allocation {short} goes on");
    let path = format!("/v1/allocation/{}", alloc.id);
    let seen = async {
        let waited = seen(&client, &path, &asked);
        tokio::pin!(waited);
        if let Some(seen) = clock::timeout(CLIENT_QUIET_WALL_MAX, &mut waited).await {
            return seen;
        }
        let now: Alloc<'_, Value> = client.get(&path).await?;
        let waits_for = asked.waits_for(&now, |task| kill_timeout(&now, task));
        say(&format!("still waiting: {waits_for}"));
        let rest = CLIENT_RESTART_WALL_MAX.saturating_sub(CLIENT_QUIET_WALL_MAX);
        clock::timeout(rest, waited).await.unwrap_or(Ok(Progress::Going))
    };
    match until_interrupted(&hint, seen).await? {
        Progress::Restarted => {
            say(&format!("{what} of allocation {short} restarted"));
            Ok(Exit::Success)
        }
        Progress::Ended => {
            say(&format!("allocation {short} ended before {what} of it restarted"));
            Ok(Exit::Failed)
        }
        Progress::Going => {
            let waited = CLIENT_RESTART_WALL_MAX.as_secs();
            say(&format!(
                "{what} of allocation {short} did not restart within {waited} s and may still; see \
                 `ostler alloc status {short}`"
            ));
            Ok(Exit::Failed)
        }
    }
}

/// Wait until what was asked for has happened, or cannot any more.
async fn seen(client: &ApiClient, path: &str, asked: &RestartWatch) -> Result<Progress, Stop> {
    let look = async |alloc: Alloc<'static>| {
        Ok(Some(asked.look(&alloc)).filter(|progress| *progress != Progress::Going))
    };
    match client.watch(path, look).await {
        Err(Stop::Client(error)) if error.not_found() => Ok(Progress::Ended),
        other => other,
    }
}

/// Send a signal to tasks.
pub(super) async fn signal(args: &AllocSignalArgs, terminal: &Terminal) -> Result<Exit, Stop> {
    let signal = full_name(&args.signal).map_err(|error| Stop::Wrong(error.to_string()))?;
    let client = connect::connect(&args.agent)?;
    let task = args.task.as_deref().or(args.task_option.as_deref());
    let change = Change { verb: "signal", agree: args.agree, terminal };
    let (alloc, task) = meant(&client, &args.alloc, task, change).await?;
    let body = SignalRequest { task: task.map(Into::into), signal: Some(signal.into()) };
    let _done: Done =
        client.put(&format!("/v1/client/allocation/{}/signal", alloc.id), &body).await?;
    let whom =
        task.map_or_else(|| "the running tasks".to_owned(), |t| format!("task {}", one_line(t)));
    let short = alloc.id.short();
    say(&format!("{signal} sent to {whom} of allocation {short}"));
    Ok(Exit::Success)
}

//! Why an allocation is as it is.
//!
//! ```text
//! failed ─► the task that failed, what of, and what follows it in its place
//! pending ─► what the first task waits for that does not run
//! running ─► restarts, health, a stop that is under way, a start that was slow
//! complete ─► stopped by whom, or the work is done
//! ```

use std::collections::BTreeMap;

use ostler_model::alloc::{ClientStatus, DesiredStatus};
use ostler_model::event::EventKind;
use ostler_model::task::TaskStatus;
use ostler_model::time::Timestamp;
use ostler_wire::{Alloc, CheckStatus, TaskEvent};
use serde::Deserialize;

use crate::alloc_happened::happened;
use crate::alloc_task::{Task, is, often_failed};
use crate::commands;
use crate::exit::{End, Told};
use crate::waiting;
use crate::words::{list, sentence, stop_reason, until};
use crate::{ExplainedKind, Explanation};

/// Tasks whose logs are named for one check.
const TASKS_MAX: usize = 3;

/// What is on record of an allocation.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AllocHistory<'a> {
    /// The allocation, in its full form.
    pub alloc: Alloc<'a>,
    /// The last answers of its checks.
    pub checks: BTreeMap<String, CheckStatus<'a>>,
    /// When a successor is placed, where it failed and one is.
    pub successor_at: Option<Timestamp>,
    /// The file of the jobs directory that gives its job, where one does.
    pub file: Option<String>,
}

impl<'a> AllocHistory<'a> {
    /// The checks that answered and do not pass.
    pub(crate) fn failing(&self) -> impl Iterator<Item = &CheckStatus<'a>> {
        self.checks.values().filter(|check| matches!(&*check.status, "failure" | "warning"))
    }
}

/// Why it is as it is.
#[must_use]
pub fn explain(record: &AllocHistory<'_>, now: Timestamp) -> Explanation {
    let alloc = &record.alloc;
    let short = alloc.id.short();
    let name = format!("{} of job {}, version {}", alloc.name, alloc.job_id, alloc.version());
    let mut told = Explanation::new(ExplainedKind::Allocation, alloc.id.to_string(), name);
    let tasks: Vec<Task<'_>> = tasks(alloc, &short, record.file.as_deref());
    let (because, since) = match alloc.client_status {
        ClientStatus::Failed => failed(record, &tasks, now, &mut told),
        ClientStatus::Pending => pending(alloc, &tasks, now, &mut told),
        ClientStatus::Running => running(record, &tasks, now, &mut told),
        ClientStatus::Complete => complete(alloc, &tasks, &mut told),
    };
    told.because = because.iter().map(|text| sentence(text)).collect();
    told.since = since;
    happened(alloc, &tasks, &mut told);
    told
}

fn tasks<'a>(alloc: &'a Alloc<'_>, short: &'a str, file: Option<&'a str>) -> Vec<Task<'a>> {
    let given = alloc.allocated_resources.as_ref();
    let of = |(name, state): (&'a ostler_wire::Text<'_>, &'a ostler_wire::TaskState<'_>)| {
        let memory = given.and_then(|given| given.tasks.get(&**name));
        let memory_mib = memory.map_or(0, |given| given.memory.mib);
        let namespace = &alloc.namespace;
        Task { told: Told { alloc: short, task: name, memory_mib, namespace, file }, state }
    };
    alloc.task_states.iter().map(of).collect()
}

type Said = (Vec<String>, Option<Timestamp>);

/// What an allocation failed of, and when: of the task that failed first by itself, others fail with it.
fn first_failure<'t, 'a>(tasks: &'t [Task<'a>]) -> Option<(&'t Task<'a>, Timestamp, End)> {
    let failures = tasks.iter().filter(|task| task.state.failed);
    let found = failures.filter_map(|task| Some((task, task.failure()?)));
    let first =
        found.min_by_key(|(task, (at, _))| (task.last(EventKind::SiblingFailed).is_some(), *at));
    first.map(|(task, (at, end))| (task, at, end))
}

/// What made it as it is, where one thing did: what it failed of, the verdict on it, or the last bad end
/// of a task.
pub(crate) fn turning_point(alloc: &Alloc<'_>) -> Option<(Timestamp, String)> {
    let short = alloc.id.short();
    let tasks = tasks(alloc, &short, None);
    let of = |(task, at, end): (&Task<'_>, Timestamp, End)| {
        (at, format!("task {} {}", task.told.task, end.text))
    };
    if alloc.client_status == ClientStatus::Failed {
        return first_failure(&tasks).map(of);
    }
    if alloc.healthy() == Some(false)
        && let Some(event) = verdict(&tasks)
    {
        return Some((event.time, format!("judged unhealthy: {}", event.display_message)));
    }
    let ends = tasks.iter().filter_map(|task| task.last_end().map(|(at, end)| (task, at, end)));
    ends.filter(|(_, _, end)| end.trouble).max_by_key(|(_, at, _)| *at).map(of)
}

/// That it was judged unhealthy.
fn verdict<'a>(tasks: &[Task<'a>]) -> Option<&'a TaskEvent<'a>> {
    tasks.iter().find_map(|task| task.last(EventKind::AllocUnhealthy))
}

fn failed(
    record: &AllocHistory<'_>,
    tasks: &[Task<'_>],
    now: Timestamp,
    told: &mut Explanation,
) -> Said {
    let alloc = &record.alloc;
    let mut said = Vec::new();
    let Some((task, at, end)) = first_failure(tasks) else {
        said.push(match alloc.why() {
            "" => "it failed".to_owned(),
            why => format!("it failed: {why}"),
        });
        successor(record, now, &mut said, told);
        return (said, Some(alloc.modify_time).filter(|at| *at != Timestamp::default()));
    };
    said.push(format!("it failed: task {} {}", task.told.task, end.text));
    let times = task.state.restarts;
    if let Some(last) = task.last(EventKind::NotRestarting) {
        let at = task.events().iter().rposition(|event| event == last).unwrap_or(0);
        let counted = match times {
            0 => String::new(),
            1 => " after one restart".to_owned(),
            times => format!(" after {times} restarts"),
        };
        let text = task.phrase(at).unwrap_or_default();
        said.push(text.replacen(
            "is not started again",
            &format!("is not started again{counted}"),
            1,
        ));
        if last.display_message.contains("Exceeded allowed attempts") {
            end.next.iter().for_each(|next| told.advise(next.clone()));
            told.advise(format!(
                "restart {{ mode = \"delay\" }} in group {} has it tried again for ever",
                alloc.task_group
            ));
        }
    }
    end.next.into_iter().for_each(|next| told.advise(next));
    let others: Vec<String> = tasks
        .iter()
        .filter(|other| {
            other.told.task != task.told.task && other.last(EventKind::SiblingFailed).is_some()
        })
        .map(|other| other.told.task.to_owned())
        .collect();
    match others.len() {
        0 => {}
        1 => said.push(format!("task {} was stopped with it", list(&others))),
        _ => said.push(format!("tasks {} were stopped with it", list(&others))),
    }
    successor(record, now, &mut said, told);
    (said, Some(at))
}

/// What follows in the place of one that failed.
fn successor(
    record: &AllocHistory<'_>,
    now: Timestamp,
    said: &mut Vec<String>,
    told: &mut Explanation,
) {
    let alloc = &record.alloc;
    let next = alloc.next_allocation.as_deref().filter(|id| !id.is_empty());
    match (next, record.successor_at) {
        (Some(next), _) => {
            let short = next.get(..8).unwrap_or(next);
            said.push(format!("allocation {short} took its place"));
        }
        (None, Some(at)) if at <= now => {
            said.push("another allocation is about to take its place".to_owned())
        }
        (None, Some(at)) => {
            said.push(format!("another allocation takes its place {}", until(at, now)))
        }
        (None, None) if alloc.followup_eval_id.as_deref().is_some_and(|id| !id.is_empty()) => {
            said.push("another allocation is to take its place later".to_owned())
        }
        (None, None) if alloc.desired_status == DesiredStatus::Run => {
            no_successor(record, said, told);
        }
        (None, None) => {}
    }
    let earlier =
        alloc.reschedule_tracker.iter().flatten().map(|tracker| tracker.events.len()).sum();
    match earlier {
        0_usize => {}
        1 => said.push("one before it in its place had failed too".to_owned()),
        many => said.push(format!("{many} before it in its place had failed too")),
    }
}

/// Nothing follows in its place: its deployment found it unhealthy, or its job says so.
fn no_successor(record: &AllocHistory<'_>, said: &mut Vec<String>, told: &mut Explanation) {
    let alloc = &record.alloc;
    let deployment = alloc.deployment_id.as_deref().filter(|id| !id.is_empty());
    let told_of = Told { file: record.file.as_deref(), ..Told::default() };
    if let Some(id) = deployment.filter(|_| alloc.healthy() == Some(false)) {
        let short = id.get(..8).unwrap_or(id);
        said.push(format!(
            "nothing is to take its place: it was judged unhealthy in deployment {short}, and one that fails fills \
             no place again, whatever reschedule in group {} says",
            alloc.task_group
        ));
        let corrected = told_of.run_corrected();
        told.advise(match alloc.version().checked_sub(1) {
            None => format!("correct the job, and {corrected}"),
            Some(_) => format!("correct the new version, and {corrected}"),
        });
        if let Some(before) = alloc.version().checked_sub(1) {
            told.advise(format!(
                "go back to the version before it: {}",
                commands::revert(&alloc.job_id, &before.to_string())
            ));
        }
        told.advise(format!("{} says how its deployment went", commands::explain(&alloc.job_id)));
        return;
    }
    said.push("nothing is to take its place".to_owned());
    let ways = [told_of.run_again(), told_of.run_corrected()];
    if !told.next.iter().any(|next| ways.iter().any(|way| next.contains(way))) {
        told.advise(match told_of.file {
            None => {
                format!("run the job again, corrected or as it is: {}", commands::run_again())
            }
            Some(_) => told_of.run_again(),
        });
    }
    told.advise(format!(
        "reschedule in group {} says whether and when another takes its place by itself",
        alloc.task_group
    ));
}

fn pending(alloc: &Alloc<'_>, tasks: &[Task<'_>], now: Timestamp, told: &mut Explanation) -> Said {
    if alloc.desired_status == DesiredStatus::Stop {
        let text = format!("it is to stop before anything of it started{}", why_stopped(alloc));
        return (vec![text], Some(alloc.modify_time));
    }
    let waits = tasks.iter().filter(|task| task.state.state == TaskStatus::Pending);
    // One that waits for nothing but its turn says least.
    let first = waits.clone().find(|task| task.newest().is_some()).or_else(|| waits.clone().next());
    let Some(task) = first else {
        let text = "it is pending: its directory, network and disk are being made".to_owned();
        return (vec![text], Some(alloc.create_time));
    };
    let wait = waiting::waits_for(task, now);
    wait.next.into_iter().for_each(|next| told.advise(next));
    let text = match wait.text.strip_prefix("it waits") {
        Some(rest) => format!("it is pending: it waits{rest}"),
        None => format!("it is pending: {}", wait.text),
    };
    (vec![text], wait.since.or(Some(alloc.create_time)))
}

fn running(
    record: &AllocHistory<'_>,
    tasks: &[Task<'_>],
    now: Timestamp,
    told: &mut Explanation,
) -> Said {
    let alloc = &record.alloc;
    if let Some(stopping) = stopping(alloc, tasks, now, told) {
        return stopping;
    }
    let mut said = Vec::new();
    let mut since = started(tasks);
    let waiting = tasks.iter().filter(|task| task.state.state == TaskStatus::Pending);
    let again = waiting.filter(|task| task.newest().is_some_and(|e| is(e, EventKind::Restarting)));
    let health = alloc.deployment_status.as_ref();
    let judged = health.and_then(|health| health.healthy);
    said.push(match judged {
        Some(true) => "it runs and is healthy".to_owned(),
        Some(false) => "it runs, and was judged unhealthy".to_owned(),
        None if health.is_some() => "it runs, and was not judged healthy yet".to_owned(),
        None => "it runs".to_owned(),
    });
    for task in again {
        let wait = waiting::waits_for(task, now);
        said.push(wait.text);
        wait.next.into_iter().for_each(|next| told.advise(next));
        since = wait.since;
    }
    if judged == Some(false)
        && let Some(event) = verdict(tasks)
    {
        said.extend(reasons_of_then(&event.display_message, record));
        since = Some(event.time);
        told.advise(format!(
            "a deployment that needs it healthy fails or goes on without it: {}",
            commands::deployments()
        ));
    }
    checks(record, tasks, &mut said, told);
    for task in tasks.iter().filter(|task| task.state.state == TaskStatus::Running) {
        restarted(task, &mut said, told);
        said.extend(waiting::slow_start(task));
    }
    (said, since)
}

/// Why it was judged unhealthy, without the checks that fail still: how these are now is said of them.
fn reasons_of_then(message: &str, record: &AllocHistory<'_>) -> Option<String> {
    let named = |check: &CheckStatus<'_>| {
        format!("check {:?} of service {:?} fails", &*check.check, &*check.service)
    };
    let now: Vec<String> = record.failing().map(named).collect();
    let mut reasons: Vec<String> = Vec::new();
    for piece in message.split("; ") {
        let new = piece.starts_with("check \"") || piece.starts_with("the task");
        match reasons.last_mut().filter(|_| !new) {
            // The output of a check may have it, too.
            Some(last) => last.extend(["; ", piece]),
            None => reasons.push(piece.to_owned()),
        }
    }
    reasons.retain(|reason| !now.iter().any(|check| reason.starts_with(check)));
    Some(then(&reasons.join("; "))).filter(|text| !text.is_empty())
}

/// Reasons of a verdict, as they were when it was given.
fn then(reasons: &str) -> String {
    reasons.replace(" fails (for ", " had failed (for ")
}

/// The tasks that may be what a check asks: the one of its service, or all that run where that is of the group.
fn asked_by<'t, 'a>(
    check: &'t CheckStatus<'_>,
    tasks: &'t [Task<'a>],
) -> impl Iterator<Item = &'t Task<'a>> {
    tasks.iter().filter(move |task| match &*check.task {
        "" => task.state.state == TaskStatus::Running,
        name => task.told.task == name,
    })
}

/// What a check answered, in a line: of a command how it ended and what it said last, of others their first line.
fn answer(output: &str) -> String {
    let lines = |text: &str| -> Vec<String> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.map(str::to_owned).collect()
    };
    let script = output.split_once(": ").filter(|(code, _)| code.starts_with("exit code "));
    let (code, last) = match script {
        Some((code, said)) => (code, lines(said).pop()),
        None => return lines(output).into_iter().next().unwrap_or_default(),
    };
    last.map_or_else(|| code.to_owned(), |last| format!("{code}: {last}"))
}

/// The checks that do not pass.
fn checks(
    record: &AllocHistory<'_>,
    tasks: &[Task<'_>],
    said: &mut Vec<String>,
    told: &mut Explanation,
) {
    for check in record.failing() {
        let how = if check.status == "warning" { "warns" } else { "fails" };
        let answer = answer(&check.output);
        said.push(format!("check {} of service {} {how}: {answer}", check.check, check.service));
        for task in asked_by(check, tasks).take(TASKS_MAX) {
            let logs = commands::task_errors(task.told.alloc, task.told.task);
            told.advise(format!("look why it does not answer as the check wants: {logs}"));
        }
    }
}

/// That a task that runs was restarted, and what its last run ended of.
fn restarted(task: &Task<'_>, said: &mut Vec<String>, told: &mut Explanation) {
    let (name, times) = (task.told.task, task.state.restarts);
    if times == 0 {
        return;
    }
    let counted = if times == 1 { "once".to_owned() } else { format!("{times} times") };
    if let Some((check, end)) = task.last_end_by_check() {
        end.next.into_iter().for_each(|next| told.advise(next));
        let last = if times == 1 { "" } else { "the last time " };
        let why = often_failed(check);
        said.push(format!("task {name} was restarted {counted}, {last}because {why}"));
        return;
    }
    // The last end is that of the run before the one that goes on.
    let text = match task.last_end() {
        Some((_, end)) => {
            if end.trouble {
                end.next.into_iter().for_each(|next| told.advise(next));
            }
            format!("task {name} was restarted {counted}; before the last time it {}", end.text)
        }
        None => format!("task {name} was restarted {counted}"),
    };
    said.push(text);
}

/// The last order to stop a task that runs still.
fn last_kill<'a>(task: &Task<'a>) -> Option<(Timestamp, &'a TaskEvent<'a>)> {
    let event = task.last(EventKind::Killing)?;
    (task.state.state == TaskStatus::Running).then_some((event.time, event))
}

/// A stop that is not over: asked for, or of a task that does not end.
fn stopping(
    alloc: &Alloc<'_>,
    tasks: &[Task<'_>],
    now: Timestamp,
    told: &mut Explanation,
) -> Option<Said> {
    let undead = tasks.iter().find_map(|task| {
        let (at, event) = last_kill(task)?;
        Some((task.told.task, at, event.details.get("kill_error")?.clone()))
    });
    if let Some((task, at, error)) = undead {
        // It has no process of its own that could wait in the kernel.
        let wasm = error.starts_with("the WASM task");
        told.advise(match wasm {
            false => "look what its process waits for in the kernel (a network disk, a device): its state is D in ps",
            true => "look at the agent's log: a worker process of WASM tasks that does not answer is killed and \
                     replaced, and its tasks end with it",
        });
        return Some((vec![format!("it does not end: task {task}: {error}")], Some(at)));
    }
    if alloc.desired_status != DesiredStatus::Stop {
        return None;
    }
    let mut said = vec![format!("it is being stopped{}", why_stopped(alloc))];
    let delayed = tasks.iter().find_map(|task| {
        let delay = last_kill(task).and_then(|_| task.last_delay())?;
        Some((task.told.task, delay)).filter(|(_, delay)| delay.told_at > now)
    });
    let since = tasks.iter().find_map(|task| Some(last_kill(task)?.0));
    if let Some((task, delay)) = delayed {
        said.push(format!(
            "task {task} waits for its shutdown_delay of {}, and is told to stop {}",
            delay.length,
            until(delay.told_at, now)
        ));
        let now = commands::stop_without_delay(&alloc.id.short());
        told.advise(format!("{now} tells it at once"));
    } else if let Some((task, (_, event))) =
        tasks.iter().find_map(|task| Some((task.told.task, last_kill(task)?)))
    {
        let timeout = event.details.get("kill_timeout").map_or("", String::as_str);
        said.push(format!(
            "task {task} was told to stop and is killed by force {timeout} after that"
        ));
    }
    Some((said, since.or(Some(alloc.modify_time))))
}

/// The last start of all that run.
fn started(tasks: &[Task<'_>]) -> Option<Timestamp> {
    let run = tasks.iter().filter(|task| task.state.state == TaskStatus::Running);
    let starts = run.filter_map(|task| {
        let event = task.last(EventKind::Started).map(|event| event.time);
        event.or_else(|| Timestamp::parse(task.state.started_at.as_deref()?))
    });
    starts.max()
}

fn complete(alloc: &Alloc<'_>, tasks: &[Task<'_>], told: &mut Explanation) -> Said {
    let mut said = Vec::new();
    let ends = tasks.iter().filter_map(|task| Some((task, task.last_end()?)));
    let last = ends.clone().map(|(_, (at, _))| at).max();
    let finished =
        tasks.iter().filter_map(|task| Timestamp::parse(task.state.finished_at.as_deref()?));
    let last = finished.max().or(last);
    let stopped = alloc.desired_status == DesiredStatus::Stop;
    said.push(match stopped {
        true => format!("it was stopped{}", why_stopped(alloc)),
        false => "its work is done: every task ended well".to_owned(),
    });
    for (task, (_, end)) in ends {
        if stopped {
            said.push(format!("task {} {}", task.told.task, end.text));
            end.next.into_iter().for_each(|next| told.advise(next));
        }
    }
    if let Some(event) = verdict(tasks) {
        said.push(format!("before that it was judged unhealthy: {}", then(&event.display_message)));
    }
    if tasks
        .iter()
        .all(|task| task.last(EventKind::Started).is_none() && task.state.started_at.is_none())
    {
        said.push("nothing of it had started".to_owned());
    }
    (said, last)
}

/// `: its job was stopped`; nothing where it is to run.
fn why_stopped(alloc: &Alloc<'_>) -> String {
    match stop_reason(&alloc.desired_description) {
        "" => String::new(),
        why => format!(": {why}"),
    }
}

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

use crate::alloc_task::{Task, is};
use crate::exit::Told;
use crate::fold::fold;
use crate::waiting;
use crate::words::{list, sentence, until};
use crate::{ExplainedKind, Explanation, Happened};

/// Lines of what happened; older ones are left out.
const HAPPENED_MAX: usize = 24;

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
}

/// Why it is as it is.
#[must_use]
pub fn explain(record: &AllocHistory<'_>, now: Timestamp) -> Explanation {
    let alloc = &record.alloc;
    let short = alloc.id.short();
    let name = format!("{} of job {}, version {}", alloc.name, alloc.job_id, alloc.version());
    let mut told = Explanation::new(ExplainedKind::Allocation, alloc.id.to_string(), name);
    let tasks: Vec<Task<'_>> = tasks(alloc, &short);
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

fn tasks<'a>(alloc: &'a Alloc<'_>, short: &'a str) -> Vec<Task<'a>> {
    let given = alloc.allocated_resources.as_ref();
    let of = |(name, state): (&'a ostler_wire::Text<'_>, &'a ostler_wire::TaskState<'_>)| {
        let memory = given.and_then(|given| given.tasks.get(&**name));
        let memory_mib = memory.map_or(0, |given| given.memory.mib);
        Task { told: Told { alloc: short, task: name, memory_mib }, state }
    };
    alloc.task_states.iter().map(of).collect()
}

type Said = (Vec<String>, Option<Timestamp>);

/// The task that failed first by itself: others fail with it.
fn failed(
    record: &AllocHistory<'_>,
    tasks: &[Task<'_>],
    now: Timestamp,
    told: &mut Explanation,
) -> Said {
    let alloc = &record.alloc;
    let failures = tasks.iter().filter(|task| task.state.failed);
    let found = failures.filter_map(|task| Some((task, task.failure()?)));
    let first =
        found.min_by_key(|(task, (at, _))| (task.last(EventKind::SiblingFailed).is_some(), *at));
    let mut said = Vec::new();
    let Some((task, (at, end))) = first else {
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
        (None, None) if alloc.desired_status == DesiredStatus::Run => {
            said.push("nothing is to take its place".to_owned());
            if !told.next.iter().any(|next| next.contains("run the job again")) {
                told.advise("run the job again, corrected or as it is: ostler job run FILE");
            }
            told.advise(format!(
                "reschedule in group {} says whether and when another takes its place by itself",
                alloc.task_group
            ));
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
    if let Some(stopping) = stopping(alloc, tasks, told) {
        return stopping;
    }
    let mut said = Vec::new();
    let mut since = started(tasks);
    let waiting = tasks.iter().filter(|task| task.state.state == TaskStatus::Pending);
    let again = waiting.filter(|task| task.newest().is_some_and(|e| is(e, EventKind::Restarting)));
    let health = alloc.deployment_status.as_ref();
    let verdict = health.and_then(|health| health.healthy);
    said.push(match verdict {
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
    if verdict == Some(false)
        && let Some(event) = tasks.iter().find_map(|task| task.last(EventKind::AllocUnhealthy))
    {
        said.push(event.display_message.to_string());
        since = Some(event.time);
        told.advise("a deployment that needs it healthy fails or goes on without it: ostler deployment list");
    }
    checks(record, &mut said, told);
    for task in tasks.iter().filter(|task| task.state.state == TaskStatus::Running) {
        restarted(task, &mut said, told);
        said.extend(waiting::slow_start(task));
    }
    (said, since)
}

/// The checks that do not pass.
fn checks(record: &AllocHistory<'_>, said: &mut Vec<String>, told: &mut Explanation) {
    let failing = record.checks.values().filter(|check| check.status == "failure");
    for check in failing {
        let output = check.output.lines().next().unwrap_or_default();
        said.push(format!("check {} of service {} fails: {output}", check.check, check.service));
        let logs = format!("ostler alloc logs --stderr {}", record.alloc.id.short());
        told.advise(format!("look why it does not answer as the check wants: {logs}"));
    }
}

/// That a task that runs was restarted, and what its last run ended of.
fn restarted(task: &Task<'_>, said: &mut Vec<String>, told: &mut Explanation) {
    let (name, times) = (task.told.task, task.state.restarts);
    if times == 0 {
        return;
    }
    let counted = if times == 1 { "once".to_owned() } else { format!("{times} times") };
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
fn stopping(alloc: &Alloc<'_>, tasks: &[Task<'_>], told: &mut Explanation) -> Option<Said> {
    let undead = tasks.iter().find_map(|task| {
        let (at, event) = last_kill(task)?;
        Some((task.told.task, at, event.details.get("kill_error")?.clone()))
    });
    if let Some((task, at, error)) = undead {
        told.advise("look what its process waits for in the kernel (a network disk, a device): its state is D in ps");
        return Some((vec![format!("it does not end: task {task}: {error}")], Some(at)));
    }
    if alloc.desired_status != DesiredStatus::Stop {
        return None;
    }
    let mut said = vec![format!("it is being stopped{}", why_stopped(alloc))];
    let delayed = tasks.iter().find_map(|task| {
        let event = task.newest().filter(|event| is(event, EventKind::WaitingShutdownDelay))?;
        Some((task.told.task, event))
    });
    let since = tasks.iter().find_map(|task| Some(last_kill(task)?.0));
    if let Some((task, event)) = delayed {
        said.push(format!("task {task}: {}", event.display_message));
        told.advise(format!("ostler alloc stop --no-shutdown-delay {}", alloc.id.short()));
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
    let unhealthy = tasks.iter().find_map(|task| task.last(EventKind::AllocUnhealthy));
    if let Some(event) = unhealthy {
        said.push(format!("before that it was judged unhealthy: {}", event.display_message));
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
    let why = match &*alloc.desired_description {
        "" => return String::new(),
        "alloc not needed as job is stopped" => "its job was stopped",
        "alloc not needed due to job update" => "the job wants fewer, or its group no longer",
        "alloc is being updated due to job update" => "a new version of the job takes its place",
        "alloc was rescheduled because it failed" => "it failed, and another took its place",
        "another allocation has the same place" => "another allocation has its place",
        other => other,
    };
    format!(": {why}")
}

/// The events of all tasks, the same ones counted, oldest first.
fn happened(alloc: &Alloc<'_>, tasks: &[Task<'_>], told: &mut Explanation) {
    let mut all: Vec<(Timestamp, String)> = Vec::new();
    if alloc.create_time != Timestamp::default() {
        all.push((
            alloc.create_time,
            format!("placed, with version {} of the job", alloc.version()),
        ));
    }
    for task in tasks {
        let phrases = task.events().iter().enumerate();
        all.extend(phrases.filter_map(|(at, event)| Some((event.time, task.phrase(at)?))));
    }
    all.sort_by_key(|(at, _)| *at);
    let folded = fold(all, |(_, text)| text.clone(), |(at, _)| *at);
    let left_out = folded.len().saturating_sub(HAPPENED_MAX);
    if left_out > 0 {
        let at = folded.get(left_out).map_or(Timestamp::default(), |one| one.last);
        told.note(at, format!("({left_out} earlier ones are left out)"));
    }
    told.happened.extend(folded.into_iter().skip(left_out).map(|one| {
        let (_, text) = one.event;
        Happened { at: one.last, times: one.times, text }
    }));
}

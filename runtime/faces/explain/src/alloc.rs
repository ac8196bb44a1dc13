//! Explains the state of an allocation.
//!
//! ```text
//! failed ─► the task that failed, the reason, and the allocation that follows in its place
//! pending ─► what the first task that does not run waits for
//! running ─► restarts, health, a stop that is under way, a start that was slow
//! complete ─► who stopped it, or that the work is done
//! ```

use std::collections::BTreeMap;

use ostler_model::alloc::{ClientStatus, DesiredStatus};
use ostler_model::event::EventKind;
use ostler_model::task::TaskStatus;
use ostler_model::time::Timestamp;
use ostler_wire::{Alloc, CheckQueryResult, WireTaskEvent};
use serde::Deserialize;

use crate::alloc_task::{TaskHistory, check_failed_phrase, is_kind};
use crate::alloc_timeline::add_timeline;
use crate::commands;
use crate::exit::{RunEnd, TaskFacts};
use crate::wait_reason;
use crate::words::{list, sentence, stop_reason, time_until};
use crate::{Explanation, SubjectKind};

/// The most tasks whose logs are named for one check.
const TASKS_MAX: usize = 3;

/// The records about an allocation.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct AllocHistory<'a> {
    /// The allocation, in its full form.
    pub alloc: Alloc<'a>,
    /// The last answer of each of its checks, by the check's id.
    pub checks: BTreeMap<String, CheckQueryResult<'a>>,
    /// When its successor is placed, if it failed and gets one.
    pub successor_at: Option<Timestamp>,
    /// Path of the file in the jobs directory that gives its job, where there is one.
    pub file: Option<String>,
}

impl<'a> AllocHistory<'a> {
    /// The checks that answered and do not pass.
    pub(crate) fn failing_checks(&self) -> impl Iterator<Item = &CheckQueryResult<'a>> {
        self.checks.values().filter(|check| matches!(&*check.status, "failure" | "warning"))
    }
}

/// Explain the state of an allocation.
#[must_use]
pub fn explain(record: &AllocHistory<'_>, now: Timestamp) -> Explanation {
    let alloc = &record.alloc;
    let short = alloc.id.short();
    let name = format!("{} of job {}, version {}", alloc.name, alloc.job_id, alloc.version());
    let mut told = Explanation::new(SubjectKind::Allocation, alloc.id.to_string(), name);
    let tasks: Vec<TaskHistory<'_>> = tasks(alloc, &short, record.file.as_deref());
    let (because, since) = match alloc.client_status {
        ClientStatus::Failed => explain_failed(record, &tasks, now, &mut told),
        ClientStatus::Pending => explain_pending(alloc, &tasks, now, &mut told),
        ClientStatus::Running => explain_running(record, &tasks, now, &mut told),
        ClientStatus::Complete => explain_complete(alloc, &tasks, &mut told),
    };
    told.because = because.iter().map(|text| sentence(text)).collect();
    told.since = since;
    add_timeline(alloc, &tasks, &mut told);
    told
}

fn tasks<'a>(alloc: &'a Alloc<'_>, short: &'a str, file: Option<&'a str>) -> Vec<TaskHistory<'a>> {
    let given = alloc.allocated_resources.as_ref();
    let of = |(name, state): (&'a ostler_wire::Text<'_>, &'a ostler_wire::WireTaskState<'_>)| {
        let memory = given.and_then(|given| given.tasks.get(&**name));
        let memory_mib = memory.map_or(0, |given| given.memory.mib);
        let namespace = &alloc.namespace;
        TaskHistory {
            told: TaskFacts { alloc: short, task: name, memory_mib, namespace, file },
            state,
        }
    };
    alloc.task_states.iter().map(of).collect()
}

type ReasonsSince = (Vec<String>, Option<Timestamp>);

/// The failure of an allocation: the task, the time and the end. Of several tasks the one counts
/// that failed first by itself, because others fail with it.
fn first_failure<'t, 'a>(
    tasks: &'t [TaskHistory<'a>],
) -> Option<(&'t TaskHistory<'a>, Timestamp, RunEnd)> {
    let failures = tasks.iter().filter(|task| task.state.failed);
    let found = failures.filter_map(|task| Some((task, task.failure()?)));
    let first = found
        .min_by_key(|(task, (at, _))| (task.last_event(EventKind::SiblingFailed).is_some(), *at));
    first.map(|(task, (at, end))| (task, at, end))
}

/// The one event that brought an allocation into its state, where there is one: its failure, the
/// verdict on its health, or the last bad end of a task.
pub(crate) fn turning_point(alloc: &Alloc<'_>) -> Option<(Timestamp, String)> {
    let short = alloc.id.short();
    let tasks = tasks(alloc, &short, None);
    let of = |(task, at, end): (&TaskHistory<'_>, Timestamp, RunEnd)| {
        (at, format!("task {} {}", task.told.task, end.text))
    };
    if alloc.client_status == ClientStatus::Failed {
        return first_failure(&tasks).map(of);
    }
    if alloc.healthy() == Some(false)
        && let Some(event) = unhealthy_verdict(&tasks)
    {
        return Some((event.time, format!("judged unhealthy: {}", event.display_message)));
    }
    let ends = tasks.iter().filter_map(|task| task.last_end().map(|(at, end)| (task, at, end)));
    ends.filter(|(_, _, end)| end.trouble).max_by_key(|(_, at, _)| *at).map(of)
}

/// The event that judged the allocation unhealthy.
fn unhealthy_verdict<'a>(tasks: &[TaskHistory<'a>]) -> Option<&'a WireTaskEvent<'a>> {
    tasks.iter().find_map(|task| task.last_event(EventKind::AllocUnhealthy))
}

fn explain_failed(
    record: &AllocHistory<'_>,
    tasks: &[TaskHistory<'_>],
    now: Timestamp,
    told: &mut Explanation,
) -> ReasonsSince {
    let alloc = &record.alloc;
    let mut said = Vec::new();
    let Some((task, at, end)) = first_failure(tasks) else {
        said.push(match alloc.description() {
            "" => "it failed".to_owned(),
            why => format!("it failed: {why}"),
        });
        note_successor(record, now, &mut said, told);
        return (said, Some(alloc.modify_time).filter(|at| *at != Timestamp::default()));
    };
    said.push(format!("it failed: task {} {}", task.told.task, end.text));
    let times = task.state.restarts;
    if let Some(last) = task.last_event(EventKind::NotRestarting) {
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
                "restart {{ mode = \"delay\" }} in group {} has it tried again forever",
                alloc.task_group
            ));
        }
    }
    end.next.into_iter().for_each(|next| told.advise(next));
    let others: Vec<String> = tasks
        .iter()
        .filter(|other| {
            other.told.task != task.told.task
                && other.last_event(EventKind::SiblingFailed).is_some()
        })
        .map(|other| other.told.task.to_owned())
        .collect();
    match others.len() {
        0 => {}
        1 => said.push(format!("task {} was stopped with it", list(&others))),
        _ => said.push(format!("tasks {} were stopped with it", list(&others))),
    }
    note_successor(record, now, &mut said, told);
    (said, Some(at))
}

/// Add what follows in the place of an allocation that failed.
fn note_successor(
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
            said.push(format!("another allocation takes its place {}", time_until(at, now)))
        }
        (None, None) if alloc.followup_eval_id.as_deref().is_some_and(|id| !id.is_empty()) => {
            said.push("another allocation takes its place later".to_owned())
        }
        (None, None) if alloc.desired_status == DesiredStatus::Run => {
            note_no_successor(record, said, told);
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

/// Add why nothing follows in its place: its deployment found it unhealthy, or its job says so.
fn note_no_successor(record: &AllocHistory<'_>, said: &mut Vec<String>, told: &mut Explanation) {
    let alloc = &record.alloc;
    let deployment = alloc.deployment_id.as_deref().filter(|id| !id.is_empty());
    let told_of = TaskFacts { file: record.file.as_deref(), ..TaskFacts::default() };
    if let Some(id) = deployment.filter(|_| alloc.healthy() == Some(false)) {
        let short = id.get(..8).unwrap_or(id);
        said.push(format!(
            "nothing takes its place: it was judged unhealthy in deployment {short}, and a deployment that \
             fails replaces nothing, whatever reschedule in group {} says",
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
    said.push("nothing takes its place".to_owned());
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

fn explain_pending(
    alloc: &Alloc<'_>,
    tasks: &[TaskHistory<'_>],
    now: Timestamp,
    told: &mut Explanation,
) -> ReasonsSince {
    if alloc.desired_status == DesiredStatus::Stop {
        let text = format!("it was stopped before anything of it started{}", why_stopped(alloc));
        return (vec![text], Some(alloc.modify_time));
    }
    let waits = tasks.iter().filter(|task| task.state.state == TaskStatus::Pending);
    // A task that waits for nothing but its turn says least.
    let first =
        waits.clone().find(|task| task.newest_event().is_some()).or_else(|| waits.clone().next());
    let Some(task) = first else {
        let text = "it is pending: its directory, network and disk are being made".to_owned();
        return (vec![text], Some(alloc.create_time));
    };
    let wait = wait_reason::explain_wait(task, now);
    wait.next.into_iter().for_each(|next| told.advise(next));
    let text = match wait.text.strip_prefix("it waits") {
        Some(rest) => format!("it is pending: it waits{rest}"),
        None => format!("it is pending: {}", wait.text),
    };
    (vec![text], wait.since.or(Some(alloc.create_time)))
}

fn explain_running(
    record: &AllocHistory<'_>,
    tasks: &[TaskHistory<'_>],
    now: Timestamp,
    told: &mut Explanation,
) -> ReasonsSince {
    let alloc = &record.alloc;
    if let Some(stopping) = explain_stopping(alloc, tasks, now, told) {
        return stopping;
    }
    let mut said = Vec::new();
    let mut since = last_start(tasks);
    let waiting = tasks.iter().filter(|task| task.state.state == TaskStatus::Pending);
    let again = waiting
        .filter(|task| task.newest_event().is_some_and(|e| is_kind(e, EventKind::Restarting)));
    let health = alloc.deployment_status.as_ref();
    let judged = health.and_then(|health| health.healthy);
    said.push(match judged {
        Some(true) => "it runs and is healthy".to_owned(),
        Some(false) => "it runs, and was judged unhealthy".to_owned(),
        None if health.is_some() => "it runs, and was not judged healthy yet".to_owned(),
        None => "it runs".to_owned(),
    });
    for task in again {
        let wait = wait_reason::explain_wait(task, now);
        said.push(wait.text);
        wait.next.into_iter().for_each(|next| told.advise(next));
        since = wait.since;
    }
    if judged == Some(false)
        && let Some(event) = unhealthy_verdict(tasks)
    {
        said.extend(past_reasons(&event.display_message, record));
        since = Some(event.time);
        told.advise(format!(
            "a deployment that needs it healthy fails or goes on without it: {}",
            commands::deployments()
        ));
    }
    note_failing_checks(record, tasks, &mut said, told);
    for task in tasks.iter().filter(|task| task.state.state == TaskStatus::Running) {
        note_restarts(task, &mut said, told);
        said.extend(wait_reason::slow_start(task));
    }
    (said, since)
}

/// The reasons of the verdict, without the checks that still fail: those are described as
/// they are now.
fn past_reasons(message: &str, record: &AllocHistory<'_>) -> Option<String> {
    let named = |check: &CheckQueryResult<'_>| {
        format!("check {:?} of service {:?} fails", &*check.check, &*check.service)
    };
    let now: Vec<String> = record.failing_checks().map(named).collect();
    let mut reasons: Vec<String> = Vec::new();
    for piece in message.split("; ") {
        let new = piece.starts_with("check \"") || piece.starts_with("the task");
        match reasons.last_mut().filter(|_| !new) {
            // The output of a check may contain the separator as well.
            Some(last) => last.extend(["; ", piece]),
            None => reasons.push(piece.to_owned()),
        }
    }
    reasons.retain(|reason| !now.iter().any(|check| reason.starts_with(check)));
    Some(past_tense(&reasons.join("; "))).filter(|text| !text.is_empty())
}

/// Reasons of a verdict, in the past tense.
fn past_tense(reasons: &str) -> String {
    reasons.replace(" fails (for ", " had failed (for ")
}

/// The tasks that a check may ask: the task of its service, or all that run where the service
/// belongs to the group.
fn tasks_of_check<'t, 'a>(
    check: &'t CheckQueryResult<'_>,
    tasks: &'t [TaskHistory<'a>],
) -> impl Iterator<Item = &'t TaskHistory<'a>> {
    tasks.iter().filter(move |task| match &*check.task {
        "" => task.state.state == TaskStatus::Running,
        name => task.told.task == name,
    })
}

/// The answer of a check in one line: of a command its exit and its last line, of other checks the
/// first line.
fn answer_line(output: &str) -> String {
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

/// Add the checks that do not pass.
fn note_failing_checks(
    record: &AllocHistory<'_>,
    tasks: &[TaskHistory<'_>],
    said: &mut Vec<String>,
    told: &mut Explanation,
) {
    for check in record.failing_checks() {
        let how = if check.status == "warning" { "warns" } else { "fails" };
        let answer = answer_line(&check.output);
        said.push(format!("check {} of service {} {how}: {answer}", check.check, check.service));
        for task in tasks_of_check(check, tasks).take(TASKS_MAX) {
            let logs = commands::task_errors(task.told.alloc, task.told.task);
            told.advise(format!("find out why it does not answer as the check expects: {logs}"));
        }
    }
}

/// Add that a running task was restarted, and how its last run ended.
fn note_restarts(task: &TaskHistory<'_>, said: &mut Vec<String>, told: &mut Explanation) {
    let (name, times) = (task.told.task, task.state.restarts);
    if times == 0 {
        return;
    }
    let counted = if times == 1 { "once".to_owned() } else { format!("{times} times") };
    if let Some((check, end)) = task.last_end_by_check() {
        end.next.into_iter().for_each(|next| told.advise(next));
        let last = if times == 1 { "" } else { "the last time " };
        let why = check_failed_phrase(check);
        said.push(format!("task {name} was restarted {counted}, {last}because {why}"));
        return;
    }
    // The last end is that of the run before the present one.
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

/// The last order to stop a task that still runs.
fn last_kill<'a>(task: &TaskHistory<'a>) -> Option<(Timestamp, &'a WireTaskEvent<'a>)> {
    let event = task.last_event(EventKind::Killing)?;
    (task.state.state == TaskStatus::Running).then_some((event.time, event))
}

/// Explain a stop that is not over: one that was asked for, or a task that does not end.
fn explain_stopping(
    alloc: &Alloc<'_>,
    tasks: &[TaskHistory<'_>],
    now: Timestamp,
    told: &mut Explanation,
) -> Option<ReasonsSince> {
    let undead = tasks.iter().find_map(|task| {
        let (at, event) = last_kill(task)?;
        Some((task.told.task, at, event.details.get("kill_error")?.clone()))
    });
    if let Some((task, at, error)) = undead {
        // A WASM task has no process of its own that could wait in the kernel.
        let wasm = error.starts_with("the WASM task");
        told.advise(if wasm {
            "see the agent's log: a worker process of WASM tasks that does not answer is killed and \
             replaced, and its tasks end with it"
        } else {
            "find out what its process waits for in the kernel (a network disk, a device): its state is D in ps"
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
            time_until(delay.told_at, now)
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

/// The time of the last start among all running tasks.
fn last_start(tasks: &[TaskHistory<'_>]) -> Option<Timestamp> {
    let run = tasks.iter().filter(|task| task.state.state == TaskStatus::Running);
    let starts = run.filter_map(|task| {
        let event = task.last_event(EventKind::Started).map(|event| event.time);
        event.or_else(|| Timestamp::parse(task.state.started_at.as_deref()?))
    });
    starts.max()
}

fn explain_complete(
    alloc: &Alloc<'_>,
    tasks: &[TaskHistory<'_>],
    told: &mut Explanation,
) -> ReasonsSince {
    let mut said = Vec::new();
    let ends = tasks.iter().filter_map(|task| Some((task, task.last_end()?)));
    let last = ends.clone().map(|(_, (at, _))| at).max();
    let finished =
        tasks.iter().filter_map(|task| Timestamp::parse(task.state.finished_at.as_deref()?));
    let last = finished.max().or(last);
    let stopped = alloc.desired_status == DesiredStatus::Stop;
    said.push(if stopped {
        format!("it was stopped{}", why_stopped(alloc))
    } else {
        "its work is done: every task ended well".to_owned()
    });
    for (task, (_, end)) in ends {
        if stopped {
            said.push(format!("task {} {}", task.told.task, end.text));
            end.next.into_iter().for_each(|next| told.advise(next));
        }
    }
    if let Some(event) = unhealthy_verdict(tasks) {
        said.push(format!(
            "before that it was judged unhealthy: {}",
            past_tense(&event.display_message)
        ));
    }
    if tasks.iter().all(|task| {
        task.last_event(EventKind::Started).is_none() && task.state.started_at.is_none()
    }) {
        said.push("none of it had started".to_owned());
    }
    (said, last)
}

/// `: its job was stopped`; empty where no reason is recorded.
fn why_stopped(alloc: &Alloc<'_>) -> String {
    match stop_reason(&alloc.desired_description) {
        "" => String::new(),
        why => format!(": {why}"),
    }
}

//! Explains what a task that does not run yet waits for, and what took long in a slow start.

use std::time::Duration;

use ostler_model::event::EventKind;
use ostler_model::ids::NAMESPACE;
use ostler_model::time::Timestamp;
use ostler_model::words::format_span;
use ostler_wire::WireTaskEvent;

use crate::alloc_task::{TaskHistory, is_kind};
use crate::commands;
use crate::words::time_until;

/// A start that took less than this is not slow.
const SLOW: Duration = Duration::from_secs(5);
/// Phases that took less than this part of a slow start are not named: one in …
const PART: u32 = 10;

/// The wait of a task, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TaskWait {
    /// The sentence: `task web waits for …`.
    pub text: String,
    /// When the wait began.
    pub since: Option<Timestamp>,
    /// Advice on what would end the wait.
    pub next: Vec<String>,
}

/// Explain what a pending task waits for.
pub(crate) fn explain_wait(task: &TaskHistory<'_>, now: Timestamp) -> TaskWait {
    let name = task.told.task;
    let Some(event) = task.newest_event() else {
        let text = format!(
            "task {name} waits for its turn: what comes before it in its group has not ended"
        );
        return TaskWait { text, ..TaskWait::default() };
    };
    let message = event.display_message.trim();
    let wait = |text: String, next: Vec<String>| TaskWait { text, since: Some(event.time), next };
    if is_kind(event, EventKind::Restarting) {
        return restart_wait(task, event, now);
    }
    if is_kind(event, EventKind::Template) {
        let what = message.split_once(" waits for ");
        let text = match what {
            Some((template, what)) => {
                format!("task {name} waits for {what}, which its {template} asks for")
            }
            None => format!("task {name} waits for its template: {message}"),
        };
        let next = what.map(|(_, what)| missing_input_advice(what, task.told.namespace));
        return wait(text, next.into_iter().collect());
    }
    if is_kind(event, EventKind::DownloadingArtifacts) {
        let progress = match message {
            "Client is downloading artifacts" => String::new(),
            message => format!(" ({message})"),
        };
        return wait(format!("task {name} fetches its artifacts{progress}"), Vec::new());
    }
    if is_kind(event, EventKind::Driver) {
        let next = message
            .strip_prefix("Waiting for driver")
            .map(|_| format!("{} shows the state of its driver", commands::plugins_status()));
        let text = match message.strip_prefix("Waiting for driver: ") {
            Some(reason) => format!("task {name} waits for its driver: {reason}"),
            None => format!("task {name}: {message}"),
        };
        return wait(text, next.into_iter().collect());
    }
    if let Some(previous) = message.strip_prefix("waiting for previous allocation ") {
        let short = previous.get(..8).unwrap_or(previous);
        let text = format!("it waits for the end of allocation {short}, whose place it takes");
        let next = format!("{} says what that one waits for", commands::explain(short));
        return wait(text, vec![next]);
    }
    if is_kind(event, EventKind::TaskSetup) {
        let text = format!("task {name} is being set up and started by its driver");
        return wait(text, Vec::new());
    }
    wait(format!("task {name}: {message}"), Vec::new())
}

/// Explain a task that waits to be started again.
fn restart_wait(task: &TaskHistory<'_>, event: &WireTaskEvent, now: Timestamp) -> TaskWait {
    let name = task.told.task;
    let delay = event.details.get("start_delay").and_then(|nanos| nanos.parse().ok());
    let at = event.time.plus(Duration::from_nanos(delay.unwrap_or(0)));
    let why = event.details.get("restart_reason").map_or("", String::as_str);
    let held = why.starts_with("Exceeded allowed attempts");
    let by_check = task.last_end_by_check().map(|(_, end)| end);
    let last = by_check.or_else(|| Some(task.last_end()?.1));
    let last = last.or_else(|| Some(task.failure_before(event)?.1));
    let (what, next) = match last {
        Some(end) => (format!("task {name} {}", end.text), end.next),
        None => (format!("task {name} ended"), Vec::new()),
    };
    // The restart that is to come is counted already.
    let times = match task.state.restarts.saturating_sub(1) {
        0 => String::new(),
        1 => ", after one restart".to_owned(),
        times => format!(", after {times} restarts"),
    };
    let again = if held {
        "it used up the restarts of this interval and is started again"
    } else {
        "it is started again"
    };
    let text = format!("{what}; {again} {}{times}", time_until(at, now));
    TaskWait { text, since: Some(event.time), next }
}

/// Advice on how to provide what a template waits for.
fn missing_input_advice(what: &str, namespace: &str) -> String {
    let inner = |prefix: &str| what.strip_prefix(prefix)?.strip_suffix(')');
    if let Some(path) = inner("nomad.var(") {
        return match namespace {
            "" | NAMESPACE => commands::put_variable(path),
            other => commands::put_variable_in(other, path),
        };
    }
    if let Some(service) = inner("nomad.service(") {
        return format!(
            "start a job that offers the service {service} ({} shows those there are)",
            commands::services()
        );
    }
    format!("provide {what}")
}

/// The phases that took longest in the first start of a task. `None` for a task that started
/// quickly or has not started.
pub(crate) fn slow_start(task: &TaskHistory<'_>) -> Option<String> {
    let events = task.events();
    let end = events.iter().position(|event| is_kind(event, EventKind::Started))?;
    let before = events.get(..=end)?;
    let (first, last) = (before.first()?, before.last()?);
    if !is_kind(first, EventKind::Received) {
        return None;
    }
    let whole = last.time.since(first.time);
    if whole < SLOW {
        return None;
    }
    let mut parts: Vec<(String, Duration)> = Vec::new();
    for pair in before.windows(2) {
        let [from, to] = pair else { continue };
        let (what, took) = (phase(from), to.time.since(from.time));
        match parts.iter_mut().find(|(known, _)| *known == what) {
            Some((_, sum)) => *sum = sum.saturating_add(took),
            None => parts.push((what, took)),
        }
    }
    // Hooks that report their duration themselves are part of the phase they are in.
    let hooks = before.iter().filter_map(|event| event.details.get("hook_took"));
    let hooks: Vec<String> = hooks.cloned().collect();
    parts.sort_by_key(|(_, took)| std::cmp::Reverse(*took));
    let named = parts.iter().filter(|(_, took)| *took * PART >= whole);
    let named: Vec<String> =
        named.map(|(what, took)| format!("{} {what}", format_span(*took))).collect();
    let hooks = match hooks.as_slice() {
        [] => String::new(),
        hooks => format!(" (hooks: {})", hooks.join(", ")),
    };
    Some(format!(
        "the start of task {} took {}: {}{hooks}",
        task.told.task,
        format_span(whole),
        named.join(", ")
    ))
}

/// The phase that begins with an event.
fn phase(event: &WireTaskEvent) -> String {
    let message = event.display_message.trim();
    if is_kind(event, EventKind::Received) {
        "until it was its turn".to_owned()
    } else if message.starts_with("waiting for previous allocation") {
        "waiting for the end of the allocation before it".to_owned()
    } else if is_kind(event, EventKind::TaskSetup) || is_kind(event, EventKind::HookMessage) {
        "for its set-up and its driver's start".to_owned()
    } else if is_kind(event, EventKind::DownloadingArtifacts) {
        "for its artifacts".to_owned()
    } else if is_kind(event, EventKind::Template) {
        "waiting for what its templates ask for".to_owned()
    } else if is_kind(event, EventKind::Driver) {
        "for its driver".to_owned()
    } else if is_kind(event, EventKind::Restarting) {
        "between tries".to_owned()
    } else {
        format!("after {:?}", &*event.kind)
    }
}

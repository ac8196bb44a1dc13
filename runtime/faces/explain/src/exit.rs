//! Describes how a run of a task ended, and what would change that.

use ostler_model::event::{EventKind, NO_SIGNALS};
use ostler_model::time::Timestamp;
use ostler_wire::WireTaskEvent;

use crate::commands;
use crate::words::{signal, wire_span};

/// Exit code of shells for a command that exists and cannot be executed.
const NOT_EXECUTABLE: i64 = 126;
/// Exit code of shells for a command that does not exist.
const NOT_FOUND: i64 = 127;
/// Exit code of a run whose end nobody saw.
const EXIT_UNKNOWN: i64 = ostler_model::task::EXIT_UNKNOWN as i64;
/// Number of the signal that cannot be caught.
const KILL: i64 = 9;

/// The end of a run, in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunEnd {
    /// What became of the task, for example `exited with code 3`.
    pub text: String,
    /// Advice on what would change it.
    pub next: Vec<String>,
    /// The end was neither asked for nor a success.
    pub trouble: bool,
}

/// The facts about a task beside its events.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TaskFacts<'a> {
    /// Id of the allocation in its short form, as people type it.
    pub alloc: &'a str,
    /// Name of the task in its allocation.
    pub task: &'a str,
    /// Memory of the task, MiB; 0: not known.
    pub memory_mib: u64,
    /// The namespace of the task's job.
    pub namespace: &'a str,
    /// Path of the file in the jobs directory that gives the job, where there is one.
    pub file: Option<&'a str>,
}

impl TaskFacts<'_> {
    /// Advice to run the job again although nothing of it changed, as the end of a sentence.
    pub fn run_again(self) -> String {
        match self.file {
            None => format!("run the job again: {}", commands::run_again()),
            Some(file) => change_file_advice(file),
        }
    }

    /// Advice to run the corrected job, as the end of a sentence.
    pub fn run_corrected(self) -> String {
        match self.file {
            None => format!("run the job again: {}", commands::run_corrected()),
            Some(file) => change_file_advice(file),
        }
    }
}

/// Advice to change the file by which the jobs directory gives a job.
pub(crate) fn change_file_advice(file: &str) -> String {
    format!("change {file}: the agent reads it again and runs what it says")
}

/// An order to stop a run.
#[derive(Clone, Copy)]
pub(crate) struct StopOrder<'a> {
    /// The event that records the order.
    pub event: &'a WireTaskEvent<'a>,
    /// When the task itself was told to stop.
    pub told_at: Timestamp,
}

/// A number among the details of an event.
fn number(event: &WireTaskEvent, key: &str) -> i64 {
    event.details.get(key).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Describe an event of the kind `Terminated`. `stop` is the order to stop before it in
/// the same run.
pub(crate) fn describe_end(
    told: TaskFacts<'_>,
    event: &WireTaskEvent,
    stop: Option<StopOrder<'_>>,
) -> RunEnd {
    let TaskFacts { alloc, task, memory_mib, .. } = told;
    let (code, number_of_signal) = (number(event, "exit_code"), number(event, "signal"));
    let message = event.details.get("exit_message").map_or("", String::as_str);
    let logs = format!("read its output: {}", commands::task_errors(alloc, task));
    let trouble = |text: String, next: Vec<String>| RunEnd { text, next, trouble: true };
    if is_out_of_memory(event, message) {
        let limit = limit_of(message, memory_mib);
        let limit_text = limit.map(|mib| format!(" (limit {mib} MiB)")).unwrap_or_default();
        let above = limit.map(|mib| format!(" above {mib} MiB")).unwrap_or_default();
        let next = format!("raise resources.memory of task {task}{above}, or let it use less");
        return trouble(format!("was killed: out of memory{limit_text}"), vec![next]);
    }
    if let Some(stop) = stop {
        return describe_stop(told, event, stop);
    }
    match (number_of_signal, code) {
        (0, 0) if message.is_empty() => {
            RunEnd { text: "ended well (exit code 0)".to_owned(), ..RunEnd::default() }
        }
        (0, NOT_FOUND) if message.is_empty() => trouble(
            "exited with code 127: its shell did not find the command".to_owned(),
            vec![
                format!("correct the command in config of task {task}, or bring the program along"),
                logs,
            ],
        ),
        (0, NOT_EXECUTABLE) if message.is_empty() => trouble(
            "exited with code 126: its command cannot be executed".to_owned(),
            vec![format!("make the command in config of task {task} executable"), logs],
        ),
        (0, code) if message.is_empty() => trouble(format!("exited with code {code}"), vec![logs]),
        // Nobody saw its end, so there is nothing to read.
        (0, EXIT_UNKNOWN) => trouble(format!("ended in an unknown way: {message}"), Vec::new()),
        (0, code) => trouble(format!("failed: {message} (exit code {code})"), vec![logs]),
        (KILL, _) => trouble(
            "was killed by SIGKILL (signal 9) that this agent did not send".to_owned(),
            vec![format!(
                "find out who killed it (the kernel for lack of memory: journalctl -k; or a person); raise \
                 resources.memory of task {task} if it was memory"
            )],
        ),
        (other, _) => trouble(format!("was ended by {}", signal(other)), vec![logs]),
    }
}

/// Describe the end of a run that was told to stop.
fn describe_stop(told: TaskFacts<'_>, event: &WireTaskEvent, stop: StopOrder<'_>) -> RunEnd {
    let (code, number_of_signal) = (number(event, "exit_code"), number(event, "signal"));
    let restarts = stop.event.kind == EventKind::RestartSignaled.as_str();
    let order = if restarts { "to restart" } else { "to stop" };
    let well = |text: String| RunEnd { text, ..RunEnd::default() };
    match number_of_signal {
        KILL => {}
        0 if code == 0 => return well(format!("ended well when it was told {order}")),
        0 => return well(format!("ended with exit code {code} when it was told {order}")),
        other => return well(format!("ended on {} when it was told {order}", signal(other))),
    }
    let limit = stop.event.details.get("kill_timeout");
    let span = limit.and_then(|limit| wire_span(limit));
    let waited = event.time.since(stop.told_at);
    if stop.event.details.contains_key(NO_SIGNALS) && span.is_none_or(|span| waited < span) {
        return well(format!(
            "was ended when it was told {order}: its driver cannot send it signals"
        ));
    }
    let Some(limit) = limit.filter(|_| span.is_none_or(|span| waited >= span)) else {
        return well(format!("was killed when it was told {order}"));
    };
    let next = format!(
        "if it needs longer to end well, raise kill_timeout of task {}; if it does not handle the signal, set \
         kill_signal",
        told.task
    );
    let text = format!("did not end within its kill_timeout of {limit} and was killed by force");
    RunEnd { text, next: vec![next], trouble: false }
}

/// Was the task killed for want of memory? Its flag says so, or its message where the driver has
/// only words.
fn is_out_of_memory(event: &WireTaskEvent, message: &str) -> bool {
    let flag = event.details.get("oom_killed").is_some_and(|flag| flag == "true");
    let failed = number(event, "exit_code") != 0 || number(event, "signal") != 0;
    failed && (flag || message.contains("out of memory"))
}

/// The limit at which it was killed, MiB: as the message says, else what the task was given.
fn limit_of(message: &str, memory_mib: u64) -> Option<u64> {
    let said = message
        .split_once(" MiB")
        .and_then(|(before, _)| before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok());
    said.or(Some(memory_mib)).filter(|mib| *mib > 0)
}

/// Describe why a start failed, and what would change it. `event` is of a kind that reports a
/// failed start.
pub(crate) fn describe_failed_start(told: TaskFacts<'_>, event: &WireTaskEvent) -> RunEnd {
    let TaskFacts { task, .. } = told;
    let message = event.display_message.trim();
    let is = |kind: EventKind| event.kind == kind.as_str();
    let has = |part: &str| message.contains(part);
    let again = format!("and {}", told.run_again());
    let next = if is(EventKind::ArtifactDownloadFailed) {
        format!("{}, {again}", artifact_advice(task, message))
    } else if has("was not found") && is(EventKind::DriverFailure) {
        let program = program_of(message).unwrap_or("the program");
        // An absolute path is looked for only where it points.
        let bring = if program.starts_with('/') {
            String::new()
        } else {
            format!("bring {program} into local/ of task {task} (an artifact or a template), ")
        };
        let install = if bring.is_empty() {
            format!("install {program} on this node")
        } else {
            "install it on this node".to_owned()
        };
        format!("{bring}{install}, or correct config.command of task {task}, {again}")
    } else if is(EventKind::FailedValidation) {
        format!(
            "correct what it names in task {task} ({} says all of it), and {}",
            commands::validate(),
            told.run_corrected()
        )
    } else if has("compil") && (has("did not finish") || has("took over")) {
        "raise limits { compile_wall = \"5m\" } in the agent's configuration, or find out what loads the node".to_owned()
    } else if has("did not end in time") || is(EventKind::HookFailed) && has("in time") {
        format!("find out what the node waits for (disk, network): {}", commands::node_use())
    } else if has("No space left") {
        format!("make room on the disk of the data directory: {}", commands::collect())
    } else if has("quarantine") {
        format!(
            "{} says why the driver failed; {} has it tried now",
            commands::plugins_status(),
            commands::lift_plugin("NAME")
        )
    } else {
        format!("fix what it names, {again}")
    };
    let text = if is(EventKind::ArtifactDownloadFailed) {
        message.to_owned()
    } else {
        format!("could not be started: {message}")
    };
    RunEnd { text, next: vec![next], trouble: true }
}

/// The command that was not found, from `command "x" was not found; looked for: …`, or its one
/// possible path.
fn program_of(message: &str) -> Option<&str> {
    let (before, _) = message.split_once(" was not found")?;
    let last = before.rsplit(": ").next()?;
    let named = last.strip_prefix("command ").map(|name| name.trim_matches('"'));
    Some(named.unwrap_or(last)).filter(|name| !name.is_empty())
}

/// Advice for an artifact that did not come, or that is not what it should be.
fn artifact_advice(task: &str, message: &str) -> String {
    let has = |part: &str| message.contains(part);
    if has("the archive cannot be unpacked: cannot ") {
        "fix what it names on the disk of the data directory".to_owned()
    } else if has("it unpacks to more than") || has("it has more than") {
        format!("raise that limit, or let the artifact block of task {task} name a smaller one")
    } else if has("the archive cannot be unpacked") {
        format!(
            "the source answered: fix the archive there, correct the artifact block of task {task}, or set \
             options {{ archive = false }} in it if it is not an archive"
        )
    } else if has("its checksum is") {
        format!(
            "the source answered: correct the checksum in the artifact block of task {task}, or fix the file there"
        )
    } else {
        format!(
            "make the source reachable from this node or correct the artifact block of task {task}"
        )
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::collections::BTreeMap;

    use super::*;

    fn terminated(details: &[(&str, &str)]) -> WireTaskEvent<'static> {
        let details: BTreeMap<String, String> =
            details.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        WireTaskEvent {
            kind: "Terminated".into(),
            details: Cow::Owned(details),
            ..WireTaskEvent::default()
        }
    }

    #[test]
    fn an_end_for_want_of_memory_names_the_limit_whoever_says_it() {
        let told =
            TaskFacts { alloc: "0f01c0de", task: "web", memory_mib: 64, ..TaskFacts::default() };
        let by_flag = terminated(&[("exit_code", "137"), ("signal", "9"), ("oom_killed", "true")]);
        assert_eq!(
            describe_end(told, &by_flag, None).text,
            "was killed: out of memory (limit 64 MiB)"
        );
        let said = [("exit_code", "134"), ("exit_message", "out of memory at 96 MiB")];
        assert_eq!(
            describe_end(told, &terminated(&said), None).text,
            "was killed: out of memory (limit 96 MiB)"
        );
        let child = terminated(&[("exit_code", "0"), ("oom_killed", "true")]);
        assert!(!describe_end(told, &child, None).trouble, "only a child of it was");
    }

    #[test]
    fn an_artifact_that_came_is_not_said_to_be_out_of_reach() {
        let next = |reason: &str| {
            let event = WireTaskEvent {
                kind: "Failed Artifact Download".into(),
                display_message: format!("failed to download artifact \"u\": {reason}").into(),
                ..WireTaskEvent::default()
            };
            let told = TaskFacts { alloc: "0f01c0de", task: "web", ..TaskFacts::default() };
            describe_failed_start(told, &event).next.concat()
        };
        let broken = next("the archive cannot be unpacked: it is not a readable zip archive: x");
        assert!(broken.contains("fix the archive"), "{broken}");
        let limit = next(
            "the archive cannot be unpacked: it has more than 9 entries; client { … } allows more",
        );
        assert!(limit.contains("raise that limit"), "{limit}");
        let sum = next("its checksum is sha256:1, and the job wants sha256:2");
        assert!(sum.contains("correct the checksum"), "{sum}");
        let disk =
            next("the archive cannot be unpacked: cannot write \"a\": No space left on device");
        assert!(disk.contains("disk of the data directory"), "{disk}");
        for came in [broken, limit, sum, disk] {
            assert!(!came.contains("reachable"), "{came}");
        }
        assert!(next("cannot connect to 127.0.0.1: refused").contains("reachable"));
    }

    #[test]
    fn a_kill_of_ours_is_told_from_that_of_others() {
        let told = TaskFacts { alloc: "0f01c0de", task: "web", ..TaskFacts::default() };
        let at = |seconds: u64| Timestamp::from_nanos(seconds * 1_000_000_000);
        let killed = |seconds| WireTaskEvent {
            time: at(seconds),
            ..terminated(&[("exit_code", "137"), ("signal", "9")])
        };
        let ended_by = |seconds, order: &WireTaskEvent<'static>| {
            let order = StopOrder { event: order, told_at: at(10) };
            let end = describe_end(told, &killed(seconds), Some(order));
            (end.text, end.next.len())
        };
        let stop = terminated(&[("kill_timeout", "5s")]);
        let forced = "did not end within its kill_timeout of 5s and was killed by force";
        assert_eq!(ended_by(15, &stop), (forced.to_owned(), 1));
        let at_once = "was killed when it was told to stop";
        assert_eq!(ended_by(11, &stop), (at_once.to_owned(), 0), "its kill_signal is SIGKILL");
        let deaf = terminated(&[("kill_timeout", "5s"), (NO_SIGNALS, "true")]);
        let (text, next) = ended_by(11, &deaf);
        assert!(text.contains("its driver cannot send it signals") && next == 0, "{text}");
        assert_eq!(ended_by(15, &deaf), (forced.to_owned(), 1));
        assert!(describe_end(told, &killed(15), None).text.contains("this agent did not send"));
    }
}

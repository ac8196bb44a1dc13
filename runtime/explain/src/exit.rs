//! How a run of a task ended, in words, and what would change that.

use ostler_model::event::{EventKind, NO_SIGNALS};
use ostler_model::time::Timestamp;
use ostler_wire::TaskEvent;

use crate::commands;
use crate::words::{signal, wire_span};

/// Exit code with which shells say that a command is there and cannot be executed.
const NOT_EXECUTABLE: i64 = 126;
/// Exit code with which shells say that there is no such command.
const NOT_FOUND: i64 = 127;
/// Exit code of a run of which nobody can say how it ended.
const EXIT_UNKNOWN: i64 = ostler_model::task::EXIT_UNKNOWN as i64;
/// The signal that cannot be caught.
const KILL: i64 = 9;

/// The end of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct End {
    /// What became of the task: `exited with code 3`.
    pub text: String,
    /// What would change it.
    pub next: Vec<String>,
    /// It was not an end that anybody asked for or that is well.
    pub trouble: bool,
}

/// What is known of a task beside its events.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told<'a> {
    /// The allocation, as people type it.
    pub alloc: &'a str,
    /// The task.
    pub task: &'a str,
    /// Its memory, MiB; 0: not known.
    pub memory_mib: u64,
    /// The namespace of its job.
    pub namespace: &'a str,
    /// The file of the jobs directory that gives its job, where one does.
    pub file: Option<&'a str>,
}

impl Told<'_> {
    /// Have its job run anew although nothing of it changed, as the end of a sentence.
    pub fn run_again(self) -> String {
        match self.file {
            None => format!("run the job again: {}", commands::run_again()),
            Some(file) => changed(file),
        }
    }

    /// Give its job corrected, likewise.
    pub fn run_corrected(self) -> String {
        match self.file {
            None => format!("run the job again: {}", commands::run_corrected()),
            Some(file) => changed(file),
        }
    }
}

/// What a job of the jobs directory is run again by.
pub(crate) fn changed(file: &str) -> String {
    format!("change {file}: the agent reads it again and runs what it says")
}

/// An order to stop a run.
#[derive(Clone, Copy)]
pub(crate) struct Order<'a> {
    /// What is on record of it.
    pub event: &'a TaskEvent<'a>,
    /// When the task itself was told.
    pub told_at: Timestamp,
}

/// A number among the details of an event.
fn number(event: &TaskEvent, key: &str) -> i64 {
    event.details.get(key).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// What an event of the kind `Terminated` says; `stop` is the order to stop before it in the same run.
pub(crate) fn ended(told: Told<'_>, event: &TaskEvent, stop: Option<Order<'_>>) -> End {
    let Told { alloc, task, memory_mib, .. } = told;
    let (code, number_of_signal) = (number(event, "exit_code"), number(event, "signal"));
    let message = event.details.get("exit_message").map_or("", String::as_str);
    let logs = format!("read what it said: {}", commands::task_errors(alloc, task));
    let trouble = |text: String, next: Vec<String>| End { text, next, trouble: true };
    if out_of_memory(event, message) {
        let limit = limit_of(message, memory_mib);
        let limit_text = limit.map(|mib| format!(" (limit {mib} MiB)")).unwrap_or_default();
        let above = limit.map(|mib| format!(" above {mib} MiB")).unwrap_or_default();
        let next = format!("raise resources.memory of task {task}{above}, or let it use less");
        return trouble(format!("was killed: out of memory{limit_text}"), vec![next]);
    }
    if let Some(stop) = stop {
        return stopped(told, event, stop);
    }
    match (number_of_signal, code) {
        (0, 0) if message.is_empty() => {
            End { text: "ended well (exit code 0)".to_owned(), ..End::default() }
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
        // Nobody saw its end: there is nothing to read.
        (0, EXIT_UNKNOWN) => trouble(format!("ended, nobody saw how: {message}"), Vec::new()),
        (0, code) => trouble(format!("failed: {message} (exit code {code})"), vec![logs]),
        (KILL, _) => trouble(
            "was killed by SIGKILL (signal 9) that this agent did not send".to_owned(),
            vec![format!(
                "look who killed it (the kernel for want of memory: journalctl -k; or a person); raise resources.memory of task {task} if it was memory"
            )],
        ),
        (other, _) => trouble(format!("was ended by {}", signal(other)), vec![logs]),
    }
}

/// The end of a run that was told to stop.
fn stopped(told: Told<'_>, event: &TaskEvent, stop: Order<'_>) -> End {
    let (code, number_of_signal) = (number(event, "exit_code"), number(event, "signal"));
    let order = match stop.event.kind == EventKind::RestartSignaled.as_str() {
        true => "to restart",
        false => "to stop",
    };
    let well = |text: String| End { text, ..End::default() };
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
            "was ended when it was told {order}: its driver has no signals that it could hear"
        ));
    }
    let Some(limit) = limit.filter(|_| span.is_none_or(|span| waited >= span)) else {
        return well(format!("was killed when it was told {order}"));
    };
    let next = format!(
        "if it needs longer to end well, raise kill_timeout of task {}; if it does not hear the signal, set kill_signal",
        told.task
    );
    let text = format!("did not end within its kill_timeout of {limit} and was killed by force");
    End { text, next: vec![next], trouble: false }
}

/// By its flag, or by its message where the driver has only words.
fn out_of_memory(event: &TaskEvent, message: &str) -> bool {
    let flag = event.details.get("oom_killed").is_some_and(|flag| flag == "true");
    let failed = number(event, "exit_code") != 0 || number(event, "signal") != 0;
    failed && (flag || message.contains("out of memory"))
}

/// MiB at which it was killed: as the message says, else what the task was given.
fn limit_of(message: &str, memory_mib: u64) -> Option<u64> {
    let said = message
        .split_once(" MiB")
        .and_then(|(before, _)| before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok());
    said.or(Some(memory_mib)).filter(|mib| *mib > 0)
}

/// Why something of the start failed, and what would change it; `event` is of a kind that says so.
pub(crate) fn not_started(told: Told<'_>, event: &TaskEvent) -> End {
    let Told { task, .. } = told;
    let message = event.display_message.trim();
    let is = |kind: EventKind| event.kind == kind.as_str();
    let has = |part: &str| message.contains(part);
    let again = format!("and {}", told.run_again());
    let next = if is(EventKind::ArtifactDownloadFailed) {
        format!("{}, {again}", artifact(task, message))
    } else if has("was not found") && is(EventKind::DriverFailure) {
        let program = program_of(message).unwrap_or("the program");
        // An absolute path is looked for where it says, nowhere else.
        let bring = match program.starts_with('/') {
            true => String::new(),
            false => {
                format!("bring {program} into local/ of task {task} (an artifact or a template), ")
            }
        };
        let install = match bring.is_empty() {
            true => format!("install {program} on this node"),
            false => "install it on this node".to_owned(),
        };
        format!("{bring}{install}, or correct config.command of task {task}, {again}")
    } else if is(EventKind::FailedValidation) {
        format!(
            "correct what it names in task {task} ({} says all of it), and {}",
            commands::validate(),
            told.run_corrected()
        )
    } else if has("compil") && (has("did not finish") || has("took over")) {
        "raise limits { compile_wall = \"5m\" } in the agent's configuration, or look for what loads the node".to_owned()
    } else if has("did not end in time") || is(EventKind::HookFailed) && has("in time") {
        format!("look what the node waits for (disk, network): {}", commands::node_use())
    } else if has("No space left") {
        format!("make room on the disk of the data directory: {}", commands::collect())
    } else if has("quarantine") {
        format!(
            "{} says what the driver failed of; {} lets it be tried now",
            commands::plugins_status(),
            commands::lift_plugin("NAME")
        )
    } else {
        format!("mend what it names, {again}")
    };
    let text = match is(EventKind::ArtifactDownloadFailed) {
        true => message.to_owned(),
        false => format!("could not be started: {message}"),
    };
    End { text, next: vec![next], trouble: true }
}

/// The command that was not found: `command "x" was not found; looked for: …`, or the one place of it.
fn program_of(message: &str) -> Option<&str> {
    let (before, _) = message.split_once(" was not found")?;
    let last = before.rsplit(": ").next()?;
    let named = last.strip_prefix("command ").map(|name| name.trim_matches('"'));
    Some(named.unwrap_or(last)).filter(|name| !name.is_empty())
}

/// What would let an artifact be had: it did not come, or what came is not what it is to be.
fn artifact(task: &str, message: &str) -> String {
    let has = |part: &str| message.contains(part);
    if has("the archive cannot be unpacked: cannot ") {
        "mend what it names on the disk of the data directory".to_owned()
    } else if has("it becomes more than") || has("it has more than") {
        format!("raise that limit, or let the artifact block of task {task} name a smaller one")
    } else if has("the archive cannot be unpacked") {
        format!(
            "the source answered: mend the archive there, correct the artifact block of task {task}, or set options {{ archive = false }} in it where it is no archive"
        )
    } else if has("its checksum is") {
        format!(
            "the source answered: correct the checksum in the artifact block of task {task}, or mend the file there"
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

    fn terminated(details: &[(&str, &str)]) -> TaskEvent<'static> {
        let details: BTreeMap<String, String> =
            details.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        TaskEvent {
            kind: "Terminated".into(),
            details: Cow::Owned(details),
            ..TaskEvent::default()
        }
    }

    #[test]
    fn an_end_for_want_of_memory_names_the_limit_whoever_says_it() {
        let told = Told { alloc: "0f01c0de", task: "web", memory_mib: 64, ..Told::default() };
        let by_flag = terminated(&[("exit_code", "137"), ("signal", "9"), ("oom_killed", "true")]);
        assert_eq!(ended(told, &by_flag, None).text, "was killed: out of memory (limit 64 MiB)");
        let said = [("exit_code", "134"), ("exit_message", "out of memory at 96 MiB")];
        assert_eq!(
            ended(told, &terminated(&said), None).text,
            "was killed: out of memory (limit 96 MiB)"
        );
        let child = terminated(&[("exit_code", "0"), ("oom_killed", "true")]);
        assert!(!ended(told, &child, None).trouble, "only a child of it was");
    }

    #[test]
    fn an_artifact_that_came_is_not_said_to_be_out_of_reach() {
        let next = |reason: &str| {
            let event = TaskEvent {
                kind: "Failed Artifact Download".into(),
                display_message: format!("failed to download artifact \"u\": {reason}").into(),
                ..TaskEvent::default()
            };
            let told = Told { alloc: "0f01c0de", task: "web", ..Told::default() };
            not_started(told, &event).next.concat()
        };
        let broken =
            next("the archive cannot be unpacked: it is no zip archive that can be read: x");
        assert!(broken.contains("mend the archive"), "{broken}");
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
        let told = Told { alloc: "0f01c0de", task: "web", ..Told::default() };
        let at = |seconds: u64| Timestamp::from_nanos(seconds * 1_000_000_000);
        let killed = |seconds| TaskEvent {
            time: at(seconds),
            ..terminated(&[("exit_code", "137"), ("signal", "9")])
        };
        let ended_by = |seconds, order: &TaskEvent<'static>| {
            let order = Order { event: order, told_at: at(10) };
            let end = ended(told, &killed(seconds), Some(order));
            (end.text, end.next.len())
        };
        let stop = terminated(&[("kill_timeout", "5s")]);
        let forced = "did not end within its kill_timeout of 5s and was killed by force";
        assert_eq!(ended_by(15, &stop), (forced.to_owned(), 1));
        let at_once = "was killed when it was told to stop";
        assert_eq!(ended_by(11, &stop), (at_once.to_owned(), 0), "its kill_signal is SIGKILL");
        let deaf = terminated(&[("kill_timeout", "5s"), (NO_SIGNALS, "true")]);
        let (text, next) = ended_by(11, &deaf);
        assert!(text.contains("its driver has no signals") && next == 0, "{text}");
        assert_eq!(ended_by(15, &deaf), (forced.to_owned(), 1));
        assert!(ended(told, &killed(15), None).text.contains("this agent did not send"));
    }
}

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use super::*;
use ostler_model::alloc::AllocState;
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::rng::Rng;
use ostler_model::time::Timestamp;

const PIPE: TerminalInfo =
    TerminalInfo { stdout: false, stderr: false, colours: true, columns: None, json: false };
const SCREEN: TerminalInfo =
    TerminalInfo { stdout: true, stderr: true, colours: true, columns: None, json: false };

fn alloc() -> AllocId {
    AllocId::new(Rng::from_seed(1).uuid())
}

fn line(bytes: &[u8], stream: TaskStream) -> OutputLine {
    let label = Arc::new(Label { text: "web ".into(), number: 0 });
    let output = OutputLine::empty_line(alloc(), TaskName::new("web").unwrap(), label);
    OutputLine { bytes: bytes.to_vec(), stream, ..output }
}

fn shown(report: &RunReport, terminal: &TerminalInfo) -> (String, String) {
    let mut rendered = RenderBuffers::default();
    render_human(report, terminal, &mut rendered);
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(rendered.stdout), text(rendered.stderr))
}

#[test]
fn each_line_of_a_task_goes_to_its_stream_behind_its_name() {
    let out = shown(&RunReport::Output(line(b"hello", TaskStream::Stdout)), &PIPE);
    assert_eq!(out, ("web  | hello\n".to_owned(), String::new()));
    let err = shown(&RunReport::Output(line(b"", TaskStream::Stderr)), &PIPE);
    assert_eq!(err, (String::new(), "web  | \n".to_owned()));
}

#[test]
fn a_pipe_gets_the_bytes_as_they_are_and_a_screen_gets_colours() {
    let mut rendered = RenderBuffers::default();
    let binary = RunReport::Output(line(b"\xff\x1b[2J", TaskStream::Stdout));
    render_human(&binary, &PIPE, &mut rendered);
    assert_eq!(rendered.stdout, b"web  | \xff\x1b[2J\n");
    let (out, _) = shown(&RunReport::Output(line(b"\x1b[31mred", TaskStream::Stdout)), &SCREEN);
    assert_eq!(out, "\x1b[36mweb  |\x1b[0m \x1b[31mred\x1b[0m\n");
    let without = TerminalInfo { colours: false, ..SCREEN };
    let (out, _) = shown(&RunReport::Output(line(b"\x1b[2Jx", TaskStream::Stdout)), &without);
    assert_eq!(out, "web  | \\u{1b}[2Jx\n");
}

#[test]
fn lost_output_is_said_and_not_printed_as_a_line() {
    let gap = OutputLine { skipped_bytes: 7, complete: false, ..line(b"", TaskStream::Stdout) };
    let (out, err) = shown(&RunReport::Output(gap), &PIPE);
    assert_eq!(out, "");
    assert_eq!(err, "web  | (7 bytes were rotated away before they could be shown)\n");
}

#[test]
fn an_event_is_one_line_whatever_its_message_holds() {
    let time = Timestamp::from_nanos(3_723_000_000_000);
    let event = TaskEvent::new(EventKind::Driver, time, "a\nb\x1b[2J").with_task_failure();
    let label = Arc::new(Label { text: "web".into(), number: 0 });
    let task = TaskName::new("web").unwrap();
    let report = RunReport::Event { alloc: alloc(), task, event, label };
    let (out, err) = shown(&report, &PIPE);
    assert_eq!(out, "");
    assert_eq!(err, "web | 01:02:03 Driver: a; b\\u{1b}[2J\n");
}

fn failed_result() -> RunReport {
    let exit = ExitResult { exit_code: 3, ..ExitResult::default() };
    result_of(TaskState { failed: true, last_exit: Some(exit), ..TaskState::default() })
}

fn result_of(task: TaskState) -> RunReport {
    let mut state = AllocState { client_status: ClientStatus::Failed, ..AllocState::default() };
    std::sync::Arc::make_mut(&mut state.tasks).insert(TaskName::new("web").unwrap(), task.into());
    RunReport::Result {
        job: JobId::new("shop").unwrap(),
        successful: false,
        exit_code: 3,
        allocs: vec![AllocResult { id: alloc(), name: "shop.front[0]".into(), state }],
    }
}

#[test]
fn a_failed_job_names_the_tasks_that_failed_and_why() {
    let (_, err) = shown(&failed_result(), &PIPE);
    assert_eq!(
        err,
        "job shop failed with exit code 3\n  task web of shop.front[0] failed: exit code 3\n"
    );
}

#[test]
fn the_last_line_names_what_a_task_failed_of() {
    let exit = |exit_code, signal, oom_killed, error: Option<&str>| {
        Some(ExitResult { exit_code, signal, oom_killed, error: error.map(str::to_owned) })
    };
    let now = Timestamp::from_nanos(1);
    let event = |kind, text: &str| TaskEvent::new(kind, now, text);
    let verdict = || event(EventKind::NotRestarting, "Error was unrecoverable").with_task_failure();
    let start = || event(EventKind::DriverFailure, "/usr/bin/redis-server was not found");
    let ended = || event(EventKind::Terminated, "Exit Code: ?");
    for (last_exit, events, line) in [
        (None, vec![start(), verdict()], "/usr/bin/redis-server was not found"),
        (
            exit(3, 0, false, None),
            vec![ended(), start(), verdict()],
            "/usr/bin/redis-server was not found",
        ),
        (
            exit(137, 9, false, None),
            vec![start(), ended(), verdict()],
            "killed by signal 9, exit code 137",
        ),
        (
            exit(137, 0, true, Some("out of memory at 32 MiB")),
            vec![ended(), verdict()],
            "out of memory at 32 MiB, exit code 137",
        ),
        (
            exit(0, 0, false, None),
            vec![event(EventKind::DiskExceeded, "too much").with_task_failure(), ended()],
            "too much",
        ),
    ] {
        let task = TaskState { failed: true, last_exit, events, ..TaskState::default() };
        let (_, err) = shown(&result_of(task), &PIPE);
        assert!(err.ends_with(&format!("task web of shop.front[0] failed: {line}\n")), "{err}");
    }
}

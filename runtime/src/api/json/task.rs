//! The state of a task and its events.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Moment;
use ostler_jobspec::units::parse_duration;
use ostler_model::event::{EventKind, TaskEvent};
use ostler_model::ids::TaskName;
use ostler_model::task::{TaskState, TaskStatus};

/// `TaskState` of Nomad.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct TaskStateJson<'a> {
    state: TaskStatus,
    failed: bool,
    restarts: u64,
    last_restart: Option<Moment>,
    started_at: Option<Moment>,
    finished_at: Option<Moment>,
    events: Vec<TaskEventJson<'a>>,
    /// Ours: events that ever happened, so that a reader can tell a gap.
    events_total: u64,
    /// Ours: how the last run ended.
    last_exit: Option<ExitJson<'a>>,
}

/// How a run ended.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct ExitJson<'a> {
    exit_code: i32,
    signal: u32,
    #[serde(rename = "OOMKilled")]
    oom_killed: bool,
    error: &'a str,
}

/// All tasks of an allocation.
pub(in crate::api) fn task_states(
    tasks: &BTreeMap<TaskName, TaskState>,
) -> BTreeMap<&str, TaskStateJson<'_>> {
    tasks.iter().map(|(name, state)| (name.as_str(), TaskStateJson::from(state))).collect()
}

impl<'a> From<&'a TaskState> for TaskStateJson<'a> {
    fn from(state: &'a TaskState) -> Self {
        let TaskState {
            status,
            failed,
            restarts,
            last_restart,
            started_at,
            finished_at,
            last_exit,
            events,
            events_total,
        } = state;
        Self {
            state: *status,
            failed: *failed,
            restarts: *restarts,
            last_restart: Moment::maybe(*last_restart),
            started_at: Moment::maybe(*started_at),
            finished_at: Moment::maybe(*finished_at),
            events: events.iter().map(TaskEventJson::from).collect(),
            events_total: *events_total,
            last_exit: last_exit.as_ref().map(|exit| ExitJson {
                exit_code: exit.exit_code,
                signal: exit.signal,
                oom_killed: exit.oom_killed,
                error: exit.error.as_deref().unwrap_or_default(),
            }),
        }
    }
}

/// `TaskEvent` of Nomad. The fields after `FailsTask` are its older form of `Details`, which some
/// of its tools still read.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(in crate::api) struct TaskEventJson<'a> {
    #[serde(rename = "Type")]
    kind: EventKind,
    time: u64,
    message: &'a str,
    display_message: &'a str,
    details: &'a BTreeMap<String, String>,
    fails_task: bool,
    restart_reason: &'a str,
    setup_error: &'a str,
    driver_error: &'a str,
    exit_code: i64,
    signal: i64,
    kill_timeout: u64,
    kill_error: &'a str,
    kill_reason: &'a str,
    start_delay: i64,
    download_error: &'a str,
    validation_error: &'a str,
    disk_limit: i64,
    failed_sibling: &'a str,
    vault_error: &'a str,
    task_signal_reason: &'a str,
    task_signal: &'a str,
    driver_message: &'a str,
    generic_source: &'a str,
}

impl<'a> From<&'a TaskEvent> for TaskEventJson<'a> {
    fn from(event: &'a TaskEvent) -> Self {
        let TaskEvent { kind, time, message, details, fails_task } = event;
        let text = |key: &str| details.get(key).map_or("", String::as_str);
        let number = |key: &str| text(key).parse().unwrap_or(0);
        let duration = parse_duration(text("kill_timeout")).unwrap_or_default();
        Self {
            kind: *kind,
            time: time.nanos(),
            message: text("message"),
            display_message: message,
            details,
            fails_task: *fails_task,
            restart_reason: text("restart_reason"),
            setup_error: text("setup_error"),
            driver_error: text("driver_error"),
            exit_code: number("exit_code"),
            signal: number("signal"),
            kill_timeout: u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX),
            kill_error: text("kill_error"),
            kill_reason: text("kill_reason"),
            start_delay: number("start_delay"),
            download_error: "",
            validation_error: text("validation_error"),
            disk_limit: number("disk_limit"),
            failed_sibling: text("failed_sibling"),
            vault_error: "",
            task_signal_reason: text("task_signal_reason"),
            task_signal: text("task_signal"),
            driver_message: text("driver_message"),
            generic_source: "",
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;
    use ostler_model::task::ExitResult;
    use ostler_model::time::Timestamp;

    #[test]
    fn every_field_of_a_task_state_is_told() {
        let at = Timestamp::from_nanos;
        let exit = ExitResult {
            exit_code: 3,
            signal: 9,
            oom_killed: true,
            error: Some("trap".to_owned()),
        };
        let event = TaskEvent::new(EventKind::Killing, at(5), "Sent interrupt.")
            .detail("kill_timeout", "1.5s")
            .detail("kill_reason", "asked")
            .detail("exit_code", -1)
            .detail("signal", 15)
            .detail("start_delay", 70)
            .failing();
        let state = TaskState {
            status: TaskStatus::Dead,
            failed: true,
            restarts: 2,
            last_restart: Some(at(1_000_000_000)),
            started_at: Some(at(2_000_000_001)),
            finished_at: None,
            last_exit: Some(exit),
            events: vec![event],
            events_total: 70,
        };
        let mut shown = serde_json::to_value(TaskStateJson::from(&state)).unwrap();
        let event = shown["Events"].as_array_mut().unwrap().remove(0);
        assert_eq!(
            shown,
            json!({
                "State": "dead", "Failed": true, "Restarts": 2,
                "LastRestart": "1970-01-01T00:00:01.000000000Z",
                "StartedAt": "1970-01-01T00:00:02.000000001Z", "FinishedAt": null,
                "Events": [], "EventsTotal": 70,
                "LastExit": {"ExitCode": 3, "Signal": 9, "OOMKilled": true, "Error": "trap"},
            })
        );
        for (key, value) in [
            ("Type", json!("Killing")),
            ("Time", json!(5)),
            ("DisplayMessage", json!("Sent interrupt.")),
            ("FailsTask", json!(true)),
            ("KillTimeout", json!(1_500_000_000_u64)),
            ("KillReason", json!("asked")),
            ("ExitCode", json!(-1)),
            ("Signal", json!(15)),
            ("StartDelay", json!(70)),
        ] {
            assert_eq!(event[key], value, "{key}");
        }
        assert_eq!(event["Details"]["kill_timeout"], "1.5s");
    }
}

//! The state of a task and its events.

use std::collections::BTreeMap;

use ostler_model::cow_arc::CowArc;
use ostler_model::event::TaskEvent;
use ostler_model::ids::TaskName;
use ostler_model::task::TaskState;
use ostler_text::duration::parse_duration;
use ostler_wire::{OlderEventFields, Text, WireTaskState};

/// The states of all tasks of an allocation, by name.
pub(super) fn task_states(
    tasks: &BTreeMap<TaskName, CowArc<TaskState>>,
) -> BTreeMap<Text<'_>, WireTaskState<'_>> {
    tasks.iter().map(|(name, state)| (name.as_str().into(), task_state(state))).collect()
}

fn task_state(state: &TaskState) -> WireTaskState<'_> {
    let mut shown = WireTaskState::from(state);
    for (event, shown) in state.events.iter().zip(&mut shown.events) {
        shown.older = Some(older_fields(event));
    }
    shown
}

fn older_fields(event: &TaskEvent) -> OlderEventFields<'_> {
    let text = |key: &str| event.details.get(key).map_or("", String::as_str);
    let number = |key: &str| text(key).parse().unwrap_or(0);
    let duration = parse_duration(text("kill_timeout")).unwrap_or_default();
    OlderEventFields {
        restart_reason: text("restart_reason").into(),
        setup_error: text("setup_error").into(),
        driver_error: text("driver_error").into(),
        exit_code: number("exit_code"),
        signal: number("signal"),
        kill_timeout: u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX),
        kill_error: text("kill_error").into(),
        kill_reason: text("kill_reason").into(),
        start_delay: number("start_delay"),
        validation_error: text("validation_error").into(),
        disk_limit: number("disk_limit"),
        failed_sibling: text("failed_sibling").into(),
        task_signal_reason: text("task_signal_reason").into(),
        task_signal: text("task_signal").into(),
        driver_message: text("driver_message").into(),
        ..OlderEventFields::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;
    use ostler_model::event::EventKind;
    use ostler_model::task::{ExitResult, TaskStatus};
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
            .with_task_failure();
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
        let mut shown = serde_json::to_value(task_state(&state)).unwrap();
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

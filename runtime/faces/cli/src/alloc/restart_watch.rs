//! Whether a restart that was asked for has happened. Pure.
//!
//! ```text
//!            every task meant counts one more restart and started  ─► Restarted
//! Going ─┬─► the allocation ended before that                     ─► Ended
//!        └─► nothing was meant (none had run)                      ─► Restarted
//! ```
//! A restart is counted when the run before it has ended; the task is pending until the next one runs.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::terminal::one_line;
use ostler_model::event::EventKind;
use ostler_model::task::TaskStatus;
use ostler_model::words::format_seconds;
use ostler_wire::{Alloc, WireTaskState};

/// How far the restart is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestartProgress {
    /// Some tasks have not started again yet.
    Going,
    /// Every task that was to restart has started again.
    Restarted,
    /// The allocation ended meanwhile.
    Ended,
}

/// The tasks that are to restart, each with its number of restarts before that.
#[derive(Debug)]
pub(super) struct RestartWatch(BTreeMap<String, u64>);

impl RestartWatch {
    /// Watch the restart of one task, of the running tasks, or with `all` of every task that had
    /// been started (poststop tasks had not). `before` is the allocation before the restart.
    pub(super) fn from_alloc(before: &Alloc, task: Option<&str>, all: bool) -> Self {
        let meant = before.task_states.iter().filter(|(name, state)| match task {
            Some(task) => *name == task,
            None if all => state.started_at.is_some(),
            None => state.state == TaskStatus::Running,
        });
        Self(meant.map(|(name, state)| (name.to_string(), state.restarts)).collect())
    }

    /// How far the restart is, by the present state of the allocation.
    pub(super) fn progress(&self, now: &Alloc) -> RestartProgress {
        let anew = |(task, before): (&String, &u64)| {
            now.task_states
                .get(task.as_str())
                .is_some_and(|state| state.restarts > *before && state.state != TaskStatus::Pending)
        };
        if self.0.iter().all(anew) {
            RestartProgress::Restarted
        } else if now.is_terminal() {
            RestartProgress::Ended
        } else {
            RestartProgress::Going
        }
    }

    /// What the tasks do that have not started again: that they are stopping and until when, else
    /// the last event of each. `kill_timeout` gives the timeout of a task, where it is known.
    pub(super) fn late_tasks_text<J>(
        &self,
        now: &Alloc<'_, J>,
        kill_timeout: impl Fn(&str) -> Option<Duration>,
    ) -> String {
        let late = now.task_states.iter().filter(|(name, state)| {
            self.0.get(&***name).is_some_and(|before| {
                state.restarts <= *before || state.state == TaskStatus::Pending
            })
        });
        let said = late.map(|(name, state)| {
            if state.state == TaskStatus::Running && is_stopping(state) {
                let of = kill_timeout(name)
                    .map(|time| format!(" of {}", format_seconds(time.as_secs())));
                let of = of.unwrap_or_default();
                return one_line(&format!(
                    "task {name} is still stopping, and is killed when its kill_timeout{of} is over"
                ));
            }
            let last = state.events.last().map_or("", |event| event.display_message.trim());
            let last = if last.is_empty() { String::new() } else { format!(": {last}") };
            let is = match state.state {
                TaskStatus::Pending => "pending",
                TaskStatus::Running => "not restarted",
                TaskStatus::Dead => "dead",
            };
            one_line(&format!("task {name} is {is}{last}"))
        });
        said.collect::<Vec<_>>().join("; ")
    }
}

/// Is the last event of the task that it was told to end?
fn is_stopping(state: &WireTaskState) -> bool {
    let asks = [EventKind::RestartSignaled, EventKind::Killing].map(|kind| kind.as_str());
    state.events.last().is_some_and(|event| asks.contains(&&*event.kind))
}

/// The `kill_timeout` of a task, from the job of its allocation.
pub(super) fn kill_timeout(alloc: &Alloc<'_, Value>, task: &str) -> Option<Duration> {
    let group = find_named(alloc.job.as_ref()?, "TaskGroups", &alloc.task_group)?;
    let task = find_named(group, "Tasks", task)?;
    Some(Duration::from_nanos(task.get("KillTimeout")?.as_u64()?))
}

/// The item with this name in the array `list` of a JSON object.
fn find_named<'a>(of: &'a Value, list: &str, name: &str) -> Option<&'a Value> {
    let mut all = of.get(list)?.as_array()?.iter();
    all.find(|one| one.get("Name").is_some_and(|own| own == name))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    /// Tasks by name, state and restarts; those that are pending at 0 never started.
    fn alloc(status: &str, tasks: &[(&str, &str, u64)]) -> Alloc<'static> {
        let states = tasks.iter().map(|(name, state, restarts)| {
            let started = (*state != "pending" || *restarts > 0).then_some("2026-01-02T03:04:05Z");
            let state = json!({"State": state, "Restarts": restarts, "StartedAt": started});
            ((*name).to_owned(), state)
        });
        let states: serde_json::Map<String, Value> = states.collect();
        let alloc = json!({
            "ID": "0f01c0de-0000-4000-8000-000000000000", "DesiredStatus": "run",
            "ClientStatus": status, "TaskStates": states,
        });
        serde_json::from_value(alloc).unwrap()
    }

    #[test]
    fn it_is_restarted_when_every_running_task_started_anew() {
        let tasks = |a, b| {
            let tasks = [("a", "running", a), ("b", "running", b), ("c", "dead", 0)];
            alloc("running", &tasks)
        };
        let asked = RestartWatch::from_alloc(&tasks(0, 1), None, false);
        assert_eq!(
            asked.progress(&tasks(0, 1)),
            RestartProgress::Going,
            "accepted is not restarted"
        );
        assert_eq!(asked.progress(&tasks(1, 1)), RestartProgress::Going);
        assert_eq!(asked.progress(&tasks(1, 2)), RestartProgress::Restarted);
    }

    #[test]
    fn a_task_that_waits_for_its_start_or_never_starts_is_not_restarted() {
        let asked =
            RestartWatch::from_alloc(&alloc("running", &[("a", "running", 0)]), Some("a"), false);
        assert_eq!(
            asked.progress(&alloc("pending", &[("a", "pending", 1)])),
            RestartProgress::Going
        );
        assert_eq!(asked.progress(&alloc("failed", &[("a", "dead", 0)])), RestartProgress::Ended);
        assert_eq!(
            asked.progress(&alloc("complete", &[("a", "dead", 1)])),
            RestartProgress::Restarted
        );
    }

    #[test]
    fn of_those_that_are_late_the_last_that_happened_is_told() {
        let running = alloc("running", &[("a", "running", 0), ("b", "running", 0)]);
        let asked = RestartWatch::from_alloc(&running, None, false);
        let now = alloc("running", &[("a", "running", 1), ("b", "pending", 1)]);
        assert_eq!(asked.late_tasks_text(&now, |_| None), "task b is pending");
    }

    #[test]
    fn of_one_that_still_ends_it_is_said_when_that_is_over_at_the_latest() {
        let asked =
            RestartWatch::from_alloc(&alloc("running", &[("a", "running", 0)]), None, false);
        let told = |kind: &str, timeout: u64| {
            let tasks = json!([{"Name": "b"}, {"Name": "a", "KillTimeout": timeout}]);
            let now: Alloc<Value> = serde_json::from_value(json!({
                "ID": "0f01c0de-0000-4000-8000-000000000000", "TaskGroup": "g",
                "Job": {"TaskGroups": [{"Name": "f", "Tasks": []}, {"Name": "g", "Tasks": tasks}]},
                "TaskStates": {"a": {
                    "State": "running",
                    "Events": [{"Type": kind, "DisplayMessage": "User requested restart"}],
                }},
            }))
            .unwrap();
            asked.late_tasks_text(&now, |task| kill_timeout(&now, task))
        };
        let stopping =
            "task a is still stopping, and is killed when its kill_timeout of 5m00s is over";
        assert_eq!(told("Restart Signaled", 300_000_000_000), stopping);
        assert_eq!(told("Killing", 300_000_000_000), stopping);
        assert_eq!(told("Started", 0), "task a is not restarted: User requested restart");
    }

    #[test]
    fn of_all_those_count_that_had_been_started() {
        let tasks = |pre, web| {
            let tasks = [("pre", "dead", pre), ("web", "running", web), ("post", "pending", 0)];
            alloc("running", &tasks)
        };
        let asked = RestartWatch::from_alloc(&tasks(0, 0), None, true);
        assert_eq!(asked.progress(&tasks(1, 0)), RestartProgress::Going);
        assert_eq!(asked.progress(&tasks(1, 1)), RestartProgress::Restarted);
    }
}

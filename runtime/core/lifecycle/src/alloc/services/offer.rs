//! Since when a service is up. Pure.
//!
//! ```text
//! service of a task                 while it runs and is not being ended
//! of the group, naming a task       as if it were that task's
//! of the group                      while a main task runs and is not being ended
//! ```

use crate::alloc::health::newest_start;
use ostler_model::alloc::AllocState;
use ostler_model::event::EventKind;
use ostler_model::job::{Service, TaskGroup};
use ostler_model::task::{TaskState, TaskStatus};
use ostler_model::time::Timestamp;

/// Since when others can use a service; `None` while they cannot.
#[must_use]
pub fn offered_since(
    service: &Service,
    group: &TaskGroup,
    state: &AllocState,
) -> Option<Timestamp> {
    let of = |task| state.tasks.get(task).and_then(|state| serving_since(state));
    match service.task.as_ref().or(service.runs_in.as_ref()) {
        Some(task) => of(task),
        None => {
            let mains = group.tasks.iter().filter(|task| task.lifecycle.is_none());
            mains.filter_map(|task| of(&task.name)).max()
        }
    }
}

/// The start of the present run of a task, unless the run is being ended.
fn serving_since(state: &TaskState) -> Option<Timestamp> {
    let serves = state.status == TaskStatus::Running && !is_being_ended(state);
    serves.then(|| newest_start(state)).flatten()
}

/// Was the present run told to end, for good or to start again?
fn is_being_ended(state: &TaskState) -> bool {
    let last = state.events.iter().rev().find_map(|event| match event.kind {
        EventKind::Started => Some(false),
        EventKind::Killing | EventKind::RestartSignaled => Some(true),
        _ => None,
    });
    last.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::collections::BTreeMap;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::task::events::{self, Signals};
    use ostler_model::cow_arc::CowArc;
    use ostler_model::event::TaskEvent;
    use ostler_model::ids::TaskName;

    fn at(second: u64) -> Timestamp {
        Timestamp::from_nanos(second * 1_000_000_000)
    }

    fn task(status: TaskStatus, events: Vec<TaskEvent>) -> TaskState {
        let mut state = TaskState { status, started_at: Some(at(1)), ..TaskState::default() };
        events.into_iter().for_each(|event| state.push_event(event));
        state
    }

    fn state(tasks: &[(&str, TaskState)]) -> AllocState {
        let held = |(name, state): &(&str, TaskState)| {
            (TaskName::new(*name).unwrap(), CowArc::from(state.clone()))
        };
        let tasks: BTreeMap<_, _> = tasks.iter().map(held).collect();
        AllocState { tasks: Arc::new(tasks), ..AllocState::default() }
    }

    fn group() -> TaskGroup {
        let text = r#"job "j" {
          group "g" {
            service { name = "whole" }
            service {
              name = "named"
              task = "side"
            }
            task "main" {
              driver = "mock"
              service {}
            }
            task "side" {
              driver = "mock"
              lifecycle {
                hook = "prestart"
                sidecar = true
              }
            }
          }
        }"#;
        ostler_jobspec::parse(text.as_bytes(), Path::new("-"), None).unwrap().groups.remove(0)
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn offered(state: &AllocState) -> Vec<Option<u64>> {
        let group = group();
        let second = |at: Timestamp| at.since(Timestamp::default()).as_secs();
        group.services.iter().map(|of| offered_since(of, &group, state).map(second)).collect()
    }

    #[test]
    fn a_service_is_there_while_its_task_runs_and_is_to_run_on() {
        let started = events::started_event(at(2));
        let running = task(TaskStatus::Running, vec![started.clone()]);
        let side = |state: &TaskState| state.clone();
        let both = state(&[("main", running.clone()), ("side", side(&running))]);
        assert_eq!(offered(&both), [Some(2), Some(2), Some(2)], "whole, named, main's");

        let killing = events::killing_event(at(3), "enough", SECOND, Signals::Sent);
        let killed = task(TaskStatus::Running, vec![started.clone(), killing]);
        let one = state(&[("main", killed), ("side", side(&running))]);
        assert_eq!(offered(&one), [None, Some(2), None]);

        let asked = events::restart_signaled_event(at(3), "wanted", SECOND, Signals::Sent);
        let ending = task(TaskStatus::Running, vec![started.clone(), asked.clone()]);
        assert_eq!(offered(&state(&[("main", ending)])), [None, None, None]);

        let again = vec![started, asked, events::started_event(at(5))];
        let again = task(TaskStatus::Running, again);
        assert_eq!(offered(&state(&[("main", again)])), [Some(5), None, Some(5)]);
    }

    #[test]
    fn nothing_is_there_before_and_after() {
        let started = vec![events::started_event(at(2))];
        let pending = state(&[("main", TaskState::default())]);
        let dead = state(&[("main", task(TaskStatus::Dead, started.clone()))]);
        assert_eq!(offered(&pending), [None, None, None]);
        assert_eq!(offered(&dead), [None, None, None]);
        let sidecar_alone = state(&[("side", task(TaskStatus::Running, started))]);
        assert_eq!(offered(&sidecar_alone), [None, Some(2), None]);
    }
}

//! Finds the new events of an allocation and its tasks since the last look. Pure.

use super::noting::NotedState;
use crate::events::{EventNote, EventTopic};
use ostler_model::alloc::{AllocState, Allocation, ClientStatus, DesiredStatus};
use ostler_model::event::{EventKind, TaskEvent};
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::task::TaskState;
use ostler_model::time::Timestamp;

/// Events of tasks that say no more than that the allocation was placed.
const OF_ROUTINE: [EventKind; 2] = [EventKind::Received, EventKind::TaskSetup];
/// Events that say that something is wrong, whether the task fails or not.
const TROUBLE: [EventKind; 9] = [
    EventKind::ArtifactDownloadFailed,
    EventKind::FailedValidation,
    EventKind::SetupFailure,
    EventKind::HookFailed,
    EventKind::DriverFailure,
    EventKind::NotRestarting,
    EventKind::FailedRestoring,
    EventKind::AllocUnhealthy,
    EventKind::DiskExceeded,
];

/// The last noted state of an allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NotedAlloc {
    status: ClientStatus,
    desired: DesiredStatus,
    healthy: Option<bool>,
    /// The number of events that each task had, in the order of task names.
    events: Box<[u64]>,
}

impl NotedState {
    /// The new events of an allocation.
    pub fn alloc(
        &mut self,
        allocation: &Allocation,
        state: &AllocState,
        now: Timestamp,
        noted: &mut Vec<(Timestamp, EventNote)>,
    ) {
        let floor = self.floor;
        let is = NotedAlloc {
            status: state.client_status,
            desired: allocation.desired,
            healthy: state.health.as_ref().and_then(|health| health.healthy),
            events: state.tasks.values().map(|task| task.events_total).collect(),
        };
        let before = self.allocs.insert(allocation.id, is.clone());
        if before.as_ref() == Some(&is) {
            return;
        }
        let first = before.is_none();
        let before = before.unwrap_or_default();
        if first && allocation.created_at > floor {
            let message =
                format!("{}, of version {} of its job", allocation.name, allocation.job_version);
            noted.push((allocation.created_at, alloc_event(allocation, "placed", message)));
        }
        for (at, (name, task)) in state.tasks.iter().enumerate() {
            let known = before.events.get(at).copied().unwrap_or(0);
            collect_task_events(
                allocation,
                name,
                task,
                known,
                noted,
                if first { floor } else { Timestamp::default() },
            );
        }
        // Of an allocation that an earlier agent knew, only the events of its tasks are known to be
        // new.
        if first && allocation.created_at <= floor {
            return;
        }
        if is.status != before.status {
            let trouble = is.status == ClientStatus::Failed;
            let what =
                alloc_event(allocation, &is.status.to_string(), state.client_description.clone());
            noted.push((now, EventNote { trouble, ..what }));
        }
        if is.desired != before.desired && is.desired == DesiredStatus::Stop {
            noted.push((
                now,
                alloc_event(allocation, "stop", allocation.desired_description.clone()),
            ));
        }
        if is.healthy == Some(true) && before.healthy != is.healthy {
            noted.push((
                now,
                alloc_event(allocation, "healthy", "it was judged healthy".to_owned()),
            ));
        }
    }

    /// Forget an allocation that is gone.
    pub fn alloc_gone(&mut self, id: AllocId) {
        self.allocs.remove(&id);
    }
}

fn alloc_event(allocation: &Allocation, kind: &str, message: String) -> EventNote {
    EventNote {
        topic: EventTopic::Allocation,
        kind: kind.to_owned(),
        namespace: allocation.job.namespace().to_owned(),
        job: allocation.job.id.as_str().to_owned(),
        alloc: allocation.id.to_string(),
        message,
        ..EventNote::default()
    }
}

/// Collect the events of a task beyond the first `known` ones and after `floor`.
fn collect_task_events(
    allocation: &Allocation,
    name: &TaskName,
    task: &TaskState,
    known: u64,
    noted: &mut Vec<(Timestamp, EventNote)>,
    floor: Timestamp,
) {
    let new = usize::try_from(task.events_total.saturating_sub(known)).unwrap_or(usize::MAX);
    let from = task.events.len().saturating_sub(new);
    for (at, event) in task.events.iter().enumerate().skip(from) {
        if event.time <= floor || OF_ROUTINE.contains(&event.kind) {
            continue;
        }
        let what = EventNote {
            topic: EventTopic::Task,
            task: name.to_string(),
            trouble: is_trouble(event, task.events.get(..at).unwrap_or_default()),
            ..alloc_event(allocation, event.kind.as_str(), event.message.clone())
        };
        noted.push((event.time, what));
    }
}

/// Whether an event is trouble. An unsuccessful end that nobody asked for is trouble too.
fn is_trouble(event: &TaskEvent, before: &[TaskEvent]) -> bool {
    if event.kind != EventKind::Terminated {
        return event.fails_task || TROUBLE.contains(&event.kind);
    }
    let orders = [EventKind::Killing, EventKind::RestartSignaled];
    let mut run = before.iter().rev().take_while(|event| event.kind != EventKind::Started);
    let asked = run.any(|event| orders.contains(&event.kind));
    !asked && event.details.get("exit_code").is_some_and(|code| code != "0")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use ostler_model::cow_arc::CowArc;
    use ostler_model::rng::Rng;
    use ostler_testing::fixtures;

    fn at(nanos: u64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    fn placed() -> Allocation {
        let alloc = fixtures::allocation_of("web", 0, &Rng::from_seed(1)).unwrap();
        Allocation { created_at: at(10), ..alloc }
    }

    fn state(status: ClientStatus, events: &[(EventKind, u64)]) -> AllocState {
        let mut task = TaskState::default();
        for (kind, time) in events {
            task.push_event(TaskEvent::new(*kind, at(*time), "said"));
        }
        let tasks = BTreeMap::from([(TaskName::new("t").unwrap(), CowArc::from(task))]);
        AllocState { client_status: status, tasks: Arc::new(tasks), ..AllocState::default() }
    }

    fn kinds(seen: &mut NotedState, alloc: &Allocation, state: &AllocState) -> Vec<String> {
        let mut noted = Vec::new();
        seen.alloc(alloc, state, at(99), &mut noted);
        noted.into_iter().map(|(_, what)| what.kind).collect()
    }

    #[test]
    fn each_event_of_a_task_is_noted_once() {
        let (mut seen, alloc) = (NotedState::new(at(0), at(0)), placed());
        let begin = [(EventKind::Received, 11), (EventKind::Started, 12)];
        let running = state(ClientStatus::Running, &begin);
        assert_eq!(kinds(&mut seen, &alloc, &running), ["placed", "Started", "running"]);
        assert!(kinds(&mut seen, &alloc, &running).is_empty());
        let ended = [&begin[..], &[(EventKind::Terminated, 13)]].concat();
        let ended = state(ClientStatus::Failed, &ended);
        assert_eq!(kinds(&mut seen, &alloc, &ended), ["Terminated", "failed"]);
    }

    #[test]
    fn what_an_earlier_agent_noted_is_not_noted_again() {
        let (mut seen, alloc) = (NotedState::new(at(12), at(12)), placed());
        let events = [(EventKind::Started, 12), (EventKind::Recovered, 20)];
        assert_eq!(kinds(&mut seen, &alloc, &state(ClientStatus::Running, &events)), ["Recovered"]);
    }

    #[test]
    fn an_end_that_nobody_asked_for_is_trouble() {
        let event = |kind, code: &str| TaskEvent::new(kind, at(1), "").detail("exit_code", code);
        let run = [event(EventKind::Started, "")];
        let stopped = [event(EventKind::Started, ""), event(EventKind::Killing, "")];
        assert!(is_trouble(&event(EventKind::Terminated, "3"), &run));
        assert!(!is_trouble(&event(EventKind::Terminated, "0"), &run));
        assert!(!is_trouble(&event(EventKind::Terminated, "143"), &stopped));
    }
}

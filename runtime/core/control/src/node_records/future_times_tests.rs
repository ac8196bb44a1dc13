//! The clock was set back between two agents.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use ostler_model::alloc::AllocDeployment;
use ostler_model::event::{EventKind, TaskEvent};
use ostler_model::ids::{GroupName, TaskName};
use ostler_model::rng::Rng;
use ostler_model::rollout::{DeployedGroup, DeploymentPhase, RescheduleEvent};
use ostler_model::saved::DeploymentStatus;
use ostler_model::scheduling::{NodeDrain, NodeEvent, NodeEventKind};
use ostler_state::StateStore;
use ostler_state::records::{
    AllocKey, DeploymentStatusKey, JobDeploymentsKey, JobRecordKey, NodeSchedulingKey, TaskStateKey,
};
use ostler_testing::fixtures;

const HOUR: Duration = Duration::from_secs(3_600);
const MINUTE: Duration = Duration::from_secs(60);
/// What the clock said when the records were written, and what it says now.
const BEFORE: Timestamp = Timestamp::from_nanos(7_200_000_000_000);
const NOW: Timestamp = Timestamp::from_nanos(3_600_000_000_000);

fn deployment(alloc: &Allocation) -> Deployment {
    let group = DeployedGroup {
        progress_deadline: MINUTE,
        require_progress_by: Some(BEFORE.plus(MINUTE)),
        ..DeployedGroup::default()
    };
    Deployment {
        id: "d".into(),
        version: 0,
        job_create_index: 1,
        job_modify_index: 1,
        phase: DeploymentPhase::Running,
        description: String::new(),
        groups: BTreeMap::from([(GroupName::new("group").unwrap(), group)]),
        create_index: alloc.create_index,
        modify_index: alloc.create_index,
    }
}

async fn recorded(now: Timestamp) -> NodeRecords {
    let state = StateStore::in_memory().unwrap();
    let alloc = fixtures::allocation_of("web", 5, &Rng::from_seed(1)).unwrap();
    let event = RescheduleEvent { time: BEFORE, previous: alloc.id, delay: MINUTE };
    let of = AllocDeployment { id: "d".into(), since: BEFORE, canary: false };
    let deployment = JobDeployments { create_index: 1, all: vec![Arc::new(deployment(&alloc))] };
    let (deployed, reschedules) = (Some(of), vec![event]);
    let alloc = Allocation { created_at: BEFORE, deployment: deployed, reschedules, ..alloc };
    let mut task = TaskState {
        last_restart: Some(BEFORE),
        started_at: Some(BEFORE),
        finished_at: Some(BEFORE),
        ..TaskState::default()
    };
    task.push_event(TaskEvent::new(EventKind::Started, BEFORE, ""));
    let verdict = DeploymentStatus { changed_at: Some(BEFORE), ..DeploymentStatus::default() };
    let drain = NodeDrain {
        deadline: DrainDeadline::After { length: MINUTE, at: BEFORE.plus(MINUTE) },
        ignore_system: false,
        started_at: BEFORE,
    };
    let event = NodeEvent { at: BEFORE, index: 1, kind: NodeEventKind::DrainSet };
    let (drain, events) = (Some(drain), vec![event]);
    let node = NodeScheduling { drain, events, ..NodeScheduling::default() };
    let (id, name) = (alloc.id, TaskName::new("t").unwrap());
    state
        .put(&JobRecordKey::of(alloc.job.id.clone()), &fixtures::job_record(&alloc))
        .await
        .unwrap();
    state.put(&JobDeploymentsKey::of(alloc.job.id.clone()), &deployment).await.unwrap();
    state.put(&AllocKey::of(id), &alloc).await.unwrap();
    state.put(&DeploymentStatusKey::of(id), &verdict).await.unwrap();
    state.put(&TaskStateKey::of(id, name), &task).await.unwrap();
    state.put(&NodeSchedulingKey::of(), &node).await.unwrap();
    NodeRecords::read(&state, now).unwrap()
}

/// Every time that is on record, and every deadline with the length that it was asked with.
fn times(found: &NodeRecords) -> (Vec<Timestamp>, Vec<(Timestamp, Duration)>) {
    let records = found.allocs.values().next().unwrap();
    let alloc = records.allocation.as_ref().unwrap();
    let mut past = vec![alloc.created_at, alloc.deployment.as_ref().unwrap().since];
    past.extend(alloc.reschedules.iter().map(|event| event.time));
    past.extend(records.restored.health.as_ref().unwrap().changed_at);
    let task = records.restored.tasks.values().next().unwrap().state.as_ref().unwrap();
    past.extend([task.last_restart, task.started_at, task.finished_at].into_iter().flatten());
    past.extend(task.events.iter().map(|event| event.time));
    past.extend(found.scheduling.events.iter().map(|event| event.at));
    let drain = found.scheduling.drain.unwrap();
    past.push(drain.started_at);
    let groups = found.deployments.iter().flat_map(|(_, known)| &known.all);
    let groups = groups.flat_map(|one| one.groups.values());
    let mut deadlines: Vec<(Timestamp, Duration)> =
        groups.map(|group| (group.require_progress_by.unwrap(), group.progress_deadline)).collect();
    if let DrainDeadline::After { length, at } = drain.deadline {
        deadlines.push((at, length));
    }
    (past, deadlines)
}

#[tokio::test]
async fn what_is_recorded_as_later_than_now_is_taken_as_now_and_no_wait_is_longer_than_it_was() {
    let (past, deadlines) = times(&recorded(NOW).await);
    assert_eq!((past.len(), deadlines.len()), (10, 2));
    assert!(past.iter().all(|at| *at == NOW), "{past:?}");
    for (at, length) in deadlines {
        assert_eq!(at, NOW.plus(length));
    }
}

#[tokio::test]
async fn what_is_recorded_as_earlier_stays_as_it_is() {
    let (past, deadlines) = times(&recorded(BEFORE.plus(HOUR)).await);
    assert!(past.iter().all(|at| *at == BEFORE), "{past:?}");
    assert!(deadlines.iter().all(|(at, length)| *at == BEFORE.plus(*length)), "{deadlines:?}");
}

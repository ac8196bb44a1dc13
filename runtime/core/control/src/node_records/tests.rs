//! What is found in a state file, and what becomes of it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use super::*;
use ostler_lifecycle::task::handle::RunRecord;
use ostler_lifecycle::task::restart::RestartTracker;
use ostler_model::ids::{RunId, TaskName};
use ostler_model::ports::{ProcessIdentity, RunNote, SupervisorIdentity};
use ostler_model::rng::Rng;
use ostler_model::task::TaskState;
use ostler_state::records::{
    AcknowledgedStateKey, AllocKey, DeviceLedgerKey, JobRecordKey, TaskLocalKey, TaskStateKey,
};
use ostler_state::testing::AnyKey;
use ostler_testing::fixtures::{self, Garbage};

/// Nothing on record is later.
const END_OF_TIME: Timestamp = Timestamp::from_nanos(u64::MAX);

fn has_ended(restored: &RestoredAlloc) -> bool {
    restored.saved.as_ref().is_some_and(|saved| saved.finished)
}

fn allocation(seed: u64, job: &str, index: u64) -> Allocation {
    fixtures::allocation_of(job, index, &Rng::from_seed(seed)).unwrap()
}

/// A run of the task on record, of another boot, so that nothing of this machine is touched.
async fn put_run(state: &StateStore, alloc: &Allocation, supervised: bool) {
    let supervisor = supervised.then_some(SupervisorIdentity { pid: 2, start_ticks: 1 });
    let boot_id = "another boot".to_owned();
    let identity = ProcessIdentity { pid: 1, start_ticks: 1, boot_id, cgroup: None, supervisor };
    let task = TaskName::new("t").unwrap();
    let id = RunId::new(alloc.id, &task, 7);
    let run = Some(RunRecord { id, identities: vec![identity], started: None });
    let tracker = RestartTracker::new(Timestamp::default());
    let local = LocalState { run, tracker, run_complete: false, delayed_until: None };
    state.put(&TaskLocalKey::of(alloc.id, task), &local).await.unwrap();
}

async fn put(state: &StateStore, alloc: &Allocation) {
    state.put(&AllocKey::of(alloc.id), alloc).await.unwrap();
    let key = TaskStateKey::of(alloc.id, TaskName::new("t").unwrap());
    state.put(&key, &TaskState::default()).await.unwrap();
}

#[tokio::test]
async fn bad_records_are_put_aside_and_halves_removed_and_nothing_else_is_touched() {
    let state = StateStore::in_memory().unwrap();
    let good = allocation(1, "kept", 5);
    put(&state, &good).await;
    state.put(&AnyKey(RecordKey::Job(good.job.id.clone())), &Garbage).await.unwrap();
    let half = allocation(2, "half", 5);
    let task = TaskName::new("t").unwrap();
    state.put(&TaskStateKey::of(half.id, task.clone()), &TaskState::default()).await.unwrap();
    state.put(&AnyKey(RecordKey::TaskLocal(good.id, task)), &Garbage).await.unwrap();
    let mut found = NodeRecords::read(&state, END_OF_TIME).unwrap();
    assert_eq!(found.take_notices().len(), 3);
    assert_eq!(found.kept_ids(), BTreeSet::from([good.id]), "its job is known from it");
    found.tidy(&state, &BTreeSet::new()).await.unwrap();
    assert!(state.get::<JobRecord>(&JobRecordKey::of(good.job.id.clone())).unwrap().is_none());
    assert!(state.scan(&KeyPrefix::Alloc(half.id)).unwrap().is_empty());
    let allocs = found.kept_allocs();
    let [(alloc, restored)] = &allocs[..] else { panic!("one allocation") };
    assert_eq!((alloc.id, has_ended(restored)), (good.id, false));
    assert!(restored.trouble.as_ref().is_some_and(|text| text.contains("task t")));
}

#[tokio::test]
async fn allocations_of_one_version_of_a_job_share_it() {
    let state = StateStore::in_memory().unwrap();
    let one = Allocation { desired: DesiredStatus::Stop, ..allocation(1, "web", 5) };
    let like = |seed| Allocation { id: allocation(seed, "web", 5).id, ..one.clone() };
    let mut changed = (*one.job).clone();
    changed.groups[0].count += 1;
    let other = Allocation { job: Arc::new(changed), ..like(3) };
    for alloc in [&one, &like(2), &other] {
        put(&state, alloc).await;
    }
    let allocs = NodeRecords::read(&state, END_OF_TIME).unwrap().kept_allocs();
    let job = |id: AllocId| Arc::clone(&allocs.iter().find(|(a, _)| a.id == id).unwrap().0.job);
    assert!(Arc::ptr_eq(&job(one.id), &job(like(2).id)));
    assert_eq!((&job(one.id), &job(other.id)), (&one.job, &other.job), "each has its own");
}

#[tokio::test]
async fn a_job_whose_record_is_gone_is_known_from_what_an_agent_with_jobs_ran_of_it() {
    let state = StateStore::in_memory().unwrap();
    let (served, embedded) = (allocation(1, "served", 5), allocation(2, "embedded", 6));
    for (alloc, supervised) in [(&served, true), (&embedded, false)] {
        put(&state, alloc).await;
        put_run(&state, alloc, supervised).await;
    }
    let mut found = NodeRecords::read(&state, END_OF_TIME).unwrap();
    assert_eq!(found.kept_ids(), BTreeSet::from([served.id]));
    let said = found.take_notices();
    assert!(said.len() == 1 && said[0].contains("job served is known from"), "{said:?}");
}

#[tokio::test]
async fn what_a_server_placed_is_kept_and_makes_no_job() {
    use ostler_model::saved::AcknowledgedState;
    let state = StateStore::in_memory().unwrap();
    let (runs, garbled) = (allocation(1, "one", 5), allocation(2, "two", 6));
    for alloc in [&runs, &garbled] {
        put(&state, alloc).await;
        put_run(&state, alloc, true).await;
    }
    state.put(&AcknowledgedStateKey::of(runs.id), &AcknowledgedState::default()).await.unwrap();
    state.put(&AnyKey(RecordKey::AcknowledgedState(garbled.id)), &Garbage).await.unwrap();
    let found = NodeRecords::read(&state, END_OF_TIME).unwrap();
    let both = BTreeSet::from([runs.id, garbled.id]);
    assert_eq!(found.kept_ids(), both, "also one whose mark does not decode");
    let (restored, owners) = found.into_restored(true);
    assert_eq!((restored.assigned, restored.jobs.len(), owners.len()), (both, 0, 2));
}

#[tokio::test]
async fn every_run_on_record_is_known_with_a_process_or_without() {
    let state = StateStore::in_memory().unwrap();
    let process = ProcessIdentity {
        pid: 1,
        start_ticks: 1,
        boot_id: String::new(),
        cgroup: None,
        supervisor: None,
    };
    let mut ids = Vec::new();
    for (seed, identities) in [(1, vec![process]), (2, Vec::new())] {
        let alloc = allocation(seed, "kept", 5);
        put(&state, &alloc).await;
        let task = TaskName::new("t").unwrap();
        let id = RunId::new(alloc.id, &task, 7);
        let run = Some(RunRecord { id: id.clone(), identities, started: None });
        let tracker = RestartTracker::new(Timestamp::default());
        let local = LocalState { run, tracker, run_complete: false, delayed_until: None };
        state.put(&TaskLocalKey::of(alloc.id, task), &local).await.unwrap();
        ids.push(id);
    }
    let mut runs = NodeRecords::read(&state, END_OF_TIME).unwrap().runs();
    runs.sort();
    ids.sort();
    assert_eq!(runs, ids);
}

#[tokio::test]
async fn the_ledger_is_what_is_on_disk_and_unknown_where_it_is_not_readable() {
    let state = StateStore::in_memory().unwrap();
    assert_eq!(NodeRecords::read(&state, END_OF_TIME).unwrap().ledger, None, "never written");
    state.put(&DeviceLedgerKey::of(), &DeviceLedger::default()).await.unwrap();
    assert_eq!(
        NodeRecords::read(&state, END_OF_TIME).unwrap().ledger,
        Some(DeviceLedger::default())
    );
    state.put(&AnyKey(RecordKey::DeviceLedger), &Garbage).await.unwrap();
    assert_eq!(NodeRecords::read(&state, END_OF_TIME).unwrap().ledger, None);
}

#[tokio::test]
async fn a_run_of_which_only_the_intent_is_on_record_is_known_by_its_note() {
    use ostler_lifecycle::task::handle::StartedRecord;
    use ostler_model::task::{DriverHandle, Workload};
    let state = StateStore::in_memory().unwrap();
    let (alloc, task) = (allocation(1, "j", 5), TaskName::new("t").unwrap());
    put(&state, &alloc).await;
    let id = RunId::new(alloc.id, &task, 1);
    let intent = RunRecord { id: id.clone(), identities: Vec::new(), started: None };
    let local = LocalState {
        run: Some(intent.clone()),
        tracker: RestartTracker::new(Timestamp::default()),
        run_complete: false,
        delayed_until: Some(Timestamp::from_nanos(4)),
    };
    state.put(&TaskLocalKey::of(alloc.id, task.clone()), &local).await.unwrap();
    let handle = DriverHandle { plugin: "p".to_owned(), version: 1, data: vec![1] };
    let started =
        StartedRecord { handle, workload: Workload::WasmTask("w".to_owned()), network: None };
    let known = RunRecord { started: Some(started), ..intent.clone() };
    let other = RunRecord { id: RunId::new(alloc.id, &task, 2), ..known.clone() };
    for (noted, completed) in [
        (Some(serde_json::to_value(&known).unwrap()), true),
        // Of another run, of one that has no handle either, and none that can be read.
        (Some(serde_json::to_value(&other).unwrap()), false),
        (Some(serde_json::to_value(&intent).unwrap()), false),
        (Some(serde_json::Value::Null), false),
        (None, false),
    ] {
        let mut found = NodeRecords::read(&state, END_OF_TIME).unwrap();
        found.complete_runs(|run| {
            assert_eq!(*run, id);
            Some(RunNote {
                alloc: alloc.id,
                task: task.clone(),
                job: alloc.job.id.clone(),
                group: alloc.group.clone(),
                index: 0,
                record: noted.clone()?,
            })
        });
        let local = found.allocs[&alloc.id].restored.tasks[&task].local.clone().unwrap();
        let expected = if completed { &known } else { &intent };
        assert_eq!(local.run.as_ref(), Some(expected), "{noted:?}");
        assert_eq!(local.delayed_until.is_none(), completed, "a plan for an earlier run");
    }
    // Without a note, an exit says that it ran.
    let mut found = NodeRecords::read(&state, END_OF_TIME).unwrap();
    assert_eq!(found.intents(), std::slice::from_ref(&id));
    let identity = ProcessIdentity {
        pid: 7,
        start_ticks: 9,
        boot_id: String::new(),
        cgroup: None,
        supervisor: None,
    };
    found.complete_ended(&[(id, identity.clone())].into());
    let local = found.allocs[&alloc.id].restored.tasks[&task].local.clone().unwrap();
    let run = local.run.unwrap();
    assert_eq!((run.identities, local.delayed_until), (vec![identity], None));
    assert_eq!(run.started.unwrap().workload, Workload::Process("7-9".to_owned()));
    assert!(found.intents().is_empty());
}

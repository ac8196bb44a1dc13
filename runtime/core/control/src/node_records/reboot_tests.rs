//! What a restart of the machine makes of allocations on record.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use super::*;
use ostler_lifecycle::task::handle::LocalState;
use ostler_lifecycle::task::handle::RunRecord;
use ostler_lifecycle::task::restart::RestartTracker;
use ostler_model::ids::RunId;
use ostler_model::job::JobKind;
use ostler_model::rng::Rng;
use ostler_model::task::TaskState;
use ostler_state::RecordKey;
use ostler_state::records::{AllocKey, JobRecordKey, NodeBootKey, TaskLocalKey, TaskStateKey};
use ostler_state::testing::AnyKey;
use ostler_testing::fixtures;

const NOW: Timestamp = Timestamp::from_nanos(9);

/// Nothing on record is later.
const END_OF_TIME: Timestamp = Timestamp::from_nanos(u64::MAX);

fn name(of: &str) -> TaskName {
    TaskName::new(of).unwrap()
}

fn state(status: TaskStatus, failed: bool) -> TaskState {
    let finished_at = (status == TaskStatus::Dead).then_some(Timestamp::from_nanos(5));
    TaskState { status, failed, finished_at, ..TaskState::default() }
}

/// A service whose tasks are in these states; `pre`, `bad`, `post` and `side` have a lifecycle.
async fn recorded(main: TaskStatus, desired: DesiredStatus) -> (StateStore, Allocation) {
    let task = |name| fixtures::task(name).unwrap();
    let tasks = vec![
        fixtures::lifecycle(task("pre"), LifecycleHook::Prestart, false),
        fixtures::lifecycle(task("bad"), LifecycleHook::Prestart, false),
        fixtures::lifecycle(task("side"), LifecycleHook::Prestart, true),
        fixtures::lifecycle(task("post"), LifecycleHook::Poststart, false),
        task("main"),
    ];
    let alloc = fixtures::allocation(JobKind::Service, tasks, &Rng::from_seed(1)).unwrap();
    let alloc = Allocation { desired, ..alloc };
    let store = StateStore::in_memory().unwrap();
    let job = fixtures::job_record(&alloc);
    store.put(&JobRecordKey::of(alloc.job.id.clone()), &job).await.unwrap();
    store.put(&AllocKey::of(alloc.id), &alloc).await.unwrap();
    let states = [
        ("pre", state(TaskStatus::Dead, false)),
        ("bad", state(TaskStatus::Dead, true)),
        ("side", state(TaskStatus::Dead, false)),
        ("post", state(TaskStatus::Dead, false)),
        ("main", state(main, false)),
    ];
    for (of, state) in states {
        let run_complete = state.status == TaskStatus::Dead;
        let tracker = RestartTracker::new(Timestamp::default());
        let local = LocalState { run: None, tracker, run_complete, delayed_until: None };
        store.put(&TaskStateKey::of(alloc.id, name(of)), &state).await.unwrap();
        store.put(&TaskLocalKey::of(alloc.id, name(of)), &local).await.unwrap();
    }
    (store, alloc)
}

/// Which tasks are pending on record, after starts in these boots.
async fn pending_after(
    main: TaskStatus,
    desired: DesiredStatus,
    boots: &[&str],
) -> Vec<(String, bool)> {
    let (store, alloc) = recorded(main, desired).await;
    for boot in boots {
        let mut found = NodeRecords::read(&store, END_OF_TIME).unwrap();
        found.prepare_boot(&store, boot, NOW).await.unwrap();
    }
    store.flush().await.unwrap();
    let mut pending = Vec::new();
    for task in &alloc.task_group().unwrap().tasks {
        let state = store.get(&TaskStateKey::of(alloc.id, task.name.clone())).unwrap();
        let state: TaskState = state.unwrap();
        if state.status == TaskStatus::Pending {
            let local = store.get(&TaskLocalKey::of(alloc.id, task.name.clone())).unwrap();
            let local: LocalState = local.unwrap();
            assert!(state.finished_at.is_none() && state.restarts == 1);
            pending.push((task.name.to_string(), local.run_complete));
        }
    }
    pending
}

#[tokio::test]
async fn after_a_restart_of_the_machine_prestart_tasks_that_had_succeeded_run_again() {
    let again = pending_after(TaskStatus::Running, DesiredStatus::Run, &["one", "two"]).await;
    assert_eq!(again, [("pre".to_owned(), false)]);
}

#[tokio::test]
async fn a_run_that_was_not_forgotten_when_the_machine_went_down_is_forgotten_before_the_next() {
    let (store, alloc) = recorded(TaskStatus::Running, DesiredStatus::Run).await;
    let key = TaskLocalKey::of(alloc.id, name("pre"));
    let before: LocalState = store.get(&key).unwrap().unwrap();
    let id = RunId::new(alloc.id, &name("pre"), 7);
    let run = Some(RunRecord { id, identities: Vec::new(), started: None });
    store.put(&key, &LocalState { run: run.clone(), run_complete: false, ..before }).await.unwrap();
    for boot in ["one", "two"] {
        let mut found = NodeRecords::read(&store, END_OF_TIME).unwrap();
        found.prepare_boot(&store, boot, NOW).await.unwrap();
    }
    let state = store.get::<TaskState>(&TaskStateKey::of(alloc.id, name("pre"))).unwrap().unwrap();
    assert_eq!(state.status, TaskStatus::Pending);
    let local: LocalState = store.get(&key).unwrap().unwrap();
    assert_eq!((local.run, local.delayed_until), (run, Some(NOW)));
}

#[tokio::test]
async fn in_the_same_boot_and_in_the_first_one_known_nothing_runs_again() {
    for boots in [&["one", "one"][..], &["one"]] {
        let again = pending_after(TaskStatus::Running, DesiredStatus::Run, boots).await;
        assert_eq!(again, [], "{boots:?}");
    }
}

#[tokio::test]
async fn where_no_main_task_is_to_run_nothing_is_prepared() {
    for (main, desired) in
        [(TaskStatus::Dead, DesiredStatus::Run), (TaskStatus::Running, DesiredStatus::Stop)]
    {
        assert_eq!(pending_after(main, desired, &["one", "two"]).await, [], "{main:?}");
    }
}

#[tokio::test]
async fn a_boot_on_record_that_cannot_be_read_is_written_anew() {
    let store = StateStore::in_memory().unwrap();
    store.put(&AnyKey(RecordKey::NodeBoot), &[0xffu8; 3][..]).await.unwrap();
    let mut found = NodeRecords::read(&store, END_OF_TIME).unwrap();
    found.prepare_boot(&store, "two", NOW).await.unwrap();
    let known: Option<NodeBoot> = store.get(&NodeBootKey::of()).unwrap();
    assert_eq!(known, Some(NodeBoot { boot_id: "two".to_owned() }));
}

/// An intent of an earlier boot: the run may have been let go, and the note of it is lost.
#[tokio::test]
async fn after_a_power_cut_an_intent_ends_a_task_that_must_not_be_started_twice() {
    for (attempts, lost) in [(0, true), (1, false)] {
        let restart = fixtures::restart(attempts, std::time::Duration::from_secs(1));
        let task = ostler_model::job::Task { restart, ..fixtures::task("main").unwrap() };
        let alloc = fixtures::allocation(JobKind::Batch, vec![task], &Rng::from_seed(1)).unwrap();
        let store = StateStore::in_memory().unwrap();
        let job = fixtures::job_record(&alloc);
        store.put(&JobRecordKey::of(alloc.job.id.clone()), &job).await.unwrap();
        store.put(&AllocKey::of(alloc.id), &alloc).await.unwrap();
        let id = RunId::new(alloc.id, &name("main"), 7);
        let run = Some(RunRecord { id: id.clone(), identities: Vec::new(), started: None });
        let tracker = RestartTracker::new(Timestamp::default());
        let local = LocalState { run, tracker, run_complete: false, delayed_until: None };
        store.put(&TaskLocalKey::of(alloc.id, name("main")), &local).await.unwrap();
        for boot in ["one", "one", "two", "two"] {
            let mut found = NodeRecords::read(&store, END_OF_TIME).unwrap();
            found.prepare_boot(&store, boot, NOW).await.unwrap();
        }
        let state: Option<TaskState> =
            store.get(&TaskStateKey::of(alloc.id, name("main"))).unwrap();
        let dead = state.is_some_and(|s| s.status == TaskStatus::Dead && s.failed);
        assert_eq!(dead, lost, "{attempts} attempts");
    }
}

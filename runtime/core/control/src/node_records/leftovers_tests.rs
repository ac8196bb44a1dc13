//! What is left of an agent that died at any moment is closed, once.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use super::*;
use ostler_lifecycle::task::handle::{RunRecord, StartedRecord};
use ostler_lifecycle::task::restart::RestartTracker;
use ostler_model::alloc::ClientStatus;
use ostler_model::ids::RunId;
use ostler_model::job::JobKind;
use ostler_model::ports::ProcessIdentity;
use ostler_model::rng::Rng;
use ostler_model::task::{DriverHandle, Workload};
use ostler_state::records::{AllocKey, AllocStateKey, TaskStateKey};
use ostler_state::testing::AnyKey;
use ostler_testing::fixtures;

/// The processes of these tests are of another boot.
const NOTHING_LIVES: EndLeftover<'static> = &|_, _| Box::pin(async { Ok(false) });

#[tokio::test]
async fn tasks_without_a_state_are_closed_once_and_ended_ones_are_left_alone() {
    let state = StateStore::in_memory().unwrap();
    let tasks = ["ended", "running", "never"].map(|name| fixtures::task(name).unwrap());
    let names = tasks.clone().map(|task| task.name);
    let alloc = fixtures::allocation(JobKind::Batch, tasks.to_vec(), &Rng::from_seed(1)).unwrap();
    state.put(&AllocKey::of(alloc.id), &alloc).await.unwrap();
    let key = |task: usize| TaskStateKey::of(alloc.id, names[task].clone());
    let ended = TaskState { status: TaskStatus::Dead, ..TaskState::default() };
    let running = TaskState { status: TaskStatus::Running, ..TaskState::default() };
    state.put(&key(0), &ended).await.unwrap();
    state.put(&key(1), &running).await.unwrap();

    let now = Timestamp::from_nanos(7);
    let said = clear_leftovers(&state, &BTreeSet::new(), now, NOTHING_LIVES).await.unwrap().said;
    assert_eq!(said.len(), 1, "{said:?}");
    assert_eq!(state.get::<TaskState>(&key(0)).unwrap().unwrap(), ended);
    for closed in [1, 2] {
        let task: TaskState = state.get(&key(closed)).unwrap().unwrap();
        assert_eq!((task.status, task.failed), (TaskStatus::Dead, true));
        assert_eq!(task.finished_at, Some(now));
    }
    let saved: SavedAllocState = state.get(&AllocStateKey::of(alloc.id)).unwrap().unwrap();
    assert_eq!(saved.client_status, ClientStatus::Failed);
    assert!(
        clear_leftovers(&state, &BTreeSet::new(), now, NOTHING_LIVES)
            .await
            .unwrap()
            .said
            .is_empty(),
        "said once"
    );
}

#[tokio::test]
async fn the_state_of_an_allocation_that_lagged_behind_its_tasks_follows_them() {
    let state = StateStore::in_memory().unwrap();
    let task = fixtures::task("t").unwrap();
    let alloc =
        fixtures::allocation(JobKind::Batch, vec![task.clone()], &Rng::from_seed(1)).unwrap();
    let (spec, key) = (AllocKey::of(alloc.id), AllocStateKey::of(alloc.id));
    state.put(&spec, &alloc).await.unwrap();
    let ended = TaskState { status: TaskStatus::Dead, ..TaskState::default() };
    state.put(&TaskStateKey::of(alloc.id, task.name), &ended).await.unwrap();
    let running = SavedAllocState {
        client_status: ClientStatus::Running,
        client_description: "Tasks are running".into(),
        ..SavedAllocState::default()
    };
    state.put(&key, &running).await.unwrap();
    assert!(
        clear_leftovers(&state, &BTreeSet::new(), Timestamp::from_nanos(7), NOTHING_LIVES)
            .await
            .unwrap()
            .said
            .is_empty()
    );
    let saved: SavedAllocState = state.get(&key).unwrap().unwrap();
    assert_eq!(saved.client_status, ClientStatus::Complete);
    // A state that tells the end is not touched, whatever it says.
    let forced = SavedAllocState {
        client_status: ClientStatus::Failed,
        client_description: "told otherwise".into(),
        ..SavedAllocState::default()
    };
    state.put(&key, &forced).await.unwrap();
    clear_leftovers(&state, &BTreeSet::new(), Timestamp::from_nanos(8), NOTHING_LIVES)
        .await
        .unwrap();
    assert_eq!(state.get::<SavedAllocState>(&key).unwrap().unwrap(), forced);
}

#[tokio::test]
async fn a_thousand_leftovers_are_closed_in_a_few_commits() {
    let state = StateStore::in_memory().unwrap();
    let task = fixtures::task("t").unwrap();
    let rng = Rng::from_seed(1);
    for _ in 0..1_000 {
        let alloc = fixtures::allocation(JobKind::Batch, vec![task.clone()], &rng).unwrap();
        state.put_later(&AllocKey::of(alloc.id), &alloc).await.unwrap();
    }
    state.flush().await.unwrap();
    let before = state.stats();
    assert_eq!(
        clear_leftovers(&state, &BTreeSet::new(), Timestamp::from_nanos(7), NOTHING_LIVES)
            .await
            .unwrap()
            .said
            .len(),
        1_000
    );
    let after = state.stats();
    assert_eq!(after.writes - before.writes, 2_000);
    assert!(after.commits - before.commits <= 100, "{after:?}");
}

/// The records of one start, one write after the other: after each of them the agent may have died.
fn writes_of_a_start(alloc: &Allocation, task: &TaskName) -> Vec<(RecordKey, Vec<u8>)> {
    let mut writes = Vec::new();
    fn record<T: serde::Serialize>(key: RecordKey, value: &T) -> (RecordKey, Vec<u8>) {
        (key, postcard::to_stdvec(value).unwrap())
    }
    let (spec, public, private) = (
        RecordKey::Alloc(alloc.id),
        RecordKey::TaskState(alloc.id, task.clone()),
        RecordKey::TaskLocal(alloc.id, task.clone()),
    );
    let saved = |client_status| SavedAllocState { client_status, ..SavedAllocState::default() };
    let state = |status| TaskState { status, ..TaskState::default() };
    // A stranger's process: of another boot, so that nothing of this machine is touched.
    let process = ProcessIdentity {
        pid: std::process::id(),
        start_ticks: 1,
        boot_id: "another boot".into(),
        cgroup: None,
        supervisor: None,
    };
    let run = |identities: &[ProcessIdentity], started: bool| LocalState {
        run: Some(RunRecord {
            id: RunId::new(alloc.id, task, 7),
            identities: identities.to_vec(),
            started: started.then(|| StartedRecord {
                handle: DriverHandle::default(),
                workload: Workload::Process("p".into()),
                network: None,
            }),
        }),
        tracker: RestartTracker::new(Timestamp::default()),
        run_complete: false,
        delayed_until: None,
    };
    let over = LocalState { run: None, run_complete: true, ..run(&[], false) };
    let identities = std::slice::from_ref(&process);
    writes.push(record(spec, alloc));
    writes.push(record(public.clone(), &state(TaskStatus::Pending)));
    writes.push(record(RecordKey::AllocState(alloc.id), &saved(ClientStatus::Pending)));
    writes.push(record(private.clone(), &run(&[], false)));
    writes.push(record(private.clone(), &run(identities, false)));
    writes.push(record(private.clone(), &run(identities, true)));
    writes.push(record(public.clone(), &state(TaskStatus::Running)));
    writes.push(record(RecordKey::AllocState(alloc.id), &saved(ClientStatus::Running)));
    writes.push(record(public, &state(TaskStatus::Dead)));
    writes.push(record(private, &over));
    writes.push(record(RecordKey::AllocState(alloc.id), &saved(ClientStatus::Complete)));
    writes
}

/// Bytes of a value, given to the store as that value.
struct Bytes<'a>(&'a [u8]);

impl serde::Serialize for Bytes<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeTuple as _;
        let mut tuple = serializer.serialize_tuple(self.0.len())?;
        for byte in self.0 {
            tuple.serialize_element(byte)?;
        }
        tuple.end()
    }
}

#[tokio::test]
async fn an_agent_that_died_after_any_write_of_a_start_leaves_something_that_is_closed_once() {
    let task = fixtures::task("t").unwrap();
    let alloc =
        fixtures::allocation(JobKind::Batch, vec![task.clone()], &Rng::from_seed(1)).unwrap();
    let writes = writes_of_a_start(&alloc, &task.name);
    let dead_from = 9;
    for died_after in 1..=writes.len() {
        let state = StateStore::in_memory().unwrap();
        for (key, bytes) in &writes[..died_after] {
            state.put(&AnyKey(key.clone()), &Bytes(bytes)).await.unwrap();
        }
        let said =
            clear_leftovers(&state, &BTreeSet::new(), Timestamp::from_nanos(7), NOTHING_LIVES)
                .await
                .unwrap()
                .said;
        let ended = died_after >= dead_from;
        assert_eq!(said.is_empty(), ended, "after {died_after}: {said:?}");
        let key = TaskStateKey::of(alloc.id, task.name.clone());
        let after: TaskState = state.get(&key).unwrap().unwrap();
        assert_eq!((after.status, after.failed), (TaskStatus::Dead, !ended), "after {died_after}");
        let saved: SavedAllocState = state.get(&AllocStateKey::of(alloc.id)).unwrap().unwrap();
        let expected = if ended { ClientStatus::Complete } else { ClientStatus::Failed };
        assert_eq!(saved.client_status, expected, "after {died_after}");
        assert_eq!(find_leftovers(&state).unwrap(), [], "after {died_after}");
        let before = state.stats().writes;
        assert!(
            clear_leftovers(&state, &BTreeSet::new(), Timestamp::from_nanos(8), NOTHING_LIVES)
                .await
                .unwrap()
                .said
                .is_empty()
        );
        assert_eq!(state.stats().writes, before, "after {died_after}: closed once");
    }
}

#[tokio::test]
async fn a_record_that_does_not_decode_keeps_nothing_else_from_being_closed() {
    let state = StateStore::in_memory().unwrap();
    let tasks = ["a", "b"].map(|name| fixtures::task(name).unwrap());
    let names = tasks.clone().map(|task| task.name);
    let alloc = fixtures::allocation(JobKind::Batch, tasks.to_vec(), &Rng::from_seed(1)).unwrap();
    let key = |task: usize| TaskStateKey::of(alloc.id, names[task].clone());
    // The allocation and one of its tasks are not readable; the other task runs.
    state.put(&AnyKey(RecordKey::Alloc(alloc.id)), &Bytes(&[0xff])).await.unwrap();
    state
        .put(&AnyKey(RecordKey::TaskState(alloc.id, names[0].clone())), &Bytes(&[0xff]))
        .await
        .unwrap();
    let running = TaskState { status: TaskStatus::Running, ..TaskState::default() };
    state.put(&key(1), &running).await.unwrap();
    let said = clear_leftovers(&state, &BTreeSet::new(), Timestamp::from_nanos(7), NOTHING_LIVES)
        .await
        .unwrap()
        .said;
    assert_eq!(said.len(), 1, "{said:?}");
    let after: TaskState = state.get(&key(1)).unwrap().unwrap();
    assert_eq!((after.status, after.failed), (TaskStatus::Dead, true));
    assert!(state.get::<TaskState>(&key(0)).is_err(), "what is not understood is not touched");
}

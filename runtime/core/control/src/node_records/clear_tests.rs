//! What becomes of what is found in a state file.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;

use super::*;
use ostler_model::alloc::{Allocation, DesiredStatus};
use ostler_model::ids::TaskName;
use ostler_model::rng::Rng;
use ostler_model::saved::{JobRecord, SavedAllocState};
use ostler_model::task::TaskState;
use ostler_state::records::{AllocKey, JobRecordKey, TaskStateKey};
use ostler_state::testing::AnyKey;
use ostler_testing::fixtures::{self, Garbage};

/// Nothing on record is later.
const END_OF_TIME: Timestamp = Timestamp::from_nanos(u64::MAX);

const NOTHING_LIVES: EndLeftover<'static> = &|_, _| Box::pin(async { Ok(false) });

fn allocation(seed: u64, job: &str, index: u64) -> Allocation {
    fixtures::allocation_of(job, index, &Rng::from_seed(seed)).unwrap()
}

fn record(alloc: &Allocation) -> JobRecord {
    JobRecord { modify_index: alloc.modify_index, ..fixtures::job_record(alloc) }
}

async fn put(state: &StateStore, alloc: &Allocation) {
    state.put(&AllocKey::of(alloc.id), alloc).await.unwrap();
    let key = TaskStateKey::of(alloc.id, TaskName::new("t").unwrap());
    state.put(&key, &TaskState::default()).await.unwrap();
}

#[tokio::test]
async fn allocations_of_jobs_are_kept_and_those_of_crashed_runs_closed() {
    let state = StateStore::in_memory().unwrap();
    let of_job = allocation(1, "kept", 5);
    let of_run = allocation(2, "run", 6);
    let stopping = Allocation { desired: DesiredStatus::Stop, ..allocation(3, "purged", 7) };
    for alloc in [&of_job, &of_run, &stopping] {
        put(&state, alloc).await;
    }
    state.put(&JobRecordKey::of(of_job.job.id.clone()), &record(&of_job)).await.unwrap();
    let found = NodeRecords::read(&state, END_OF_TIME).unwrap();
    assert_eq!(found.kept_ids(), BTreeSet::from([of_job.id, stopping.id]));
    assert_eq!(found.index(), 7);
    let said = found.clear(&state, false, Timestamp::from_nanos(7), NOTHING_LIVES).await.unwrap();
    assert_eq!(said.len(), 1, "{said:?}");
    let task = |alloc: &Allocation| {
        let key = TaskStateKey::of(alloc.id, TaskName::new("t").unwrap());
        state.get::<TaskState>(&key).unwrap().unwrap()
    };
    assert!(task(&of_run).failed);
    assert_eq!(task(&of_job), TaskState::default(), "untouched");
    let again = NodeRecords::read(&state, END_OF_TIME).unwrap();
    assert!(again.kept_ids().contains(&of_run.id), "it is over: kept until it is collected");
    let (restored, owners) = again.into_restored(true);
    let over = |saved: &Option<SavedAllocState>| saved.as_ref().is_some_and(|s| s.finished);
    let allocs: Vec<_> = restored.allocs.iter().map(|(a, saved)| (a.id, over(saved))).collect();
    assert_eq!(allocs, [(of_job.id, false), (of_run.id, true), (stopping.id, false)]);
    assert_eq!(owners.len(), 3);
}

#[tokio::test]
async fn an_embedded_agent_leaves_records_that_it_cannot_read_to_another() {
    let state = StateStore::in_memory().unwrap();
    let good = allocation(1, "kept", 5);
    put(&state, &good).await;
    state.put(&AnyKey(RecordKey::Job(good.job.id.clone())), &Garbage).await.unwrap();
    let found = NodeRecords::read(&state, END_OF_TIME).unwrap();
    found.clear(&state, true, Timestamp::from_nanos(7), NOTHING_LIVES).await.unwrap();
    assert!(
        state.get::<JobRecord>(&JobRecordKey::of(good.job.id.clone())).is_err(),
        "left as it is"
    );
}

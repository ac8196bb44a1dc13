//! Who may be collected, and when.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::admission::Refusal;
use crate::unowned_runs::UnownedRuns;
use ostler_model::alloc::{ClientStatus, DesiredStatus};
use ostler_model::job::JobKind;
use ostler_model::rng::Rng;
use ostler_testing::fixtures;

fn allocation(seed: u64, previous: Option<AllocId>, desired: DesiredStatus) -> Arc<Allocation> {
    let task = fixtures::task("t").unwrap();
    let alloc = fixtures::allocation(JobKind::Service, vec![task], &Rng::from_seed(seed)).unwrap();
    Arc::new(Allocation { previous, desired, create_index: seed, modify_index: seed, ..alloc })
}

fn tables() -> NodeTables {
    NodeTables::new(0, Timestamp::default(), UnownedRuns::default())
}

/// Over, as an earlier agent left it; no task of it ever started.
fn enter_over(tables: &mut NodeTables, alloc: &Arc<Allocation>) {
    let saved = SavedAllocState { finished: true, ..SavedAllocState::default() };
    tables.restore_alloc(alloc, PlacedBy::Job, Some(&saved), Timestamp::default());
}

fn record(alloc: &Allocation) -> Arc<JobRecord> {
    Arc::new(fixtures::job_record(alloc))
}

fn garbage(tables: &NodeTables) -> Vec<AllocId> {
    garbage_but(tables, &BTreeSet::new())
}

/// Without those of jobs that are to be looked at.
fn garbage_but(tables: &NodeTables, looked_at: &BTreeSet<JobId>) -> Vec<AllocId> {
    let mut ids: Vec<_> =
        tables.garbage(looked_at).into_iter().map(|candidate| candidate.id).collect();
    ids.sort_unstable();
    ids
}

#[test]
fn the_data_of_a_whole_line_is_kept_while_its_last_one_waits() {
    let mut tables = tables();
    let first = allocation(1, None, DesiredStatus::Stop);
    let second = allocation(2, Some(first.id), DesiredStatus::Stop);
    let third = allocation(3, Some(second.id), DesiredStatus::Run);
    enter_over(&mut tables, &first);
    enter_over(&mut tables, &second);
    let mut both = vec![first.id, second.id];
    both.sort_unstable();
    assert_eq!(garbage(&tables), both);
    tables.put_alloc(Arc::clone(&third), PlacedBy::Job, Timestamp::default());
    assert_eq!(garbage(&tables), []);
    // One that is told to stop before it started takes nothing.
    let stopped = Arc::new(Allocation { desired: DesiredStatus::Stop, ..(*third).clone() });
    tables.put_alloc(stopped, PlacedBy::Job, Timestamp::default());
    assert_eq!(garbage(&tables), both);
}

#[test]
fn what_failed_is_kept_until_it_is_decided_whether_something_follows_it() {
    let mut tables = tables();
    let [failed, complete, stopped] = [1, 2, 3].map(|n| allocation(n, None, DesiredStatus::Run));
    let stopped = Arc::new(Allocation { desired: DesiredStatus::Stop, ..(*stopped).clone() });
    for (alloc, status) in [
        (&failed, ClientStatus::Failed),
        (&complete, ClientStatus::Complete),
        (&stopped, ClientStatus::Failed),
    ] {
        let saved = SavedAllocState {
            finished: true,
            client_status: status,
            forced: true,
            ..SavedAllocState::default()
        };
        tables.restore_alloc(alloc, PlacedBy::Job, Some(&saved), Timestamp::default());
    }
    let mut others = vec![complete.id, stopped.id];
    others.sort_unstable();
    assert_eq!(garbage_but(&tables, &BTreeSet::from([failed.job.id.clone()])), others);
    assert_eq!(garbage(&tables).len(), 3);
}

#[test]
fn the_data_for_a_place_that_waits_to_be_filled_is_kept() {
    let mut tables = tables();
    let first = allocation(1, None, DesiredStatus::Stop);
    enter_over(&mut tables, &first);
    tables.put_job(record(&first));
    assert_eq!(garbage(&tables), [first.id]);
    let (group, previous) = (first.group.clone(), Some(first.id));
    let (job, node) = (first.job.id.clone(), "box".to_owned());
    let refusal = Refusal { job, node, groups: Vec::new(), attempts: Vec::new() };
    let refusal = Arc::new(refusal);
    let blocked =
        BlockedPlacement { group, index: 0, previous, soon: false, canary: false, refusal };
    tables.block(&first.job.id, vec![blocked]);
    assert_eq!(garbage(&tables), []);
}

#[test]
fn every_earlier_allocation_of_a_place_that_is_not_over_is_waited_for() {
    let mut tables = tables();
    let first = allocation(1, None, DesiredStatus::Run);
    // Of a change that was taken back: over although the first runs on.
    let second = allocation(2, Some(first.id), DesiredStatus::Stop);
    let third = allocation(3, Some(second.id), DesiredStatus::Stop);
    let fourth = allocation(4, Some(third.id), DesiredStatus::Run);
    let elsewhere = Allocation { index: 7, ..(*allocation(5, None, DesiredStatus::Run)).clone() };
    let elsewhere = Arc::new(elsewhere);
    enter_over(&mut tables, &second);
    for alloc in [&first, &third, &fourth, &elsewhere] {
        tables.put_alloc(Arc::clone(alloc), PlacedBy::Job, Timestamp::default());
    }
    assert_eq!(tables.earlier_allocs(&fourth), [third.id, first.id], "newest first");
    assert_eq!(tables.earlier_allocs(&third), [first.id]);
    assert_eq!(tables.earlier_allocs(&first), []);
    // Of a server's the one it replaces alone: what else is in its place may run beside it.
    let servers = allocation(6, Some(third.id), DesiredStatus::Run);
    tables.put_alloc(Arc::clone(&servers), PlacedBy::Server, Timestamp::default());
    assert_eq!(tables.earlier_allocs(&servers), [third.id]);
    let canary = allocation(7, Some(second.id), DesiredStatus::Run);
    tables.put_alloc(Arc::clone(&canary), PlacedBy::Server, Timestamp::default());
    assert_eq!(tables.earlier_allocs(&canary), [], "that one is over");
}

#[test]
fn what_is_over_of_a_job_that_is_gone_is_given_out_once() {
    let mut tables = tables();
    let allocs: Vec<_> = (1..=3).map(|n| allocation(n, None, DesiredStatus::Stop)).collect();
    for alloc in &allocs[..2] {
        enter_over(&mut tables, alloc);
    }
    tables.put_alloc(Arc::clone(&allocs[2]), PlacedBy::Job, Timestamp::default());
    tables.put_job(record(&allocs[0]));
    let all = tables.ids();
    assert_eq!(tables.ids_of(&allocs[0].job.id), all);
    assert_eq!(tables.take_purged(&all), [], "its job is there");
    tables.jobs.clear();
    assert_eq!(tables.take_purged(&all).len(), 2, "the third is not over");
    assert_eq!(tables.take_purged(&all), [], "their removal is under way");
    tables.alloc_mut(allocs[2].id).unwrap().ended = true;
    assert_eq!(tables.take_purged(&all), [allocs[2].id]);
}

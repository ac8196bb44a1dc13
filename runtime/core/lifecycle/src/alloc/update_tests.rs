#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::time::Duration;

use super::*;
use ostler_model::alloc::DesiredStatus;
use ostler_model::job::{JobKind, LifecycleHook, RestartMode, RestartPolicy};
use ostler_model::rng::Rng;
use ostler_model::time::Timestamp;
use ostler_testing::fixtures;

fn allocation() -> Allocation {
    let tasks = vec![fixtures::task("web").unwrap(), fixtures::task("log").unwrap()];
    fixtures::allocation(JobKind::Service, tasks, &Rng::from_seed(1)).unwrap()
}

fn changed(change: impl FnOnce(&mut Job)) -> Allocation {
    let old = allocation();
    let mut job = old.job.as_ref().clone();
    change(&mut job);
    Allocation { job: Arc::new(job), modify_index: old.modify_index + 1, ..old }
}

#[test]
fn what_may_change_in_place_does() {
    let second = Duration::from_secs(1);
    let new = changed(|job| {
        job.priority = 70;
        let group = &mut job.groups[0];
        group.shutdown_delay = Some(second);
        group.max_run_duration = Some(second);
        group.health = Some(Default::default());
        group.count = 3;
        let task = &mut group.tasks[0];
        task.kill_timeout = second;
        task.kill_signal = Some("SIGQUIT".to_owned());
        task.shutdown_delay = Some(second);
        task.leader = true;
        task.logs.max_files = 2;
        task.restart = RestartPolicy {
            attempts: 9,
            interval: second,
            delay: second,
            mode: RestartMode::Delay,
        };
        let first = (*group.tasks[1]).clone();
        group.tasks[1] = fixtures::lifecycle(first, LifecycleHook::Prestart, true).into();
    });
    let new = Allocation { desired: DesiredStatus::Stop, job_version: 4, ..new };
    assert_eq!(merge_in_place(&allocation(), &new).unwrap(), new);
}

#[test]
fn an_accepted_canary_is_none_any_more_and_its_deadlines_stay() {
    let of = |id: &str, since, canary| {
        let since = Timestamp::from_nanos(since);
        Some(AllocDeployment { id: id.into(), since, canary })
    };
    let old = Allocation { deployment: of("a", 1, true), ..allocation() };
    let accepted = Allocation { deployment: of("a", 2, false), ..changed(|_| {}) };
    assert_eq!(merge_in_place(&old, &accepted).unwrap().deployment, of("a", 1, false));
    let another = Allocation { deployment: of("b", 2, false), ..changed(|_| {}) };
    assert_eq!(merge_in_place(&old, &another).unwrap().deployment, of("b", 2, false));
}

#[test]
fn what_may_not_change_in_place_stays() {
    let other = fixtures::task("other").unwrap();
    let changes: [fn(&mut Job); 6] = [
        |job| job.kind = JobKind::Batch,
        |job| drop(job.groups[0].tasks[0].env.insert("A".to_owned(), "1".to_owned())),
        |job| job.groups[0].tasks[0].user = Some("nobody".to_owned()),
        |job| job.groups[0].tasks[0].logs.disabled = true,
        |job| job.groups[0].ephemeral_disk.size_mb = 1,
        |job| drop(job.groups[0].tasks.pop()),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let old = allocation();
        let effective = merge_in_place(&old, &changed(change)).unwrap();
        assert_eq!(effective, Allocation { modify_index: old.modify_index + 1, ..old }, "{index}");
    }
    let more = changed(|job| job.groups[0].tasks.push(other.into()));
    assert_eq!(merge_in_place(&allocation(), &more).unwrap().task_group().unwrap().tasks.len(), 2);
}

#[test]
fn a_copy_of_a_group_its_job_does_not_have_is_none() {
    let gone = changed(|job| job.groups.clear());
    assert_eq!(merge_in_place(&allocation(), &gone), None);
}

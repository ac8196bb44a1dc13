//! Allocations of an earlier agent, from what is in its store.

use super::*;
use crate::alloc::RestoredAlloc;
use crate::task::RestoredTask;
use crate::task::handle::LocalState;
use ostler_model::alloc::{ClientStatus, DesiredStatus};
use ostler_model::event::TaskEvent;
use ostler_model::job::LifecycleHook;
use ostler_model::saved::DeploymentStatus;
use ostler_state::KeyPrefix;
use ostler_state::records::{AllocStateKey, DeploymentStatusKey, TaskLocalKey, TaskStateKey};
use ostler_testing::fake_driver::Script;

/// What the store has of an allocation.
pub(super) fn stored(bench: &Bench, of: &AllocHandle) -> RestoredAlloc {
    let id = of.id();
    let allocation = of.allocation();
    let tasks = allocation.task_group().unwrap().tasks.iter().map(|task| {
        let state = bench.store.get(&TaskStateKey::of(id, task.name.clone())).unwrap();
        let local = bench.store.get(&TaskLocalKey::of(id, task.name.clone())).unwrap();
        (task.name.clone(), RestoredTask { state, local })
    });
    RestoredAlloc {
        saved: bench.store.get(&AllocStateKey::of(id)).unwrap(),
        health: bench.store.get(&DeploymentStatusKey::of(id)).unwrap(),
        tasks: tasks.collect(),
        trouble: None,
    }
}

fn restored_as(
    bench: &Bench,
    of: &AllocHandle,
    desired: DesiredStatus,
    known: RestoredAlloc,
) -> AllocHandle {
    let allocation = Allocation { desired, ..of.allocation().as_ref().clone() };
    AllocRunner::restore(bench.start(allocation), known).unwrap()
}

/// The owner a new agent gives it.
pub(super) fn restored(bench: &Bench, of: &AllocHandle) -> AllocHandle {
    restored_as(bench, of, DesiredStatus::Run, stored(bench, of))
}

/// One whose task runs, after its agent left.
async fn left(tasks: Vec<Task>) -> (Bench, AllocHandle) {
    let bench = Bench::new();
    for task in &tasks {
        bench.node.script(task.name.as_str(), [Script { pid: Some(5), ..Script::runs() }]);
    }
    let handle = bench.run(tasks.clone());
    for task in
        tasks.iter().filter(|t| t.lifecycle.is_none_or(|l| l.hook != LifecycleHook::Poststop))
    {
        until_running(&handle, task.name.as_str()).await;
    }
    handle.shutdown().await;
    (bench, handle)
}

fn starts(bench: &Bench) -> usize {
    bench.node.calls().iter().filter(|c| c.starts_with("start ")).count()
}

#[tokio::test(start_paused = true)]
async fn a_running_allocation_is_owned_again_and_nothing_is_started() {
    let (bench, handle) = left(vec![task("web")]).await;
    let again = restored(&bench, &handle);
    until_running(&again, "web").await;
    clock::sleep(60 * SECOND).await;
    assert_eq!((starts(&bench), bench.node.live()), (1, 1));
    again.stop("enough").await;
    let state = again.wait_done().await;
    assert_eq!((state.client_status, bench.node.live()), (ClientStatus::Complete, 0));
}

#[tokio::test(start_paused = true)]
async fn one_that_is_to_stop_by_now_is_stopped_without_pre_run_hooks() {
    let (bench, handle) = left(vec![task("web")]).await;
    let again = restored_as(&bench, &handle, DesiredStatus::Stop, stored(&bench, &handle));
    again.wait_done().await;
    assert_eq!((starts(&bench), bench.node.live()), (1, 0));
    let prepared = again.hook_times().iter().any(|t| t.kind == crate::alloc::HookKind::Prerun);
    assert!(!prepared);
}

#[tokio::test(start_paused = true)]
async fn a_pre_run_hook_that_fails_now_ends_nothing_that_was_found_running() {
    let (mut bench, handle) = left(vec![task("web")]).await;
    bench.alloc_hooks.push(Arc::new(super::faults::Failing(Seen::default())));
    let again = restored(&bench, &handle);
    clock::sleep(300 * SECOND).await;
    let state = again.state().borrow().clone();
    assert_eq!((state.client_status, bench.node.live()), (ClientStatus::Running, 1));
    let said = |e: &&TaskEvent| e.message.contains("failing: no space");
    assert_eq!(state.tasks["web"].events.iter().filter(said).count(), 1);
    again.stop("enough").await;
    assert_eq!(again.wait_done().await.client_status, ClientStatus::Complete);
    assert_eq!((starts(&bench), bench.node.live()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn one_whose_directory_is_gone_runs_on_until_its_task_ends() {
    let (bench, handle) = left(vec![task("web")]).await;
    std::fs::remove_dir_all(handle.dir()).unwrap();
    let again = restored(&bench, &handle);
    clock::sleep(300 * SECOND).await;
    let state = again.state().borrow().clone();
    assert_eq!((state.client_status, bench.node.live()), (ClientStatus::Running, 1));
    let said = state.tasks["web"].events.iter().any(|e| e.message.contains("does not exist"));
    assert!(said, "{state:?}");
    assert!(!again.dir().exists(), "no empty directory beside what runs");
    again.stop("enough").await;
    again.wait_done().await;
    assert_eq!((starts(&bench), bench.node.live()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_finished_one_with_a_run_on_record_is_over_when_that_has_ended() {
    let (bench, handle) = left(vec![task("web")]).await;
    // As an agent left it that could not end the process and closed the allocation all the same.
    let mut known = stored(&bench, &handle);
    let web = known.tasks.get_mut("web").unwrap();
    web.local.as_mut().unwrap().run_complete = true;
    let state = web.state.as_mut().unwrap();
    (state.status, state.failed) = (TaskStatus::Dead, true);
    let (client_status, finished) = (ClientStatus::Failed, false);
    known.saved = Some(SavedAllocState { client_status, finished, ..known.saved.unwrap() });
    let again = restored_as(&bench, &handle, DesiredStatus::Run, known);
    let state = again.wait_done().await;
    assert_eq!((state.client_status, bench.node.live()), (ClientStatus::Failed, 0));
    assert_eq!(starts(&bench), 1);
    let left = bench.store.get::<LocalState>(&TaskLocalKey::of(handle.id(), task("web").name));
    assert_eq!(left.unwrap().unwrap().run, None);
}

#[tokio::test(start_paused = true)]
async fn one_whose_directory_is_gone_and_of_which_nothing_lives_gets_another_and_runs_again() {
    let restart = fixtures::restart(2, SECOND);
    let (bench, handle) = left(vec![Task { restart, ..task("web") }]).await;
    std::fs::remove_dir_all(handle.dir()).unwrap();
    bench.node.set_adoption(Some(ostler_model::ports::Adoption::Rebooted));
    bench.node.script("web", [Script { pid: Some(6), ..Script::runs() }]);
    let again = restored(&bench, &handle);
    clock::sleep(60 * SECOND).await;
    until_running(&again, "web").await;
    assert_eq!(starts(&bench), 2);
    assert!(again.dir().join("web/local").is_dir());
    let state = again.state().borrow().clone();
    let said = state.tasks["web"].events.iter().filter(|e| e.message.contains("is lost")).count();
    assert_eq!(said, 1, "{state:?}");
}

#[tokio::test(start_paused = true)]
async fn one_that_never_started_gets_the_directory_it_never_had() {
    let bench = Bench::new();
    bench.node.set_not_ready(Some("later"));
    let handle = bench.run(vec![task("web")]);
    clock::sleep(SECOND).await;
    handle.shutdown().await;
    std::fs::remove_dir_all(handle.dir()).unwrap();
    bench.node.set_not_ready(None);
    let again = restored(&bench, &handle);
    until_running(&again, "web").await;
    assert!(again.dir().exists());
}

#[tokio::test(start_paused = true)]
async fn one_whose_records_are_unreadable_ends_failed_and_orphans_nothing() {
    let (bench, handle) = left(vec![task("web")]).await;
    let mut known = stored(&bench, &handle);
    known.tasks.get_mut("web").unwrap().state = None;
    known.trouble = Some("the state of task web cannot be read: bad checksum".to_owned());
    let again = restored_as(&bench, &handle, DesiredStatus::Run, known);
    let state = again.wait_done().await;
    assert_eq!((state.client_status, bench.node.live()), (ClientStatus::Failed, 0));
    assert!(state.client_description.contains("bad checksum"));
    assert_eq!(starts(&bench), 1);
    assert_eq!(again.destroy().await, AllocPhase::Destroyed);
    assert!(bench.store.scan(&KeyPrefix::Alloc(again.id())).unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn one_that_had_finished_is_done_at_once_and_shows_what_it_showed() {
    let bench = Bench::new();
    bench.node.script("web", [Script::ends(SECOND, 0)]);
    let handle = bench.run(vec![task("web")]);
    let state = handle.wait_done().await;
    handle.shutdown().await;
    let again = restored(&bench, &handle);
    assert_eq!(again.wait_done().await, state);
    assert!(again.hook_times().is_empty());
    assert_eq!(starts(&bench), 1);
}

#[tokio::test(start_paused = true)]
async fn one_that_ended_before_its_post_run_hooks_is_cleaned_up_only() {
    let bench = Bench::new();
    bench.node.script("web", [Script::ends(SECOND, 0)]);
    let handle = bench.run(vec![task("web")]);
    handle.wait_done().await;
    handle.shutdown().await;
    let mut known = stored(&bench, &handle);
    // The crash came between the last task's end and the last write.
    known.saved = Some(SavedAllocState { finished: false, ..known.saved.unwrap() });
    let again = restored_as(&bench, &handle, DesiredStatus::Run, known);
    assert_eq!(again.wait_done().await.client_status, ClientStatus::Complete);
    let kinds: Vec<_> = again.hook_times().iter().map(|t| t.kind).collect();
    assert!(!kinds.contains(&crate::alloc::HookKind::Prerun), "{kinds:?}");
    assert!(kinds.contains(&crate::alloc::HookKind::Postrun), "{kinds:?}");
    assert_eq!(starts(&bench), 1);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_that_passed_while_no_agent_looked_ends_it_at_once() {
    let (bench, handle) = left(vec![task("web")]).await;
    bench.clock.advance(100 * SECOND);
    let mut newer = handle.allocation().as_ref().clone();
    let mut job = newer.job.as_ref().clone();
    job.groups[0].max_run_duration = Some(50 * SECOND);
    newer.job = Arc::new(job);
    let known = stored(&bench, &handle);
    let again = AllocRunner::restore(bench.start(newer), known).unwrap();
    let state = again.wait_done().await;
    assert_eq!(state.client_status, ClientStatus::Complete);
    assert!(state.client_description.starts_with("Allocation ran as long as it may"));
    assert_eq!(bench.node.live(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_verdict_of_the_earlier_agent_is_kept() {
    let (bench, handle) = left(vec![task("web")]).await;
    let verdict = DeploymentStatus { healthy: Some(true), ..DeploymentStatus::default() };
    bench.store.put(&DeploymentStatusKey::of(handle.id()), &verdict).await.unwrap();
    let again = restored(&bench, &handle);
    assert_eq!(again.state().borrow().health, Some(verdict));
}

#[tokio::test(start_paused = true)]
async fn a_prestart_task_that_succeeded_is_not_run_again() {
    let bench = Bench::new();
    bench.node.script("first", [Script::ends(SECOND, 0)]);
    bench.node.script("web", [Script { pid: Some(5), ..Script::runs() }]);
    let first = fixtures::lifecycle(task("first"), LifecycleHook::Prestart, false);
    let handle = bench.run(vec![first, task("web")]);
    until_running(&handle, "web").await;
    handle.shutdown().await;
    let again = restored(&bench, &handle);
    clock::sleep(60 * SECOND).await;
    assert_eq!(starts(&bench), 2);
    assert_eq!(again.state().borrow().tasks["first"].status, TaskStatus::Dead);
}

#[tokio::test(start_paused = true)]
async fn one_without_any_record_beside_its_own_is_run_as_if_new() {
    let bench = Bench::new();
    let allocation =
        fixtures::allocation(bench.kind, vec![task("web")], &Rng::from_seed(7)).unwrap();
    let known = RestoredAlloc::default();
    let handle = AllocRunner::restore(bench.start(allocation), known).unwrap();
    until_running(&handle, "web").await;
    assert_eq!(starts(&bench), 1);
}

#[tokio::test(start_paused = true)]
async fn every_pre_run_hook_runs_again_none_is_only_marked_as_done() {
    let (bench, handle) = left(vec![task("web")]).await;
    let before = handle.hook_times();
    let again = restored(&bench, &handle);
    let all = |times: &[crate::alloc::HookTime]| -> Vec<_> {
        let prerun = times.iter().filter(|t| t.kind == crate::alloc::HookKind::Prerun);
        prerun.map(|t| t.hook).collect()
    };
    clock::sleep(SECOND).await;
    assert_eq!(all(&again.hook_times()), all(&before));
}

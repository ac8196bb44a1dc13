//! A store that refuses.

use super::*;
use ostler_state::testing::ErrorBackend;

/// A task that ended with code 0 while its store refuses, some minutes later.
async fn ended(kind: JobKind) -> (Bench, Arc<ErrorBackend>, TaskHandle) {
    let mut bench = Bench::of(kind, web());
    let disk = ErrorBackend::new_healed();
    bench.store = store(Arc::clone(&disk) as _);
    bench.node.script("web", [native(Script::ends(10 * SECOND, 0))]);
    let handle = bench.spawn();
    until_running(&handle).await;
    await_write(bench.store.flush()).await.unwrap().unwrap();
    disk.fail();
    until(&handle, |s| s.status == TaskStatus::Dead).await;
    bench.pass(300 * SECOND).await;
    (bench, disk, handle)
}

#[tokio::test(start_paused = true)]
async fn a_run_is_not_forgotten_before_its_end_is_durable() {
    let (bench, disk, handle) = ended(JobKind::Batch).await;
    assert_eq!((bench.count("destroy web"), bench.count("forget_run web")), (0, 0));
    disk.heal();
    handle.wait_gone().await;
    assert_eq!((bench.count("destroy web"), bench.count("forget_run web")), (1, 1));
    await_write(bench.store.flush()).await.unwrap().unwrap();
    let left = bench.recorded();
    assert_eq!(left.state.unwrap().status, TaskStatus::Dead);
    assert!(left.local.unwrap().run.is_none());
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_leaves_while_the_store_refuses_leaves_the_run_on_record() {
    let (bench, disk, handle) = ended(JobKind::Batch).await;
    let before = bench.node.age();
    handle.shutdown().await;
    handle.wait_gone().await;
    assert!(bench.node.age() - before < 20 * SECOND);
    assert_eq!(bench.count("forget_run web"), 0);
    disk.heal();
    let handle = bench.restore(bench.recorded());
    handle.wait_gone().await;
    let state = handle.state();
    assert_eq!(state.last_exit.clone().unwrap().exit_code, 0, "read again");
    assert_eq!(bench.count("start web"), 1, "and not run again");
}

#[tokio::test(start_paused = true)]
async fn a_kill_does_not_wait_for_a_store_that_refuses() {
    let (bench, disk, handle) = ended(JobKind::Batch).await;
    let before = bench.node.age();
    handle.kill(None, "wanted").await;
    handle.wait_gone().await;
    assert!(bench.node.age() - before < 60 * SECOND);
    assert_eq!(bench.count("forget_run web"), 0, "a later agent may have to ask how it ended");
    // What it could not write is written when the store takes it.
    disk.heal();
    await_write(bench.store.flush()).await.unwrap().unwrap();
    let left = bench.recorded();
    let state = left.state.unwrap();
    assert_eq!((state.status, state.last_exit.clone().unwrap().exit_code), (TaskStatus::Dead, 0));
    assert!(left.local.unwrap().run.is_none());
}

//! The allocation before: waited for, and what it left taken over.

use super::*;
use crate::alloc::{AllocRunnerConfig, PreviousAlloc};
use crate::model::alloc::ClientStatus;
use crate::model::ids::AllocId;
use crate::model::job::EphemeralDisk;
use crate::testing::fake_driver::{Ending, Script};

fn successor(bench: &Bench, of: &AllocHandle, disk: EphemeralDisk) -> AllocRunnerConfig {
    let mut next = of.allocation().as_ref().clone();
    next.id = AllocId::new(Rng::seeded(8).uuid());
    next.previous = Some(of.id());
    let mut job = next.job.as_ref().clone();
    job.groups[0].ephemeral_disk = disk;
    next.job = Arc::new(job);
    AllocRunnerConfig { previous: Some(PreviousAlloc::of(of)), ..bench.config(next) }
}

fn sticky() -> EphemeralDisk {
    EphemeralDisk { sticky: true, ..EphemeralDisk::default() }
}

fn start(bench: &Bench, config: AllocRunnerConfig) -> AllocHandle {
    spawn(config, bench.alloc_hooks.clone(), &bench.task_hooks).unwrap()
}

#[tokio::test(start_paused = true)]
async fn nothing_starts_until_the_previous_allocation_runs_nothing_and_people_see_why() {
    let bench = Bench::new();
    let slow = Script { on_stop: Ending::After(4 * SECOND, 0), ..Script::runs() };
    bench.node.script("web", [slow, Script::runs()]);
    let first = bench.run(vec![task("web")]);
    until_running(&first, "web").await;
    let second = start(&bench, successor(&bench, &first, EphemeralDisk::default()));
    let text = format!("waiting for previous allocation {}", first.id());
    let state = until(&second, |s| s.client_description == text).await;
    assert_eq!(state.client_status, ClientStatus::Pending);
    until(&second, |s| s.tasks["web"].events.iter().any(|e| e.message == text)).await;
    clock::sleep(600 * SECOND).await;
    assert_eq!(
        bench.node.calls().iter().filter(|c| *c == "start web").count(),
        1,
        "no hook's bound counts"
    );
    first.stop("replaced").await;
    until_running(&second, "web").await;
    assert!(first.phase().borrow().finished());
    assert!(bench.node.started_twice().is_empty());
}

#[tokio::test(start_paused = true)]
async fn one_that_ended_before_anybody_looked_is_not_waited_for() {
    let bench = Bench::new();
    bench.node.script("web", [Script::ends(SECOND, 0), Script::runs()]);
    let first = bench.run(vec![task("web")]);
    first.wait_done().await;
    // Its owner is gone altogether.
    let config = successor(&bench, &first, EphemeralDisk::default());
    first.shutdown().await;
    drop(first);
    let second = start(&bench, config);
    let state = until(&second, |s| s.tasks["web"].status == TaskStatus::Running).await;
    assert!(!events(&state, "web").contains(&"Task hook message"));
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_the_wait() {
    let bench = Bench::new();
    let first = bench.run(vec![task("web")]);
    until_running(&first, "web").await;
    let second = start(&bench, successor(&bench, &first, EphemeralDisk::default()));
    clock::sleep(SECOND).await;
    second.stop("not needed").await;
    second.wait_done().await;
    assert_eq!(bench.node.calls().iter().filter(|c| *c == "start web").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_whose_agent_leaves_is_waited_for_since_its_tasks_run_on() {
    let bench = Bench::new();
    let first = bench.run(vec![task("web")]);
    until_running(&first, "web").await;
    let second = start(&bench, successor(&bench, &first, EphemeralDisk::default()));
    clock::sleep(SECOND).await;
    first.shutdown().await;
    clock::sleep(60 * SECOND).await;
    assert_eq!(second.state().borrow().client_status, ClientStatus::Pending);
    second.shutdown().await;
    assert_eq!(*second.phase().borrow(), AllocPhase::Left);
}

/// A first allocation that left `alloc/data/kept`, and its successor's end.
async fn moved(disk: EphemeralDisk) -> (Bench, AllocHandle, AllocHandle) {
    let bench = Bench::new();
    bench.node.script("web", [Script::ends(SECOND, 0), Script::runs()]);
    let first = bench.run(vec![task("web")]);
    first.wait_done().await;
    std::fs::write(first.dir().join("alloc/data/kept"), "data").unwrap();
    std::fs::write(first.dir().join("web/local/mine"), "data").unwrap();
    let second = start(&bench, successor(&bench, &first, disk));
    until_running(&second, "web").await;
    (bench, first, second)
}

#[tokio::test(start_paused = true)]
async fn a_sticky_disk_is_taken_over_and_the_logs_stay_where_they_were() {
    for disk in [sticky(), EphemeralDisk { migrate: true, ..EphemeralDisk::default() }] {
        let (_bench, first, second) = moved(disk).await;
        assert!(second.dir().join("alloc/data/kept").exists());
        assert!(second.dir().join("web/local/mine").exists());
        assert!(!first.dir().join("alloc/data/kept").exists());
        assert!(first.dir().join("alloc/logs").is_dir());
        let state = second.state().borrow().clone();
        let said =
            state.tasks["web"].events.iter().any(|e| e.message.starts_with("took over from"));
        assert!(said, "{state:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn another_disk_is_not_taken_over() {
    let (_bench, first, second) = moved(EphemeralDisk::default()).await;
    assert!(!second.dir().join("alloc/data/kept").exists());
    assert!(first.dir().join("alloc/data/kept").exists());
}

#[tokio::test(start_paused = true)]
async fn data_that_cannot_be_taken_over_is_said_and_the_allocation_runs_without() {
    let bench = Bench::new();
    bench.node.script("web", [Script::ends(SECOND, 0), Script::runs()]);
    let first = bench.run(vec![task("web")]);
    first.wait_done().await;
    // A link in the place of the data.
    std::fs::remove_dir(first.dir().join("alloc/data")).unwrap();
    std::os::unix::fs::symlink("/etc", first.dir().join("alloc/data")).unwrap();
    let second = start(&bench, successor(&bench, &first, sticky()));
    let state = until(&second, |s| s.tasks["web"].status == TaskStatus::Running).await;
    let said = state.tasks["web"].events.iter().any(|e| e.message.contains("was not taken over"));
    assert!(said, "{state:?}");
    assert!(second.dir().join("alloc/data").is_dir());
}

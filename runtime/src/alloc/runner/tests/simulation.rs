//! Random groups of tasks on a misbehaving node, with random requests at random times: whatever
//! happens, no task has two runs, and everything ends.

use super::*;
use crate::driver::api::PluginCallError;
use crate::model::job::LifecycleHook;
use crate::task::handle::leftovers;
use crate::testing::fake_driver::{Ending, Reply, Script, Spawns};

fn pick<T: Clone>(rng: &Rng, from: &[T]) -> T {
    from[usize::try_from(rng.below(from.len() as u64)).unwrap()].clone()
}

fn random_script(rng: &Rng) -> Script {
    let broken = || Reply::Fail(PluginCallError::Fatal("broken".to_owned()));
    let flaky = || Reply::Fail(PluginCallError::Recoverable("flaky".to_owned()));
    let ends = |rng: &Rng| Ending::After(pick(rng, &[Duration::ZERO, 2 * SECOND, 20 * SECOND]), 0);
    let ending = |rng: &Rng| {
        let ends = ends(rng);
        pick(
            rng,
            &[
                ends.clone(),
                ends,
                Ending::Ignored,
                Ending::Call(Reply::Hang),
                Ending::Call(broken()),
            ],
        )
    };
    Script {
        start: pick(rng, &[Reply::Ok, Reply::Ok, Reply::Ok, flaky(), broken(), Reply::Hang]),
        spawns: pick(rng, &[Spawns::WithAnswer, Spawns::BeforeAnswer, Spawns::WhenDropped]),
        start_takes: pick(rng, &[Duration::ZERO, Duration::ZERO, 3 * SECOND]),
        runs_for: pick(rng, &[None, Some(Duration::ZERO), Some(2 * SECOND), Some(30 * SECOND)]),
        exit_code: pick(rng, &[0, 0, 1]),
        on_stop: ending(rng),
        on_kill: ending(rng),
        host_kill_works: true,
        exited: pick(rng, &[Reply::Ok, Reply::Ok, broken(), Reply::Hang]),
        destroy: pick(rng, &[Reply::Ok, Reply::Ok, broken(), Reply::Hang]),
        poll: pick(rng, &[None, None, Some(SECOND)]),
        pid: pick(rng, &[None, Some(7)]),
    }
}

fn random_task(rng: &Rng, index: usize) -> Task {
    let task = Task {
        restart: fixtures::restart(pick(rng, &[0, 1, 3]), pick(rng, &[Duration::ZERO, SECOND])),
        shutdown_delay: pick(rng, &[None, None, Some(SECOND)]),
        ..task(&format!("t{index}"))
    };
    match pick(rng, &["main", "main", "lead", "pre", "side", "post", "last"]) {
        "lead" => Task { leader: true, ..task },
        "pre" => fixtures::lifecycle(task, LifecycleHook::Prestart, false),
        "side" => fixtures::lifecycle(task, LifecycleHook::Prestart, true),
        "post" => fixtures::lifecycle(task, LifecycleHook::Poststart, false),
        "last" => fixtures::lifecycle(task, LifecycleHook::Poststop, false),
        _ => task,
    }
}

async fn simulate(seed: u64) {
    let rng = Rng::seeded(seed);
    let bench = Bench::new();
    let tasks: Vec<Task> = (0..=rng.below(4)).map(|n| random_task(&rng, n as usize)).collect();
    for task in &tasks {
        let runs: Vec<Script> = (0..3).map(|_| random_script(&rng)).collect();
        bench.node.script(task.name.as_str(), runs);
    }
    let handle = bench.run(tasks.clone());
    for _ in 0..rng.below(5) {
        clock::sleep(Duration::from_millis(rng.below(20_000))).await;
        let one = pick(&rng, &tasks).name;
        match rng.below(4) {
            0 => handle.stop("simulated").await,
            1 => drop(handle.restart(RestartScope::Task(one), "simulated").await),
            2 => drop(handle.signal(None, "SIGHUP").await),
            _ => bench.node.set_not_ready(pick(&rng, &[None, Some("simulated")])),
        }
    }
    clock::sleep(60 * SECOND).await;
    // Two stops: the second one ends poststop tasks as well.
    let stopwatch = FakeNode::new();
    handle.stop("the end").await;
    clock::sleep(200 * SECOND).await;
    handle.stop("the end").await;
    let done = clock::timeout(Duration::from_secs(3_600), handle.wait_done()).await;
    let state =
        done.unwrap_or_else(|| panic!("seed {seed}: never ended: {:?}", bench.node.journal()));
    let took = stopwatch.age();
    assert!(took < 400 * SECOND, "seed {seed}: the end took {took:?}");
    assert!(bench.node.started_twice().is_empty(), "seed {seed}: two runs of one task at once");
    assert_eq!(bench.node.live(), 0, "seed {seed}: {:?}", bench.node.journal());
    assert!(leftovers(&bench.store).unwrap().is_empty(), "seed {seed}: a dead run is on record");
    assert!(state.client_status.terminal(), "seed {seed}: {state:?}");
    for task in &tasks {
        let key = crate::state::Key::TaskState(handle.id(), task.name.clone());
        let stored: Option<TaskState> = bench.store.get(&key).unwrap();
        assert_eq!(stored.as_ref(), state.tasks.get(&task.name), "seed {seed}: not durable");
    }
}

#[test]
fn whatever_happens_no_task_runs_twice_and_everything_ends() {
    let seeds: Vec<u64> = match std::env::var("OSTLER_TEST_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..60).collect(),
    };
    for seed in seeds {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(simulate(seed));
    }
}

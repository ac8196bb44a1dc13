//! Random groups of tasks on a misbehaving node and a misbehaving disk, with random requests and
//! agents that come and go at random times, in one thread on virtual time: whatever happens, no task
//! has two runs, a dead task stays dead, what was told is not taken back, and everything ends.
//!
//! 200 seeds; 10,000 with `OSTLER_SOAK=1`. A seed that fails is printed; `OSTLER_TEST_SEED=N` runs it
//! alone.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::restoring::restored;
use super::*;
use crate::task::handle::find_leftovers;
use ostler_model::job::LifecycleHook;
use ostler_model::ports::PluginCallError;
use ostler_state::mem_store::MemBackend;
use ostler_state::records::TaskStateKey;
use ostler_state::testing::{Fault, FaultyBackend};
use ostler_testing::fake_driver::{Ending, Reply, Script, Spawns};

fn pick<T: Clone>(rng: &Rng, from: &[T]) -> T {
    from[usize::try_from(rng.number_below(from.len() as u64)).unwrap()].clone()
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

/// A store that refuses some of its commits, in some of the seeds.
fn random_store(rng: &Rng) -> (StateStore, Option<Arc<FaultyBackend>>) {
    if rng.number_below(3) != 0 {
        return (StateStore::in_memory().unwrap(), None);
    }
    let backend = FaultyBackend::new(Arc::new(MemBackend::default()));
    let faults: Vec<Option<Fault>> = (0..rng.number_below(12))
        .map(|_| (rng.number_below(4) == 0).then_some(pick(rng, &[Fault::Before, Fault::After])))
        .collect();
    let store = StateStore::with_backend(std::path::Path::new("memory"), Arc::clone(&backend) as _);
    // Opening it commits too.
    backend.plan(faults);
    (store.unwrap(), Some(backend))
}

/// What an observer may hold against a later state: a task that was told dead and that nobody asked
/// to start again since, and how often each was restarted. A start that was asked for comes when the
/// run before is forgotten, so it may be seen later.
#[derive(Default)]
struct Told(std::collections::BTreeMap<TaskName, Seen>);

#[derive(Clone, Copy, Default)]
struct Seen {
    dead: bool,
    restarts: u64,
    may_revive: bool,
}

impl Told {
    fn look(&mut self, state: &AllocState, seed: u64, revived: bool) {
        for (name, task) in state.tasks.iter() {
            let dead = task.status == TaskStatus::Dead;
            let before = self.0.get(name).copied().unwrap_or_default();
            let may_revive = before.may_revive || revived;
            assert!(
                !before.dead || dead || may_revive,
                "seed {seed}: {name} was dead and is not: {task:?}"
            );
            let restarts = task.restarts;
            assert!(before.restarts <= restarts, "seed {seed}: {name} forgot restarts: {task:?}");
            let seen = Seen { dead, restarts, may_revive: dead && may_revive };
            self.0.insert(name.clone(), seen);
        }
    }
}

/// One thing that happens to the allocation; whether all its tasks may start again.
async fn happen(bench: &Bench, handle: &mut AllocHandle, rng: &Rng, task: TaskName) -> bool {
    match rng.number_below(8) {
        0 => handle.stop("simulated").await,
        1 => drop(handle.restart(RestartScope::Task(task), "simulated").await),
        2 => drop(handle.signal(None, "SIGHUP").await),
        3 => bench.node.set_not_ready(pick(rng, &[None, Some("simulated")])),
        4 => return handle.restart(RestartScope::All, "simulated").await.is_ok(),
        5 => {
            let mut newer = handle.allocation().as_ref().clone();
            newer.modify_index += 1;
            handle.update(Arc::new(newer));
        }
        // The agent leaves, and another one comes.
        _ => {
            handle.shutdown().await;
            *handle = restored(bench, handle);
        }
    }
    false
}

async fn simulate(seed: u64) {
    let rng = Rng::from_seed(seed);
    let (store, faulty) = random_store(&rng);
    let bench = Bench { store, ..Bench::new() };
    let tasks: Vec<Task> =
        (0..=rng.number_below(4)).map(|n| random_task(&rng, n as usize)).collect();
    for task in &tasks {
        let runs: Vec<Script> = (0..3).map(|_| random_script(&rng)).collect();
        bench.node.script(task.name.as_str(), runs);
    }
    let mut handle = bench.run(tasks.clone());
    let mut told = Told::default();
    for _ in 0..rng.number_below(6) {
        clock::sleep(Duration::from_millis(rng.number_below(20_000))).await;
        let one = pick(&rng, &tasks).name;
        let revived = happen(&bench, &mut handle, &rng, one).await;
        // Where the disk refuses, a restarted agent may know less than was told.
        if faulty.is_none() {
            told.look(&handle.state().borrow().clone(), seed, revived);
        }
        assert!(bench.node.started_twice().is_empty(), "seed {seed}: two runs of one task at once");
    }
    if let Some(faulty) = &faulty {
        faulty.forget_plan();
    }
    bench.node.set_not_ready(None);
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
    assert!(state.client_status.is_terminal(), "seed {seed}: {state:?}");
    if faulty.is_some() {
        return;
    }
    assert!(
        find_leftovers(&bench.store).unwrap().is_empty(),
        "seed {seed}: a dead run is on record"
    );
    for task in &tasks {
        let key = TaskStateKey::of(handle.id(), task.name.clone());
        let stored: Option<CowArc<TaskState>> = bench.store.get(&key).unwrap();
        assert_eq!(stored.as_ref(), state.tasks.get(&task.name), "seed {seed}: not durable");
    }
}

/// Seeds played at once.
const PLAYERS: usize = 8;

#[test]
fn whatever_happens_no_task_runs_twice_and_everything_ends() {
    let soak = std::env::var_os("OSTLER_SOAK").is_some();
    let seeds: Vec<u64> = match std::env::var("OSTLER_TEST_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..if soak { 10_000 } else { 200 }).collect(),
    };
    // A life waits for threads more than it computes: several at once.
    let next = AtomicUsize::new(0);
    let play = || {
        while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
            again_when_it_fails(*seed);
        }
    };
    std::thread::scope(|scope| {
        let players: Vec<_> = (0..PLAYERS).map(|_| scope.spawn(play)).collect();
        for player in players {
            player.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
}

fn again_when_it_fails(seed: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    let simulated = std::panic::AssertUnwindSafe(|| runtime.block_on(simulate(seed)));
    if let Err(panic) = std::panic::catch_unwind(simulated) {
        eprintln!(
            "again with: OSTLER_TEST_SEED={seed} cargo test -p ostler-lifecycle --lib simulation"
        );
        std::panic::resume_unwind(panic);
    }
}

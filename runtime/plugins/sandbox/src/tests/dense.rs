//! Tests of how many kernel mappings guests take in each profile.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use ostler_model::limits::MIB;

/// A guest that has a memory and waits for ever.
const IDLE: &str = r#"(component
    (import "wait" (func $wait))
    (core func $lowered (canon lower (func $wait)))
    (core module $m
        (import "host" "wait" (func $wait))
        (memory (export "memory") 17)
        (data (i32.const 1024) "begins with this")
        (func (export "run") (i32.store (i32.const 70000) (i32.const 1)) (call $wait)))
    (core instance $i (instantiate $m (with "host" (instance (export "wait" (func $lowered))))))
    (func (export "run") (canon lift (core func $i "run"))))"#;

/// Grows its memory to 40 MiB and gives what it finds: what it began with and what it wrote, added up.
const GROWS: &str = r#"(func (export "run") (result i32)
    (i32.store (i32.const 65532) (i32.const 40))
    (if (i32.eq (memory.grow (i32.const 640)) (i32.const -1)) (then (unreachable)))
    (i32.store (i32.const 41943036) (i32.const 2))
    (i32.add (i32.load (i32.const 65532))
        (i32.add (i32.load (i32.const 41943036)) (i32.load (i32.const 20000000)))))"#;

fn tasks(dense: bool, instances: u32) -> Bench {
    Bench::of(|dir| SandboxConfig {
        plugin_instances: 0,
        task_instances: instances,
        dense,
        ..config(dir, instances)
    })
}

/// Guests that wait, and how many do.
struct Idle {
    bench: Bench,
    code: Arc<LoadedCode>,
    waiting: Arc<AtomicUsize>,
}

impl Idle {
    async fn of(bench: Bench) -> Self {
        let code = bench.load_as(EngineKind::Task, IDLE).await.unwrap();
        Self { bench, code, waiting: Arc::default() }
    }

    fn start(&self, say: impl FnOnce(String) + Send + 'static) -> GuestTask<Vec<Val>> {
        let place = self.bench.sandbox.task_place(&self.code, say);
        let (code, waiting) = (Arc::clone(&self.code), Arc::clone(&self.waiting));
        let guest = run_export(&self.bench.sandbox, code, StoreLimits::default(), |state| {
            state.waiting = waiting;
        });
        let run = async move {
            let _place = place.await?;
            guest.await
        };
        self.bench.sandbox.spawn_task(run, 100)
    }

    async fn until_waiting(&self, guests: usize) {
        while self.waiting.load(Ordering::SeqCst) < guests {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

/// Not a test: the other tests make mappings too, so these are counted in a process of its own.
#[tokio::test]
#[ignore = "only does something inside a process that counts mappings"]
async fn counted() {
    const GUESTS: usize = 200;
    let Ok(how) = std::env::var("OSTLER_TEST_MAPPINGS") else { return };
    let before = mappings();
    let idle = Idle::of(tasks(how == "dense", 201)).await;
    // The first guest also brings what is needed only once.
    let first = idle.start(|_| ());
    idle.until_waiting(1).await;
    let reserved = mappings();
    let all: Vec<_> = (0..GUESTS).map(|_| idle.start(|_| ())).collect();
    idle.until_waiting(GUESTS + 1).await;
    let live = mappings();
    println!(
        "mappings {} {} {GUESTS}",
        reserved.saturating_sub(before),
        live.saturating_sub(reserved)
    );
    drop((first, all));
}

/// Mappings for each guest: reserved, and more while it lives.
fn each(how: &str) -> (f64, f64) {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "tests::dense::counted", "--ignored", "--nocapture"]);
    let output = command.env("OSTLER_TEST_MAPPINGS", how).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.split_once("mappings ")).expect(&text).1;
    let numbers: Vec<f64> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
    (numbers[0] / numbers[2], numbers[1] / numbers[2])
}

#[test]
fn a_guest_in_the_pool_takes_no_more_mappings_than_are_counted_for_it() {
    let (reserved, live) = each("pool");
    println!("mappings for each slot {reserved:.2}, for each guest {live:.2} more");
    let counted = ostler_model::limits::POOL_MAPPINGS_PER_SLOT as f64;
    // Half of one for what all share.
    assert!(live > 1.0 && reserved + live <= counted + 0.5, "{reserved} + {live}");
}

#[test]
fn a_dense_guest_takes_no_mapping() {
    let (_, live) = each("dense");
    println!("mappings for each dense guest {live:.2}");
    assert!(live < 0.2, "{live}");
}

#[tokio::test]
async fn a_process_that_runs_no_tasks_reserves_nothing_for_them_and_says_so_to_who_asks() {
    let bench = tasks(false, 0);
    assert_eq!(bench.sandbox.pool(EngineKind::Task).got, 0);
    assert_eq!(bench.sandbox.pool(EngineKind::Task).lowered, None);
    let code = bench.load_as(EngineKind::Task, IDLE).await.unwrap();
    let refused = bench.sandbox.task_place(&code, |_| ()).await.unwrap_err();
    assert!(matches!(refused, CallError::PoolExhausted { .. }), "{refused}");
}

#[tokio::test]
async fn what_a_process_without_tasks_compiles_is_what_one_that_holds_them_densely_runs() {
    let none = tasks(true, 0);
    let code = none.load_as(EngineKind::Task, IDLE).await.unwrap();
    let names = || {
        let entries = std::fs::read_dir(none.cache_dir()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.contains(&code.digest().to_string())).collect::<Vec<_>>()
    };
    let before = names();
    assert_eq!(before.len(), 1, "{before:?}");
    let cache_dir = none.cache_dir();
    let some = Bench::of(|dir| SandboxConfig {
        cache_dir: Some(cache_dir),
        plugin_instances: 0,
        dense: true,
        ..config(dir, 4)
    });
    some.load_as(EngineKind::Task, IDLE).await.unwrap();
    assert_eq!(names(), before);
    assert_eq!(some.sandbox.code().stats().disk_hits, 1);
}

#[tokio::test]
async fn a_dense_guest_computes_and_fails_as_any_other() {
    let bench = tasks(true, 4);
    let limits = StoreLimits { memory_bytes: 64 * MIB, ..StoreLimits::default() };
    let run = |core: &'static str| {
        let (bench, limits) = (&bench, limits.clone());
        async move {
            let code = bench.load_as(EngineKind::Task, core).await.unwrap();
            let guest = run_export(&bench.sandbox, code, limits, |_| {});
            bench.sandbox.spawn_task(guest, 100).join().await
        }
    };
    let grown = format!(
        r#"(component
            (core module $m (memory (export "memory") 1) {GROWS})
            (core instance $i (instantiate $m))
            (func (export "run") (result s32) (canon lift (core func $i "run"))))"#
    );
    let grown: &'static str = grown.leak();
    assert_eq!(run(grown).await.unwrap(), [Val::S32(42)]);
    let outside: &'static str =
        plain(r#"(memory 1) (func (export "run") (drop (i32.load (i32.const 65533))))"#).leak();
    let error = run(outside).await.unwrap_err();
    assert!(matches!(error, CallError::Trap { kind: TrapKind::OutOfBounds, .. }), "{error:?}");
    let far: &'static str =
        plain(r#"(memory 1) (func (export "run") (drop (i32.load (i32.const -9))))"#).leak();
    let error = run(far).await.unwrap_err();
    assert!(matches!(error, CallError::Trap { kind: TrapKind::OutOfBounds, .. }), "{error:?}");
    let deep: &'static str = plain(r#"(func $run (export "run") (call $run) (call $run))"#).leak();
    let error = run(deep).await.unwrap_err();
    assert!(matches!(error, CallError::StackOverflow { .. }), "{error:?}");
}

#[tokio::test]
async fn a_guest_for_which_there_is_no_place_starts_when_another_ends() {
    for dense in [false, true] {
        let idle = Idle::of(tasks(dense, 1)).await;
        let (said, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let start = || {
            let said = said.clone();
            idle.start(move |text| said.send(text).unwrap())
        };
        let first = start();
        idle.until_waiting(1).await;
        let second = start();
        let text = heard.recv().await.unwrap();
        assert!(text.contains("1 of 1") && text.contains("tasks_max"), "{text}");
        let mut third = start();
        heard.recv().await.unwrap();
        third.abort();
        assert!(matches!(third.join().await, Err(CallError::Cancelled)));
        assert_eq!(idle.waiting.load(Ordering::SeqCst), 1);
        drop(first);
        idle.until_waiting(2).await;
        assert_eq!(idle.bench.sandbox.count_placed_tasks(), 1);
        drop(second);
    }
}

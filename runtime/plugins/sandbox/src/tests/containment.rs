//! Every way a guest can go wrong becomes one typed error of that call.

use super::*;
use ostler_model::limits::MIB;

#[tokio::test]
async fn the_module_that_aborts_an_unmasked_host_is_refused_as_unsupported() {
    let bench = Bench::new();
    // Sixty bytes: without the feature mask `ref.test` on a subtype kills the whole process.
    let module = r#"(module
        (rec (type $a (sub (func))) (type $b (sub $a (func))))
        (func (export "run") (drop (ref.test (ref $b) (ref.null $a)))))"#;
    let refused = bench.load(module).await.unwrap_err();
    assert!(matches!(refused, LoadError::Compile(CompileError::Unsupported { .. })), "{refused}");
}

#[tokio::test]
async fn a_module_that_no_feature_would_make_valid_is_invalid() {
    let bench = Bench::new();
    let refused = bench.load("(module (func (result i32)))").await.unwrap_err();
    assert!(matches!(refused, LoadError::Compile(CompileError::Invalid { .. })), "{refused}");
}

#[tokio::test]
async fn a_trap_names_its_kind_and_where_it_happened() {
    let bench = Bench::new();
    let core = r#"(func $deep unreachable) (func $run (export "run") (call $deep))"#;
    match bench.error(&plain(core)).await {
        CallError::Trap { kind: TrapKind::Unreachable, frames, .. } => {
            assert_eq!(frames, ["deep", "run"]);
        }
        other => panic!("{other:?}"),
    }
    let division = r#"(func (export "run") (drop (i32.div_u (i32.const 1) (i32.const 0))))"#;
    let error = bench.error(&plain(division)).await;
    assert!(matches!(error, CallError::Trap { kind: TrapKind::Arithmetic, .. }), "{error:?}");
}

#[tokio::test]
async fn endless_recursion_is_a_stack_overflow() {
    let bench = Bench::new();
    let core = r#"(func $run (export "run") (call $run) (call $run))"#;
    match bench.error(&plain(core)).await {
        CallError::StackOverflow { frames, .. } => {
            assert!(!frames.is_empty());
            assert!(frames.len() <= ostler_model::limits::GUEST_BACKTRACE_FRAMES_MAX);
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_endless_loop_ends_at_its_deadline_and_its_store_is_dropped() {
    let bench = Bench::new();
    let code = bench.load(&plain(SPIN)).await.unwrap();
    let (gone, dropped) = tokio::sync::oneshot::channel();
    let guest = run_export(&bench.sandbox, code, StoreLimits::default(), |state| {
        state.gone = Some(gone);
    });
    let limit = Duration::from_millis(300);
    let run = bench.sandbox.run_with_deadline(limit, &CancellationToken::new(), guest).await;
    assert!(
        matches!(run.result, Err(CallError::DeadlineExceeded { limit: named }) if named == limit)
    );
    tokio::time::timeout(PATIENCE, dropped).await.expect("the store is dropped").unwrap();
}

#[tokio::test]
async fn cancelling_ends_a_call_that_would_spin_for_ever() {
    let bench = Bench::new();
    let code = bench.load(&plain(SPIN)).await.unwrap();
    let guest = run_export(&bench.sandbox, code, StoreLimits::default(), |_| {});
    let cancel = CancellationToken::new();
    let call = bench.sandbox.run_with_deadline(PATIENCE, &cancel, guest);
    let (run, ()) = tokio::join!(call, async { cancel.cancel() });
    assert!(matches!(run.result, Err(CallError::Cancelled)));
}

#[tokio::test]
async fn a_memory_bomb_reports_the_limit_it_hit() {
    let bench = Bench::new();
    // Grows until refused, then aborts: what allocators do.
    let core = r#"(memory 1)
        (func (export "run")
            (loop (br_if 0 (i32.ne (memory.grow (i32.const 16)) (i32.const -1))))
            unreachable)"#;
    let error = bench.error(&plain(core)).await;
    assert!(
        matches!(error, CallError::MemoryLimit { limit, .. } if limit == 64 * MIB),
        "{error:?}"
    );
    assert!(error.to_string().starts_with("memory limit of 64 MiB reached"), "{error}");
}

#[tokio::test]
async fn memories_of_one_guest_share_its_limit() {
    let bench = Bench::new();
    // 40 MiB each: one fits into 64 MiB, two do not.
    let guest = |memories: &str| {
        format!(
            r#"(component
                (core module $m (memory 640) (func (export "run")))
                {memories}
                (core instance $i (instantiate $m))
                (func (export "run") (canon lift (core func $i "run"))))"#
        )
    };
    let one = bench.call(&guest(""), StoreLimits::default(), PATIENCE).await;
    assert!(one.result.is_ok(), "{:?}", one.result);
    let two = bench.error(&guest("(core instance (instantiate $m))")).await;
    assert!(matches!(two, CallError::MemoryLimit { .. }), "{two:?}");
}

#[tokio::test]
async fn a_table_bomb_reports_the_limit_it_hit() {
    let bench = Bench::new();
    let core = r#"(table 1 funcref)
        (func (export "run")
            (if (i32.eq (table.grow (ref.null func) (i32.const 100000000)) (i32.const -1))
                (then unreachable)))"#;
    let limits = StoreLimits { table_elements: 100, ..StoreLimits::default() };
    // In total: a pool slot alone would already refuse the hundred million.
    let many = r#"(table 60 funcref) (table 60 funcref) (func (export "run"))"#;
    let error = bench.call(&plain(many), limits.clone(), PATIENCE).await.result.unwrap_err();
    assert!(matches!(error, CallError::TableLimit { limit: 100, .. }), "{error:?}");
    let error = bench.call(&plain(core), limits, PATIENCE).await.result.unwrap_err();
    assert!(matches!(error, CallError::Trap { .. } | CallError::TableLimit { .. }), "{error:?}");
    // 40,000 elements are 320,000 bytes of the host's memory: five pages of 64 KiB.
    let large = r#"(memory 3) (table 40000 funcref) (func (export "run"))"#;
    let limits = StoreLimits { memory_bytes: 7 << 16, ..StoreLimits::default() };
    let error = bench.call(&plain(large), limits, PATIENCE).await.result.unwrap_err();
    assert!(matches!(error, CallError::MemoryLimit { .. }), "{error:?}");
    let limits = StoreLimits { memory_bytes: 8 << 16, ..StoreLimits::default() };
    bench.call(&plain(large), limits, PATIENCE).await.result.unwrap();
}

#[tokio::test]
async fn an_over_long_answer_is_refused_before_it_is_copied() {
    let bench = Bench::new();
    let wat = r#"(component
        (core module $m
            (memory (export "memory") 40)
            (func (export "run") (result i32)
                (i32.store (i32.const 0) (i32.const 16))
                (i32.store (i32.const 4) (i32.const 2000000))
                (i32.const 0)))
        (core instance $i (instantiate $m))
        (func (export "run") (result (list u8))
            (canon lift (core func $i "run") (memory (core memory $i "memory")))))"#;
    let error = bench.error(wat).await;
    assert!(matches!(error, CallError::AnswerTooLarge { limit } if limit == MIB), "{error:?}");
    let limits = StoreLimits { answer_bytes: 200 * MIB, ..StoreLimits::default() };
    let whole = bench.call(wat, limits, PATIENCE).await.result.unwrap();
    assert!(matches!(&whole[..], [Val::List(bytes)] if bytes.len() == 2_000_000));
}

/// Spawns a call of `wat`, bounded to `cpu_max`, whose host calls take no time of the guest's.
async fn bounded_call(bench: &Bench, wat: &str, cpu_max: Duration) -> (CallError, CpuMeter) {
    let code = bench.load(wat).await.unwrap();
    let meter = CpuMeter::default();
    let of_store = meter.clone();
    let guest = run_metered(&bench.sandbox, code, StoreLimits::default(), move |state| {
        state.budget = HostcallBudget::new(u64::MAX, u64::MAX);
        state.cpu = of_store;
    });
    let mut task = bench.sandbox.spawn_bounded(guest, meter, cpu_max, HostBlocking::Never);
    let ended = tokio::time::timeout(PATIENCE, task.join()).await.expect("it ends");
    (ended.unwrap_err(), task.cpu())
}

#[tokio::test]
async fn a_call_ends_when_its_processor_time_is_used_up_however_far_its_deadline() {
    let bench = Bench::new();
    let limit = Duration::from_millis(50);
    let (error, cpu) = bounded_call(&bench, &plain(SPIN), limit).await;
    assert!(
        matches!(error, CallError::CpuExceeded { limit: named } if named == limit),
        "{error:?}"
    );
    // A tick of wall time is at most a tick of processor time.
    assert!(cpu.guest_time() <= limit + 2 * ostler_model::limits::EPOCH_TICK, "{cpu:?}");
}

#[tokio::test]
async fn time_in_host_functions_is_not_the_guests() {
    let bench = Bench::new();
    // The host spins ten times 20 ms; the guest does nothing, and may do hardly anything.
    let (error, cpu) = bounded_call(&bench, &calling("work"), Duration::from_millis(100)).await;
    assert!(matches!(error, CallError::Exit { code: 10 }), "{error:?}");
    assert!(cpu.total() >= Duration::from_millis(190), "{cpu:?}");
    assert!(cpu.guest_time() < Duration::from_millis(100), "{cpu:?}");
}

#[tokio::test]
async fn what_one_host_call_is_given_is_bounded_apart_from_the_answer() {
    let bench = Bench::new();
    let wat = r#"(component
        (import "take" (func $take (param "bytes" (list u8))))
        (core module $libc (memory (export "memory") 40))
        (core instance $libc (instantiate $libc))
        (core func $take (canon lower (func $take) (memory (core memory $libc "memory"))))
        (core module $m
            (import "host" "take" (func $take (param i32 i32)))
            (func (export "run") (call $take (i32.const 16) (i32.const 2000000))))
        (core instance $i (instantiate $m
            (with "host" (instance (export "take" (func $take))))))
        (func (export "run") (canon lift (core func $i "run"))))"#;
    let code = bench.load(wat).await.unwrap();
    let taken = async |limits: StoreLimits| {
        let guest = run_metered(&bench.sandbox, Arc::clone(&code), limits, |_| {});
        let cancel = CancellationToken::new();
        bench.sandbox.run_with_deadline(PATIENCE, &cancel, guest).await.result
    };
    let narrow = StoreLimits { answer_bytes: 200 * MIB, ..StoreLimits::default() };
    let error = taken(narrow).await.unwrap_err();
    assert!(matches!(error, CallError::AnswerTooLarge { limit: MIB }), "{error:?}");
    let wide = StoreLimits { hostcall_bytes: 4 * MIB, answer_bytes: 1, ..StoreLimits::default() };
    taken(wide).await.unwrap();
}

#[tokio::test]
async fn handles_are_bounded() {
    let bench = Bench::new();
    let wat = r#"(component
        (type $r (resource (rep i32)))
        (core func $new (canon resource.new $r))
        (core module $m
            (import "host" "new" (func $new (param i32) (result i32)))
            (func (export "run") (loop (drop (call $new (i32.const 1))) (br 0))))
        (core instance $i (instantiate $m (with "host" (instance (export "new" (func $new))))))
        (func (export "run") (canon lift (core func $i "run"))))"#;
    let error = bench.error(wat).await;
    assert!(matches!(error, CallError::TooManyHandles { limit: 1_000 }), "{error:?}");
}

#[tokio::test]
async fn host_calls_end_when_their_budget_is_spent() {
    let bench = Bench::new();
    let error = bench.error(&calling("spend")).await;
    assert!(
        matches!(error, CallError::HostcallBudget { what: "host calls", limit: 100 }),
        "{error:?}"
    );
}

#[tokio::test]
async fn a_panicking_host_function_costs_one_call() {
    let bench = Bench::new();
    match bench.error(&calling("panic")).await {
        CallError::HostPanic { message } => assert_eq!(message, "host fell over"),
        other => panic!("{other:?}"),
    }
    let next = bench.call(&plain(NOTHING), StoreLimits::default(), PATIENCE).await;
    assert!(next.result.is_ok(), "{:?}", next.result);
}

#[tokio::test]
async fn an_exit_keeps_its_code() {
    let bench = Bench::new();
    let error = bench.error(&calling("exit")).await;
    assert!(matches!(error, CallError::Exit { code: 7 }), "{error:?}");
}

#[tokio::test]
async fn a_full_pool_is_its_own_error_and_room_comes_back() {
    let bench = Bench::with_instances(1);
    let spin = bench.load(&plain(SPIN)).await.unwrap();
    let (gone, dropped) = tokio::sync::oneshot::channel();
    let (ready, started) = tokio::sync::oneshot::channel();
    let guest = run_export(&bench.sandbox, spin, StoreLimits::default(), |state| {
        state.gone = Some(gone);
    });
    let spinner = bench.sandbox.spawn(async move {
        let mut guest = std::pin::pin!(guest);
        let mut ready = Some(ready);
        std::future::poll_fn(|context| {
            let polled = guest.as_mut().poll(context);
            // After its first yield it holds its slot.
            if let Some(ready) = ready.take() {
                let _ = ready.send(());
            }
            polled
        })
        .await
    });
    started.await.unwrap();
    let refused = bench.error(&plain(NOTHING)).await;
    assert!(matches!(refused, CallError::PoolExhausted { .. }), "{refused:?}");
    drop(spinner);
    tokio::time::timeout(PATIENCE, dropped).await.expect("the store is dropped").unwrap();
    // The slot is free a moment after the store's data is gone.
    let retry = async {
        while let Err(error) =
            bench.call(&plain(NOTHING), StoreLimits::default(), PATIENCE).await.result
        {
            assert!(matches!(error, CallError::PoolExhausted { .. }), "{error:?}");
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, retry).await.expect("room comes back");
}

#[tokio::test]
async fn a_guest_with_more_memories_than_allowed_does_not_load() {
    let bench = Bench::new();
    let core = r#"(memory 1) (memory 1) (memory 1) (memory 1) (memory 1) (func (export "run"))"#;
    let refused = bench.load(&plain(core)).await.unwrap_err();
    assert!(matches!(refused, LoadError::DoesNotFit { .. }), "{refused}");
}

//! What hostile guests cost everybody else, and what being safe from them costs a guest that behaves:
//! lateness of timers and calls of a neighbour during each attack, time from a deadline to the end, and
//! one call with all limits beside the same call without.
//!
//! Baselines in the same run: the neighbour and the timers without an attack, in turns with each; and
//! bare wasmtime with the agent's own host functions and configuration but neither epochs nor limits.
#![allow(
    missing_docs,
    clippy::expect_used,
    clippy::panic,
    reason = "a bench that cannot set up has to end"
)]

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ostler_benches::live::own_child;
use ostler_benches::machine::{runtime, scaled};
use ostler_benches::percentiles::{micros, quantile};
use ostler_benches::plugins::{host_services, load_within};
use ostler_benches::report::{Report, bench};
use ostler_guests::fixtures::{HOSTILE_DEVICE, HOSTILE_TASK};
use ostler_model::clock::{Stopwatch, sleep};
use ostler_model::cores::CoreSet;
use ostler_model::grants::Grants;
use ostler_model::ids::{AllocId, GroupName, JobId, RunId, TaskName};
use ostler_model::json::JsonObject;
use ostler_model::limits::{EPOCH_TICK, PluginLimits, TaskLimits};
use ostler_model::ports::{ByteSink, PluginCallError, TaskContext};
use ostler_plugin::PluginRuntime;
use ostler_plugin::bindings::since_0_1::device_world::DevicePluginPre;
use ostler_plugin::device::LoadedDevice;
use ostler_plugin::host::call_state::HostTime;
use ostler_plugin::host::{CallState, HostServices, PluginContext, imports};
use ostler_sandbox::{CpuMeter, EngineKind, StoreLimits, meter_host_calls, new_store};
use ostler_wasm_task::{TaskStdin, WasmTaskSpec};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use wasmtime::component::{Component, Linker};
use wasmtime::{Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, Store};

/// Attackers at the same time, in each attack.
const ATTACKERS: usize = 4;
/// The deadline of attacks that end by one.
const WALL: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    if let Some(code) = own_child() {
        return code;
    }
    bench("containment", measured)
}

fn measured(report: &mut Report) {
    let (runtime, code) = (runtime(), report.dir().join("code"));
    let bytes: Arc<[u8]> = std::fs::read(HOSTILE_DEVICE).expect("the fixture").into();
    let [calls, attacked] = report.parts(["cost", "attacks"]);
    if calls {
        cost(&runtime, &code, &bytes, report);
    }
    if attacked {
        attacks(&runtime, &code, &bytes, report);
    }
}

fn config(mode: &str) -> JsonObject {
    match json!({ "mode": mode }) {
        Value::Object(map) => JsonObject::from(map),
        _ => panic!("an object"),
    }
}

// ---- what it costs ---------------------------------------------------------------------------

/// A well-behaved call on a fresh instance: eight devices, with and without all that contains it.
fn cost(runtime: &Runtime, code: &Path, bytes: &Arc<[u8]>, report: &mut Report) {
    let code = code.to_owned();
    let bytes = Arc::clone(bytes);
    let times = runtime.block_on(async move {
        let services = host_services(&code);
        let bare = Side::bare(&services, &bytes);
        let epochs = Side::epochs(&services, &bytes).await;
        let mut times: [Vec<Duration>; 3] = Default::default();
        for turn in 0..scaled(12_000, 5) {
            let took = [bare.call(false).await, epochs.call(false).await, epochs.call(true).await];
            // The first turns fill caches.
            if turn >= scaled(1_000, 0) {
                times.iter_mut().zip(took).for_each(|(times, took)| times.push(took));
            }
        }
        times
    });
    let [bare, epochs, whole] = &times;
    let rows =
        [("with every limit", &**whole), ("with epochs", &**epochs), ("bare wasmtime", &**bare)];
    let [whole, _, bare] = report.times("one call on one thread, a fresh instance each", rows);
    report.promises.at_most("containment_call_cost", (whole / bare - 1.0) * 100.0, "%", 15.0);
}

/// An engine and the plugin in it.
struct Side {
    engine: Engine,
    ready: DevicePluginPre<CallState>,
    context: Arc<PluginContext>,
    services: HostServices,
    limits: StoreLimits,
}

impl Side {
    fn new(services: &HostServices, engine: Engine, component: &Component) -> Self {
        let mut linker = Linker::new(&engine);
        imports::link(&mut linker).expect("the host's interfaces link");
        let ready = linker.instantiate_pre(component).expect("the plugin links");
        let (grants, limits) = (Grants::default(), PluginLimits::default());
        let config = config("cards").text().to_owned();
        let context =
            PluginContext::new("bench".to_owned(), config, grants, limits.clone(), &services.clock);
        Self {
            engine,
            ready: DevicePluginPre::new(ready).expect("a device plugin"),
            context: Arc::new(context),
            services: services.clone(),
            limits: StoreLimits::from(&limits),
        }
    }

    /// As the agent configures its engine, without interruption.
    fn bare(services: &HostServices, bytes: &[u8]) -> Self {
        let mut config = Config::new();
        let mut pool = PoolingAllocationConfig::new();
        pool.linear_memory_keep_resident(64 * 1024)
            .table_keep_resident(16 * 1024)
            .async_stack_keep_resident(16 * 1024)
            .pagemap_scan(wasmtime::Enabled::Auto);
        config
            .concurrency_support(false)
            .max_wasm_stack(512 * 1024)
            .async_stack_size(768 * 1024)
            .allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
        let engine = Engine::new(&config).expect("an engine");
        let component = Component::new(&engine, bytes).expect("the plugin compiles");
        Self::new(services, engine, &component)
    }

    /// The agent's own engine and code.
    async fn epochs(services: &HostServices, bytes: &Arc<[u8]>) -> Self {
        let code = services.sandbox.code();
        let format = ostler_sandbox::WasmFormat::Component;
        let loaded = code.load(Arc::clone(bytes), EngineKind::Plugin, format).await;
        let loaded = loaded.expect("the plugin loads");
        let engine = services.sandbox.engine(EngineKind::Plugin).clone();
        Self::new(services, engine, loaded.component().expect("a component"))
    }

    /// One call on this thread, its store made and dropped.
    async fn call(&self, limited: bool) -> Duration {
        let watch = Stopwatch::start();
        let state = CallState::new(
            Arc::clone(&self.context),
            None,
            self.services.clone(),
            Arc::new(HostTime::default()),
            CpuMeter::default(),
            &self.limits,
            Arc::default(),
        );
        let mut store = if limited {
            let mut store = new_store(&self.engine, &self.limits, state).expect("a store");
            meter_host_calls(&mut store, &self.limits);
            store
        } else {
            let mut store = Store::new(&self.engine, state);
            store.set_epoch_deadline(u64::MAX / 2);
            store
        };
        let plugin = self.ready.instantiate_async(&mut store).await.expect("an instance");
        let answer = plugin.ostler_plugin_device().call_fingerprint(&mut store).await;
        let answer = answer.expect("it does not trap").expect("it answers");
        assert_eq!(answer.groups.len(), 8, "all");
        drop((answer, store));
        watch.elapsed()
    }
}

// ---- what others notice ----------------------------------------------------------------------

/// What is attacked with: a mode of the plugin, or words for the task.
const ATTACKS: [(&str, Attack); 9] = [
    ("spinning calls", Attack::Plugin("spin")),
    ("calls that trap", Attack::Plugin("trap")),
    ("calls that take all memory", Attack::Plugin("memory-bomb")),
    ("calls with host calls for ever", Attack::Plugin("hostcall-flood")),
    ("calls that flood the log", Attack::Plugin("log-flood")),
    ("calls with huge answers", Attack::Plugin("huge-string")),
    ("spinning tasks", Attack::Task("spin")),
    ("tasks with host calls for ever", Attack::Task("spin-calls")),
    ("tasks that print for ever", Attack::Task("flood")),
];

#[derive(Clone, Copy)]
enum Attack {
    Plugin(&'static str),
    Task(&'static str),
}

fn attacks(runtime: &Runtime, code: &Path, bytes: &Arc<[u8]>, report: &mut Report) {
    println!("\n{ATTACKERS} attackers at once, a neighbour called every millisecond");
    let (code, bytes, dir) = (code.to_owned(), Arc::clone(bytes), report.dir().to_owned());
    // `OSTLER_BENCH_ATTACK=spinning`: only those with it in their name.
    let only = std::env::var("OSTLER_BENCH_ATTACK").unwrap_or_default();
    let work = runtime.spawn(async move {
        let arena = Arena::new(&code, &bytes, dir).await;
        let span = scaled(Duration::from_millis(2_500), Duration::from_millis(50));
        let _warm = arena.measure(None, span).await;
        let (mut calm, mut worst) = (Measured::default(), (0.0_f64, ""));
        let (mut under, mut past) = (Measured::default(), Vec::new());
        for (name, attack) in ATTACKS.into_iter().filter(|(name, _)| name.contains(&only)) {
            let before = arena.measure(None, span / 2).await;
            let during = arena.measure(Some(attack), span).await;
            let p99 = |m: &Measured| quantile(&mut micros(&m.calls), 0.99);
            let ratio = p99(&during) / p99(&before);
            let late = quantile(&mut micros(&during.late), 1.0) / 1e3;
            println!(
                "{name:<32} p99 {:>8.1} µs, {ratio:>4.1} times that without; timers at most {late:>5.2} ms late; \
                 {} cut off, at most {:>5.2} ms after",
                p99(&during), during.past.len(), max(&during.past).as_secs_f64() * 1e3
            );
            if ratio > worst.0 {
                worst = (ratio, name);
            }
            past.extend(during.past.iter().copied());
            calm.add(before);
            under.add(during);
        }
        (calm, under, past, worst)
    });
    let (calm, under, past, worst) = runtime.block_on(work).expect("the measurement");
    let rows = [("under attack", &*under.calls), ("no attack", &*calm.calls)];
    report.times("calls of a neighbour", rows);
    let rows = [("under attack", &*under.late), ("no attack", &*calm.late)];
    report.times("how late timers are", rows);
    report.times("from a deadline to the end", [("attacks", &*past)]);
    println!("the neighbour's worst attack: {}", worst.1);
    let promises = &mut report.promises;
    let ticks = |time: Duration| time.as_secs_f64() / EPOCH_TICK.as_secs_f64();
    let p99 = |times: &[Duration]| quantile(&mut micros(times), 0.99);
    promises.at_most("containment_timers_late", max(&under.late).as_secs_f64() * 1e3, "ms", 20.0);
    let ratio = p99(&under.calls) / p99(&calm.calls);
    promises.at_most("containment_neighbour_p99", ratio, "times", 3.0);
    promises.at_most("containment_neighbour_p99_worst_attack", worst.0, "times", 3.0);
    promises.at_most("containment_past_deadline_p99", p99(&past) / 1e4, "ticks", 2.0);
    promises.at_most("containment_past_deadline_max", ticks(max(&past)), "ticks", 2.0);
}

fn max(times: &[Duration]) -> Duration {
    times.iter().max().copied().unwrap_or_default()
}

#[derive(Default)]
struct Measured {
    /// Calls of the neighbour.
    calls: Vec<Duration>,
    /// How late timers of the control runtime were.
    late: Vec<Duration>,
    /// From an attack's deadline to its end.
    past: Vec<Duration>,
}

impl Measured {
    fn add(&mut self, other: Self) {
        self.calls.extend(other.calls);
        self.late.extend(other.late);
        self.past.extend(other.past);
    }
}

#[derive(Clone)]
struct Arena {
    plugins: PluginRuntime,
    services: HostServices,
    bytes: Arc<[u8]>,
    neighbour: Arc<LoadedDevice>,
    dir: std::path::PathBuf,
}

struct Nowhere;

impl ByteSink for Nowhere {
    fn write(&self, _: &[u8]) {}
}

impl Arena {
    async fn new(code: &Path, bytes: &Arc<[u8]>, dir: std::path::PathBuf) -> Self {
        let services = host_services(code);
        let plugins = PluginRuntime::new(services.clone()).expect("the host's interfaces link");
        let limits = PluginLimits::default();
        let neighbour = load_within(&plugins, bytes, &config("cards"), limits).await;
        let (bytes, neighbour) = (Arc::clone(bytes), Arc::new(neighbour));
        Self { plugins, services, bytes, neighbour, dir }
    }

    /// The neighbour's calls and the timers for so long, while this attack goes on.
    async fn measure(&self, attack: Option<Attack>, span: Duration) -> Measured {
        let stop = Arc::new(AtomicBool::new(false));
        let attackers = if attack.is_some() { ATTACKERS } else { 0 };
        let mut ends = Vec::new();
        for _ in 0..attackers {
            let (arena, stop) = (self.clone(), Arc::clone(&stop));
            let attack = attack.expect("an attack");
            ends.push(tokio::spawn(async move { arena.attack(attack, &stop).await }));
        }
        // They are under way.
        sleep(Duration::from_millis(if attackers > 0 { 200 } else { 20 })).await;
        let (timer_stop, neighbour) = (Arc::clone(&stop), Arc::clone(&self.neighbour));
        let timers = tokio::spawn(async move {
            const NAP: Duration = Duration::from_millis(5);
            let mut late = Vec::new();
            while !timer_stop.load(Ordering::SeqCst) {
                let watch = Stopwatch::start();
                sleep(NAP).await;
                // The timer wheel counts in milliseconds and is never early.
                late.push(watch.elapsed().saturating_sub(NAP + Duration::from_millis(1)));
            }
            late
        });
        let mut calls = Vec::new();
        let whole = Stopwatch::start();
        while whole.elapsed() < span {
            let watch = Stopwatch::start();
            let found = neighbour.fingerprint().await.expect("the neighbour answers");
            calls.push(watch.elapsed());
            assert_eq!(found.groups.len(), 8, "and rightly");
            sleep(Duration::from_millis(1)).await;
        }
        stop.store(true, Ordering::SeqCst);
        let mut past = Vec::new();
        for end in ends {
            past.extend(end.await.expect("an attacker"));
        }
        Measured { calls, late: timers.await.expect("the timers"), past }
    }

    /// The same attack again and again; from its deadline to its end.
    async fn attack(&self, attack: Attack, stop: &AtomicBool) -> Vec<Duration> {
        match attack {
            Attack::Plugin(mode) => self.plugin(mode, stop).await,
            Attack::Task(word) => self.task(word, stop).await,
        }
    }

    async fn plugin(&self, mode: &str, stop: &AtomicBool) -> Vec<Duration> {
        let limits = PluginLimits { call_wall_max: WALL, ..PluginLimits::default() };
        let plugin = load_within(&self.plugins, &self.bytes, &config(mode), limits).await;
        let mut past = Vec::new();
        while !stop.load(Ordering::SeqCst) {
            let watch = Stopwatch::start();
            match plugin.fingerprint().await {
                // In quarantine it would not attack any more.
                Err(PluginCallError::CallFailed { .. }) => {}
                ended => panic!("{mode} is contained: {ended:?}"),
            }
            past.extend(watch.elapsed().checked_sub(WALL));
            // The agent asks a plugin that fails again after a second at the earliest.
            sleep(Duration::from_millis(5)).await;
        }
        past
    }

    async fn task(&self, word: &str, stop: &AtomicBool) -> Vec<Duration> {
        let mut past = Vec::new();
        while !stop.load(Ordering::SeqCst) {
            let context = self.context();
            let spec = WasmTaskSpec {
                path: HOSTILE_TASK.into(),
                args: vec!["attack".to_owned(), word.to_owned()],
                env: vec![],
                dirs: vec![],
                limits: TaskLimits { memory_bytes_max: 32 << 20, ..TaskLimits::default() },
                listen: false,
                connect: vec![],
                input: TaskStdin::Nothing,
            };
            let host = &self.services.wasm_tasks;
            let id = host.spawn(Arc::clone(&context), spec).await.expect("it starts");
            sleep(WALL).await;
            let watch = Stopwatch::start();
            host.kill(&context.run_id, &id).expect("it is killed");
            host.wait(&context.run_id, &id).await;
            past.push(watch.elapsed());
            host.forget_run(&context.run_id);
        }
        past
    }

    fn context(&self) -> Arc<TaskContext> {
        let alloc = AllocId::new(self.services.rng.uuid());
        let task = TaskName::new("t").expect("a name");
        Arc::new(TaskContext {
            run_id: RunId::new(alloc, &task, 1),
            alloc_id: alloc,
            job_id: JobId::new("j").expect("a name"),
            group: GroupName::new("g").expect("a name"),
            task,
            stdout: Arc::new(Nowhere),
            stderr: Arc::new(Nowhere),
            record_identity: Arc::new(|_| Box::pin(std::future::ready(Ok(())))),
            events: Arc::new(|_, _| {}),
            cpu_mhz: 100,
            cores: CoreSet::new(),
            memory_bytes_max: 32 << 20,
            disk_bytes_max: 32 << 20,
            ports: vec![],
            task_dir: self.dir.clone(),
            alloc_dir: self.dir.clone(),
            dirs: ostler_model::ports::dirs_are_made(),
            mounts: vec![],
            device_nodes: vec![],
            user: None,
            alloc_user: None,
            named: Arc::from([]),
            env: Arc::from([]),
            network: None,
            secrets: Arc::default(),
        })
    }
}

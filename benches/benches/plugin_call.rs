//! What a call of a plugin costs: time of one fingerprint end to end through the device manager,
//! memory of a plugin that is loaded and idle, and time from a file to its first fingerprint.
//!
//! Baselines in the same run: the same component in bare wasmtime on a fresh instance (from a pool,
//! and mapped for each) and on one that is used again and again. They take turns with what they are
//! compared to, and are given the same configuration.
#![allow(
    missing_docs,
    clippy::expect_used,
    clippy::panic,
    reason = "a bench that cannot set up has to end"
)]

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ostler_benches::counting::{Allocations, Counting};
use ostler_benches::live::own_child;
use ostler_benches::machine::{runtime, scaled};
use ostler_benches::memory::resident;
use ostler_benches::percentiles::{median, number, per};
use ostler_benches::plugins::{
    device_manager, load, load_granted, load_within, plugin_runtime, variant,
};
use ostler_benches::report::{Report, bench};
use ostler_guests::fixtures::HOSTILE_DEVICE;
use ostler_model::clock::Stopwatch;
use ostler_model::config::{FileGrant, Grants};
use ostler_model::ids::PluginName;
use ostler_model::json::JsonObject;
use ostler_model::limits::PluginLimits;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use wasmtime::component::{Component, HasSelf, Linker, ResourceTable};
use wasmtime::{Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig, Store};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

#[global_allocator]
static COUNTING: Counting = Counting;

mod bindings {
    #![allow(missing_docs, clippy::all, reason = "generated")]
    wasmtime::component::bindgen!({ path: "../wit/since-0.1", world: "device-plugin" });
}

use bindings::DevicePluginPre;
use bindings::ostler::plugin as host;

/// Devices of the plugin, and attributes of each.
const DEVICES: usize = 8;
const ATTRIBUTES: usize = 4;
/// The name the plugin gives itself.
const NAME: &str = "hostile-device";

fn main() -> ExitCode {
    if let Some(code) = own_child() {
        return code;
    }
    bench("plugin_call", measured)
}

fn measured(report: &mut Report) {
    let (runtime, code) = (runtime(), report.dir().join("code"));
    let bytes: Arc<[u8]> = std::fs::read(HOSTILE_DEVICE).expect("the fixture").into();
    println!(
        "plugin: {} bytes of wasm, configuration {} bytes",
        bytes.len(),
        config().text().len()
    );
    let [called, loaded, from_a_file] = report.parts(["call", "memory", "load"]);
    if called {
        call(&runtime, &code, &bytes, report);
    }
    if loaded {
        idle(&runtime, &code, &bytes, report);
    }
    if from_a_file {
        first(&runtime, &code, &bytes, report);
    }
}

/// Tells the plugin to behave: eight groups of one instance, because attributes belong to groups.
/// What it answers is in its code, so that the plugin's own work is small beside the call.
fn config() -> JsonObject {
    match json!({ "mode": "cards" }) {
        Value::Object(map) => JsonObject::from(map),
        _ => panic!("an object"),
    }
}

/// One fingerprint, end to end, beside bare wasmtime.
fn call(runtime: &Runtime, code: &Path, bytes: &Arc<[u8]>, report: &mut Report) {
    let (code, bytes) = (code.to_owned(), Arc::clone(bytes));
    // On a thread of the control runtime, where the manager's own loops run.
    let measured = runtime.block_on(runtime.spawn(async move {
        let plugins = plugin_runtime(&code);
        let (manager, node) = device_manager();
        let plugin = load(&plugins, &bytes, &config()).await;
        let meter = Arc::clone(plugin.meter());
        manager.add(plugin).expect("a new name").await;
        assert_eq!(node.current().devices.len(), DEVICES, "the devices are on the node");
        // It does not ask for its directories; a call that does goes on on a guest thread from there.
        let files = vec![FileGrant { path: "/proc/self".into(), write: false }];
        let grants = Grants { files, ..Grants::default() };
        let away = load_granted(&plugins, &bytes, &config(), grants).await;
        let (far_manager, _far_node) = device_manager();
        far_manager.add(away).expect("a new name").await;
        let limits = PluginLimits { recorded_calls_max: 0, ..PluginLimits::default() };
        let forgetful = load_within(&plugins, &bytes, &config(), limits).await;
        let (forgetful_manager, _forgetful_node) = device_manager();
        forgetful_manager.add(forgetful).expect("a new name").await;
        let name = PluginName::new(NAME).expect("a name");
        let (pooled, mapped) = (Bare::new(&bytes, true), Bare::new(&bytes, false));
        let mut reused = pooled.instance();
        let others = ostler_benches::machine::runtime();
        let mut times: [Vec<Duration>; 4] = Default::default();
        for turn in 0..scaled(5_500, 5) {
            let ours = timed(async || assert!(manager.ask(&name).await, "it is there")).await;
            let fresh = pooled.fresh();
            let mapped = mapped.fresh();
            let watch = Stopwatch::start();
            reused.fingerprint();
            let again = watch.elapsed();
            // The first turns fill caches.
            if turn >= scaled(500, 0) {
                for (times, took) in times.iter_mut().zip([ours, fresh, mapped, again]) {
                    times.push(took);
                }
            }
        }
        let mut recording = [(&manager, Vec::new()), (&forgetful_manager, Vec::new())];
        for _ in 0..scaled(4_000, 4) {
            for (manager, times) in &mut recording {
                let took = timed(async || assert!(manager.ask(&name).await, "it is there")).await;
                times.push(took);
            }
            // Each comes first as often as second.
            recording.reverse();
        }
        let [(_, kept), (_, unkept)] = recording;
        // By themselves: they wake threads, and what comes after finds its caches cold.
        let mut far_times: [Vec<Duration>; 3] = Default::default();
        for _ in 0..scaled(2_000, 5) {
            let far = timed(async || assert!(far_manager.ask(&name).await, "it is there")).await;
            let fresh = pooled.fresh();
            let hop = timed(async || others.spawn(async {}).await.expect("it ends")).await;
            // As long as one turn, so that the threads are asleep as they are between two calls.
            let _again = (pooled.fresh(), pooled.fresh());
            for (times, took) in far_times.iter_mut().zip([far, hop, fresh]) {
                times.push(took);
            }
        }
        let activity = meter.report();
        manager.shutdown().await;
        forgetful_manager.shutdown().await;
        far_manager.shutdown().await;
        others.shutdown_background();
        (times, far_times, [kept, unkept], activity)
    }));
    let (times, [far, hop, beside], [kept, unkept], activity) = measured.expect("the measurement");
    let [ours, fresh, mapped, again] = &times;
    let rows = [
        ("through the manager", &**ours),
        ("wasmtime, fresh, mapped", &**mapped),
        ("wasmtime, reused", &**again),
        ("wasmtime, fresh, pooled", &**fresh),
    ];
    let title = format!("one fingerprint of {DEVICES} devices with {ATTRIBUTES} attributes");
    let [ours, _, _, fresh] = report.times(&title, rows);
    report.times("recorded and not", [("recorded", &*kept), ("not recorded", &*unkept)]);
    let rows = [
        ("through the manager, files granted", &*far),
        ("to another thread and back", &*hop),
        ("wasmtime, fresh, pooled", &*beside),
    ];
    let [far, _, beside] = report.times("the same plugin with a grant", rows);
    if let Some(stats) = activity.calls.get("fingerprint") {
        println!(
            "the plugin's own counts: p50 {:.1} µs, p99 {:.1} µs, {:.0} bytes to it, {:.0} from it",
            number(stats.p50_nanos) / 1e3,
            number(stats.p99_nanos) / 1e3,
            per(stats.bytes_in, stats.calls),
            per(stats.bytes_out, stats.calls)
        );
        assert_eq!(stats.failed, 0, "no call failed");
    }
    let promises = &mut report.promises;
    promises.at_most("plugin_call_p50", ours, "µs", 40.0);
    promises.at_most("plugin_call_vs_bare_wasmtime", ours / fresh, "times", 1.5);
    promises.at_most("plugin_call_granted_vs_bare_wasmtime", far / beside, "times", 2.0);
}

async fn timed(work: impl AsyncFnOnce()) -> Duration {
    let watch = Stopwatch::start();
    work().await;
    watch.elapsed()
}

/// Plugins that were asked once and wait, each from a file of its own: time and memory of so many.
fn idle(runtime: &Runtime, code: &Path, bytes: &Arc<[u8]>, report: &mut Report) {
    let counts = [4_u8, 8, 16, 32, 64].map(|count| scaled(count, count / 4));
    let (code, bytes) = (code.to_owned(), Arc::clone(bytes));
    let measured = runtime.block_on(runtime.spawn(async move {
        let plugins = plugin_runtime(&code);
        // All have one name, so each has a manager of its own, which is counted.
        let add = async |number: u8| {
            let (manager, node) = device_manager();
            let plugin = load(&plugins, &variant(&bytes, number), &config()).await;
            manager.add(plugin).expect("a new name").await;
            assert_eq!(node.current().devices.len(), DEVICES, "the devices are on the node");
            manager
        };
        // Pool, threads and allocator are there before; and all is compiled, which leaves traces.
        for number in 0..=counts[4] {
            add(number).await.shutdown().await;
        }
        let mut measured = Vec::new();
        for count in counts {
            let before = (Allocations::now().live(), resident());
            let (watch, mut managers) = (Stopwatch::start(), Vec::new());
            for number in 1..=count {
                managers.push(add(number).await);
            }
            let took = watch.elapsed().as_secs_f64() * 1e3;
            let after = (Allocations::now().live(), resident());
            for manager in managers {
                manager.shutdown().await;
            }
            let kib = |after: u64, before: u64| number(after.saturating_sub(before)) / 1024.0;
            measured.push((count, took, kib(after.0, before.0), kib(after.1, before.1)));
        }
        measured
    }));
    let measured = measured.expect("the measurement");
    let points = |of: fn(&(u8, f64, f64, f64)) -> f64| {
        measured.iter().map(|one| (f64::from(one.0), of(one))).collect::<Vec<_>>()
    };
    let (time, heap) = (points(|one| one.1), points(|one| one.2));
    let series = [("time, ms", &*time), ("heap, KiB", &*heap)];
    let exponents = report.curve("plugins loaded and asked once", "plugins", series);
    let each = |of: fn(&(u8, f64, f64, f64)) -> f64| {
        median(&measured.iter().map(|one| of(one) / f64::from(one.0)).collect::<Vec<_>>())
    };
    let (heap, rss) = (each(|one| one.2), each(|one| one.3));
    let rows = [("a loaded, idle plugin", vec![heap, rss])];
    report.figures("memory of a plugin, KiB", &["heap in use", "resident"], &rows);
    let exponent = exponents.into_iter().fold(0.0, f64::max);
    report.promises.at_most("cost_exponent_plugins", exponent, "power", 1.05);
    report.promises.at_most("plugin_idle_memory", heap.max(rss), "KiB", 1_024.0);
}

/// From the bytes of a plugin to its devices on the node, its compiled code on the disk.
fn first(runtime: &Runtime, code: &Path, bytes: &Arc<[u8]>, report: &mut Report) {
    let (code, bytes) = (code.to_owned(), Arc::clone(bytes));
    let measured = runtime.block_on(runtime.spawn(async move {
        let plugins = plugin_runtime(&code);
        let config = config();
        let (mut loads, mut whole) = (Vec::new(), Vec::new());
        for turn in 0..scaled(220, 3) {
            let (manager, node) = device_manager();
            let watch = Stopwatch::start();
            let plugin = load(&plugins, &bytes, &config).await;
            let loaded = watch.elapsed();
            manager.add(plugin).expect("a new name").await;
            let took = watch.elapsed();
            assert_eq!(node.current().devices.len(), DEVICES, "the devices are on the node");
            // The last user of the code: the next turn maps it anew.
            manager.shutdown().await;
            drop(manager);
            if turn >= scaled(20, 1) {
                loads.push(loaded);
                whole.push(took);
            }
        }
        (loads, whole)
    }));
    let (loads, whole) = measured.expect("the measurement");
    let rows = [("of that, loaded", &*loads), ("to the first fingerprint", &*whole)];
    let [_, whole] = report.times("from a plugin's file to its devices, compiled before", rows);
    report.promises.at_most("plugin_load_to_fingerprint", whole / 1e3, "ms", 2.0);
}

/// What a store of bare wasmtime holds.
struct State {
    wasi: WasiCtx,
    table: ResourceTable,
    config: Arc<str>,
}

impl WasiView for State {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl host::types::Host for State {}

impl host::log::Host for State {
    fn log(&mut self, _: host::log::Level, _: String) {}
}

impl host::config::Host for State {
    fn get(&mut self) -> String {
        self.config.to_string()
    }
}

impl host::clock::Host for State {
    fn now(&mut self) -> u64 {
        ostler_model::clock::Clock::system().now().nanos()
    }

    fn monotonic(&mut self) -> u64 {
        0
    }
}

impl host::random::Host for State {
    fn bytes(&mut self, len: u32) -> Vec<u8> {
        vec![0; usize::try_from(len).unwrap_or(0)]
    }
}

impl host::command::Host for State {
    fn run(
        &mut self,
        program: String,
        _: Vec<String>,
        _: u64,
    ) -> Result<host::command::Output, host::command::CommandError> {
        Err(host::command::CommandError::NotFound(program))
    }
}

/// The component in wasmtime: no limits, no deadline, no other thread.
struct Bare {
    engine: Engine,
    ready: DevicePluginPre<State>,
    config: Arc<str>,
}

/// One instance of it.
struct Instance {
    store: Store<State>,
    plugin: bindings::DevicePlugin,
}

impl Bare {
    fn new(bytes: &[u8], pooled: bool) -> Self {
        let mut settings = Config::new();
        // As the agent has it: compiled-in concurrency makes plain calls dearer.
        settings.concurrency_support(false);
        if pooled {
            let mut pool = PoolingAllocationConfig::new();
            // As the agent's pool: of a freed slot, the pages that were written are reset by
            // copying.
            pool.linear_memory_keep_resident(64 * 1024)
                .table_keep_resident(16 * 1024)
                .pagemap_scan(wasmtime::Enabled::Auto);
            settings.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
        }
        let engine = Engine::new(&settings).expect("an engine");
        let component = Component::new(&engine, bytes).expect("the plugin compiles");
        let mut linker = Linker::new(&engine);
        wasmtime_wasi::p2::add_to_linker_sync(&mut linker).expect("WASI links");
        bindings::DevicePlugin::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state)
            .expect("the host's interfaces link");
        let ready = linker.instantiate_pre(&component).expect("the plugin links");
        let ready = DevicePluginPre::new(ready).expect("a device plugin");
        Self { engine, ready, config: config().text().into() }
    }

    fn instance(&self) -> Instance {
        let wasi = WasiCtx::builder().build();
        let (table, config) = (ResourceTable::new(), Arc::clone(&self.config));
        let mut store = Store::new(&self.engine, State { wasi, table, config });
        let plugin = self.ready.instantiate(&mut store).expect("an instance");
        Instance { store, plugin }
    }

    /// One call on a new instance, which is dropped.
    fn fresh(&self) -> Duration {
        let watch = Stopwatch::start();
        let mut instance = self.instance();
        instance.fingerprint();
        drop(instance);
        watch.elapsed()
    }
}

impl Instance {
    fn fingerprint(&mut self) {
        let device = self.plugin.ostler_plugin_device();
        let answer = device.call_fingerprint(&mut self.store).expect("it does not trap");
        let answer = answer.expect("it answers");
        let attributes: usize = answer.groups.iter().map(|group| group.attributes.len()).sum();
        assert_eq!((answer.groups.len(), attributes), (DEVICES, DEVICES * ATTRIBUTES), "all");
    }
}

//! What calls notice while their plugin is replaced under load: calls lost, made in a millisecond, and
//! their time.
//!
//! Baseline in the same run: the same load without a switch, in turns. A worker makes its next call
//! when the last one is answered, so calls in a millisecond are what this machine can do at all.
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
use ostler_benches::percentiles::{number, size};
use ostler_benches::plugins::{device_manager, load, plugin_runtime, variant};
use ostler_benches::report::bench;
use ostler_device::manager::DeviceManager;
use ostler_guests::fixtures::HOSTILE_DEVICE;
use ostler_model::clock::{Stopwatch, sleep};
use ostler_model::device::GroupKey;
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::json::JsonObject;
use ostler_model::ports::Devices as _;
use ostler_model::resources::AllocatedDevice;
use ostler_model::rng::Rng;
use serde_json::{Value, json};

/// Tasks that reserve and release without pause.
const WORKERS: u64 = 16;

fn main() -> ExitCode {
    if let Some(code) = own_child() {
        return code;
    }
    bench("plugin_upgrade", |report| {
        let [calm, busy] = runtime().block_on(measure(&report.dir().join("code")));
        let title = format!("reserve and release by {WORKERS} workers, a switch every 20 ms");
        report.times(&title, [("with switches", &*busy.times), ("without a switch", &*calm.times)]);
        let rows = [("with switches", busy.row()), ("without a switch", calm.row())];
        report.figures("calls while a plugin is replaced", &["per ms", "lost", "switches"], &rows);
        let promises = &mut report.promises;
        promises.at_most("plugin_upgrade_lost", number(busy.lost), "calls", 0.0);
        promises.at_least("plugin_upgrade_rate", busy.rate(), "calls/ms", 100.0);
    })
}

#[derive(Default)]
struct Load {
    times: Vec<Duration>,
    lost: u64,
    switches: u64,
    took: Duration,
}

impl Load {
    fn add(&mut self, other: Self) {
        self.times.extend(other.times);
        self.lost += other.lost;
        self.switches += other.switches;
        self.took += other.took;
    }

    /// Calls in a millisecond: a time is that of two.
    fn rate(&self) -> f64 {
        2.0 * size(self.times.len()) / self.took.as_secs_f64() / 1e3
    }

    fn row(&self) -> Vec<f64> {
        vec![self.rate(), number(self.lost), number(self.switches)]
    }
}

fn config() -> JsonObject {
    match json!({ "mode": "cards" }) {
        Value::Object(map) => JsonObject::from(map),
        _ => panic!("an object"),
    }
}

/// Without and with switches, in turns.
async fn measure(code: &Path) -> [Load; 2] {
    let bytes: Arc<[u8]> = std::fs::read(HOSTILE_DEVICE).expect("the fixture").into();
    let plugins = plugin_runtime(code);
    let (manager, _node) = device_manager();
    let old = load(&plugins, &bytes, &config()).await;
    manager.add(old).expect("a new name").await;
    let mut loads = [Load::default(), Load::default()];
    let span = scaled(Duration::from_secs(2), Duration::from_millis(60));
    for turn in 0..scaled(5_u8, 1) {
        loads[0].add(one(&manager, span, async || false).await);
        let mut number = 0;
        let switch = async || {
            // Two codes in turns, compiled in the first round.
            number = (number + 1) % 2;
            let new = load(&plugins, &variant(&bytes, turn % 2 + number), &config()).await;
            manager.switch(Arc::new(new)).expect("it is there").await;
            true
        };
        loads[1].add(one(&manager, span, switch).await);
    }
    manager.shutdown().await;
    loads
}

/// The load for so long.
async fn one(
    manager: &DeviceManager,
    span: Duration,
    mut switch: impl AsyncFnMut() -> bool,
) -> Load {
    let stop = Arc::new(AtomicBool::new(false));
    let watch = Stopwatch::start();
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| tokio::spawn(calls(manager.clone(), worker, Arc::clone(&stop))))
        .collect();
    let mut load = Load::default();
    while watch.elapsed() < span {
        sleep(Duration::from_millis(20)).await;
        load.switches += u64::from(switch().await);
    }
    stop.store(true, Ordering::SeqCst);
    for worker in workers {
        load.add(worker.await.expect("a worker"));
    }
    load.took = watch.elapsed();
    load
}

async fn calls(manager: DeviceManager, worker: u64, stop: Arc<AtomicBool>) -> Load {
    let task = TaskName::new("t").expect("a name");
    let number = worker % 8;
    let group = GroupKey {
        vendor: "bench".to_owned(),
        kind: "gpu".to_owned(),
        name: format!("card-{number}"),
    };
    let lent = [AllocatedDevice { group, ids: vec![format!("GPU-{number}")] }];
    let mut load = Load::default();
    let rng = Rng::system();
    while !stop.load(Ordering::SeqCst) {
        let alloc = AllocId::new(rng.uuid());
        let watch = Stopwatch::start();
        if manager.reserve(alloc, &task, &lent).await.is_err() {
            load.lost += 1;
        }
        manager.release(alloc, &task).await;
        manager.end_alloc(alloc);
        load.times.push(watch.elapsed());
    }
    load
}

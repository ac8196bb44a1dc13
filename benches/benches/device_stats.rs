//! Device statistics of one task: on a node with 10 tasks and 10 devices, and on one with 10,000 of
//! each. Through the device manager: a plugin that measures, tasks that hold an instance each.
//!
//! The baseline looks through everything the node measured, as one does without an index: for each
//! group of the node, does the task have it, and which of its instances.
//!
//! Asked for are one task again and again, and all tasks in turn: the second also pays for what is
//! not in the processor's caches.
#![allow(missing_docs, clippy::expect_used, reason = "a bench that cannot set up has to end")]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use ostler_benches::counting::{Allocations, Counting};
use ostler_benches::machine::{runtime, scaled};
use ostler_benches::percentiles::{median, number, size};
use ostler_benches::report::{Report, bench};
use ostler_device::manager::{DeviceManager, DeviceOptions};
use ostler_device::source::DeviceFingerprint;
use ostler_device::source::DeviceSource;
use ostler_health::refresh::NextCheck;
use ostler_health::refresh::Refresher;
use ostler_model::clock::{self, Clock, Stopwatch, Timestamp};
use ostler_model::device::{
    DeviceGroup, DeviceInstance, GroupKey, Health, HealthState, Reservation,
};
use ostler_model::ids::{AllocId, NodeId, PluginName, TaskName};
use ostler_model::ports::{BoxFuture, Devices as _, PluginCallError};
use ostler_model::resources::AllocatedDevice;
use ostler_model::rng::Rng;
use ostler_model::stats::{DeviceGroupStats, InstanceStats, StatObject, StatValue};
use ostler_node::watch::ChangeWatcher;
use ostler_node::{NodePublisher, NodeView};
use tokio::runtime::Runtime;

#[global_allocator]
static COUNTING: Counting = Counting;

/// Instances of one group.
const GROUP: usize = 5;
/// Measurements of one instance: what nvidia-smi says of a card.
const MEASURED: [&str; 8] =
    ["gpu", "memory", "temperature", "power", "fan", "clock", "encoder", "decoder"];

/// A plugin that found `count` devices and measures them.
struct Measuring {
    name: PluginName,
    count: usize,
}

fn key(number: usize) -> GroupKey {
    let name = format!("accelerator model {}", number / GROUP);
    GroupKey { vendor: "vendor".into(), kind: "gpu".into(), name }
}

fn id(number: usize) -> String {
    format!("GPU-{number:08}-0000-0000-0000-000000000000")
}

impl DeviceSource for Measuring {
    fn name(&self) -> &PluginName {
        &self.name
    }

    fn fingerprint(&self) -> BoxFuture<'_, Result<DeviceFingerprint, PluginCallError>> {
        let healthy = Health { state: HealthState::Healthy, reason: String::new() };
        let groups = (0..self.count).step_by(GROUP).map(|first| DeviceGroup {
            key: key(first),
            plugin: self.name.clone(),
            instances: (first..first + GROUP)
                .map(|number| DeviceInstance {
                    id: id(number),
                    health: healthy.clone(),
                    locality: None,
                })
                .collect(),
            attributes: vec![],
        });
        let groups = groups.collect();
        let found = DeviceFingerprint { health: healthy, groups, next: NextCheck::default() };
        Box::pin(async move { Ok(found) })
    }

    fn reserve<'a>(
        &'a self,
        _: &'a AllocatedDevice,
    ) -> BoxFuture<'a, Result<Reservation, PluginCallError>> {
        Box::pin(async { Ok(Reservation::default()) })
    }

    fn release<'a>(&'a self, _: &'a AllocatedDevice) -> BoxFuture<'a, Result<(), PluginCallError>> {
        Box::pin(async { Ok(()) })
    }

    fn stats(&self) -> BoxFuture<'_, Result<Vec<DeviceGroupStats>, PluginCallError>> {
        let groups = (0..self.count).step_by(GROUP).map(|first| DeviceGroupStats {
            key: key(first),
            instances: (first..first + GROUP)
                .map(|number| (id(number), Arc::new(measured(number))))
                .collect(),
            stale: None,
        });
        let groups = groups.collect();
        Box::pin(async move { Ok(groups) })
    }
}

fn measured(number: usize) -> InstanceStats {
    let value = |unit: &str| StatValue {
        unit: Some(unit.to_owned()),
        int_numerator: i64::try_from(number).ok(),
        ..StatValue::default()
    };
    let attributes = MEASURED.iter().map(|name| ((*name).to_owned(), value("%"))).collect();
    let stats = StatObject { nested: BTreeMap::new(), attributes };
    let taken_at = Timestamp::from_nanos(1);
    InstanceStats { summary: Some(value("MiB")), stats, taken_at }
}

/// A node of this size: every device is measured, every task holds one.
struct Sized {
    manager: DeviceManager,
    /// In an order that is not that of the devices.
    tasks: Vec<Vec<AllocatedDevice>>,
    host: Vec<DeviceGroupStats>,
}

impl Sized {
    async fn new(count: usize, rng: &Rng) -> Self {
        let node = NodePublisher::new(NodeView::new(NodeId::new(rng.uuid()), "bench"));
        // One collection: the clock of the machine goes on, the statistics stay.
        let stats_interval = Some(Duration::from_secs(3_600));
        let options = DeviceOptions { clock: Clock::system(), stats_interval, book: None };
        let manager = DeviceManager::new(
            node,
            options,
            Refresher::new(ChangeWatcher::new(), Rng::from_seed(1)),
        );
        let name = PluginName::new("measuring").expect("a name");
        manager.add(Measuring { name, count }).expect("the first").await;
        while manager.all_stats().is_empty() {
            clock::sleep(Duration::from_millis(1)).await;
        }
        let mut numbers: Vec<usize> = (0..count).collect();
        for at in (1..count).rev() {
            let other = usize::try_from(rng.number_below(at as u64 + 1)).expect("small");
            numbers.swap(at, other);
        }
        let mut tasks = Vec::with_capacity(count);
        let task = TaskName::new("train").expect("a name");
        for number in numbers {
            let lent = vec![AllocatedDevice { group: key(number), ids: vec![id(number)] }];
            let alloc = AllocId::new(rng.uuid());
            manager.reserve(alloc, &task, &lent).await.expect("reserved");
            tasks.push(lent);
        }
        let host = manager.all_stats();
        Self { manager, tasks, host }
    }

    fn indexed(&self, devices: &[AllocatedDevice]) -> Vec<DeviceGroupStats> {
        self.manager.stats_of(devices)
    }

    /// The same without an index.
    fn scanned(&self, devices: &[AllocatedDevice]) -> Vec<DeviceGroupStats> {
        let mut found = Vec::new();
        for group in &self.host {
            let mut wanted = devices.iter().filter(|device| device.group == group.key).peekable();
            if wanted.peek().is_none() {
                continue;
            }
            let ids = wanted.flat_map(|device| &device.ids);
            let instances = ids.filter_map(|id| {
                group.instances.get(id).map(|stats| (id.clone(), Arc::clone(stats)))
            });
            found.push(DeviceGroupStats {
                key: group.key.clone(),
                instances: instances.collect(),
                stale: None,
            });
        }
        found
    }
}

/// Nanoseconds of one of `calls` calls; `task` says which task is asked for at each.
fn round(
    sized: &Sized,
    calls: usize,
    task: impl Fn(usize) -> usize,
    ask: impl Fn(&Sized, &[AllocatedDevice]) -> Vec<DeviceGroupStats>,
) -> f64 {
    let watch = Stopwatch::start();
    for call in 0..calls {
        let devices = sized.tasks.get(task(call)).expect("a task");
        black_box(ask(sized, black_box(devices)));
    }
    watch.elapsed().as_secs_f64() * 1e9 / number(calls as u64)
}

fn main() -> ExitCode {
    bench("device_stats", |report| {
        let (runtime, rng) = (runtime(), Rng::from_seed(7));
        growth(report, &runtime, &rng);
        stats(report, &runtime, &rng);
    })
}

/// From devices that are found to all of them held by tasks, and measured.
fn growth(report: &mut Report, runtime: &Runtime, rng: &Rng) {
    let counts = [100, 300, 1_000, 3_000, 10_000].map(|count| scaled(count, count / 20));
    let (mut time, mut heap) = (Vec::new(), Vec::new());
    for count in counts {
        let rounds = (0..scaled(5, 1)).map(|_| {
            let (before, watch) = (Allocations::now().live(), Stopwatch::start());
            let sized = runtime.block_on(Sized::new(count, rng));
            let took = watch.elapsed().as_secs_f64() * 1e3;
            let kept = Allocations::now().live().saturating_sub(before);
            drop(sized);
            (took, number(kept) / 1024.0)
        });
        let (times, kept): (Vec<f64>, Vec<f64>) = rounds.unzip();
        time.push((size(count), median(&times)));
        heap.push((size(count), median(&kept)));
    }
    let series = [("time, ms", &*time), ("heap, KiB", &*heap)];
    let exponents = report.curve("devices found, measured and held by tasks", "devices", series);
    let exponent = exponents.into_iter().fold(0.0, f64::max);
    report.promises.at_most("cost_exponent_devices", exponent, "power", 1.05);
}

fn stats(report: &mut Report, runtime: &Runtime, rng: &Rng) {
    let (few, many) = (10, scaled(10_000, 100));
    let small = runtime.block_on(Sized::new(few, rng));
    let large = runtime.block_on(Sized::new(many, rng));
    for sized in [&small, &large] {
        for devices in &sized.tasks {
            let found = sized.indexed(devices);
            assert_eq!(found, sized.scanned(devices), "the index says what a scan says");
            assert_eq!(found.iter().map(|group| group.instances.len()).sum::<usize>(), 1);
        }
    }
    let (rounds, calls, scans) = (scaled(61, 2), scaled(20_000, 50), scaled(200, 5));
    let mut times: [Vec<f64>; 6] = Default::default();
    for _ in 0..rounds {
        // In turn, so that another program on the machine meets all of them.
        let [one_small, one_large, all_small, all_large, scan_small, scan_large] = &mut times;
        one_small.push(round(&small, calls, |_| 3, Sized::indexed));
        one_large.push(round(&large, calls, |_| 3, Sized::indexed));
        all_small.push(round(&small, calls, |call| call % few, Sized::indexed));
        all_large.push(round(&large, calls, |call| call % many, Sized::indexed));
        scan_small.push(round(&small, calls, |call| call % few, Sized::scanned));
        scan_large.push(round(&large, scans, |call| call % many, Sized::scanned));
    }
    let [one_small, one_large, all_small, all_large, scan_small, scan_large] =
        times.map(|times| median(&times));
    let rows = [
        ("one task, again and again", vec![one_small, one_large, one_large / one_small]),
        ("all tasks, in turn", vec![all_small, all_large, all_large / all_small]),
        ("a scan, all tasks in turn", vec![scan_small, scan_large, scan_large / scan_small]),
    ];
    let columns = [&*format!("{few} of each"), &*format!("{many} of each"), "times"];
    report.figures("statistics of one task, of tasks and devices, ns", &columns, &rows);
    let promises = &mut report.promises;
    promises.at_most("device_stats_scale", one_large / one_small, "times", 1.5);
    promises.at_least("device_stats_against_scan", scan_large / all_large, "times faster", 10.0);
}

//! The manager over scripted plugins, on virtual time.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod crash;
mod fake;
mod reserving;
mod watching;

use std::time::Duration;

use super::*;
use fake::{Fake, Reply, assigned, group, healthy, plugin, undetected};
use ostler_node::watch::ChangeWatcher;

const SECOND: Duration = Duration::from_secs(1);

struct Bench {
    node: NodePublisher,
    clock: Clock,
    watcher: ChangeWatcher,
    manager: DeviceManager,
}

impl Bench {
    fn new() -> Self {
        Self::with_book(None)
    }

    fn with_book(book: Option<Arc<dyn LedgerBook>>) -> Self {
        let node = fake::node();
        let clock = Clock::fixed(clock::Timestamp::from_nanos(1_000_000_000_000));
        let options =
            DeviceOptions { clock: clock.clone(), stats_interval: Some(5 * SECOND), book };
        let watcher = ChangeWatcher::without_thread().unwrap();
        let manager = DeviceManager::new(node.clone(), options, fake::refresher(&watcher));
        Self { node, clock, watcher, manager }
    }

    /// Take a plugin and wait for its first answer.
    async fn add(&self, fake: &Fake) {
        self.manager.add(fake.clone()).expect("a new name").await;
    }

    /// Let this much time go by.
    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
        clock::sleep(time).await;
    }

    /// What the node shows: group, plugin, state and reason of its first instance.
    fn shown(&self) -> Vec<(String, String, HealthState, String)> {
        let view = self.node.current();
        let shown = view.devices.iter().map(|group| {
            let health = &group.instances[0].health;
            let (name, plugin) = (group.key.name.clone(), group.plugin.to_string());
            (name, plugin, health.state, health.reason.clone())
        });
        shown.collect()
    }

    fn states(&self) -> Vec<(String, HealthState)> {
        self.shown().into_iter().map(|(name, _, state, _)| (name, state)).collect()
    }

    /// Value and staleness of the statistics of one instance.
    fn stat(&self, group: &str, id: &str) -> Option<(i64, Option<String>)> {
        let stats = self.manager.stats_of(&[assigned(group, &[id])]).pop()?;
        let value = stats.instances.get(id)?.summary.as_ref()?.int_numerator?;
        Some((value, stats.stale))
    }
}

fn holder(number: u128, task: &str) -> InstanceHolder {
    InstanceHolder {
        alloc: AllocId::new(uuid::Uuid::from_u128(number)),
        task: TaskName::new(task).unwrap(),
    }
}

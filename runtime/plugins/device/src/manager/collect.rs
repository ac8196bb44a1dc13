//! Asks one plugin for statistics again and again.
//!
//! ```text
//!   wait the interval ─► is the plugin well? ─ no ──────────────────────────┐
//!        ▲                    │ yes                                         │
//!        │                 measure ─ answer ─► what is its own ─► index     │
//!        │                    │  └─ unsupported, or replaced ─► never again │
//!        └── back-off ◄── failed: its statistics are stale ◄────────────────┘ (interval)
//!            └─ over as soon as the plugin is well again
//! ```

use std::sync::Arc;
use std::time::Duration;

use super::{DeviceManager, ManagedPlugin, call_bounded, lock};
use ostler_model::clock;
use ostler_model::device::HealthState;
use ostler_model::limits::DEVICE_STATS_RETRY_MAX;
use ostler_model::ports::PluginCallError;
use ostler_model::stats::DeviceGroupStats;

/// Collect statistics until the manager is stopped, or the plugin says that it does not measure.
pub(super) async fn run(manager: DeviceManager, plugin: Arc<ManagedPlugin>) {
    let mut collector = StatsCollector { manager, plugin, failures: 0, foreign: Vec::new() };
    let stop = collector.manager.0.stop.clone();
    while let Some(wait) = collector.collect().await {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = collector.pause(wait) => {}
        }
    }
}

struct StatsCollector {
    manager: DeviceManager,
    plugin: Arc<ManagedPlugin>,
    /// Number of failures in a row.
    failures: u32,
    /// The foreign devices in its last measurement; each list of them is logged once.
    foreign: Vec<String>,
}

impl StatsCollector {
    /// Collect once. Returns the wait until the next time; `None`: never again.
    async fn collect(&mut self) -> Option<Duration> {
        let interval = self.manager.0.stats_interval;
        if !self.manager.is_current(&self.plugin) {
            return None;
        }
        let name = self.plugin.source.name();
        if !self.is_well() {
            return Some(interval);
        }
        let answer = call_bounded(&*self.plugin.source, "stats", self.plugin.source.stats()).await;
        if !self.manager.is_current(&self.plugin) {
            return None;
        }
        match answer {
            Ok(groups) => {
                self.failures = 0;
                self.take(groups);
                Some(interval)
            }
            Err(PluginCallError::Unsupported(reason)) => {
                tracing::debug!(plugin = %name, reason, "the device plugin does not measure");
                None
            }
            Err(error) => {
                if self.failures == 0 {
                    tracing::warn!(plugin = %name, %error, "device statistics not collected");
                }
                lock(&self.manager.0.stats).mark_stale(name, &error.to_string());
                let doublings = self.failures.min(16);
                self.failures = self.failures.saturating_add(1);
                let longest = DEVICE_STATS_RETRY_MAX.max(interval);
                Some(interval.saturating_mul(1 << doublings).min(longest))
            }
        }
    }

    fn is_well(&self) -> bool {
        let inventory = lock(&self.manager.0.inventory);
        let health = inventory.health(self.plugin.source.name());
        health.is_some_and(|health| health.state == HealthState::Healthy)
    }

    /// Wait this long. A back-off ends early when a fingerprint failed as well and a later one
    /// succeeded, because the cause of both failures is gone then.
    async fn pause(&self, wait: Duration) {
        let interval = self.manager.0.stats_interval;
        let (mut left, mut was_ill) = (wait, false);
        while !left.is_zero() {
            let step = left.min(interval);
            clock::sleep(step).await;
            left = left.saturating_sub(step);
            if self.is_well() {
                if was_ill {
                    return;
                }
            } else {
                was_ill = true;
            }
        }
    }

    fn take(&mut self, mut groups: Vec<DeviceGroupStats>) {
        let name = self.plugin.source.name();
        let inner = &self.manager.0;
        // Both locks are held together: a group that changed hands in between would be taken from
        // its new owner.
        let inventory = lock(&inner.inventory);
        let foreign = inventory.keep_own(name, &mut groups);
        let now = inner.clock.now();
        lock(&inner.stats).replace(name, groups, now);
        drop(inventory);
        if foreign != self.foreign {
            if !foreign.is_empty() {
                tracing::warn!(
                    plugin = %name, count = foreign.len(), first = foreign.first(),
                    "statistics of devices that are not the plugin's own are left out"
                );
            }
            self.foreign = foreign;
        }
    }
}

//! Where devices come from: a device plugin, or what stands for one in a test.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ostler_health::meter::PluginMeter;
use ostler_health::policy::FailurePolicy;
use ostler_health::refresh::NextCheck;
use ostler_model::clock::Clock;
use ostler_model::device::{DeviceGroup, GroupKey, Health, Reservation};
use ostler_model::ids::PluginName;
use ostler_model::ports::{BoxFuture, PluginCallError};
use ostler_model::resources::AllocatedDevice;
use ostler_model::stats::DeviceGroupStats;

/// What a device plugin found.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceFingerprint {
    /// Of the plugin; one that is undetected has no groups.
    pub health: Health,
    /// All groups, sorted.
    pub groups: Vec<DeviceGroup>,
    /// When to ask again.
    pub next: NextCheck,
}

/// The calls of a device plugin. Answers are checked: bounded, and each name there once. A call may
/// take long or never end: [`super::manager`] bounds it.
pub trait DeviceSource: Send + Sync {
    /// Its name.
    fn name(&self) -> &PluginName;
    /// What is counted of its calls, and how it does: one that nobody reads, unless it has its own.
    fn meter(&self) -> Arc<PluginMeter> {
        Arc::new(PluginMeter::new(self.name().as_str(), FailurePolicy::default(), Clock::system()))
    }
    /// How narrowly a group is granted to it: of two that report one group the narrower has it.
    fn claim(&self, _group: &GroupKey) -> u32 {
        0
    }
    /// The plugin's own deadline of one call.
    fn call_wall(&self) -> Duration {
        Duration::ZERO
    }
    /// A call was given up after so long, longer than its own deadline: it counts as one that hangs.
    fn given_up(&self, _call: &'static str, _after: Duration) {}
    /// Which devices are here: a snapshot.
    fn fingerprint(&self) -> BoxFuture<'_, Result<DeviceFingerprint, PluginCallError>>;
    /// How a task uses these instances; asked before each of its starts.
    fn reserve<'a>(
        &'a self,
        device: &'a AllocatedDevice,
    ) -> BoxFuture<'a, Result<Reservation, PluginCallError>>;
    /// The task that used these instances ended.
    fn release<'a>(
        &'a self,
        device: &'a AllocatedDevice,
    ) -> BoxFuture<'a, Result<(), PluginCallError>>;
    /// Measure; `Unsupported` when it never does.
    fn stats(&self) -> BoxFuture<'_, Result<Vec<DeviceGroupStats>, PluginCallError>>;
    /// Write its last calls to a file: nothing, unless they are kept.
    fn record(&self) -> BoxFuture<'_, io::Result<Option<PathBuf>>> {
        Box::pin(std::future::ready(Ok(None)))
    }
}

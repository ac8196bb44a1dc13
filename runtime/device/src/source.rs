//! Where devices come from: a device plugin, or what stands for one in a test.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ostler_model::clock::Clock;
use ostler_model::device::{GroupKey, Reservation};
use ostler_model::ids::PluginName;
use ostler_model::ports::{BoxFuture, PluginCallError};
use ostler_model::resources::AllocatedDevice;
use ostler_model::stats::DeviceGroupStats;
use ostler_plugin::convert::DeviceFingerprint;
use ostler_plugin::device::DevicePlugin;
use ostler_plugin::meter::PluginMeter;
use ostler_plugin::policy::FailurePolicy;

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

impl DeviceSource for DevicePlugin {
    fn name(&self) -> &PluginName {
        &self.name
    }

    fn meter(&self) -> Arc<PluginMeter> {
        Arc::clone(Self::meter(self))
    }

    fn claim(&self, group: &GroupKey) -> u32 {
        Self::claim(self, group)
    }

    fn call_wall(&self) -> Duration {
        Self::call_wall(self)
    }

    fn given_up(&self, call: &'static str, after: Duration) {
        Self::given_up(self, call, after);
    }

    fn fingerprint(&self) -> BoxFuture<'_, Result<DeviceFingerprint, PluginCallError>> {
        Box::pin(Self::fingerprint(self))
    }

    fn reserve<'a>(
        &'a self,
        device: &'a AllocatedDevice,
    ) -> BoxFuture<'a, Result<Reservation, PluginCallError>> {
        Box::pin(Self::reserve(self, device))
    }

    fn release<'a>(
        &'a self,
        device: &'a AllocatedDevice,
    ) -> BoxFuture<'a, Result<(), PluginCallError>> {
        Box::pin(Self::release(self, device))
    }

    fn stats(&self) -> BoxFuture<'_, Result<Vec<DeviceGroupStats>, PluginCallError>> {
        Box::pin(Self::stats(self))
    }

    fn record(&self) -> BoxFuture<'_, io::Result<Option<PathBuf>>> {
        Box::pin(Self::record(self))
    }
}

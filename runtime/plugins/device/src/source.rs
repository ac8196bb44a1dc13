//! The source of devices: a device plugin, or its stand-in in a test.

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

/// The answer of a device plugin to a fingerprint.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceFingerprint {
    /// Health of the plugin itself. An undetected plugin has no groups.
    pub health: Health,
    /// All groups, sorted.
    pub groups: Vec<DeviceGroup>,
    /// When the plugin is to be asked again.
    pub next: NextCheck,
}

/// The rows of the table as methods.
macro_rules! device_methods {
    ($(
        $(#[$doc:meta])+
        $method:ident $function:literal $call:ident($($argument:ident: $type:ty),*) -> $answer:ty;
    )+) => {$(
        $(#[$doc])+
        fn $method<'a>(
            &'a self,
            $($argument: $type),*
        ) -> BoxFuture<'a, Result<$answer, PluginCallError>> {
            let _ = ($($argument,)*);
            let why = concat!("this plugin has no `", $function, "`").to_owned();
            Box::pin(std::future::ready(Err(PluginCallError::Unsupported(why))))
        }
    )+};
}

/// The calls of a device plugin, which are those of the table (`ostler_model::calls`). Answers have been checked: they are bounded, and each name occurs
/// once. A call may take long or never end: [`super::manager`] bounds it.
pub trait DeviceSource: Send + Sync {
    /// Name of the plugin, unique on the node.
    fn name(&self) -> &PluginName;
    /// The meter that counts its calls. The default is one that nobody reads.
    fn meter(&self) -> Arc<PluginMeter> {
        Arc::new(PluginMeter::new(self.name().as_str(), FailurePolicy::default(), Clock::system()))
    }
    /// How narrowly a group is granted to the plugin: of two plugins that report one group the
    /// narrower one owns it.
    fn claim(&self, _group: &GroupKey) -> u32 {
        0
    }
    /// The plugin's own deadline of one call.
    fn call_wall(&self) -> Duration {
        Duration::ZERO
    }
    /// A call was given up after this time, which is longer than the plugin's own deadline: it
    /// counts as a call that hangs.
    fn record_hang(&self, _call: &'static str, _after: Duration) {}
    ostler_model::device_calls!(device_methods);
    /// Write its last calls to a file, where they are kept; otherwise nothing.
    fn record(&self) -> BoxFuture<'_, io::Result<Option<PathBuf>>> {
        Box::pin(std::future::ready(Ok(None)))
    }
}

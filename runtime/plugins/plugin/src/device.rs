//! Typed calls into a device plugin.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::PluginError;
use super::bindings::since_0_1::device_world::DevicePluginPre;
use super::call::PluginCaller;
use super::functions::{self, CallArgument as _};
use super::schema::{ConfigSchema, PluginDescription, run_aside};
use crate::host::CallState;
use ostler_device::source::{DeviceFingerprint, DeviceSource};
use ostler_health::meter::PluginMeter;
use ostler_model::device::{GroupKey, Reservation};
use ostler_model::ids::PluginName;
use ostler_model::json::JsonObject;
use ostler_model::plugin::PluginManifest;
use ostler_model::ports::{BoxFuture, PluginCallError};
use ostler_model::resources::AllocatedDevice;
use ostler_model::stats::DeviceGroupStats;

/// A loaded device plugin.
pub struct LoadedDevice {
    caller: PluginCaller<DevicePluginPre<CallState>>,
    /// What was read from the plugin's file: imports, exports, digest.
    pub manifest: PluginManifest,
    /// The name that the plugin gives itself.
    pub name: PluginName,
    /// The version that the plugin gives itself.
    pub version: String,
    /// Schema of the plugin's own `config`.
    pub config_schema: ConfigSchema,
}

/// The rows of the table as methods, but for `fingerprint` and `reserve`, which do more.
macro_rules! asks {
    ($(
        $(#[$doc:meta])+
        $method:ident $function:literal $call:ident $arguments:tt -> $answer:ty;
    )+) => {
        $(asks! { @ $method $function $arguments -> $answer; $(#[$doc])+ })+
    };
    (@ fingerprint $($rest:tt)+) => {};
    (@ reserve $($rest:tt)+) => {};
    (@ $method:ident $function:literal ($($argument:ident: $type:ty),*) -> $answer:ty;
        $(#[$doc:meta])+
    ) => {
        $(#[$doc])+
        ///
        /// # Errors
        /// The plugin's own error, or that the call failed.
        #[allow(clippy::needless_lifetimes, reason = "rows with arguments borrow for it")]
        pub async fn $method<'a>(
            &'a self,
            $($argument: $type),*
        ) -> Result<$answer, PluginCallError> {
            let ask = self.caller.ask($function)?;
            let arguments = ($($argument.into_contract(&self.name)?,)*);
            self.caller.put(&ask, &self.name, functions::device::$method, arguments).await
        }
    };
}

/// The rows of the table as the methods of a source of devices.
macro_rules! forwards {
    ($(
        $(#[$doc:meta])+
        $method:ident $function:literal $call:ident($($argument:ident: $type:ty),*) -> $answer:ty;
    )+) => {$(
        fn $method<'a>(
            &'a self,
            $($argument: $type),*
        ) -> BoxFuture<'a, Result<$answer, PluginCallError>> {
            Box::pin(Self::$method(self, $($argument),*))
        }
    )+};
}

impl LoadedDevice {
    /// Ask a linked device plugin who it is, and check its configuration where there
    /// already is one.
    pub(super) async fn describe(
        caller: PluginCaller<DevicePluginPre<CallState>>,
        manifest: PluginManifest,
        config: Option<JsonObject>,
    ) -> Result<Self, PluginError> {
        let described = caller.call(None, functions::device::describe).await;
        let described = caller.finish("describe", described);
        let info = described.map_err(|source| PluginError::Call { call: "describe", source })?;
        caller.note_description(&info.config_schema, "");
        let checked = run_aside(move || {
            PluginDescription::check(info.name, info.version, &info.config_schema, config.as_ref())
        });
        let PluginDescription { name, version, config_schema } = checked.await?;
        Ok(Self { manifest, name, version, config_schema, caller })
    }

    /// Write the last calls of the plugin to a file. `None`: its calls are not recorded.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub async fn record(&self) -> io::Result<Option<PathBuf>> {
        self.caller.record().await
    }

    /// Counts of the plugin's calls so far, and how the plugin does.
    #[must_use]
    pub fn meter(&self) -> &Arc<PluginMeter> {
        self.caller.meter()
    }

    /// How narrowly a group is granted to the plugin. A larger number is narrower; 0: it
    /// is not granted.
    #[must_use]
    pub fn claim(&self, group: &GroupKey) -> u32 {
        self.caller.answers().claim(group)
    }

    /// The deadline of one call.
    #[must_use]
    pub fn call_wall(&self) -> Duration {
        self.caller.call_wall()
    }

    /// Count a call that the caller gave up after this time. It counts as a call that hangs.
    pub fn count_timeout(&self, call: &'static str, after: Duration) {
        self.caller.count_timeout(call, None, after);
    }

    /// Ask which devices are on this node.
    ///
    /// # Errors
    /// The plugin's own error, that the call failed, or that the plugin announces devices that
    /// are not granted.
    pub async fn fingerprint(&self) -> Result<DeviceFingerprint, PluginCallError> {
        let found = self.raw_fingerprint().await?;
        let granted =
            self.caller.answers().check_groups(found.groups.iter().map(|group| &group.key));
        granted.map_err(|excess| PluginCallError::NotGranted(excess.to_string()))?;
        Ok(found)
    }

    /// Ask which devices are on this node, and return the answer whether it is granted or not.
    ///
    /// # Errors
    /// The plugin's own error, or that the call failed.
    pub async fn raw_fingerprint(&self) -> Result<DeviceFingerprint, PluginCallError> {
        let ask = self.caller.ask("fingerprint")?;
        let found = self.caller.put(&ask, &self.name, functions::device::fingerprint, ());
        let mut found: DeviceFingerprint = found.await?;
        found.next = self.caller.narrow_watches(found.next);
        Ok(found)
    }

    /// Ask how a task uses these instances.
    ///
    /// # Errors
    /// The plugin's own error, that the call failed, or that the task may not get what
    /// the plugin answers.
    pub async fn reserve(&self, device: &AllocatedDevice) -> Result<Reservation, PluginCallError> {
        let given = self.raw_reservation(device).await?;
        self.check_reservation(given).await
    }

    /// Ask how a task uses these instances, and return the answer whether it is granted or not.
    ///
    /// # Errors
    /// The plugin's own error, or that the call failed.
    pub async fn raw_reservation(
        &self,
        device: &AllocatedDevice,
    ) -> Result<Reservation, PluginCallError> {
        let ask = self.caller.ask("reserve")?;
        let arguments = (device.into_contract(&self.name)?,);
        self.caller.put(&ask, &self.name, functions::device::reserve, arguments).await
    }

    /// Check a reservation against the grants. The task gets all of it, or nothing.
    ///
    /// # Errors
    /// The task may not get what the reservation has.
    pub async fn check_reservation(
        &self,
        given: Reservation,
    ) -> Result<Reservation, PluginCallError> {
        let paths = given.mounts.iter().map(|mount| mount.host_path.clone());
        let nodes = given.device_nodes.iter().map(|node| node.host_path.clone());
        let grants = self.caller.answers().grants.answers.mounts.iter().flatten();
        let granted = grants.map(|grant| grant.path.to_string_lossy().into_owned());
        let real = if given.mounts.is_empty() && given.device_nodes.is_empty() {
            ResolvedLinks::default()
        } else {
            ResolvedLinks::follow(paths.chain(nodes).chain(granted).collect()).await?
        };
        let excess = self.caller.answers().check_reservation(&given, &|path| real.real_path(path));
        excess.map_err(|excess| PluginCallError::NotGranted(excess.to_string()))?;
        Ok(real.resolve_mounts(given))
    }

    ostler_model::device_calls!(asks);
}

/// The real paths that the paths of an answer lead to. All of them are resolved at one moment.
#[derive(Default)]
struct ResolvedLinks(BTreeMap<PathBuf, PathBuf>);

impl ResolvedLinks {
    async fn follow(paths: Vec<String>) -> Result<Self, PluginCallError> {
        let follow = move || {
            let real = |path: String| {
                let path = PathBuf::from(path);
                Some((path.clone(), path.canonicalize().ok()?))
            };
            Self(paths.into_iter().filter_map(real).collect())
        };
        // The caller waits for this no longer than for the answer itself.
        let followed = tokio::task::spawn_blocking(follow).await;
        followed
            .map_err(|_ended| PluginCallError::Recoverable("the agent is shutting down".to_owned()))
    }

    fn real_path(&self, path: &Path) -> Option<PathBuf> {
        self.0.get(path).cloned()
    }

    /// Put the real path into each mount whose path in the task is another one. Then whoever opens
    /// it follows no link that may be swapped meanwhile.
    fn resolve_mounts(&self, mut given: Reservation) -> Reservation {
        for mount in given.mounts.iter_mut().filter(|mount| mount.host_path != mount.task_path) {
            let real = self.0.get(Path::new(&mount.host_path)).and_then(|real| real.to_str());
            if let Some(real) = real {
                real.clone_into(&mut mount.host_path);
            }
        }
        given
    }
}

impl DeviceSource for LoadedDevice {
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

    fn record_hang(&self, call: &'static str, after: Duration) {
        Self::count_timeout(self, call, after);
    }

    ostler_model::device_calls!(forwards);

    fn record(&self) -> BoxFuture<'_, io::Result<Option<PathBuf>>> {
        Box::pin(Self::record(self))
    }
}

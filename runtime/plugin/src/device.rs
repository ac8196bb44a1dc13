//! Typed calls into a device plugin.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::PluginError;
use super::bindings::since_0_1::device_export as dev;
use super::bindings::since_0_1::device_world::DevicePluginPre;
use super::call::Caller;
use super::convert;
use super::schema::{ConfigSchema, Described, aside};
use super::weigh::Weigh as _;
use crate::host::CallState;
use ostler_device::source::{DeviceFingerprint, DeviceSource};
use ostler_health::meter::PluginMeter;
use ostler_model::device::{GroupKey, Reservation};
use ostler_model::ids::PluginName;
use ostler_model::json::JsonObject;
use ostler_model::plugin::Manifest;
use ostler_model::ports::{BoxFuture, PluginCallError};
use ostler_model::resources::AllocatedDevice;
use ostler_model::stats::DeviceGroupStats;

/// A loaded device plugin.
pub struct DevicePlugin {
    caller: Caller<DevicePluginPre<CallState>>,
    /// Imports, exports, digest.
    pub manifest: Manifest,
    /// Its name.
    pub name: PluginName,
    /// Version of the plugin.
    pub version: String,
    /// Schema of the plugin's own `config`.
    pub config_schema: ConfigSchema,
}

impl DevicePlugin {
    /// Ask a linked device plugin who it is, and check its configuration where there is one yet.
    pub(super) async fn describe(
        caller: Caller<DevicePluginPre<CallState>>,
        manifest: Manifest,
        config: Option<JsonObject>,
    ) -> Result<Self, PluginError> {
        let described = caller.call(None, |pre, store| {
            Box::pin(async move {
                let plugin = pre.instantiate_async(&mut *store).await?;
                plugin.ostler_plugin_device().call_describe(store).await
            })
        });
        let described = caller.done("describe", described.await);
        let info = described.map_err(|source| PluginError::Call { call: "describe", source })?;
        caller.described(&info.config_schema, "");
        let checked = aside(move || {
            Described::check(info.name, info.version, &info.config_schema, config.as_ref())
        });
        let Described { name, version, config_schema } = checked.await?;
        Ok(Self { manifest, name, version, config_schema, caller })
    }

    /// Write its last calls to a file. `None`: nothing is recorded of it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub async fn record(&self) -> io::Result<Option<PathBuf>> {
        self.caller.record().await
    }

    /// How it was called so far, and how it does.
    #[must_use]
    pub fn meter(&self) -> &Arc<PluginMeter> {
        self.caller.meter()
    }

    /// How narrowly a group is granted to it.
    #[must_use]
    pub fn claim(&self, group: &GroupKey) -> u32 {
        self.caller.answers().claim(group)
    }

    /// The deadline of one call.
    #[must_use]
    pub fn call_wall(&self) -> Duration {
        self.caller.call_wall()
    }

    /// Who asked gave up a call after so long: it counts as one that hangs.
    pub fn given_up(&self, call: &'static str, after: Duration) {
        self.caller.given_up(call, None, after);
    }

    /// Which devices are here.
    ///
    /// # Errors
    /// The plugin's own error, that the call failed, or that it announces what it may not.
    pub async fn fingerprint(&self) -> Result<DeviceFingerprint, PluginCallError> {
        let found = self.found().await?;
        let granted = self.caller.answers().groups(found.groups.iter().map(|group| &group.key));
        granted.map_err(|excess| PluginCallError::NotGranted(excess.to_string()))?;
        Ok(found)
    }

    /// What it answers to that, granted or not.
    ///
    /// # Errors
    /// The plugin's own error, or that the call failed.
    pub async fn found(&self) -> Result<DeviceFingerprint, PluginCallError> {
        let ask = self.caller.ask("fingerprint")?;
        let called = self.caller.call(None, |pre, store| {
            Box::pin(async move {
                let plugin = pre.instantiate_async(&mut *store).await?;
                plugin.ostler_plugin_device().call_fingerprint(store).await
            })
        });
        let mut found = self.caller.answer(&ask, called.await)?;
        let instances = found.groups.iter_mut().flat_map(|group| &mut group.instances);
        let healths = instances.map(|instance| &mut instance.health);
        let secrets = self.caller.own_secrets();
        for health in std::iter::once(&mut found.health).chain(healths) {
            secrets.scrub_text(&mut health.reason);
        }
        let mut found = convert::device_fingerprint(&self.name, found)
            .map_err(|e| self.caller.failed(&ask, e))?;
        found.next = self.caller.narrowed(found.next);
        Ok(found)
    }

    /// How a task uses these instances.
    ///
    /// # Errors
    /// The plugin's own error, that the call failed, or that the task may not get what it answers.
    pub async fn reserve(&self, device: &AllocatedDevice) -> Result<Reservation, PluginCallError> {
        let given = self.reserved(device).await?;
        self.granted(given).await
    }

    /// What it answers to that, granted or not.
    ///
    /// # Errors
    /// The plugin's own error, or that the call failed.
    pub async fn reserved(&self, device: &AllocatedDevice) -> Result<Reservation, PluginCallError> {
        let ask = self.caller.ask("reserve")?;
        let claim = claim(device);
        let given = claim.weigh();
        let input = self.caller.arguments(&(&claim,));
        let called = self.caller.call(None, move |pre, store| {
            Box::pin(async move {
                let plugin = pre.instantiate_async(&mut *store).await?;
                plugin.ostler_plugin_device().call_reserve(store, &claim).await
            })
        });
        let reservation = self.caller.answer(&ask, called.await.given(given).asked(input))?;
        convert::reservation(reservation).map_err(|e| self.caller.failed(&ask, e))
    }

    /// What a task gets of an answer: all of it, or nothing.
    ///
    /// # Errors
    /// That the task may not get it.
    pub async fn granted(&self, given: Reservation) -> Result<Reservation, PluginCallError> {
        let paths = given.mounts.iter().map(|mount| mount.host_path.clone());
        let nodes = given.device_nodes.iter().map(|node| node.host_path.clone());
        let grants = self.caller.answers().grants.answers.mounts.iter().flatten();
        let granted = grants.map(|grant| grant.path.to_string_lossy().into_owned());
        let real = match given.mounts.is_empty() && given.device_nodes.is_empty() {
            true => Links::default(),
            false => Links::follow(paths.chain(nodes).chain(granted).collect()).await?,
        };
        let excess = self.caller.answers().reservation(&given, &|path| real.of(path));
        excess.map_err(|excess| PluginCallError::NotGranted(excess.to_string()))?;
        Ok(real.without_links(given))
    }

    /// The last task that used these instances ended.
    ///
    /// # Errors
    /// The plugin's own error, or that the call failed.
    pub async fn release(&self, device: &AllocatedDevice) -> Result<(), PluginCallError> {
        let ask = self.caller.ask("release")?;
        let claim = claim(device);
        let given = claim.weigh();
        let input = self.caller.arguments(&(&claim,));
        let called = self.caller.call(None, move |pre, store| {
            Box::pin(async move {
                let plugin = pre.instantiate_async(&mut *store).await?;
                plugin.ostler_plugin_device().call_release(store, &claim).await
            })
        });
        self.caller.answer(&ask, called.await.given(given).asked(input))
    }

    /// Measure.
    ///
    /// # Errors
    /// The plugin's own error (`Unsupported` when it never measures), or that the call failed.
    pub async fn stats(&self) -> Result<Vec<DeviceGroupStats>, PluginCallError> {
        let ask = self.caller.ask("stats")?;
        let called = self.caller.call(None, |pre, store| {
            Box::pin(async move {
                let plugin = pre.instantiate_async(&mut *store).await?;
                plugin.ostler_plugin_device().call_stats(store).await
            })
        });
        let groups = self.caller.answer(&ask, called.await)?;
        convert::device_stats(groups, self.caller.now()).map_err(|e| self.caller.failed(&ask, e))
    }
}

/// Where paths of the node lead to, all of an answer looked at in one moment.
#[derive(Default)]
struct Links(BTreeMap<PathBuf, PathBuf>);

impl Links {
    async fn follow(paths: Vec<String>) -> Result<Self, PluginCallError> {
        let follow = move || {
            let real = |path: String| {
                let path = PathBuf::from(path);
                Some((path.clone(), path.canonicalize().ok()?))
            };
            Self(paths.into_iter().filter_map(real).collect())
        };
        // Nobody waits for it longer than for the answer itself.
        let followed = tokio::task::spawn_blocking(follow).await;
        followed.map_err(|_ended| PluginCallError::Recoverable("the agent ends".to_owned()))
    }

    fn of(&self, path: &Path) -> Option<PathBuf> {
        self.0.get(path).cloned()
    }

    /// What is shown elsewhere than it is, is shown from where it really is: whoever opens it need
    /// follow no link that is swapped meanwhile.
    fn without_links(&self, mut given: Reservation) -> Reservation {
        for mount in given.mounts.iter_mut().filter(|mount| mount.host_path != mount.task_path) {
            let real = self.0.get(Path::new(&mount.host_path)).and_then(|real| real.to_str());
            if let Some(real) = real {
                real.clone_into(&mut mount.host_path);
            }
        }
        given
    }
}

fn claim(device: &AllocatedDevice) -> dev::Claim {
    dev::Claim {
        vendor: device.group.vendor.clone(),
        type_: device.group.kind.clone(),
        name: device.group.name.clone(),
        ids: device.ids.clone(),
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

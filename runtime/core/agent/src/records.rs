//! The records that the agent keeps of itself: its plugins, and what its managers saw.
//!
//! ```text
//! start:  catalogue ─► PluginHandle of each plugin in use ─ another digest than last time? ─► notice
//! then:   changes of the node's view ─► DriverManagerState, DeviceManagerState  (equal: no cost)
//! ```
//! None of these records decides anything while the agent runs. They may lag, and a store that
//! refuses them only causes a warning. [`ostler_control::node_records::register_node`] keeps the
//! node's own record.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::catalogue::{PluginEntry, PluginStatus};
use ostler_control::node_records::skip_unreadable;
use ostler_model::device::HealthState;
use ostler_model::ids::PluginName;
use ostler_model::plugin::PluginKind;
use ostler_model::saved::{
    DeviceGroupRecord, DeviceManagerState, DevicePluginRecord, DriverManagerState, DriverRecord,
    PluginHandle,
};
use ostler_node::{NodePublisher, NodeView};
use ostler_state::records::{DeviceManagerKey, DriverManagerKey, PluginHandleKey};
use ostler_state::{KeyPrefix, RecordKey, StateError, StateStore};

/// The number of digits of a digest that people compare.
const DIGEST_SHOWN: usize = 12;

/// The plugins in use, by their own names.
pub(super) type Handles = BTreeMap<PluginName, PluginHandle>;

/// Keep a handle of every plugin in use, and drop those of plugins that are gone. Returns a notice
/// for each plugin that differs from the last start.
pub(super) async fn remember_plugins(
    state: &StateStore,
    entries: &[PluginEntry],
) -> Result<(Handles, Vec<String>), StateError> {
    let mut known = Handles::new();
    for record in state.scan(&KeyPrefix::Plugins)? {
        let RecordKey::PluginHandle(name) = &record.key else { continue };
        if let Some(handle) = skip_unreadable(record.decode().map(Some))? {
            known.insert(name.clone(), handle);
        }
    }
    let used: Handles = entries.iter().filter_map(entry_handle).collect();
    let mut said = Vec::new();
    for (name, handle) in &used {
        if let Some(before) = known.get(name).filter(|before| before.digest != handle.digest) {
            said.push(describe_change(name, before, handle));
        }
        let key = PluginHandleKey::of(name.clone());
        warn(&key, state.put_later(&key, handle).await);
    }
    for (name, handle) in &known {
        if !used.contains_key(name) && is_gone(name, handle, entries) {
            tracing::info!(plugin = %name, source = %handle.source, "plugin is gone");
            let key = PluginHandleKey::of(name.clone());
            warn(&key, state.delete(&key).await);
        }
    }
    Ok((used, said))
}

/// Record another version of a plugin, so that the next start does not report it as news.
pub(super) async fn remember_upgrade(state: &StateStore, entry: &PluginEntry) {
    let Some((name, handle)) = entry_handle(entry) else { return };
    let key = PluginHandleKey::of(name);
    warn(&key, state.put_later(&key, &handle).await);
}

/// The record of a plugin in use.
fn entry_handle(entry: &PluginEntry) -> Option<(PluginName, PluginHandle)> {
    if entry.status != PluginStatus::Loaded {
        return None;
    }
    let name = PluginName::new(entry.describes_as.as_deref()?).ok()?;
    let handle = PluginHandle {
        block: entry.name.clone(),
        kind: entry.kind?,
        version: entry.version.clone()?,
        interface_version: entry.interface_version.clone()?,
        digest: entry.digest.clone()?,
        size_bytes: entry.size_bytes,
        source: entry.source.clone(),
    };
    Some((name, handle))
}

/// Whether a plugin is gone. A plugin that only failed to load, or is switched off, may come back
/// as it was, so its handle stays. A plugin without a block, or whose block loads under another
/// name, is gone.
fn is_gone(name: &PluginName, handle: &PluginHandle, entries: &[PluginEntry]) -> bool {
    let block = entries.iter().find(|entry| entry.name == handle.block);
    block.is_none_or(|entry| {
        entry.status == PluginStatus::Loaded && entry.describes_as.as_deref() != Some(name.as_str())
    })
}

fn describe_change(name: &PluginName, before: &PluginHandle, now: &PluginHandle) -> String {
    let of = |handle: &PluginHandle| {
        let digest: String = handle.digest.chars().take(DIGEST_SHOWN).collect();
        format!("version {} with digest {digest} ({})", handle.version, handle.source)
    };
    format!("plugin {name} changed since the last start: it was {}, it is {}", of(before), of(now))
}

fn warn<T>(key: &RecordKey, written: Result<T, StateError>) {
    if let Err(error) = written {
        tracing::warn!(%key, %error, "record not written");
    }
}

/// The plugin that serves each driver now.
fn driver_manager_state(view: &NodeView, handles: &Handles) -> DriverManagerState {
    let of_kind = handles.iter().filter(|(_, handle)| handle.kind == PluginKind::Driver);
    let seen = of_kind.map(|(name, handle)| {
        let health = view.drivers.get(name).map(|driver| driver.health.state).unwrap_or_default();
        let (version, digest) = (handle.version.clone(), handle.digest.clone());
        (name.clone(), DriverRecord { version, digest, health })
    });
    DriverManagerState { drivers: seen.collect() }
}

/// The plugin that serves each device group now. A plugin that does not answer keeps the groups it
/// had in `last`.
fn device_manager_state(
    view: &NodeView,
    handles: &Handles,
    last: &DeviceManagerState,
) -> DeviceManagerState {
    let of_kind = handles.iter().filter(|(_, handle)| handle.kind == PluginKind::Device);
    let seen = of_kind.map(|(name, handle)| {
        let health = view.device_plugins.get(name).map(|health| health.state).unwrap_or_default();
        let mut groups = device_groups(view, name);
        if groups.is_empty()
            && health != HealthState::Healthy
            && let Some(last) = last.plugins.get(name)
        {
            groups.clone_from(&last.groups);
        }
        let (version, digest) = (handle.version.clone(), handle.digest.clone());
        (name.clone(), DevicePluginRecord { version, digest, health, groups })
    });
    DeviceManagerState { plugins: seen.collect() }
}

fn device_groups(view: &NodeView, plugin: &PluginName) -> Vec<DeviceGroupRecord> {
    let own = view.devices.iter().filter(|group| &group.plugin == plugin);
    let mut groups: Vec<DeviceGroupRecord> = own
        .map(|group| {
            let mut instances: Vec<String> =
                group.instances.iter().map(|instance| instance.id.clone()).collect();
            instances.sort_unstable();
            DeviceGroupRecord { key: group.key.clone(), instances }
        })
        .collect();
    groups.sort_by(|a, b| a.key.cmp(&b.key));
    groups
}

/// Writes the managers' states whenever the node changes, until it is stopped.
pub(super) struct RecordsWriter {
    stop: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl RecordsWriter {
    /// Follow `node`, beginning with its present view.
    pub(super) fn spawn(state: StateStore, node: &NodePublisher, handles: Handles) -> Self {
        let stop = CancellationToken::new();
        let (stopped, mut changes) = (stop.clone(), node.changes());
        let task = tokio::spawn(async move {
            let read = state.get::<DeviceManagerState>(&DeviceManagerKey::of());
            let mut devices = skip_unreadable(read).ok().flatten().unwrap_or_default();
            let mut stopping = false;
            loop {
                let view = changes.take();
                let drivers = driver_manager_state(&view, &handles);
                devices = device_manager_state(&view, &handles, &devices);
                warn(
                    &RecordKey::DriverManager,
                    state.put_later(&DriverManagerKey::of(), &drivers).await,
                );
                warn(
                    &RecordKey::DeviceManager,
                    state.put_later(&DeviceManagerKey::of(), &devices).await,
                );
                if stopping {
                    return;
                }
                tokio::select! {
                    // One more round writes what changed since the last one.
                    () = stopped.cancelled() => stopping = true,
                    changed = changes.next() => stopping = changed.is_err(),
                }
            }
        });
        Self { stop, task: Mutex::new(Some(task)) }
    }

    /// Stop, and hand the present view of the node to the store.
    pub(super) async fn stop(&self) {
        self.stop.cancel();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // An error means that the task panicked, which was logged there.
            let _ended = task.await;
        }
    }
}

#[cfg(test)]
#[path = "records_tests.rs"]
mod tests;

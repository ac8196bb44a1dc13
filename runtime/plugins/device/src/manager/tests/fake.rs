//! A scripted device plugin, and the ledger's book.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use crate::source::DeviceFingerprint;
use crate::source::DeviceSource;
use ostler_health::refresh::NextCheck;
use ostler_health::refresh::Refresher;
use ostler_model::clock::Timestamp;
use ostler_model::device::{
    DeviceGroup, DeviceInstance, GroupKey, Health, HealthState, Mount, Reservation,
};
use ostler_model::ids::PluginName;
use ostler_model::ports::{BoxFuture, PluginCallError};
use ostler_model::resources::AllocatedDevice;
use ostler_model::rng::Rng;
use ostler_model::stats::{DeviceGroupStats, InstanceStats, StatValue};
use ostler_node::NodePublisher;
use ostler_node::watch::ChangeWatcher;

pub(super) fn node() -> NodePublisher {
    let id = ostler_node::NodeId::new(uuid::Uuid::from_u128(1));
    NodePublisher::new(ostler_node::NodeView::new(id, "box"))
}

pub(super) fn refresher(watcher: &ChangeWatcher) -> Refresher {
    Refresher::new(watcher.clone(), Rng::from_seed(1))
}

pub(super) fn plugin(name: &str) -> PluginName {
    PluginName::new(name).unwrap()
}

pub(super) fn key(name: &str) -> GroupKey {
    GroupKey { vendor: "acme".into(), kind: "gpu".into(), name: name.into() }
}

pub(super) fn assigned(group: &str, ids: &[&str]) -> AllocatedDevice {
    AllocatedDevice { group: key(group), ids: ids.iter().map(|id| (*id).to_owned()).collect() }
}

pub(super) fn group(owner: &str, name: &str, ids: &[&str]) -> DeviceGroup {
    let instance =
        |id: &&str| DeviceInstance { id: (*id).into(), health: healthy(), locality: None };
    DeviceGroup {
        key: key(name),
        plugin: plugin(owner),
        instances: ids.iter().map(instance).collect(),
        attributes: vec![],
    }
}

pub(super) fn healthy() -> Health {
    Health { state: HealthState::Healthy, reason: String::new() }
}

pub(super) fn undetected(reason: &str) -> Health {
    Health { state: HealthState::Undetected, reason: reason.to_owned() }
}

/// How a call goes.
#[derive(Clone, Debug, Default)]
pub(super) enum Reply {
    #[default]
    Well,
    No(PluginCallError),
    Hang,
}

impl Reply {
    pub(super) fn traps() -> Self {
        let (plugin, reason) = ("p".to_owned(), "it trapped".to_owned());
        Self::No(PluginCallError::CallFailed { plugin, call: "x", reason })
    }

    pub(super) fn no() -> Self {
        Self::No(PluginCallError::Fatal("no".to_owned()))
    }

    async fn go(self) -> Result<(), PluginCallError> {
        match self {
            Self::Well => Ok(()),
            Self::No(error) => Err(error),
            Self::Hang => std::future::pending().await,
        }
    }
}

/// What the plugin says from now on, and what it was asked.
#[derive(Default)]
pub(super) struct Script {
    pub(super) groups: Vec<DeviceGroup>,
    pub(super) fingerprint: Reply,
    /// Of the plugin itself.
    pub(super) health: Health,
    /// Kernel subsystems that it watches.
    pub(super) watch: Vec<String>,
    /// Reserves in a row; then well.
    pub(super) reserve: VecDeque<Reply>,
    /// Releases in a row; then well.
    pub(super) release: VecDeque<Reply>,
    pub(super) stats: Reply,
    /// Shown to tasks, each by path on the node and in the task.
    pub(super) mounts: Vec<(&'static str, &'static str)>,
    /// Measured besides what it has.
    pub(super) also: Vec<(String, String)>,
    pub(super) value: i64,
    pub(super) calls: Vec<String>,
    /// Reserved and not released.
    pub(super) prepared: BTreeMap<(String, String), u32>,
}

/// Clones share the script.
#[derive(Clone)]
pub(super) struct Fake {
    name: PluginName,
    script: Arc<Mutex<Script>>,
    /// Called before and after each effect on the world; never returns when the agent is cut off.
    pub(super) cut: Option<Cut>,
}

pub(super) type Cut = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

impl Fake {
    pub(super) fn new(name: &str, groups: Vec<DeviceGroup>) -> Self {
        let script = Script { groups, health: healthy(), ..Script::default() };
        Self { name: plugin(name), script: Arc::new(Mutex::new(script)), cut: None }
    }

    pub(super) fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }

    pub(super) fn count(&self, call: &str) -> usize {
        self.script().calls.iter().filter(|made| made.starts_with(call)).count()
    }

    pub(super) fn forget(&self) {
        self.script().calls.clear();
    }

    pub(super) async fn cut_here(&self) {
        if let Some(cut) = &self.cut {
            cut().await;
        }
    }

    fn note(&self, call: &str, device: &AllocatedDevice) {
        self.script().calls.push(format!("{call} {}", device.group.name));
    }
}

impl DeviceSource for Fake {
    fn name(&self) -> &PluginName {
        &self.name
    }

    fn fingerprint(&self) -> BoxFuture<'_, Result<DeviceFingerprint, PluginCallError>> {
        Box::pin(async move {
            let (reply, health, mut groups, subsystems) = {
                let mut script = self.script();
                script.calls.push("fingerprint".to_owned());
                let Script { fingerprint, health, groups, watch, .. } = &*script;
                (fingerprint.clone(), health.clone(), groups.clone(), watch.clone())
            };
            reply.go().await?;
            let mut after = Some(Duration::from_secs(10));
            if health.state == HealthState::Undetected {
                // It has nothing, and does not say when to ask again.
                (after, groups) = (None, Vec::new());
            }
            let next = NextCheck { after, paths: Vec::new(), subsystems };
            Ok(DeviceFingerprint { health, groups, next })
        })
    }

    fn reserve<'a>(
        &'a self,
        device: &'a AllocatedDevice,
    ) -> BoxFuture<'a, Result<Reservation, PluginCallError>> {
        Box::pin(async move {
            self.note("reserve", device);
            self.cut_here().await;
            let reply = self.script().reserve.pop_front().unwrap_or_default();
            reply.go().await?;
            for id in &device.ids {
                let place = (device.group.name.clone(), id.clone());
                *self.script().prepared.entry(place).or_default() = 1;
            }
            self.cut_here().await;
            let env = vec![(self.name.to_string(), device.ids.join(","))];
            let mounts = self.script().mounts.clone().into_iter().map(|(host, task)| Mount {
                host_path: host.to_owned(),
                task_path: task.to_owned(),
                read_only: true,
            });
            Ok(Reservation { env, mounts: mounts.collect(), ..Reservation::default() })
        })
    }

    fn release<'a>(
        &'a self,
        device: &'a AllocatedDevice,
    ) -> BoxFuture<'a, Result<(), PluginCallError>> {
        Box::pin(async move {
            self.note("release", device);
            self.cut_here().await;
            let reply = self.script().release.pop_front().unwrap_or_default();
            reply.go().await?;
            for id in &device.ids {
                self.script().prepared.remove(&(device.group.name.clone(), id.clone()));
            }
            self.cut_here().await;
            Ok(())
        })
    }

    fn stats(&self) -> BoxFuture<'_, Result<Vec<DeviceGroupStats>, PluginCallError>> {
        Box::pin(async move {
            let (reply, places, value) = {
                let mut script = self.script();
                script.calls.push("stats".to_owned());
                let own = script.groups.iter().flat_map(|group| {
                    group.instances.iter().map(|one| (group.key.name.clone(), one.id.clone()))
                });
                let places: Vec<_> = own.chain(script.also.iter().cloned()).collect();
                (script.stats.clone(), places, script.value)
            };
            reply.go().await?;
            let mut groups: BTreeMap<String, DeviceGroupStats> = BTreeMap::new();
            for (group, id) in places {
                let summary = StatValue { int_numerator: Some(value), ..StatValue::default() };
                let taken_at = Timestamp::from_nanos(1);
                let one = InstanceStats { summary: Some(summary), taken_at, ..Default::default() };
                let key = key(&group);
                let group = groups.entry(group).or_insert_with(|| DeviceGroupStats {
                    key,
                    instances: BTreeMap::new(),
                    stale: None,
                });
                group.instances.insert(id, Arc::new(one));
            }
            Ok(groups.into_values().collect())
        })
    }
}

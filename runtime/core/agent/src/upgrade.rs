//! Puts another version of a plugin in the place of the one in use, while tasks run.
//!
//! ```text
//! file changed (auto) ──┐
//! upgrade_plugin ───────┴─► step (pure) ─► read, look ─► load ─► trial (dry) ─► switch ─► prove
//!                              ▲                                                  │         │
//!                              └────────────── how each went ─────────────────────┴─────────┘
//!                                                     roll back: the old code, which was kept
//! ```
//! `step` decides, and the other modules carry the decision out. The switch is one exchange of a
//! pointer: calls in flight end on the old code, later ones go to the new. The old code stays
//! loaded until the new one has proved itself. The next agent loads the accepted version too, see
//! `copies`.

mod auto;
pub(super) mod copies;
mod run;
pub mod step;
mod trial;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::AgentHandle;
use super::catalogue::{LoadedPlugin, PluginEntry, PluginStatus, Seed};
use ostler_device::source::DeviceSource;
use ostler_health::meter::PluginMeter;
use ostler_model::config::UpgradeMode;
use ostler_model::ids::{PluginName, RunId};
use ostler_model::plugin::PluginKind;
use ostler_model::plugin::PluginManifest;
use ostler_model::time::Timestamp;
use ostler_plugin::driver::LoadedDriver;

pub(super) use auto::spawn as watch;
use step::{Proof, UpgradeMachine};
pub use step::{Release, UpgradeOutcome};

/// The options of one upgrade.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpgradeOptions {
    /// The absolute path of the new file. `None` means the plugin's own file.
    pub file: Option<PathBuf>,
    /// Whether a person agrees to more asks, and to an older version.
    pub consents: bool,
}

/// The report on one upgrade.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradeReport {
    /// The name the plugin gives itself.
    pub name: String,
    /// The time of the offer, by the agent's clock.
    pub at: Timestamp,
    /// Whether the agent started the upgrade because the file changed. If not, a person asked
    /// for it.
    pub by_itself: bool,
    /// The release that ran before.
    pub from: Release,
    /// The offered release, as far as it was examined.
    pub to: Release,
    /// The path from which the new file was read.
    pub file: PathBuf,
    /// The number of tasks that the new plugin owned in its dry run.
    pub tasks_tried: usize,
    /// What the new plugin announced in its dry run and the one in use does not: device groups, or
    /// attributes of a driver.
    #[serde(default)]
    pub announces: Vec<String>,
    /// The result of the upgrade.
    #[serde(flatten)]
    pub outcome: UpgradeOutcome,
}

/// The upgrades of one plugin, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradeStatus {
    /// Whether a changed file is put in place by the agent or by a person.
    pub mode: UpgradeMode,
    /// When the running release was put in place; `None` if it was there at the start of the agent.
    pub upgraded_at: Option<Timestamp>,
    /// The release that ran before it.
    pub previous: Option<Release>,
    /// Until when the running release proves itself; `None` if it is accepted.
    pub proving_until: Option<Timestamp>,
    /// The report on the last upgrade, or on the one under way.
    pub last: Option<UpgradeReport>,
    /// The report on the last upgrade that was rolled back.
    pub rolled_back: Option<UpgradeReport>,
}

/// Why an upgrade was not started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpgradeError {
    /// No plugin in use has the name.
    #[error("no plugin in use is called {0:?}; `ostler plugin status` lists them")]
    Unknown(String),
    /// A built-in plugin has no file that could change.
    #[error("plugin {0} is built in: give the file of another version with --file")]
    NoFile(String),
    /// The path is relative, so it may mean another file to the agent than to the caller.
    #[error("{0} is not an absolute path")]
    Relative(PathBuf),
    /// The agent is on its way to its end.
    #[error("the agent is shutting down")]
    Leaving,
}

/// The code of a plugin, which can be put in a place.
#[derive(Clone)]
enum PluginCode {
    Driver(Arc<LoadedDriver>),
    Device(Arc<dyn DeviceSource>),
}

impl PluginCode {
    fn meter(&self) -> Arc<PluginMeter> {
        match self {
            Self::Driver(plugin) => Arc::clone(plugin.meter()),
            Self::Device(plugin) => plugin.meter(),
        }
    }
}

/// The place of one plugin in use.
struct UpgradeSlot {
    kind: PluginKind,
    name: PluginName,
    seed: Seed,
    now: Mutex<SlotState>,
}

/// What runs in a slot, what is kept for a roll-back, and what is reported.
struct SlotState {
    machine: UpgradeMachine,
    /// Counts the switches. Whoever watches one release stops when the count has changed.
    turn: u64,
    entry: PluginEntry,
    manifest: PluginManifest,
    /// The release that was accepted last, while the running one proves itself.
    before: Option<(PluginCode, PluginEntry, PluginManifest)>,
    /// The report on how the running release came to its place.
    placed: Option<UpgradeReport>,
    /// The runs that the running release can own, as the dry run showed.
    owned: BTreeSet<RunId>,
    status: UpgradeStatus,
}

impl UpgradeSlot {
    fn new(one: LoadedPlugin) -> Option<Self> {
        let LoadedPlugin { entry, name, manifest, seed } = one;
        let digest = manifest.digest.clone();
        let machine = UpgradeMachine::new(Release { version: entry.version.clone(), digest });
        let status = UpgradeStatus { mode: seed.mode, ..UpgradeStatus::default() };
        let now = SlotState {
            machine,
            turn: 0,
            entry: entry.clone(),
            manifest,
            before: None,
            placed: None,
            owned: BTreeSet::new(),
            status,
        };
        Some(Self { kind: entry.kind?, name, seed, now: Mutex::new(now) })
    }

    fn now(&self) -> MutexGuard<'_, SlotState> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn proof(&self) -> Proof {
        let policy = &self.seed.spec.failure;
        Proof { strikes: u64::from(policy.upgrade_strikes), time: policy.upgrade_window }
    }
}

/// The slots of all plugins in use, by kind and own name.
pub(super) struct UpgradeSlots(Mutex<BTreeMap<(PluginKind, String), Arc<UpgradeSlot>>>);

impl UpgradeSlots {
    /// The slots of the plugins as they were loaded.
    pub(super) fn new(used: Vec<LoadedPlugin>) -> Self {
        let slots = used.into_iter().filter_map(UpgradeSlot::new);
        let slots = slots.map(|slot| ((slot.kind, slot.name.to_string()), Arc::new(slot)));
        Self(Mutex::new(slots.collect()))
    }

    /// Add the slot of a plugin that was loaded later.
    pub(super) fn add(&self, one: LoadedPlugin) {
        if let Some(slot) = UpgradeSlot::new(one) {
            self.lock().insert((slot.kind, slot.name.to_string()), Arc::new(slot));
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(PluginKind, String), Arc<UpgradeSlot>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The files of plugins in use, with their digests.
    pub(super) fn files(&self) -> Vec<(PathBuf, String)> {
        let file = |slot: &Arc<UpgradeSlot>| {
            Some((slot.seed.path.clone()?, slot.now().manifest.digest.clone()))
        };
        self.lock().values().filter_map(file).collect()
    }

    fn find(&self, name: &str) -> Option<Arc<UpgradeSlot>> {
        let slots = self.lock();
        let own = slots.iter().find(|((_, own), _)| own == name).map(|(_, slot)| slot);
        own.or_else(|| slots.values().find(|slot| slot.seed.spec.name == name)).cloned()
    }
}

impl AgentHandle {
    /// Put another version of a plugin in the place of the one in use, while tasks run. It is
    /// examined, compiled and tried before. `name` is the name the plugin gives itself, or that
    /// of its block. Returns when the new version is in place, or when it is certain that it will
    /// not be.
    ///
    /// # Errors
    /// When no upgrade was started. If the new version is refused, the report says so.
    pub async fn upgrade_plugin(
        &self,
        name: &str,
        options: UpgradeOptions,
    ) -> Result<UpgradeReport, UpgradeError> {
        let slot = self.upgrades().and_then(|upgrades| upgrades.find(name));
        let slot = slot.ok_or_else(|| UpgradeError::Unknown(name.chars().take(64).collect()))?;
        let UpgradeOptions { file, consents } = options;
        if let Some(file) = file.as_ref().filter(|file| !file.is_absolute()) {
            return Err(UpgradeError::Relative(file.clone()));
        }
        let own = slot.seed.path.clone();
        let file = file.or(own).ok_or_else(|| UpgradeError::NoFile(slot.name.to_string()))?;
        let (agent, by) = (self.clone(), step::RequestedBy::Person { consents });
        // The caller may go away; an upgrade that was started comes to its end.
        let ended = self.0.ended.clone();
        let upgraded = self.0.beside.spawn(async move {
            ended.run_until_cancelled(run::upgrade(agent, slot, file, by)).await
        });
        upgraded.await.ok().flatten().ok_or(UpgradeError::Leaving)
    }

    /// Every plugin in its present state, including those that are still being loaded.
    #[must_use]
    pub fn plugins_now(&self) -> Vec<PluginEntry> {
        match self.0.plugins.get() {
            Some(used) => used.entries.iter().map(|entry| self.entry_now(entry)).collect(),
            None => self.0.board.entries(),
        }
    }

    /// The upgrade slots; `None` before plugins are in use.
    pub(super) fn upgrades(&self) -> Option<&UpgradeSlots> {
        self.0.plugins.get().map(|used| &used.upgrades)
    }

    /// The entry of a plugin after its upgrades.
    pub(super) fn entry_now(&self, entry: &PluginEntry) -> PluginEntry {
        let came = self.0.plugins.get().and_then(|used| {
            let came = used.came.lock().unwrap_or_else(PoisonError::into_inner);
            came.get(&(entry.name.clone(), entry.source.clone())).cloned()
        });
        let entry = came.unwrap_or_else(|| entry.clone());
        let slot = self.slot_of(&entry);
        slot.map_or(entry, |slot| slot.now().entry.clone())
    }

    /// The upgrades of a plugin in use, for people.
    pub(super) fn upgrades_of(&self, entry: &PluginEntry) -> Option<UpgradeStatus> {
        let slot = self.slot_of(entry)?;
        let now = slot.now();
        let proving_until = now.machine.proving_until();
        Some(UpgradeStatus { proving_until, ..now.status.clone() })
    }

    fn slot_of(&self, entry: &PluginEntry) -> Option<Arc<UpgradeSlot>> {
        let used = entry.status == PluginStatus::Loaded;
        let key = entry.kind.zip(entry.describes_as.clone()).filter(|_| used)?;
        self.upgrades()?.lock().get(&key).cloned()
    }
}

//! Another version of a plugin takes the place of the one in use, while tasks run.
//!
//! ```text
//! file changed (auto) ──┐
//! upgrade_plugin ───────┴─► step (pure) ─► read, look ─► load ─► trial (dry) ─► switch ─► prove
//!                              ▲                                                  │         │
//!                              └────────────── how each went ─────────────────────┴─────────┘
//!                                                     roll back: the old code, which was kept
//! ```
//! `step` decides; here it is done. The switch is one exchange of a pointer: calls in flight end on
//! the old code, later ones go to the new. The old code stays loaded until the new one proved itself.
//! What was accepted is loaded by the next agent too, see `kept`.

mod auto;
pub(super) mod kept;
mod run;
pub mod step;
mod trial;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::AgentHandle;
use super::catalogue::{InUse, PluginEntry, PluginStatus, Seed};
use ostler_device::source::DeviceSource;
use ostler_health::meter::PluginMeter;
use ostler_model::config::UpgradeMode;
use ostler_model::ids::{PluginName, RunId};
use ostler_model::plugin::Manifest;
use ostler_model::plugin::PluginKind;
use ostler_model::time::Timestamp;
use ostler_plugin::driver::DriverPlugin;

pub(super) use auto::spawn as watch;
pub use step::{Outcome, Release};
use step::{Proof, Upgrading};

/// What is wanted of an upgrade.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct UpgradeOptions {
    /// The new file, absolute; the plugin's own unless given.
    pub file: Option<PathBuf>,
    /// A person agrees to more asks, and to an older version.
    pub consents: bool,
}

/// How an upgrade went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradeReport {
    /// The name the plugin gives itself.
    pub name: String,
    /// When.
    pub at: Timestamp,
    /// The agent saw that the file changed; else a person asked for it.
    pub by_itself: bool,
    /// What ran before.
    pub from: Release,
    /// What was offered, as far as it was looked at.
    pub to: Release,
    /// Where it was read.
    pub file: PathBuf,
    /// Tasks that the new one owned in its dry run.
    pub tasks_tried: usize,
    /// What it announced there and the one in use does not: device groups, attributes of a driver.
    #[serde(default)]
    pub announces: Vec<String>,
    /// How it went.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// The upgrades of one plugin, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradeStatus {
    /// Who puts a changed file in its place.
    pub mode: UpgradeMode,
    /// When what runs was put in its place; absent: at the start of the agent.
    pub upgraded_at: Option<Timestamp>,
    /// What ran before it.
    pub previous: Option<Release>,
    /// Until when what runs proves itself.
    pub proving_until: Option<Timestamp>,
    /// How the last upgrade went, or is going.
    pub last: Option<UpgradeReport>,
    /// The last that was rolled back, and why.
    pub rolled_back: Option<UpgradeReport>,
}

/// Why an upgrade was not begun.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpgradeError {
    /// No plugin in use has the name.
    #[error("no plugin in use is called {0:?}; `ostler plugin status` lists them")]
    Unknown(String),
    /// A built-in plugin has no file that could change.
    #[error("plugin {0} is built in: give the file of another version with --file")]
    NoFile(String),
    /// A path that means another file to the agent than to who gave it.
    #[error("{0} is not an absolute path")]
    Relative(PathBuf),
    /// The agent ends.
    #[error("the agent is leaving")]
    Leaving,
}

/// Code that can be put in a place.
#[derive(Clone)]
enum Code {
    Driver(Arc<DriverPlugin>),
    Device(Arc<dyn DeviceSource>),
}

impl Code {
    fn meter(&self) -> Arc<PluginMeter> {
        match self {
            Self::Driver(plugin) => Arc::clone(plugin.meter()),
            Self::Device(plugin) => plugin.meter(),
        }
    }
}

/// One plugin in use.
struct Slot {
    kind: PluginKind,
    name: PluginName,
    seed: Seed,
    now: Mutex<Now>,
}

/// What runs in a slot, what is kept to go back to, what is told.
struct Now {
    machine: Upgrading,
    /// Counts the switches: who watches one ends when there was another.
    turn: u64,
    entry: PluginEntry,
    manifest: Manifest,
    /// What was accepted last, while what runs proves itself.
    before: Option<(Code, PluginEntry, Manifest)>,
    /// How what runs came to its place.
    placed: Option<UpgradeReport>,
    /// Runs that what runs can own: they were tried.
    owned: BTreeSet<RunId>,
    status: UpgradeStatus,
}

impl Slot {
    fn new(one: InUse) -> Option<Self> {
        let InUse { entry, name, manifest, seed } = one;
        let digest = manifest.digest.clone();
        let machine = Upgrading::new(Release { version: entry.version.clone(), digest });
        let status = UpgradeStatus { mode: seed.mode, ..UpgradeStatus::default() };
        let now = Now {
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

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn proof(&self) -> Proof {
        let policy = &self.seed.spec.failure;
        Proof { strikes: u64::from(policy.upgrade_strikes), time: policy.upgrade_window }
    }
}

/// Every plugin in use, with what may take its place.
pub(super) struct Upgrades(Mutex<BTreeMap<(PluginKind, String), Arc<Slot>>>);

impl Upgrades {
    /// The plugins as they were loaded.
    pub(super) fn new(used: Vec<InUse>) -> Self {
        let slots = used.into_iter().filter_map(Slot::new);
        let slots = slots.map(|slot| ((slot.kind, slot.name.to_string()), Arc::new(slot)));
        Self(Mutex::new(slots.collect()))
    }

    /// One that came later.
    pub(super) fn add(&self, one: InUse) {
        if let Some(slot) = Slot::new(one) {
            self.lock().insert((slot.kind, slot.name.to_string()), Arc::new(slot));
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(PluginKind, String), Arc<Slot>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Files of plugins in use, and their digests.
    pub(super) fn files(&self) -> Vec<(PathBuf, String)> {
        let file =
            |slot: &Arc<Slot>| Some((slot.seed.path.clone()?, slot.now().manifest.digest.clone()));
        self.lock().values().filter_map(file).collect()
    }

    fn find(&self, name: &str) -> Option<Arc<Slot>> {
        let slots = self.lock();
        let own = slots.iter().find(|((_, own), _)| own == name).map(|(_, slot)| slot);
        own.or_else(|| slots.values().find(|slot| slot.seed.spec.name == name)).cloned()
    }
}

impl AgentHandle {
    /// Put another version of a plugin in the place of the one in use, which was looked at, compiled
    /// and tried before, while tasks run. `name` is that it gives itself or that of its block. Told
    /// when it is in its place, or that it will not be.
    ///
    /// # Errors
    /// When none was begun; that the new one is refused is a report.
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
        // Who asked may go away; what was begun comes to its end.
        let ended = self.0.ended.clone();
        let upgraded = self.0.beside.spawn(async move {
            ended.run_until_cancelled(run::upgrade(agent, slot, file, by)).await
        });
        upgraded.await.ok().flatten().ok_or(UpgradeError::Leaving)
    }

    /// Every plugin, with its fate, as it is now: also those that are still being loaded.
    #[must_use]
    pub fn plugins_now(&self) -> Vec<PluginEntry> {
        match self.0.plugins.get() {
            Some(used) => used.entries.iter().map(|entry| self.entry_now(entry)).collect(),
            None => self.0.board.entries(),
        }
    }

    /// None before plugins are in use.
    pub(super) fn upgrades(&self) -> Option<&Upgrades> {
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

    /// What is told of the upgrades of a plugin in use.
    pub(super) fn upgrades_of(&self, entry: &PluginEntry) -> Option<UpgradeStatus> {
        let slot = self.slot_of(entry)?;
        let now = slot.now();
        let proving_until = now.machine.proving();
        Some(UpgradeStatus { proving_until, ..now.status.clone() })
    }

    fn slot_of(&self, entry: &PluginEntry) -> Option<Arc<Slot>> {
        let used = entry.status == PluginStatus::Loaded;
        let key = entry.kind.zip(entry.describes_as.clone()).filter(|_| used)?;
        self.upgrades()?.lock().get(&key).cloned()
    }
}

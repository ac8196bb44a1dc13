//! The plugins of this agent: built in, from the plugin directory, and from the configuration.
//!
//! ```text
//! find: candidates ─► verify: bytes, verdict ─► load: linked, asked who it is ─► choose ─► managers
//!                        │ refused, with the reason  │ refused                      │ refused
//!                        └───────────────────────────┴──────────────────────────────┴─► PluginEntry
//! ```
//! All plugins are listed from the beginning, see `Board`. Those that can be used come into use
//! together, when all were examined, because until then any of them may still claim the name of
//! another. A plugin that takes far longer than the others is not waited for and comes into use by
//! itself (`late`).
//!
//! Each plugin is loaded with the grants that its block gives it; a built-in one without a block
//! gets the least it needs. A refused plugin stays in the list with the reason.

pub(super) mod alone;
mod board;
mod choose;
mod find;
mod late;
mod load;
mod outside;
mod verify;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use ostler_artifact::trust;
use ostler_device::manager::DeviceManager;
use ostler_health::meter::PluginMeter;
use ostler_model::config::AgentConfig;
use ostler_model::grants::{Authority, Grants};
use ostler_model::ids::PluginName;
use ostler_model::plugin::{PluginKind, PluginManifest};
use ostler_model::ports::BoxFuture;
use ostler_model::trust::Voucher;
use ostler_plugin::drivers::manager::DriverManager;
use ostler_plugin::{Plugin, PluginRuntime};

use super::upgrade::copies::AcceptedCopies;

pub(super) use board::Board;
pub(super) use late::{LateLoads, LatePlugin, LateResult};
use load::{LoadAttempt, Loader};
pub use outside::{PullReport, SignatureReport, VerifyReport, pull, verify};
pub use verify::ObtainError;
use verify::Registries;

pub(super) use find::read;
pub(super) use load::{Seed, VerifiedFile, refusal_reason};

/// A plugin, and whether it is in use.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PluginEntry {
    /// Name of the plugin's block in the configuration. Several plugins can have the same block; at
    /// most one of them is in use, and it stands first.
    pub name: String,
    /// `built-in`, or the file.
    pub source: String,
    /// Driver or device plugin; absent when it could not be told.
    pub kind: Option<PluginKind>,
    /// The name the plugin gives itself, which is the one that jobs use.
    pub describes_as: Option<String>,
    /// The version that the plugin reports, such as `1.2.0`; `None` if it was not asked.
    pub version: Option<String>,
    /// Version of the plugin contract it was built for.
    pub interface_version: Option<String>,
    /// SHA-256 of the file.
    pub digest: Option<String>,
    /// Who vouches for the plugin; `None` if nobody does.
    #[serde(default)]
    pub trust: Option<Voucher>,
    /// Bytes of the file.
    pub size_bytes: u64,
    /// In use or not, and why.
    pub status: PluginStatus,
    /// The grants that the plugin was given.
    pub grants: Grants,
    /// The authorities that the plugin asks for by its imports.
    pub asks: Vec<Authority>,
}

/// Whether a plugin is in use, see [`PluginEntry`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state", content = "reason")]
pub enum PluginStatus {
    /// In use.
    Loaded,
    /// Not in use, and why.
    Refused(String),
    /// Switched off in the configuration.
    Disabled,
    /// Not in use yet: the plugin is being read, compiled and asked who it is.
    Loading,
    /// Not in use yet: the plugin is ready, but others are still being loaded.
    Waiting,
}

impl PluginEntry {
    /// The name under which the plugin is shown everywhere: the name it gives itself, which jobs
    /// write, or the name of its block if it could not be asked.
    #[must_use]
    pub fn own_name(&self) -> &str {
        self.describes_as.as_deref().unwrap_or(&self.name)
    }
}

/// The meters that count the calls of plugins in use, by kind and own name.
pub(super) type Meters = BTreeMap<(PluginKind, String), Arc<PluginMeter>>;

/// The result of [`load_all`].
pub(super) struct LoadOutcome {
    /// Every plugin that was examined.
    pub(super) entries: Vec<PluginEntry>,
    /// The meters of the plugins in use.
    pub(super) meters: Meters,
    /// First fingerprints on their way; each task ends with the plugin's own name.
    pub(super) first: JoinSet<PluginName>,
    /// The names of the plugins whose first fingerprint is on its way.
    pub(super) waiting: BTreeSet<PluginName>,
    /// Each plugin in use, with what another version of it is loaded with.
    pub(super) seeds: Vec<LoadedPlugin>,
    /// The loads that take longer than the others.
    pub(super) late: LateLoads,
}

/// A plugin in use, as it was loaded.
pub(super) struct LoadedPlugin {
    /// The entry of the plugin in the list of plugins.
    pub(super) entry: PluginEntry,
    /// The name the plugin gives itself.
    pub(super) name: PluginName,
    /// Imports and exports of the component.
    pub(super) manifest: PluginManifest,
    /// What another version of the plugin is loaded with.
    pub(super) seed: Seed,
}

/// The directories of an agent.
#[derive(Clone, Copy, Debug)]
pub(super) struct CatalogueDirs<'a> {
    /// The data directory.
    pub data: &'a Path,
    /// The directory of the agent's socket, if it is not the data directory.
    pub socket: Option<&'a Path>,
}

/// Load every plugin and hand it to its manager. The loads run side by side, but the order of the
/// result, and which of two plugins keeps a name that both claim, does not depend on their speed.
/// First fingerprints are started but not waited for.
pub(super) async fn load_all(
    config: &AgentConfig,
    dirs: CatalogueDirs<'_>,
    runtime: &PluginRuntime,
    (drivers, devices): (&DriverManager, &DeviceManager),
    board: &Board,
    embedded: bool,
) -> LoadOutcome {
    let mut loads = JoinSet::new();
    let candidates = find::candidates(config, dirs, embedded);
    let loader = Arc::new(Loader {
        runtime: runtime.clone(),
        policy: trust::read_policy(&config.trust),
        registries: Registries::new(config, dirs.data),
        trust: config.trust.clone(),
        choice: AcceptedCopies::read(dirs.data),
        names: candidates.iter().map(|one| one.whose.name.clone()).collect(),
        configured: true,
    });
    board.set_entries(candidates.iter().map(load::unexamined_entry).collect());
    for (at, candidate) in candidates.into_iter().enumerate() {
        let loaded = load::load(candidate, Arc::clone(&loader));
        loads.spawn(async move { (at, loaded.await) });
    }
    let (mut looked, late) = LateLoads::split(loads, board).await;
    refuse_rivals(&mut looked);
    looked.sort_by(|a, b| {
        let key = |one: &LoadAttempt| (one.entry.name.clone(), one.plugin.is_none(), one.source);
        key(a).cmp(&key(b))
    });

    let (mut meters, mut first) = (Meters::new(), JoinSet::new());
    let mut waiting = BTreeSet::new();
    let mut entries = late.entries(board);
    let mut seeds = Vec::new();
    for LoadAttempt { mut entry, plugin, seed, .. } in looked {
        if let Some((plugin, seed)) = plugin.zip(seed) {
            let manifest = plugin.manifest().clone();
            let (name, meter) = (plugin.name().to_string(), Arc::clone(plugin.meter()));
            if let (Some(kind), Some(taken)) =
                (entry.kind, admit(&mut entry, plugin, drivers, devices, &mut first))
            {
                meters.insert((kind, name), meter);
                seeds.push(LoadedPlugin {
                    entry: entry.clone(),
                    name: taken.clone(),
                    manifest,
                    seed,
                });
                waiting.insert(taken);
            }
        }
        entries.push(entry);
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    LoadOutcome { entries, meters, first, waiting, seeds, late }
}

/// Keep one of several plugins that give themselves the same name.
fn refuse_rivals(looked: &mut [LoadAttempt]) {
    let (mut places, mut contenders) = (Vec::new(), Vec::new());
    for (index, one) in looked.iter().enumerate() {
        if let Some(contender) = one.contender() {
            places.push(index);
            contenders.push(contender);
        }
    }
    for (index, refused) in places.into_iter().zip(choose::choose(&contenders)) {
        if let (Some(one), Some(reason)) = (looked.get_mut(index), refused) {
            one.plugin = None;
            one.entry.status = PluginStatus::Refused(reason);
        }
    }
}

/// Hand a plugin to its manager. Returns the name of the plugin if the manager took it.
fn admit(
    entry: &mut PluginEntry,
    plugin: Plugin,
    drivers: &DriverManager,
    devices: &DeviceManager,
    first: &mut JoinSet<PluginName>,
) -> Option<PluginName> {
    let name = plugin.name().clone();
    let asked: Option<BoxFuture<'static, ()>> = match plugin {
        Plugin::Driver(plugin) => drivers.add(plugin).map(|first| Box::pin(first) as _),
        Plugin::Device(plugin) => devices.add(plugin).map(|first| Box::pin(first) as _),
    };
    let Some(asked) = asked else {
        let taken = format!("another plugin already calls itself {name}");
        entry.status = PluginStatus::Refused(taken);
        return None;
    };
    entry.status = PluginStatus::Loaded;
    let own = name.clone();
    first.spawn(async move {
        asked.await;
        own
    });
    Some(name)
}

//! Which plugins this agent has: built in, from the plugin directory, from the configuration.
//!
//! ```text
//! find: candidates ─► verify: bytes, verdict ─► load: linked, asked who it is ─► choose ─► managers
//!                        │ refused, with the reason  │ refused                      │ refused
//!                        └───────────────────────────┴──────────────────────────────┴─► PluginEntry
//! ```
//! All are listed from the beginning, see `Board`; those that can be used come into use together,
//! when all were looked at: before, one may still give itself the name of another. One that takes far
//! longer than the others is not waited for: it comes into use by itself (`late`).
//!
//! Each is loaded with the grants its block gives it, or (built-in ones) with the least it needs.
//! What is refused stays in the list with the reason.

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
use ostler_model::plugin::{Manifest, PluginKind};
use ostler_model::ports::BoxFuture;
use ostler_model::trust::Voucher;
use ostler_plugin::drivers::manager::DriverManager;
use ostler_plugin::{Plugin, PluginRuntime};

use super::upgrade::kept::Choice;

pub(super) use board::Board;
pub use find::RAW_EXEC;
pub(super) use late::{Came, Late, Used};
use load::{Loader, Looked};
pub use outside::{PullReport, SignatureReport, VerifyReport, pull, verify};
pub use verify::ObtainError;
use verify::Registries;

pub(super) use find::read;
pub(super) use load::{Seed, Verified, reason};

/// A plugin and its fate.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PluginEntry {
    /// Name of its block in the configuration. Several plugins can have one: at most one is in use,
    /// and stands first.
    pub name: String,
    /// `built-in`, or the file.
    pub source: String,
    /// Driver or device plugin; absent when it could not be told.
    pub kind: Option<PluginKind>,
    /// What it calls itself: the name jobs use.
    pub describes_as: Option<String>,
    /// Its version.
    pub version: Option<String>,
    /// Version of the plugin contract it was built for.
    pub interface_version: Option<String>,
    /// SHA-256 of the file.
    pub digest: Option<String>,
    /// Who says that it may be used; absent when nobody does.
    #[serde(default)]
    pub trust: Option<Voucher>,
    /// Bytes of the file.
    pub size_bytes: u64,
    /// In use or not, and why.
    pub status: PluginStatus,
    /// What it may do.
    pub grants: Grants,
    /// What it asks for.
    pub asks: Vec<Authority>,
}

/// See [`PluginEntry`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "state", content = "reason")]
pub enum PluginStatus {
    /// In use.
    Loaded,
    /// Not in use, and why.
    Refused(String),
    /// Switched off in the configuration.
    Disabled,
    /// Not in use yet: it is read, compiled and asked who it is.
    Loading,
    /// Not in use yet: it can be, and others are still being loaded.
    Waiting,
}

impl PluginEntry {
    /// What it is called wherever it is shown: as it calls itself, which is what jobs write; of one
    /// that could not be asked, as its block.
    #[must_use]
    pub fn own_name(&self) -> &str {
        self.describes_as.as_deref().unwrap_or(&self.name)
    }
}

/// What counts the calls of plugins in use, by kind and own name.
pub(super) type Meters = BTreeMap<(PluginKind, String), Arc<PluginMeter>>;

/// What [`load_all`] did.
pub(super) struct Loaded {
    /// Every plugin that was looked at.
    pub(super) entries: Vec<PluginEntry>,
    /// Of those in use.
    pub(super) meters: Meters,
    /// First fingerprints on their way; each ends with the plugin's own name.
    pub(super) first: JoinSet<PluginName>,
    /// The names of those.
    pub(super) waiting: BTreeSet<PluginName>,
    /// Of each in use: what another version of it is loaded with.
    pub(super) seeds: Vec<InUse>,
    /// Those that take longer.
    pub(super) late: Late,
}

/// A plugin in use, as it was loaded.
pub(super) struct InUse {
    /// How it is listed.
    pub(super) entry: PluginEntry,
    /// The name it gives itself.
    pub(super) name: PluginName,
    /// Imports and exports.
    pub(super) manifest: Manifest,
    /// What another version of it is loaded with.
    pub(super) seed: Seed,
}

/// Where an agent keeps what it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dirs<'a> {
    /// Its data directory.
    pub data: &'a Path,
    /// That of its socket, where it is another one.
    pub socket: Option<&'a Path>,
}

/// Load every plugin and hand it to its manager. Loads run side by side; the order of the result,
/// and who keeps a name that two give themselves, does not depend on which is faster. First
/// fingerprints are begun, not waited for.
pub(super) async fn load_all(
    config: &AgentConfig,
    dirs: Dirs<'_>,
    runtime: &PluginRuntime,
    (drivers, devices): (&DriverManager, &DeviceManager),
    board: &Board,
    embedded: bool,
) -> Loaded {
    let mut loads = JoinSet::new();
    let candidates = find::candidates(config, dirs, embedded);
    let loader = Arc::new(Loader {
        runtime: runtime.clone(),
        policy: trust::policy(&config.trust),
        registries: Registries::new(config, dirs.data),
        trust: config.trust.clone(),
        choice: Choice::read(dirs.data),
        names: candidates.iter().map(|one| one.whose.name.clone()).collect(),
        configured: true,
    });
    board.begin(candidates.iter().map(load::bare).collect());
    for (at, candidate) in candidates.into_iter().enumerate() {
        let loaded = load::load(candidate, Arc::clone(&loader));
        loads.spawn(async move { (at, loaded.await) });
    }
    let (mut looked, late) = Late::split(loads, board).await;
    refuse_rivals(&mut looked);
    looked.sort_by(|a, b| {
        let key = |one: &Looked| (one.entry.name.clone(), one.plugin.is_none(), one.source);
        key(a).cmp(&key(b))
    });

    let (mut meters, mut first) = (Meters::new(), JoinSet::new());
    let mut waiting = BTreeSet::new();
    let mut entries = late.entries(board);
    let mut seeds = Vec::new();
    for Looked { mut entry, plugin, seed, .. } in looked {
        if let Some((plugin, seed)) = plugin.zip(seed) {
            let manifest = plugin.manifest().clone();
            let (name, meter) = (plugin.name().to_string(), Arc::clone(plugin.meter()));
            if let (Some(kind), Some(taken)) =
                (entry.kind, admit(&mut entry, plugin, drivers, devices, &mut first))
            {
                meters.insert((kind, name), meter);
                seeds.push(InUse { entry: entry.clone(), name: taken.clone(), manifest, seed });
                waiting.insert(taken);
            }
        }
        entries.push(entry);
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Loaded { entries, meters, first, waiting, seeds, late }
}

/// Of plugins that give themselves one name keep one.
fn refuse_rivals(looked: &mut [Looked]) {
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

/// Hand a plugin to its manager. Its name when it was taken.
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

//! Plugins that take far longer than the others to compile or to say who they are. The others come
//! into use without them.
//!
//! ```text
//! loads ─ nobody came for a while ─► the rest is late ─ each one looked at ─► in use, or refused
//!                                       └─ who has the name of a late block waits for it
//! ```

use std::sync::Arc;

use tokio::task::JoinSet;

use super::board::Board;
use super::load::LoadAttempt;
use super::{LoadedPlugin, PluginEntry, PluginStatus, admit, refuse_rivals};
use ostler_device::manager::DeviceManager;
use ostler_health::meter::PluginMeter;
use ostler_model::clock;
use ostler_model::ids::PluginName;
use ostler_model::limits::PLUGIN_LATE_AFTER;
use ostler_model::plugin::PluginKind;
use ostler_plugin::drivers::manager::DriverManager;

/// The loads that are still under way, and the plugins that wait for them.
pub(crate) struct LateLoads {
    loads: JoinSet<(usize, LoadAttempt)>,
    /// Loaded plugins that give themselves the name of a late plugin's block. The late plugin
    /// goes first.
    held: Vec<(usize, LoadAttempt)>,
}

/// The result of one late load.
pub(crate) struct LateResult {
    /// The entry of the plugin in the list of plugins.
    pub(crate) entry: PluginEntry,
    /// What the agent keeps of the plugin, if it is in use.
    pub(crate) used: Option<LatePlugin>,
}

/// A late plugin that is in use now.
pub(crate) struct LatePlugin {
    /// What another version of the plugin is loaded with.
    pub(crate) seed: LoadedPlugin,
    /// The meter that counts the plugin's calls.
    pub(crate) meter: Arc<PluginMeter>,
    /// Whether it is a driver or a device plugin.
    pub(crate) kind: PluginKind,
    /// The plugin's first fingerprint, on its way.
    pub(crate) first: JoinSet<PluginName>,
}

impl LateLoads {
    /// Split the loads into those that ended soon and the late rest.
    pub(super) async fn split(
        mut loads: JoinSet<(usize, LoadAttempt)>,
        board: &Board,
    ) -> (Vec<LoadAttempt>, Self) {
        let mut soon = Vec::with_capacity(loads.len());
        while let Some(Some(one)) =
            clock::timeout(PLUGIN_LATE_AFTER, next_looked_at(&mut loads, board)).await
        {
            soon.push(one);
        }
        let coming = board.loading_names();
        if !coming.is_empty() {
            let plugins = coming.join(", ");
            tracing::warn!(
                plugins,
                "these plugins take long to load: the others do not wait for them"
            );
        }
        let waits = |one: &LoadAttempt| {
            one.plugin.is_some() && coming.iter().any(|block| block == one.entry.own_name())
        };
        let (held, soon) = soon.into_iter().partition(|(_, one)| waits(one));
        let soon: Vec<(usize, LoadAttempt)> = soon;
        (soon.into_iter().map(|(_, one)| one).collect(), Self { loads, held })
    }

    /// Whether no plugin is late.
    pub(crate) fn is_empty(&self) -> bool {
        self.loads.is_empty() && self.held.is_empty()
    }

    /// The entries of the late plugins as they are listed until they are loaded.
    pub(super) fn entries(&self, board: &Board) -> Vec<PluginEntry> {
        let held = self
            .held
            .iter()
            .map(|(_, one)| PluginEntry { status: PluginStatus::Waiting, ..one.entry.clone() });
        let listed = board.entries();
        let loading = listed.into_iter().filter(|entry| entry.status == PluginStatus::Loading);
        held.chain(loading).collect()
    }

    /// The next plugins that were examined, handed to their manager; `None` when no load is left.
    pub(crate) async fn next(
        &mut self,
        board: &Board,
        drivers: &DriverManager,
        devices: &DeviceManager,
    ) -> Option<Vec<LateResult>> {
        let mut looked = match next_looked_at(&mut self.loads, board).await {
            Some((_, one)) => {
                let waits = |other: &LoadAttempt| {
                    let name = other.entry.own_name();
                    name == one.entry.name || Some(name) == one.entry.describes_as.as_deref()
                };
                let mut freed: Vec<LoadAttempt> =
                    self.held.extract_if(.., |(_, other)| waits(other)).map(|(_, o)| o).collect();
                freed.push(one);
                freed
            }
            // This arm is not reached: a held plugin waits for a load that has not ended.
            None if !self.held.is_empty() => self.held.drain(..).map(|(_, one)| one).collect(),
            None => return None,
        };
        refuse_rivals(&mut looked);
        Some(looked.into_iter().map(|one| admit_late(one, drivers, devices)).collect())
    }
}

async fn next_looked_at(
    loads: &mut JoinSet<(usize, LoadAttempt)>,
    board: &Board,
) -> Option<(usize, LoadAttempt)> {
    loop {
        match loads.join_next().await? {
            Ok((at, looked)) => {
                board.update_entry(at, &looked);
                return Some((at, looked));
            }
            Err(error) => tracing::error!(%error, "gave up loading a plugin"),
        }
    }
}

fn admit_late(one: LoadAttempt, drivers: &DriverManager, devices: &DeviceManager) -> LateResult {
    let LoadAttempt { mut entry, plugin, seed, .. } = one;
    let mut first = JoinSet::new();
    let used = plugin.zip(seed).and_then(|(plugin, seed)| {
        let (manifest, meter) = (plugin.manifest().clone(), Arc::clone(plugin.meter()));
        let name = admit(&mut entry, plugin, drivers, devices, &mut first)?;
        let kind = entry.kind?;
        let seed = LoadedPlugin { entry: entry.clone(), name, manifest, seed };
        Some(LatePlugin { seed, meter, kind, first })
    });
    LateResult { entry, used }
}

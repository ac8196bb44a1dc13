//! Plugins that take far longer than the others, to compile or to say who they are: the others come
//! into use without them.
//!
//! ```text
//! loads ─ nobody came for a while ─► the rest is late ─ each one looked at ─► in use, or refused
//!                                       └─ who has the name of a late block waits for it
//! ```

use std::sync::Arc;

use tokio::task::JoinSet;

use super::board::Board;
use super::load::Looked;
use super::{InUse, PluginEntry, PluginStatus, admit, refuse_rivals};
use ostler_device::manager::DeviceManager;
use ostler_health::meter::PluginMeter;
use ostler_model::clock;
use ostler_model::ids::PluginName;
use ostler_model::limits::PLUGIN_LATE_AFTER;
use ostler_model::plugin::PluginKind;
use ostler_plugin::drivers::manager::DriverManager;

/// Loads still under way, and who waits for them.
pub(crate) struct Late {
    loads: JoinSet<(usize, Looked)>,
    /// They call themselves as the block of one that is late: it goes first.
    held: Vec<(usize, Looked)>,
}

/// One that was late, and its fate.
pub(crate) struct Came {
    /// How it is listed.
    pub(crate) entry: PluginEntry,
    /// When it is in use.
    pub(crate) used: Option<Used>,
}

/// A late plugin in use.
pub(crate) struct Used {
    /// What another version of it is loaded with.
    pub(crate) seed: InUse,
    /// What counts its calls.
    pub(crate) meter: Arc<PluginMeter>,
    /// Its kind.
    pub(crate) kind: PluginKind,
    /// Its first fingerprint.
    pub(crate) first: JoinSet<PluginName>,
}

impl Late {
    /// Those that were looked at soon, and the rest.
    pub(super) async fn split(
        mut loads: JoinSet<(usize, Looked)>,
        board: &Board,
    ) -> (Vec<Looked>, Self) {
        let mut soon = Vec::with_capacity(loads.len());
        while let Some(Some(one)) = clock::timeout(PLUGIN_LATE_AFTER, next(&mut loads, board)).await
        {
            soon.push(one);
        }
        let coming = board.coming();
        if !coming.is_empty() {
            let plugins = coming.join(", ");
            tracing::warn!(
                plugins,
                "these plugins take long to load: the others do not wait for them"
            );
        }
        let waits = |one: &Looked| {
            one.plugin.is_some() && coming.iter().any(|block| block == one.entry.own_name())
        };
        let (held, soon) = soon.into_iter().partition(|(_, one)| waits(one));
        let soon: Vec<(usize, Looked)> = soon;
        (soon.into_iter().map(|(_, one)| one).collect(), Self { loads, held })
    }

    /// Is nobody late?
    pub(crate) fn is_empty(&self) -> bool {
        self.loads.is_empty() && self.held.is_empty()
    }

    /// How they are listed until they come.
    pub(super) fn entries(&self, board: &Board) -> Vec<PluginEntry> {
        let held = self
            .held
            .iter()
            .map(|(_, one)| PluginEntry { status: PluginStatus::Waiting, ..one.entry.clone() });
        let listed = board.entries();
        let loading = listed.into_iter().filter(|entry| entry.status == PluginStatus::Loading);
        held.chain(loading).collect()
    }

    /// The next that were looked at, handed to their manager; none when all were.
    pub(crate) async fn next(
        &mut self,
        board: &Board,
        drivers: &DriverManager,
        devices: &DeviceManager,
    ) -> Option<Vec<Came>> {
        let mut looked = match next(&mut self.loads, board).await {
            Some((_, one)) => {
                let waits = |other: &Looked| {
                    let name = other.entry.own_name();
                    name == one.entry.name || Some(name) == one.entry.describes_as.as_deref()
                };
                let mut freed: Vec<Looked> =
                    self.held.extract_if(.., |(_, other)| waits(other)).map(|(_, o)| o).collect();
                freed.push(one);
                freed
            }
            // Not reached: what is held waits for a load that has not ended.
            None if !self.held.is_empty() => self.held.drain(..).map(|(_, one)| one).collect(),
            None => return None,
        };
        refuse_rivals(&mut looked);
        Some(looked.into_iter().map(|one| came(one, drivers, devices)).collect())
    }
}

async fn next(loads: &mut JoinSet<(usize, Looked)>, board: &Board) -> Option<(usize, Looked)> {
    loop {
        match loads.join_next().await? {
            Ok((at, looked)) => {
                board.looked(at, &looked);
                return Some((at, looked));
            }
            Err(error) => tracing::error!(%error, "loading a plugin was given up"),
        }
    }
}

fn came(one: Looked, drivers: &DriverManager, devices: &DeviceManager) -> Came {
    let Looked { mut entry, plugin, seed, .. } = one;
    let mut first = JoinSet::new();
    let used = plugin.zip(seed).and_then(|(plugin, seed)| {
        let (manifest, meter) = (plugin.manifest().clone(), Arc::clone(plugin.meter()));
        let name = admit(&mut entry, plugin, drivers, devices, &mut first)?;
        let kind = entry.kind?;
        let seed = InUse { entry: entry.clone(), name, manifest, seed };
        Some(Used { seed, meter, kind, first })
    });
    Came { entry, used }
}

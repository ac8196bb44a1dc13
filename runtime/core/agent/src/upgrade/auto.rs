//! Notices that files of plugins change, and upgrades those whose block says `upgrade = "auto"`.
//!
//! The kernel reports changes. In addition the files are checked from time to time, because not
//! every file system reports them. A file is read only if its size, time or identity differs
//! from before.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::{UpgradeSlot, run, step};
use crate::AgentHandle;
use ostler_model::clock;
use ostler_model::config::UpgradeMode;
use ostler_model::limits::UPGRADE_LOOK_INTERVAL;

/// The properties by which a changed file is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PluginFileVersion {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

fn read_version(path: &Path) -> Option<PluginFileVersion> {
    let meta = std::fs::metadata(path).ok()?;
    let modified = (meta.mtime(), meta.mtime_nsec());
    Some(PluginFileVersion { device: meta.dev(), inode: meta.ino(), size: meta.len(), modified })
}

/// Watch until the agent ends. Nothing runs if no plugin wants it.
pub(crate) fn spawn(agent: &AgentHandle) {
    let Some(upgrades) = agent.upgrades() else { return };
    let slots: Vec<Arc<UpgradeSlot>> = upgrades.lock().values().cloned().collect();
    let auto = slots.into_iter().filter(|slot| slot.seed.mode == UpgradeMode::Auto);
    let watched: Vec<(Arc<UpgradeSlot>, PathBuf)> =
        auto.filter_map(|slot| Some((Arc::clone(&slot), slot.seed.path.clone()?))).collect();
    if watched.is_empty() {
        return;
    }
    let paths: Vec<String> =
        watched.iter().map(|(_, path)| path.to_string_lossy().into_owned()).collect();
    let mut subscription = agent.0.watcher.subscribe(&paths, &[]);
    let (weak, ended) = (Arc::downgrade(&agent.0), agent.0.ended.clone());
    agent.spawn_beside(async move {
        let mut known: BTreeMap<PathBuf, Option<PluginFileVersion>> = BTreeMap::new();
        loop {
            let Some(agent) = weak.upgrade().map(AgentHandle) else { return };
            // An upgrade under way is dropped when the agent ends, as when its process is killed.
            let looked = offer_changed_files(&agent, &watched, &mut known);
            let Some(wait) = ended.run_until_cancelled(looked).await else { return };
            drop(agent);
            tokio::select! {
                () = ended.cancelled() => return,
                () = subscription.wait_for_change() => {}
                () = clock::sleep(wait) => {}
            }
        }
    });
}

/// Offer every file that changed. Returns how long to wait before the next check.
async fn offer_changed_files(
    agent: &AgentHandle,
    watched: &[(Arc<UpgradeSlot>, PathBuf)],
    known: &mut BTreeMap<PathBuf, Option<PluginFileVersion>>,
) -> Duration {
    let mut wait = UPGRADE_LOOK_INTERVAL;
    for (slot, path) in watched {
        let file = path.clone();
        let looked = tokio::task::spawn_blocking(move || read_version(&file)).await.ok().flatten();
        // A file that is missing may be about to be replaced. It is checked again.
        if looked.is_none() || known.get(path) == Some(&looked) {
            continue;
        }
        let (proving, busy) = {
            let now = slot.now();
            (now.machine.proving_until(), now.machine.is_busy())
        };
        if let Some(until) = proving {
            wait = wait.min(until.since(agent.0.context.clock.now()));
        }
        if proving.is_some() || busy {
            wait = wait.clamp(Duration::from_millis(500), UPGRADE_LOOK_INTERVAL);
            continue;
        }
        known.insert(path.clone(), looked);
        let (agent, slot, path) = (agent.clone(), Arc::clone(slot), path.clone());
        run::upgrade(agent, slot, path, step::RequestedBy::Itself).await;
    }
    wait
}

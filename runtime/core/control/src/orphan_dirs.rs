//! Directories of allocations without a record. They are left by a crash between the directory and
//! its record, or by a removal that was cut short.
//!
//! ```text
//! directories ─ named by a record, readable or not ──────────────► not touched
//!      │ ─ some record is in quarantine: it may name them ────────► not touched
//!      │ ─ older than this state file (another file named them?) ─► not touched, logged
//!      ▼
//! removed beside the start, one after the other; an agent that leaves waits for the present one
//! ```
//! They are listed before anything is placed, so that the directory of a new allocation is never
//! among them. Their content is hostile: [`AllocDir::destroy`] follows nothing out of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use ostler_lifecycle::alloc::dir::AllocDir;
use ostler_model::clock;
use ostler_model::ids::AllocId;
use ostler_model::saved::NodeRegistration;
use ostler_model::time::Timestamp;
use ostler_state::StateStore;
use ostler_state::records::NodeRegistrationKey;

/// The directories that are to be removed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OrphanDirs {
    root: PathBuf,
    allocs: Vec<AllocId>,
}

/// Find the directories below `root` that belong to no allocation on record. `recorded`:
/// allocations with a record of any kind. Blocks. Empty when that cannot be known; the
/// reason is logged.
#[must_use]
pub fn find_orphan_dirs(
    root: PathBuf,
    recorded: &BTreeSet<AllocId>,
    state: &StateStore,
) -> OrphanDirs {
    let mut allocs = match AllocDir::list(&root) {
        Ok(allocs) => allocs,
        Err(error) => {
            tracing::warn!(%error, "directories of allocations without a record stay");
            return OrphanDirs::default();
        }
    };
    allocs.retain(|id| !recorded.contains(id));
    if allocs.is_empty() {
        return OrphanDirs::default();
    }
    if state.open_report().in_quarantine > 0 {
        tracing::warn!(
            directories = allocs.len(),
            "directories of allocations without a record stay: records are in quarantine, and may \
             be theirs; see `ostler state dump`"
        );
        return OrphanDirs::default();
    }
    let since = match state.get::<NodeRegistration>(&NodeRegistrationKey::of()) {
        Ok(known) => known.map(|known| known.registered_at),
        Err(error) => {
            tracing::warn!(%error, "directories of allocations without a record stay");
            None
        }
    };
    let Some(since) = since else { return OrphanDirs::default() };
    allocs.retain(|id| {
        let newer = changed_at(&root.join(id.to_string())).is_some_and(|at| at >= since);
        if !newer {
            tracing::warn!(
                alloc = %id,
                "directory of an allocation without a record stays: it is older than the state \
                 file; remove it by hand if it is no longer needed"
            );
        }
        newer
    });
    OrphanDirs { root, allocs }
}

/// The time of the last change of a directory. A link is not followed.
fn changed_at(path: &Path) -> Option<Timestamp> {
    let changed = path.symlink_metadata().ok()?.modified().ok()?;
    let nanos = changed.duration_since(UNIX_EPOCH).ok()?.as_nanos();
    Some(Timestamp::from_nanos(u64::try_from(nanos).ok()?))
}

impl OrphanDirs {
    /// Remove the directories in the background, until `ended`. `None`: there are none.
    #[must_use]
    pub fn remove(self, ended: CancellationToken) -> Option<JoinHandle<()>> {
        if self.allocs.is_empty() {
            return None;
        }
        Some(tokio::spawn(async move {
            let removed = clock::run_blocking(move || {
                for id in self.allocs {
                    if ended.is_cancelled() {
                        return;
                    }
                    match AllocDir::destroy(&self.root, id) {
                        Ok(()) => tracing::info!(alloc = %id, "directory without a record removed"),
                        Err(error) => {
                            tracing::warn!(alloc = %id, %error, "directory without a record stays");
                        }
                    }
                }
            });
            // An error means a panic, which was reported where it happened.
            let _ended = removed.await;
        }))
    }
}

#[cfg(test)]
#[path = "orphan_dirs_tests.rs"]
mod tests;

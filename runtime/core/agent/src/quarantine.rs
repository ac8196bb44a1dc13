//! Keeps quarantines over restarts of the agent, in a file beside the state.
//!
//! ```text
//! start: quarantine.json ─► of the same component (digest)? ─► PluginMeter::restore
//! then:  a quarantine begins, goes on or ends ─► told ─► quarantine.json, by rename
//! ```
//! It is a file of its own, like the node's id, because the records of plugins in the state have no
//! room for it, and it decides nothing that the state decides. A file that cannot be read counts as
//! missing: at worst, a failing plugin is tried once more.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::sync::{Arc, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::AgentHandle;
use super::catalogue::{Meters, PluginEntry, PluginStatus};
use ostler_health::meter::PluginMeter;
use ostler_health::policy::Quarantine;
use ostler_model::limits::{PLUGIN_MESSAGE_BYTES_MAX, QUARANTINE_FILE_BYTES_MAX};
use ostler_model::plugin::PluginKind;
use ostler_state::own_file;

/// The name of the file in the data directory.
const FILE: &str = "quarantine.json";

/// The quarantine of one plugin, which gets no calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct QuarantineRecord {
    kind: PluginKind,
    /// The name the plugin gives itself.
    name: String,
    /// SHA-256 of the component. Another component has not failed yet.
    digest: String,
    quarantine: Quarantine,
}

/// Put plugins back into the quarantine in which an earlier agent had them. Returns the notices for
/// the operator.
pub(super) fn restore(data_dir: &Path, entries: &[PluginEntry], meters: &Meters) -> Vec<String> {
    let kept = match read(&data_dir.join(FILE)) {
        Ok(kept) => kept,
        Err(error) => {
            tracing::warn!(file = FILE, %error, "quarantines of the last agent cannot be read");
            return Vec::new();
        }
    };
    let digests: BTreeMap<_, _> = plugins_in_use(entries).collect();
    let mut said = Vec::new();
    for QuarantineRecord { kind, name, digest, mut quarantine } in kept {
        let key = (kind, name);
        let (Some(meter), Some(now)) = (meters.get(&key), digests.get(&key)) else { continue };
        if **now != digest {
            said.push(format!("plugin {} was in quarantine and has been replaced since", key.1));
            continue;
        }
        quarantine.reason.truncate(
            (0..=PLUGIN_MESSAGE_BYTES_MAX)
                .rev()
                .find(|at| quarantine.reason.is_char_boundary(*at))
                .unwrap_or(0),
        );
        said.push(format!("plugin {} is still in quarantine: {}", key.1, quarantine.reason));
        meter.restore(quarantine);
    }
    said
}

/// Kind, own name and digest of the plugins in use.
fn plugins_in_use(
    entries: &[PluginEntry],
) -> impl Iterator<Item = ((PluginKind, String), &String)> {
    entries.iter().filter(|entry| entry.status == PluginStatus::Loaded).filter_map(|entry| {
        Some(((entry.kind?, entry.describes_as.clone()?), entry.digest.as_ref()?))
    })
}

/// Write the file whenever something about a quarantine changes, until the agent ends.
pub(super) fn follow_quarantines(agent: &AgentHandle) {
    let told = Arc::clone(&agent.0.quarantined);
    for meter in agent.meters().values() {
        meter.set_listener(Arc::clone(&told));
    }
    let (weak, ended) = (Arc::downgrade(&agent.0), agent.0.ended.clone());
    agent.spawn_beside(async move {
        let mut written = None;
        loop {
            let Some(inner) = weak.upgrade() else { return };
            let agent = AgentHandle(inner);
            let now = agent.quarantine_records();
            let dir = agent.0.data_dir.clone();
            agent.0.events.notify_quarantine_change();
            drop(agent);
            if written.as_ref() != Some(&now) {
                let kept = now.clone();
                let write = tokio::task::spawn_blocking(move || write(&dir, &kept));
                match write.await {
                    Ok(Ok(())) => written = Some(now),
                    Ok(Err(error)) => {
                        tracing::warn!(file = FILE, %error, "quarantines not written: they do not survive the agent");
                    }
                    Err(_given_up) => return,
                }
            }
            tokio::select! {
                () = told.notified() => {}
                () = ended.cancelled() => return,
            }
        }
    });
}

impl AgentHandle {
    /// The meters that count the calls of plugins in use.
    pub(super) fn meters(&self) -> MutexGuard<'_, Meters> {
        self.0.meters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Use the meter of another version of a plugin from now on.
    pub(super) fn set_meter(&self, key: (PluginKind, String), meter: Arc<PluginMeter>) {
        meter.set_listener(Arc::clone(&self.0.quarantined));
        self.meters().insert(key, meter);
        // The version before may have been in quarantine, so the file must be written again.
        self.0.quarantined.notify_one();
    }

    fn quarantine_records(&self) -> Vec<QuarantineRecord> {
        let (entries, meters) = (self.plugins_now(), self.meters());
        let kept = plugins_in_use(&entries).filter_map(|(key, digest)| {
            let quarantine = meters.get(&key)?.quarantine()?;
            let (kind, name) = key;
            Some(QuarantineRecord { kind, name, digest: digest.clone(), quarantine })
        });
        kept.collect()
    }
}

fn read(path: &Path) -> io::Result<Vec<QuarantineRecord>> {
    let mut bytes = Vec::new();
    match own_file::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
        Ok(file) => file.take(QUARANTINE_FILE_BYTES_MAX).read_to_end(&mut bytes)?,
    };
    Ok(serde_json::from_slice(&bytes)?)
}

/// Replace the file that is there, or remove it if there is nothing to keep.
fn write(dir: &Path, kept: &[QuarantineRecord]) -> io::Result<()> {
    let path = dir.join(FILE);
    if kept.is_empty() {
        return match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        };
    }
    let temporary = dir.join(format!("{FILE}.new"));
    let mut file = own_file::write_anew(&temporary)?;
    file.write_all(&serde_json::to_vec_pretty(kept)?)?;
    file.sync_all()?;
    std::fs::rename(&temporary, &path)?;
    std::fs::File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use ostler_model::time::Timestamp;

    fn kept(name: &str) -> QuarantineRecord {
        QuarantineRecord {
            kind: PluginKind::Driver,
            name: name.to_owned(),
            digest: "aa".to_owned(),
            quarantine: Quarantine {
                since: Timestamp::from_nanos(1),
                until: None,
                reason: "5 strikes".to_owned(),
                relapses: 2,
            },
        }
    }

    #[test]
    fn what_is_written_is_read_again_and_nothing_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        assert_eq!(read(&path).unwrap(), []);
        write(dir.path(), &[kept("a"), kept("b")]).unwrap();
        assert_eq!(read(&path).unwrap(), [kept("a"), kept("b")]);
        write(dir.path(), &[]).unwrap();
        write(dir.path(), &[]).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_is_none_restores_nothing_and_is_no_obstacle() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        for text in ["", "{", "[{\"kind\":\"driver\"}]", "\0\0"] {
            std::fs::write(&path, text).unwrap();
            assert!(read(&path).is_err(), "{text:?}");
            assert_eq!(restore(dir.path(), &[], &Meters::new()), Vec::<String>::new());
        }
        write(dir.path(), &[kept("a")]).unwrap();
        assert_eq!(read(&path).unwrap(), [kept("a")]);
    }
}

//! Keeps copies of accepted plugins, so that the next agent loads them too.
//!
//! ```text
//! data_dir/plugins/<digest>.wasm   a copy of each plugin file in use, and of each that took its place
//! data_dir/plugins/kept.json       where the file found is not what was accepted: which copy is used
//! ```
//! Normally the file on disk is the accepted one, and only the copy is kept. They differ after a
//! roll-back, when the file is the one that failed, and after an upgrade from another file. As soon
//! as the file is changed again, it is used as it is. A copy is used only if it still has the
//! digest with which it was accepted.

use std::collections::BTreeSet;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::step::UpgradeOutcome;
use super::{Seed, UpgradeReport};
use crate::{AgentHandle, PluginEntry, PluginStatus, catalogue};
use ostler_artifact::trust::{self, UnverifiedComponent, signature_path};
use ostler_model::limits::{
    PLUGIN_FILE_BYTES_MAX, QUARANTINE_FILE_BYTES_MAX, SIGNATURE_FILE_BYTES_MAX,
};
use ostler_plugin::manifest::digest;
use ostler_state::{durable, own_file};

const DIR: &str = "plugins";
const FILE: &str = "kept.json";

/// The copy that is used in place of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct AcceptedCopy {
    /// Name of the plugin's block.
    block: String,
    /// Digest of the file at the configured place, or of the built-in plugin.
    found: String,
    /// Digest of the accepted copy.
    used: String,
    /// Why the two differ, as a text for people.
    why: String,
}

/// The copies that are used in place of files.
#[derive(Clone, Debug, Default)]
pub(crate) struct AcceptedCopies {
    dir: PathBuf,
    kept: Vec<AcceptedCopy>,
}

impl AcceptedCopies {
    /// Read the list that an earlier agent left. A list that cannot be read counts as
    /// empty. Blocks.
    pub(crate) fn read(data_dir: &Path) -> Self {
        let dir = data_dir.join(DIR);
        let kept = read(&dir.join(FILE)).unwrap_or_else(|error| {
            tracing::warn!(file = FILE, %error, "the accepted copies of plugins cannot be read");
            Vec::new()
        });
        Self { dir, kept }
    }

    /// The copy that is used in place of these bytes of the plugin of this block, and why. Blocks.
    pub(crate) fn accepted_copy(
        &self,
        block: &str,
        bytes: &[u8],
    ) -> Option<(UnverifiedComponent, String)> {
        let mut of_block = self.kept.iter().filter(|kept| kept.block == block).peekable();
        of_block.peek()?;
        let found = digest(bytes);
        let kept = of_block.find(|kept| kept.found == found)?;
        let path = copy_path(&self.dir, &kept.used);
        let copy =
            trust::read_component(&path).ok().filter(|copy| digest(&copy.bytes) == kept.used);
        if copy.is_none() {
            tracing::warn!(plugin = block, copy = %path.display(), "the accepted copy of a plugin is missing \
                or has changed");
        }
        Some((copy?, kept.why.clone()))
    }
}

fn copy_path(dir: &Path, digest: &str) -> PathBuf {
    dir.join(format!("{digest}.wasm"))
}

/// Keep a copy of every plugin file in use, so that an upgrade can be rolled back, and drop the
/// copies that nothing names. This runs in the background and blocks there.
pub(crate) fn copy_used(data_dir: &Path, used: Vec<(PathBuf, String)>) {
    let dir = data_dir.join(DIR);
    let mut named: BTreeSet<String> = used.iter().map(|(_, digest)| digest.clone()).collect();
    named.extend(read(&dir.join(FILE)).unwrap_or_default().into_iter().map(|kept| kept.used));
    for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if path.extension().is_some_and(|end| end == "wasm") && !named.contains(&stem) {
            // A copy that cannot be removed takes room and does no harm.
            let _left = std::fs::remove_file(&path);
            let _left = std::fs::remove_file(signature_path(&path));
        }
    }
    for (path, wanted) in used {
        let copied = catalogue::read(&path).and_then(|bytes| {
            let same = digest(&bytes) == wanted;
            let changed = || format!("{} changed since it was loaded", path.display());
            same.then_some(()).ok_or_else(changed)?;
            write_copy(&dir, &wanted, &bytes, &path).map_err(|error| error.to_string())
        });
        if let Err(error) = copied {
            tracing::warn!(%error, "no copy of a plugin is kept to go back to after a restart");
        }
    }
}

/// Keep these bytes of `file`, and the signature beside it. Blocks.
pub(super) fn copy_new(data_dir: &Path, bytes: &[u8], file: &Path) {
    if let Err(error) = write_copy(&data_dir.join(DIR), &digest(bytes), bytes, file) {
        tracing::warn!(%error, "no copy of the upgraded plugin is kept for the next start");
    }
}

fn write_copy(dir: &Path, digest: &str, bytes: &[u8], from: &Path) -> io::Result<()> {
    let path = copy_path(dir, digest);
    // The signature is copied too: where a signature is required, the copy is not used without it.
    // It is checked against the bytes when they are read.
    let mut signature = Vec::new();
    match std::fs::File::open(signature_path(from)) {
        Ok(file) => {
            file.take(SIGNATURE_FILE_BYTES_MAX).read_to_end(&mut signature)?;
            durable::make_dirs(dir, 0o700)?;
            write(dir, &signature_path(&path), &signature)?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // A signature beside an older copy may be of a key that was revoked.
            let _none = std::fs::remove_file(signature_path(&path));
        }
        Err(error) => return Err(error),
    }
    if path.metadata().is_ok_and(|meta| meta.len() == bytes.len() as u64) {
        return Ok(());
    }
    durable::make_dirs(dir, 0o700)?;
    write(dir, &path, bytes)
}

/// Record which copy the next agent loads, after an upgrade came to its end.
pub(super) async fn remember_outcome(agent: &AgentHandle, seed: &Seed, report: &UpgradeReport) {
    let (used, why) = match &report.outcome {
        UpgradeOutcome::Accepted => {
            let why = format!("upgraded from {}", report.file.display());
            (report.to.digest.clone(), why)
        }
        UpgradeOutcome::RolledBack { reason } => (report.from.digest.clone(), reason.clone()),
        _ => return,
    };
    let (block, path) = (seed.spec.name.clone(), seed.path.clone());
    let built_in = agent
        .plugins()
        .iter()
        .find(|entry| entry.name == block && entry.status == PluginStatus::Loaded);
    let built_in = built_in.and_then(|entry: &PluginEntry| entry.digest.clone());
    let data_dir = agent.data_dir().to_owned();
    let done = tokio::task::spawn_blocking(move || {
        let found = match path {
            Some(path) => catalogue::read(&path).map(|bytes| digest(&bytes)),
            None => built_in.ok_or_else(|| "it has no file".to_owned()),
        }?;
        let dir = data_dir.join(DIR);
        let failed = |error: io::Error| error.to_string();
        let mut kept = read(&dir.join(FILE)).unwrap_or_default();
        kept.retain(|kept| kept.block != block);
        if found != used {
            if !copy_path(&dir, &used).exists() {
                return Err("there is no copy of the accepted plugin".to_owned());
            }
            kept.push(AcceptedCopy { block, found, used, why });
        }
        if kept.is_empty() && !dir.join(FILE).exists() {
            return Ok(());
        }
        let text = serde_json::to_vec_pretty(&kept).map_err(|error| error.to_string())?;
        write(&dir, &dir.join(FILE), &text).map_err(failed)
    });
    match done.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(
                plugin = report.name,
                error,
                "the next agent loads the file as it is then"
            );
        }
        Err(_given_up) => tracing::warn!(
            plugin = report.name,
            "the accepted copy of a plugin could not be recorded"
        ),
    }
}

fn read(path: &Path) -> io::Result<Vec<AcceptedCopy>> {
    let mut bytes = Vec::new();
    match own_file::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
        Ok(file) => file.take(QUARANTINE_FILE_BYTES_MAX).read_to_end(&mut bytes)?,
    };
    let kept: Vec<AcceptedCopy> = serde_json::from_slice(&bytes)?;
    // Digests become names of files, so they must contain nothing else.
    let hex = |digest: &str| digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit());
    Ok(kept.into_iter().filter(|kept| hex(&kept.used)).collect())
}

/// Replace the file that is there, as a whole or not at all.
fn write(dir: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    if bytes.len() as u64 > PLUGIN_FILE_BYTES_MAX {
        return Err(io::Error::other("larger than a plugin may be"));
    }
    let temporary = path.with_extension("new");
    let mut file = own_file::write_anew(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    std::fs::File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn keep(dir: &Path, block: &str, found: &[u8], used: &[u8]) {
        let kept = [AcceptedCopy {
            block: block.to_owned(),
            found: digest(found),
            used: digest(used),
            why: "3 strikes".to_owned(),
        }];
        write_copy(&dir.join(DIR), &digest(used), used, Path::new("/nowhere")).unwrap();
        let path = dir.join(DIR).join(FILE);
        write(&dir.join(DIR), &path, &serde_json::to_vec(&kept).unwrap()).unwrap();
    }

    #[test]
    fn the_accepted_copy_is_used_as_long_as_the_file_is_the_one_it_was_preferred_to() {
        let dir = tempfile::tempdir().unwrap();
        assert!(AcceptedCopies::read(dir.path()).accepted_copy("p", b"bad").is_none());
        keep(dir.path(), "p", b"bad", b"good");
        let choice = AcceptedCopies::read(dir.path());
        let (bytes, why) = choice.accepted_copy("p", b"bad").unwrap();
        assert_eq!((&*bytes.bytes, &*why), (&b"good"[..], "3 strikes"));
        assert!(choice.accepted_copy("p", b"newer").is_none(), "the operator changed the file");
        assert!(choice.accepted_copy("q", b"bad").is_none(), "another plugin");
    }

    #[test]
    fn a_copy_that_was_changed_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        keep(dir.path(), "p", b"bad", b"good");
        std::fs::write(copy_path(&dir.path().join(DIR), &digest(b"good")), b"evil").unwrap();
        assert!(AcceptedCopies::read(dir.path()).accepted_copy("p", b"bad").is_none());
    }

    #[test]
    fn copies_that_nothing_names_go_and_those_in_use_are_made() {
        let dir = tempfile::tempdir().unwrap();
        keep(dir.path(), "p", b"bad", b"good");
        copy_new(dir.path(), b"old", Path::new("/nowhere"));
        let file = dir.path().join("p.wasm");
        std::fs::write(&file, b"bad").unwrap();
        copy_used(dir.path(), vec![(file.clone(), digest(b"bad")), (file, digest(b"other"))]);
        let there = |bytes: &[u8]| copy_path(&dir.path().join(DIR), &digest(bytes)).exists();
        assert!(there(b"good") && there(b"bad"));
        assert!(!there(b"old") && !there(b"other"));
    }
}

//! Keeps recordings on disk: private, limited in number and rate, with the oldest removed first.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Recorder, Recording, file};
use ostler_model::clock::{Clock, Timestamp};
use ostler_model::limits::{PLUGIN_RECORDING_PAUSE, PLUGIN_RECORDINGS_MAX, PluginLimits};
use ostler_plugin::observe::{CallObserver, PluginIdentity, PluginObserver};

/// The extension of the files.
const SUFFIX: &str = "rec";
/// The number of failures that are remembered for the rate limit.
const KNOWN_MAX: usize = 64;

/// The directory of the recordings of an agent's plugins.
#[derive(Debug)]
pub struct RecordingStore {
    dir: PathBuf,
    clock: Clock,
    /// The runtime on which files are written, which is never a thread that runs guests or timers.
    control: tokio::runtime::Handle,
    /// What was written recently: plugin, function and end of each recording, with the time.
    known: Mutex<VecDeque<(String, Timestamp)>>,
    /// A lock, so that one task writes and removes files at a time.
    writing: Arc<Mutex<()>>,
}

impl RecordingStore {
    /// A store in this directory, which is created with the first recording.
    #[must_use]
    pub fn new(dir: PathBuf, clock: Clock, control: tokio::runtime::Handle) -> Self {
        Self { dir, clock, control, known: Mutex::default(), writing: Arc::default() }
    }

    /// Write a recording, unless one of the same failure was written recently. Returns at once.
    pub(crate) fn write(&self, recording: Recording) {
        let now = self.clock.now();
        if !self.is_news(&recording, now) {
            return;
        }
        let (dir, writing) = (self.dir.clone(), Arc::clone(&self.writing));
        self.control.spawn_blocking(move || {
            let _one = writing.lock().unwrap_or_else(PoisonError::into_inner);
            let plugin = recording.plugin.as_str();
            match save(&dir, &recording, now) {
                Ok(path) => {
                    let function = recording.calls.last().map(|call| call.function.as_str());
                    let path = path.display();
                    tracing::warn!(plugin, function, %path, "a failed call was recorded");
                }
                Err(error) => tracing::warn!(plugin, %error, "a failed call was not recorded"),
            }
        });
    }

    /// Write a recording that somebody asked for. Returns the path of its file.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) async fn write_now(&self, recording: Recording) -> io::Result<PathBuf> {
        let (dir, writing, now) = (self.dir.clone(), Arc::clone(&self.writing), self.clock.now());
        let written = self.control.spawn_blocking(move || {
            let _one = writing.lock().unwrap_or_else(PoisonError::into_inner);
            save(&dir, &recording, now)
        });
        written.await.map_err(io::Error::other)?
    }

    fn is_news(&self, recording: &Recording, now: Timestamp) -> bool {
        let Some(call) = recording.calls.last() else { return false };
        let failure = format!("{}/{}/{}", recording.plugin, call.function, call.outcome.end);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(_, at)| now.since(*at) < PLUGIN_RECORDING_PAUSE);
        if known.len() >= KNOWN_MAX || known.iter().any(|(one, _)| *one == failure) {
            return false;
        }
        known.push_back((failure, now));
        true
    }
}

/// An observer that records the last calls of every plugin whose limits say so.
#[derive(Clone, Debug)]
pub struct RecordCalls(Arc<RecordingStore>);

impl RecordCalls {
    /// An observer that writes failed calls into files of this store.
    #[must_use]
    pub fn into_store(store: RecordingStore) -> Self {
        Self(Arc::new(store))
    }
}

impl PluginObserver for RecordCalls {
    fn observe_plugin(
        &self,
        plugin: PluginIdentity,
        limits: &PluginLimits,
    ) -> Option<Arc<dyn CallObserver>> {
        let recorder = Recorder::new(plugin, limits, Some(Arc::clone(&self.0)))?;
        Some(Arc::new(recorder))
    }
}

/// Write one file, as a whole or not at all, and remove the oldest ones beyond the limit.
fn save(dir: &Path, recording: &Recording, now: Timestamp) -> io::Result<PathBuf> {
    let bytes = file::encode(recording).or_else(|_too_large| {
        // Only the failed call is kept, because those before it are less important.
        let calls = recording.calls.last().cloned().into_iter().collect();
        file::encode(&Recording { calls, ..recording.clone() })
    });
    let bytes = bytes.map_err(io::Error::other)?;
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let path = dir.join(name(recording, now));
    let temporary = path.with_extension("tmp");
    let mut file = OpenOptions::new();
    // A link in the place of the file is not followed.
    let file = file.write(true).create(true).truncate(true).mode(0o600);
    let mut file = file.custom_flags(libc::O_NOFOLLOW).open(&temporary)?;
    file.write_all(&bytes)?;
    fs::rename(&temporary, &path)?;
    remove_oldest(dir)?;
    Ok(path)
}

/// The name `<time>-<plugin>-<function>.rec`. Names sort by time.
fn name(recording: &Recording, now: Timestamp) -> String {
    let plain = |text: &str| -> String {
        let fits = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
        text.chars().take(64).map(fits).collect()
    };
    let function = recording.calls.last().map(|call| plain(&call.function)).unwrap_or_default();
    format!("{:020}-{}-{function}.{SUFFIX}", now.nanos(), plain(&recording.plugin))
}

fn remove_oldest(dir: &Path) -> io::Result<()> {
    let entries = fs::read_dir(dir)?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|end| end == SUFFIX)).collect();
    files.sort();
    let beyond = files.len().saturating_sub(PLUGIN_RECORDINGS_MAX);
    files.iter().take(beyond).try_for_each(fs::remove_file)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::RecordedCall;
    use super::*;

    fn recording(plugin: &str) -> Recording {
        let call = RecordedCall { function: "fingerprint".to_owned(), ..RecordedCall::default() };
        Recording { plugin: plugin.to_owned(), calls: vec![call], ..Recording::default() }
    }

    #[test]
    fn files_are_private_and_the_oldest_go() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("recordings");
        let mut paths = Vec::new();
        for at in 0..PLUGIN_RECORDINGS_MAX as u64 + 3 {
            paths.push(save(&dir, &recording("../a b"), Timestamp::from_nanos(at)).unwrap());
        }
        assert_eq!(fs::read_dir(&dir).unwrap().count(), PLUGIN_RECORDINGS_MAX);
        assert!(!paths[2].exists() && paths[3].exists());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&dir), mode(&paths[3])), (0o700, 0o600));
        assert!(paths[3].ends_with("00000000000000000003----a-b-fingerprint.rec"), "{paths:?}");
        let read = file::decode(&fs::read(&paths[3]).unwrap()).unwrap();
        assert_eq!(read, recording("../a b"));
    }

    #[tokio::test]
    async fn the_same_failure_is_written_once_in_a_while_and_another_at_once() {
        let clock = Clock::fixed(Timestamp::from_nanos(1 << 60));
        let control = tokio::runtime::Handle::current();
        let store = RecordingStore::new("/nowhere".into(), clock.clone(), control);
        let news = |plugin: &str| store.is_news(&recording(plugin), clock.now());
        assert!(news("a") && !news("a") && news("b"));
        clock.advance(PLUGIN_RECORDING_PAUSE);
        assert!(news("a"));
    }
}

//! Keeps downloads for later tasks, by their checksum.
//!
//! ```text
//! cache/<key>/data    the file, never written again; its other names beside it are for tasks
//!            /sum     its checksum, where the key is none
//!            /signature
//! ```
//! A directory's own time says when it was last used. The oldest goes first, but none that is in
//! use. The sum of a file is computed when an agent uses it for the first time, and again when the
//! file has changed since. A file with another sum is removed. Nothing here is synced: after a
//! power cut that check finds what is damaged.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use ostler_model::artifact::{Checksum, PinnedFile};
use ostler_model::clock::Clock;
use ostler_model::limits::{ARTIFACT_CACHE_ENTRIES_MAX, ARTIFACT_CACHE_NAMES_MAX, KIB};

use crate::sums;
use crate::work::private_dir;

const DATA: &str = "data";
const SUM: &str = "sum";
const SIGNATURE: &str = "signature";
/// The largest size of a sum or a signature, in bytes.
const SMALL_MAX: u64 = 64 * KIB;

/// The key under which a file is kept.
#[derive(Clone, Debug)]
pub(crate) struct CacheKey {
    /// The name of its directory.
    pub(crate) name: String,
    /// The sum that the file must have; `None` if the sum stands beside the file.
    pub(crate) sum: Option<Checksum>,
}

/// The directory of kept downloads. See the module.
pub(crate) struct Cache {
    dir: PathBuf,
    bytes_max: u64,
    clock: Clock,
    inner: Mutex<CacheInner>,
}

#[derive(Default)]
struct CacheInner {
    /// The number of holders of each file, by key.
    used: HashMap<String, usize>,
    /// The stamps of files whose sum was computed, by path.
    seen: HashMap<String, SummedStamp>,
}

/// The properties by which a file is recognised whose sum was computed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct SummedStamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl SummedStamp {
    fn from_file(path: &Path) -> io::Result<Self> {
        let meta = std::fs::symlink_metadata(path)?;
        if !meta.is_file() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let modified = (meta.mtime(), meta.mtime_nsec());
        Ok(Self { device: meta.dev(), inode: meta.ino(), size: meta.size(), modified })
    }
}

/// A file that is kept as long as this is held.
pub(crate) struct CachedFile {
    cache: Arc<Cache>,
    key: String,
    path: PathBuf,
    /// The text of the file's signature, if it has one.
    pub(crate) signature: Option<Vec<u8>>,
}

impl PinnedFile for CachedFile {
    fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for CachedFile {
    fn drop(&mut self) {
        let mut inner = self.cache.inner();
        if let Some(count) = inner.used.get_mut(&self.key) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                inner.used.remove(&self.key);
            }
        }
    }
}

impl Cache {
    /// Open the cache below `dir`. Blocking.
    pub(crate) fn open(dir: PathBuf, bytes_max: u64, clock: Clock) -> io::Result<Self> {
        private_dir(&dir)?;
        Ok(Self { dir, bytes_max, clock, inner: Mutex::default() })
    }

    fn inner(&self) -> MutexGuard<'_, CacheInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keep a file from being removed, whether it is there or not.
    fn hold(self: &Arc<Self>, key: &str) -> CachedFile {
        let mut inner = self.inner();
        let count = inner.used.entry(key.to_owned()).or_default();
        *count = count.saturating_add(1);
        let path = self.dir.join(key).join(DATA);
        CachedFile { cache: Arc::clone(self), key: key.to_owned(), path, signature: None }
    }

    /// The file that is kept under `key`, if it has the right sum. Blocking.
    pub(crate) fn find(
        self: &Arc<Self>,
        key: &CacheKey,
        stop: &AtomicBool,
    ) -> io::Result<Option<CachedFile>> {
        let mut held = self.hold(&key.name);
        let dir = self.dir.join(&key.name);
        let Ok(stamp) = SummedStamp::from_file(&held.path) else { return Ok(None) };
        let known = self.inner().seen.get(&key.name) == Some(&stamp);
        if !known && !self.has_expected_sum(key, &dir, &held.path, stop)? {
            tracing::warn!(kept = %dir.display(), "a cached download is damaged; it is removed and fetched again");
            std::fs::remove_dir_all(&dir)?;
            return Ok(None);
        }
        self.inner().seen.insert(key.name.clone(), stamp);
        held.signature = read_small(&dir.join(SIGNATURE))?;
        self.touch(&dir);
        Ok(Some(held))
    }

    fn has_expected_sum(
        &self,
        key: &CacheKey,
        dir: &Path,
        data: &Path,
        stop: &AtomicBool,
    ) -> io::Result<bool> {
        let sum = match &key.sum {
            Some(sum) => sum.clone(),
            None => {
                let text =
                    read_small(&dir.join(SUM))?.and_then(|text| String::from_utf8(text).ok());
                let Some(Ok(sum)) = text.map(|text| text.parse::<Checksum>()) else {
                    return Ok(false);
                };
                sum
            }
        };
        Ok(sums::file_sum(data, sum.kind, stop)? == sum)
    }

    /// Keep a file with this sum, and move it from where it is. Returns `None` if it is too large
    /// to be kept; it stays there then. Blocking.
    pub(crate) fn keep(
        self: &Arc<Self>,
        key: &CacheKey,
        file: &Path,
        sum: &Checksum,
        signature: Option<&[u8]>,
    ) -> io::Result<Option<CachedFile>> {
        if std::fs::metadata(file)?.len() > self.bytes_max {
            return Ok(None);
        }
        let mut held = self.hold(&key.name);
        let dir = self.dir.join(&key.name);
        // Names from before would belong to another file.
        let _absent = std::fs::remove_dir_all(&dir);
        private_dir(&dir)?;
        if key.sum.is_none() {
            std::fs::write(dir.join(SUM), sum.to_string())?;
        }
        if let Some(signature) = signature {
            std::fs::write(dir.join(SIGNATURE), signature)?;
        }
        std::fs::rename(file, &held.path)?;
        let stamp = SummedStamp::from_file(&held.path)?;
        self.inner().seen.insert(key.name.clone(), stamp);
        held.signature = signature.map(<[u8]>::to_vec);
        self.touch(&dir);
        self.evict();
        Ok(Some(held))
    }

    /// The same file under a name that means something to people and programs. Blocking.
    pub(crate) fn link_name(&self, held: &CachedFile, name: &str) -> PathBuf {
        let dir = self.dir.join(&held.key);
        let path = dir.join(name);
        if [DATA, SUM, SIGNATURE].contains(&name) {
            return held.path.clone();
        }
        let same = |path: &Path| matches!((SummedStamp::from_file(path), SummedStamp::from_file(&held.path)), (Ok(a), Ok(b)) if a == b);
        if same(&path) {
            return path;
        }
        let there = std::fs::read_dir(&dir).map(Iterator::count).unwrap_or(usize::MAX);
        let linked =
            there < ARTIFACT_CACHE_NAMES_MAX && std::fs::hard_link(&held.path, &path).is_ok();
        // Another task may have been faster.
        if linked || same(&path) {
            return path;
        }
        held.path.clone()
    }

    fn touch(&self, dir: &Path) {
        let nanos = self.clock.now().nanos();
        let now = SystemTime::UNIX_EPOCH + std::time::Duration::from_nanos(nanos);
        // If the time cannot be set, the directory is only removed earlier.
        let _ = File::open(dir).and_then(|dir| dir.set_modified(now));
    }

    /// Remove what was not used for the longest time, until the rest fits.
    fn evict(&self) {
        let Ok(entries) = std::fs::read_dir(&self.dir) else { return };
        let mut all: Vec<(SystemTime, u64, String)> = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let size = std::fs::metadata(entry.path().join(DATA)).map_or(0, |meta| meta.len());
            let used = entry.metadata().and_then(|meta| meta.modified());
            all.push((used.unwrap_or(SystemTime::UNIX_EPOCH), size, name));
        }
        all.sort();
        let mut bytes: u64 = all.iter().map(|(_, size, _)| *size).fold(0, u64::saturating_add);
        let mut count = all.len();
        for (_, size, name) in all {
            if bytes <= self.bytes_max && count <= ARTIFACT_CACHE_ENTRIES_MAX {
                return;
            }
            let mut inner = self.inner();
            if inner.used.contains_key(&name) {
                continue;
            }
            inner.seen.remove(&name);
            if std::fs::remove_dir_all(self.dir.join(&name)).is_ok() {
                bytes = bytes.saturating_sub(size);
                count = count.saturating_sub(1);
            }
        }
    }
}

fn read_small(path: &Path) -> io::Result<Option<Vec<u8>>> {
    use std::io::Read as _;
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(SMALL_MAX).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;

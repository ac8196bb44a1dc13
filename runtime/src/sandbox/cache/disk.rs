//! Cache entries as files.
//!
//! An entry is wasmtime's artefact followed by a seal of 32 bytes: magic, length of the artefact,
//! its xxh3 (128 bit). The seal finds damage and files cut short (mapping those ends in SIGBUS); it
//! is no protection against an attacker, which is the directory's mode and owner.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::OFlags;
use tempfile::NamedTempFile;
use wasmtime::component::Component;
use wasmtime::{Engine, Module};
use xxhash_rust::xxh3::Xxh3;

use super::{Code, LoadError};
use crate::limits;
use crate::sandbox::engine::Format;
use crate::sandbox::error::SandboxError;

const MAGIC: &[u8; 8] = b"OSTLERC1";
const SEAL_BYTES: usize = 32;
const ENTRY_SUFFIX: &str = ".code";
const TEMPORARY_SUFFIX: &str = ".part";
/// Write permission of group and others.
const SHARED_WRITE: u32 = 0o022;

/// What was found at an entry's path.
pub(super) enum Entry {
    Sound(Code),
    Missing,
    Refused(String),
}

/// The bytes that follow `artefact` in its file.
pub(in crate::sandbox) fn seal(artefact: &[u8]) -> [u8; SEAL_BYTES] {
    let mut hasher = Xxh3::new();
    hasher.update(artefact);
    seal_of(artefact.len() as u64, hasher.digest128())
}

fn seal_of(length: u64, hash: u128) -> [u8; SEAL_BYTES] {
    let mut seal = [0; SEAL_BYTES];
    let fields = MAGIC.iter().copied().chain(length.to_le_bytes()).chain(hash.to_le_bytes());
    seal.iter_mut().zip(fields).for_each(|(to, from)| *to = from);
    seal
}

/// Create the directory for this user alone, or check that it is so; then tidy up.
pub(super) fn prepare_dir(dir: &Path) -> Result<(), SandboxError> {
    let failed = |source| SandboxError::CacheDir { path: dir.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    let found = std::fs::symlink_metadata(dir).map_err(failed)?;
    let reason = if !found.is_dir() {
        Some("it is not a directory of its own")
    } else if found.uid() != rustix::process::geteuid().as_raw() {
        Some("it belongs to another user")
    } else if found.mode() & SHARED_WRITE != 0 {
        Some("group or others may write there")
    } else {
        None
    };
    if let Some(reason) = reason {
        return Err(SandboxError::UnsafeCacheDir { path: dir.to_owned(), reason });
    }
    if found.mode() & 0o777 != 0o700 {
        std::fs::set_permissions(dir, Permissions::from_mode(0o700)).map_err(failed)?;
    }
    tidy(dir).map_err(failed)
}

/// Remove leftovers of killed agents, and the least recently used entries beyond the limit.
fn tidy(dir: &Path) -> io::Result<()> {
    /// Far longer than any compile child lives; another agent may be at work here.
    const ABANDONED_AFTER: Duration = Duration::from_secs(3_600);
    // Proves that the directory is writable, and tells the file system's time.
    let now = temporary(dir)?.as_file().metadata()?.modified()?;
    let mut entries: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
    for item in std::fs::read_dir(dir)? {
        let item = item?;
        // Another agent may be removing files at the same time.
        let Ok(found) = item.metadata() else { continue };
        let (name, used) = (item.file_name(), found.modified()?);
        let name = name.to_string_lossy();
        if name.ends_with(ENTRY_SUFFIX) {
            entries.push((used, found.len(), item.path()));
        } else if name.ends_with(TEMPORARY_SUFFIX)
            && now.duration_since(used).is_ok_and(|age| age > ABANDONED_AFTER)
        {
            let _ = std::fs::remove_file(item.path());
        }
    }
    entries.sort();
    let mut total: u64 = entries.iter().map(|(_, size, _)| size).sum();
    for (_, size, path) in entries {
        if total <= limits::CODE_CACHE_BYTES_MAX {
            break;
        }
        // Code that is mapped stays usable after its file is gone.
        let _ = std::fs::remove_file(path);
        total = total.saturating_sub(size);
    }
    Ok(())
}

/// A new file, mode 0600, removed again unless published.
pub(super) fn temporary(dir: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new().prefix("compiling-").suffix(TEMPORARY_SUFFIX).tempfile_in(dir)
}

/// Give a finished file its name. The compile child has already synced its content.
pub(super) fn publish(file: NamedTempFile, dir: &Path, to: &Path) -> io::Result<()> {
    file.persist(to).map_err(|error| error.error)?;
    File::open(dir)?.sync_all()
}

/// Map the entry at `path` if it is ours and whole.
pub(super) fn read(engine: &Engine, format: Format, path: &Path) -> Result<Entry, LoadError> {
    match check(path) {
        Ok(None) => {}
        Ok(Some(reason)) => return Ok(Entry::Refused(reason.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Entry::Missing),
        Err(source) => {
            return Err(LoadError::Cache { path: path.to_owned(), source });
        }
    }
    // SAFETY: `deserialize_file` runs whatever the file says it compiled. `check` has just found
    // that the file is a regular one of this user, writable by nobody else, in a directory only
    // this user can enter, and whole. All writers (this module) create such files under another
    // name and rename them, so the mapped content never changes.
    let code = unsafe {
        match format {
            Format::Component => Component::deserialize_file(engine, path).map(Code::Component),
            Format::Module => Module::deserialize_file(engine, path).map(Code::Module),
        }
    };
    match code {
        Ok(code) => Ok(Entry::Sound(code)),
        Err(error) => {
            let message = format!("{error:#}");
            // Wasmtime has no type for this; a test keeps the words in step.
            if message.contains("pooling allocator") {
                return Err(LoadError::DoesNotFit { message });
            }
            Ok(Entry::Refused(message))
        }
    }
}

/// What makes the file unfit to be mapped, if anything.
fn check(path: &Path) -> io::Result<Option<&'static str>> {
    let nofollow = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or_default();
    let file = match OpenOptions::new().read(true).custom_flags(nofollow).open(path) {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            return Ok(Some("it is a symbolic link"));
        }
        other => other?,
    };
    let found = file.metadata()?;
    if !found.is_file() {
        return Ok(Some("it is not a regular file"));
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Ok(Some("it belongs to another user"));
    }
    if found.mode() & SHARED_WRITE != 0 {
        return Ok(Some("group or others may write to it"));
    }
    let Some(length) = found.len().checked_sub(SEAL_BYTES as u64) else {
        return Ok(Some("it is too short"));
    };
    if !is_sealed(&file, length)? {
        return Ok(Some("it is damaged"));
    }
    // Its age decides what goes when the cache is too large. A failure only makes it go earlier.
    let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
    let _ = rustix::fs::futimens(&file, &times);
    Ok(None)
}

fn is_sealed(mut file: &File, length: u64) -> io::Result<bool> {
    let mut hasher = Xxh3::new();
    let mut chunk = vec![0; 64 * 1024];
    let mut artefact = file.take(length);
    loop {
        let count = artefact.read(&mut chunk)?;
        if count == 0 {
            break;
        }
        hasher.update(chunk.get(..count).unwrap_or_default());
    }
    let mut found = [0; SEAL_BYTES];
    file.read_exact(&mut found)?;
    Ok(found == seal_of(length, hasher.digest128()))
}

//! Cache entries as files.
//!
//! An entry is Wasmtime's artefact and its seal (`seal`). The file is opened once, so that the file
//! that is checked is the file that is mapped.

use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt, FileExt as _, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tempfile::NamedTempFile;
use wasmtime::component::Component;
use wasmtime::{Engine, Module};

use super::own_file;
use super::{LoadError, MappedCode};
use crate::error::SandboxError;
use ostler_engine::{CodeIdentity, Sealer, WasmFormat};
use ostler_model::limits;

const ENTRY_SUFFIX: &str = ".code";
const TEMPORARY_SUFFIX: &str = ".part";
/// Mode bits of write permission for group and others.
const SHARED_WRITE: u32 = 0o022;
/// How many bytes are copied at once.
const COPY_BYTES: usize = 256 * 1024;
/// Mode bit of a directory in which only the owner of a name may remove it.
const STICKY: u32 = 0o1000;

/// What was found at an entry's path.
pub(super) enum EntryFile {
    /// A file of this user whose seal names the expected code.
    Sealed(File),
    Missing,
    Refused(String),
}

/// Create the directory for this user alone, or check that it is for this user alone. Then
/// tidy it up.
pub(super) fn prepare_dir(dir: &Path) -> Result<(), SandboxError> {
    let failed = |source| SandboxError::CacheDir { path: dir.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    check_parent(dir)?;
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

/// Check the directory above: whoever may write there could put another cache and another secret in
/// place of this one.
fn check_parent(dir: &Path) -> Result<(), SandboxError> {
    let failed = |source| SandboxError::CacheDir { path: dir.to_owned(), source };
    let real = dir.canonicalize().map_err(failed)?;
    let Some(parent) = real.parent() else { return Ok(()) };
    let found = std::fs::metadata(parent).map_err(failed)?;
    let own = [rustix::process::geteuid().as_raw(), 0].contains(&found.uid());
    let shared = found.mode() & SHARED_WRITE != 0 && found.mode() & STICKY == 0;
    if own && !shared {
        Ok(())
    } else {
        Err(SandboxError::SharedDataDir { path: parent.to_owned() })
    }
}

/// Remove leftovers of killed agents, and the least recently used entries beyond the limit.
fn tidy(dir: &Path) -> io::Result<()> {
    /// Far longer than any compile child lives; another agent may be at work here.
    const ABANDONED_AFTER: Duration = Duration::from_secs(3_600);
    // Proves that the directory is writable, and tells the file system's time.
    let now = temporary_file(dir)?.as_file().metadata()?.modified()?;
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

/// A new file with mode 0600, which is removed again unless it is published.
pub(super) fn temporary_file(dir: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new().prefix("compiling-").suffix(TEMPORARY_SUFFIX).tempfile_in(dir)
}

/// Seal an artefact and give it its name. The file is not synced: what a power cut leaves in pieces
/// has no seal, and is made anew.
pub(super) fn publish(
    file: NamedTempFile,
    sealer: &Sealer,
    meant: &CodeIdentity,
    to: &Path,
) -> io::Result<()> {
    sealer.seal(file.as_file(), meant)?;
    file.persist(to).map(drop).map_err(|error| error.error)
}

/// Open the entry at `path` and check it.
pub(super) fn read(
    sealer: &Sealer,
    meant: &CodeIdentity,
    path: &Path,
) -> Result<EntryFile, LoadError> {
    match check(path, sealer, meant) {
        Ok(Ok(file)) => Ok(EntryFile::Sealed(file)),
        Ok(Err(reason)) => Ok(EntryFile::Refused(reason.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(EntryFile::Missing),
        Err(source) => Err(LoadError::Cache { path: path.to_owned(), source }),
    }
}

/// Map an entry whose seal was checked. The inner error says why Wasmtime does not accept it
/// for this engine. `handed`: the file comes from another process, and this one may open no
/// files by their paths.
pub(super) fn map(
    engine: &Engine,
    format: WasmFormat,
    file: &File,
    handed: bool,
) -> Result<Result<MappedCode, String>, LoadError> {
    let failed = |source| LoadError::Cache { path: PathBuf::new(), source };
    // Wasmtime maps components by path only.
    let copy = match (handed, format) {
        (true, WasmFormat::Component) => Some(copy_to_memory(file).map_err(failed)?),
        _ => None,
    };
    let file = copy.as_ref().unwrap_or(file);
    // Not the path of the entry, because another file may be there by now.
    let opened = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    // SAFETY: what is deserialized is run as what it says it is. `check` has found that the file, which
    // is still open, is a regular one of this user that nobody else may touch, and that it carries the
    // seal of this cache's secret for its wasm and this engine: in this process, or in the agent that
    // handed it over. All writers (this module) create such files under another name and rename them,
    // so the mapped content never changes.
    let code = unsafe {
        match format {
            WasmFormat::Component => {
                Component::deserialize_file(engine, opened).map(MappedCode::Component)
            }
            WasmFormat::Module => {
                Module::deserialize_open_file(engine, file.try_clone().map_err(failed)?)
                    .map(MappedCode::Module)
            }
        }
    };
    code.map(Ok).or_else(|error| {
        let message = format!("{error:#}");
        // Wasmtime has no type for this error. A test checks that its text still has these words.
        if message.contains("pooling allocator") {
            Err(LoadError::DoesNotFit { message })
        } else {
            Ok(Err(message))
        }
    })
}

/// A copy that nothing but this process can reach.
fn copy_to_memory(file: &File) -> io::Result<File> {
    let name = "ostler-code";
    let mut memory = File::from(rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC)?);
    // Read by offset: other processes share the position of the descriptor.
    let mut buffer = vec![0; COPY_BYTES];
    let mut at = 0;
    loop {
        match file.read_at(&mut buffer, at)? {
            0 => break,
            length => {
                io::Write::write_all(&mut memory, buffer.get(..length).unwrap_or_default())?;
                at = at.saturating_add(length as u64);
            }
        }
    }
    Ok(memory)
}

/// The open file, or why it must not be mapped.
fn check(
    path: &Path,
    sealer: &Sealer,
    meant: &CodeIdentity,
) -> io::Result<Result<File, &'static str>> {
    let (file, found) = match own_file::open(path)? {
        Ok(opened) => opened,
        Err(reason) => return Ok(Err(reason)),
    };
    if !sealer.is_sealed(&file, found.len(), meant)? {
        return Ok(Err(
            "it is damaged, of an older agent, or this cache did not make it of this wasm",
        ));
    }
    // The age of an entry decides which ones are removed when the cache is too large. If this
    // fails, the entry is only removed earlier.
    let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
    let _ = rustix::fs::futimens(&file, &times);
    Ok(Ok(file))
}

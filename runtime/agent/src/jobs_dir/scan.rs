//! Reading the jobs directory. Blocks.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::hold::DirId;
use super::step::{Content, Scan};
use ostler_jobspec::JobFileError;

/// Most job files that are looked at, and most entries of the directory.
pub const FILES_MAX: usize = 1_024;
const ENTRIES_MAX: usize = 16 * FILES_MAX;
/// Ends of the names of job files.
const ENDS: [&str; 3] = ["hcl", "nomad", "json"];

/// Tells whether a file is still the one that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp([u64; 4], [i64; 4]);

/// What was read, so that unchanged files are not read again.
pub type Known = BTreeMap<PathBuf, (Stamp, Content)>;

/// Look at every job file: regular files with one of the known ends that do not begin with a dot.
/// Links to regular files count as such; one that leads nowhere is a file that cannot be read, since
/// what it leads to may only be unmounted. `known` becomes what was read.
///
/// # Errors
/// When the directory itself cannot be read, or another one took its place meanwhile.
pub fn scan(dir: &Path, known: &mut Known) -> io::Result<(DirId, Scan)> {
    let before = id(dir)?;
    let (paths, incomplete) = job_files(dir)?;
    let mut now = Known::new();
    for path in paths {
        let stamped = match std::fs::metadata(&path) {
            Ok(meta) if !meta.is_file() => continue,
            Ok(meta) => stamp(&meta),
            // Not a link: it was removed since the directory was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => continue,
            Err(error) => {
                let none = Stamp([0; 4], [0; 4]);
                now.insert(path.clone(), (none, Err(format!("cannot be read: {error}"))));
                continue;
            }
        };
        // The stamp is taken before the content: what changes in between is read the next time.
        let content = match known.remove(&path) {
            Some((before, content)) if before == stamped => content,
            _ => read(&path),
        };
        now.insert(path, (stamped, content));
    }
    *known = now;
    // What is gone now is gone with the directory, not from it.
    if id(dir)? != before {
        return Err(io::Error::other("another one was put in its place while it was read"));
    }
    let files = known.iter().map(|(path, (_, content))| (path.clone(), content.clone())).collect();
    Ok((before, Scan { files, incomplete }))
}

fn id(dir: &Path) -> io::Result<DirId> {
    let meta = std::fs::metadata(dir)?;
    Ok(DirId { device: meta.dev(), inode: meta.ino() })
}

/// The paths with names of job files, and whether there are more than are looked at.
fn job_files(dir: &Path) -> io::Result<(Vec<PathBuf>, bool)> {
    let mut paths = Vec::new();
    let mut incomplete = false;
    for (at, entry) in std::fs::read_dir(dir)?.enumerate() {
        let path = entry?.path();
        if at >= ENTRIES_MAX || paths.len() >= FILES_MAX {
            incomplete = true;
            break;
        }
        if is_job_file(&path) {
            paths.push(path);
        }
    }
    Ok((paths, incomplete))
}

fn is_job_file(path: &Path) -> bool {
    let hidden = path.file_name().is_none_or(|name| name.as_bytes().starts_with(b"."));
    let end = path.extension().and_then(|end| end.to_str());
    !hidden && end.is_some_and(|end| ENDS.contains(&end))
}

fn stamp(meta: &std::fs::Metadata) -> Stamp {
    Stamp(
        [meta.dev(), meta.ino(), meta.size(), 1],
        [meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()],
    )
}

fn read(path: &Path) -> Content {
    let read = ostler_jobspec::read_file(path).map(|file| {
        for warning in &file.parsed.warnings {
            tracing::warn!("{warning}");
        }
        Arc::new(file.parsed.job)
    });
    read.map_err(|error| match error {
        JobFileError::Invalid { source_text, diagnostics, .. } => {
            diagnostics.render(&source_text, false)
        }
        other => {
            let cause = std::error::Error::source(&other);
            cause.map_or_else(|| other.to_string(), |cause| format!("{other}: {cause}"))
        }
    })
}

//! The access to the disk that functions of a job file have, where the user who runs the command reads it.

use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use globset::GlobBuilder;
use ostler_model::limits::{JOB_FILE_BYTES_MAX, JOB_FILESET_ENTRIES_MAX};

/// The deepest level of directories that `fileset` reads.
const DEPTH_MAX: usize = 32;

/// The text of a regular file of at most [`JOB_FILE_BYTES_MAX`] bytes.
pub(crate) fn text(path: &Path) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
    // Without this flag, opening a pipe that has no writer waits for ever. The flag does not affect files.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(format!("{} is not a regular file", path.display()));
    }
    let mut bytes = Vec::new();
    file.take(JOB_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > JOB_FILE_BYTES_MAX) {
        return Err(format!("{} is larger than {JOB_FILE_BYTES_MAX} bytes", path.display()));
    }
    let text = String::from_utf8(bytes);
    text.map_err(|_| format!("{} is not text: a job file must be UTF-8", path.display()))
}

/// Whether a path is a regular file. A directory is an error.
pub(crate) fn exists(path: &Path) -> Result<bool, String> {
    match std::fs::metadata(path) {
        Ok(found) if found.is_file() => Ok(true),
        Ok(_) => Err(format!("{} is not a regular file", path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(format!("cannot look at {}: {error}", path.display())),
    }
}

/// The regular files below a directory whose relative paths match the pattern, sorted.
pub(crate) fn matching(directory: &Path, pattern: &str) -> Result<Vec<String>, String> {
    let glob = GlobBuilder::new(pattern).literal_separator(true).build();
    let glob = glob.map_err(|error| format!("the pattern cannot be used: {error}"))?;
    let matcher = glob.compile_matcher();
    let mut found = Vec::new();
    let mut open = vec![(PathBuf::new(), 0_usize)];
    let mut seen = 0_usize;
    while let Some((below, depth)) = open.pop() {
        let here = directory.join(&below);
        let entries = match std::fs::read_dir(&here) {
            Ok(entries) => entries,
            // A directory that does not exist holds nothing.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && depth == 0 => break,
            Err(error) => return Err(format!("cannot look into {}: {error}", here.display())),
        };
        for entry in entries {
            let entry =
                entry.map_err(|error| format!("cannot look into {}: {error}", here.display()))?;
            seen += 1;
            if seen > JOB_FILESET_ENTRIES_MAX {
                let most = JOB_FILESET_ENTRIES_MAX;
                return Err(format!(
                    "more than {most} files and directories are below {}",
                    directory.display()
                ));
            }
            let path = below.join(entry.file_name());
            let kind =
                std::fs::metadata(entry.path()).map(|found| (found.is_file(), found.is_dir()));
            match kind {
                Ok((true, _)) if matcher.is_match(&path) => {
                    found.extend(path.to_str().map(str::to_owned));
                }
                // Links are not followed into directories: they may lead around in a circle.
                Ok((_, true))
                    if depth < DEPTH_MAX && entry.file_type().is_ok_and(|t| t.is_dir()) =>
                {
                    open.push((path, depth + 1));
                }
                _ => {}
            }
        }
    }
    found.sort();
    Ok(found)
}

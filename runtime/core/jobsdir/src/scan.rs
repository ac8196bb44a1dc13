//! Reading the jobs directory. Blocks.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::hold::DirId;
use super::step::{Content, Scan};
use super::watch::{DirWatch, InotifyWatch};
use ostler_jobspec::{Inputs, JobFileError};
use ostler_model::printable::printable_path;
use rustix::fs::{Mode, OFlags};

/// The largest number of job files that are read.
pub const FILES_MAX: usize = 1_024;
/// The largest number of entries of the directory that are listed.
const ENTRIES_MAX: usize = 16 * FILES_MAX;
/// The extensions of the names of job files.
const ENDS: [&str; 3] = ["hcl", "nomad", "json"];

/// The identity, size and times of a file, which tell whether it is still the one that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp(pub [u64; 4], pub [i64; 4]);

/// The files that were read, with their contents, so that unchanged files are not read again.
pub type FileCache = BTreeMap<PathBuf, (FileStamp, Content)>;

/// A directory of job files. Every function may block.
pub trait JobFiles: Send + Sync + 'static {
    /// The identity of the directory that is there now.
    ///
    /// # Errors
    /// When there is no directory.
    fn id(&self) -> io::Result<DirId>;

    /// The paths of the entries of the directory; `most` is the largest number of them.
    ///
    /// # Errors
    /// When the directory cannot be read.
    fn entries(&self, most: usize) -> io::Result<Vec<PathBuf>>;

    /// The stamp of a file, which changes with its content. `None` means that it is no regular file or is
    /// missing.
    ///
    /// # Errors
    /// When the file cannot be examined.
    fn stamp(&self, path: &Path) -> io::Result<Option<FileStamp>>;

    /// Read the job of a file, or why the file has none.
    fn read(&self, path: &Path) -> Content;

    /// Watch the directory for changes from now on. Needs a tokio runtime.
    ///
    /// # Errors
    /// When the directory cannot be watched.
    fn watch(&self) -> io::Result<Box<dyn DirWatch>>;
}

/// The job files of a directory on disk, which is at this path.
#[derive(Clone, Debug)]
pub struct FilesOnDisk(pub PathBuf);

impl JobFiles for FilesOnDisk {
    fn id(&self) -> io::Result<DirId> {
        let meta = std::fs::metadata(&self.0)?;
        Ok(DirId { device: meta.dev(), inode: meta.ino() })
    }

    fn entries(&self, most: usize) -> io::Result<Vec<PathBuf>> {
        std::fs::read_dir(&self.0)?.take(most).map(|entry| Ok(entry?.path())).collect()
    }

    /// A link to a regular file counts as a regular file. A link to nothing counts as a file that cannot be
    /// read, because its target may be unmounted for the moment.
    fn stamp(&self, path: &Path) -> io::Result<Option<FileStamp>> {
        match std::fs::metadata(path) {
            Ok(meta) if !meta.is_file() => Ok(None),
            Ok(meta) => Ok(Some(FileStamp(
                [meta.dev(), meta.ino(), meta.size(), 1],
                [meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec()],
            ))),
            // It is no link: the file was removed after the directory was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn read(&self, path: &Path) -> Content {
        read(path)
    }

    fn watch(&self) -> io::Result<Box<dyn DirWatch>> {
        Ok(Box::new(InotifyWatch::new(&self.0)?))
    }
}

/// Read every job file: the regular files with one of the known extensions whose names do not begin with
/// a dot. `known` holds what was read before, and then what was read now.
///
/// # Errors
/// When the directory itself cannot be read, or another one took its place meanwhile.
pub fn scan(dir: &dyn JobFiles, known: &mut FileCache) -> io::Result<(DirId, Scan)> {
    let before = dir.id()?;
    let mut paths = dir.entries(ENTRIES_MAX + 1)?;
    let beyond = paths.len() > ENTRIES_MAX;
    paths.retain(|path| is_job_file(path));
    let incomplete = beyond || paths.len() > FILES_MAX;
    paths.truncate(FILES_MAX);
    let mut now = FileCache::new();
    for path in paths {
        let stamped = match dir.stamp(&path) {
            Ok(Some(stamp)) => stamp,
            Ok(None) => continue,
            Err(error) => {
                let none = FileStamp([0; 4], [0; 4]);
                now.insert(path, (none, Err(format!("cannot be read: {error}"))));
                continue;
            }
        };
        // The stamp is taken before the content is read, so that a change in between is noticed by the next scan.
        let content = match known.remove(&path) {
            Some((before, content)) if before == stamped => content,
            _ => dir.read(&path),
        };
        now.insert(path, (stamped, content));
    }
    *known = now;
    // The directory itself was replaced: files that are missing were not removed from it.
    if dir.id()? != before {
        return Err(io::Error::other("it was replaced while it was read"));
    }
    let files = known.iter().map(|(path, (_, content))| (path.clone(), content.clone())).collect();
    Ok((before, Scan { files, incomplete }))
}

fn is_job_file(path: &Path) -> bool {
    let hidden = path.file_name().is_none_or(|name| name.as_bytes().starts_with(b"."));
    let end = path.extension().and_then(|end| end.to_str());
    !hidden && end.is_some_and(|end| ENDS.contains(&end))
}

fn read(path: &Path) -> Content {
    let opened =
        open(path).map_err(|error| format!("job file {} {error}", printable_path(path)))?;
    let read = ostler_jobspec::read_open_file(opened, path, &Inputs::default()).map(|file| {
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

/// Why a file is not opened, as words that follow its name.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error("cannot be opened: {0}")]
    Io(#[from] io::Error),
    #[error(
        "is a link of user {link} to a file of user {file}, which is not followed: what a file holds is shown when \
         it is wrong; copy it here, or make the link as root"
    )]
    OfAnother { link: u32, file: u32 },
}

/// Open a file. A link is followed only if root or the agent's user owns it, or if its owner also owns the
/// target: by another link, users could see files that they may not read.
fn open(path: &Path) -> Result<File, OpenError> {
    // Without the last flag, opening a pipe that has no writer waits for ever. The flag does not affect files.
    let flags = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    match rustix::fs::open(path, OFlags::RDONLY | flags, Mode::empty()) {
        Ok(file) => return Ok(file.into()),
        Err(rustix::io::Errno::LOOP) => {}
        Err(error) => return Err(io::Error::from(error).into()),
    }
    // Open the link itself, because another file may have its name by now.
    let link = rustix::fs::open(path, OFlags::PATH | flags, Mode::empty());
    let link = File::from(link.map_err(io::Error::from)?);
    let to = rustix::fs::readlinkat(&link, "", Vec::new()).map_err(io::Error::from)?;
    let to = path.with_file_name(OsStr::from_bytes(to.as_bytes()));
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(&to, flags, Mode::empty()).map_err(io::Error::from)?);
    let (link, owner) = (link.metadata()?.uid(), file.metadata()?.uid());
    let own = rustix::process::geteuid().as_raw();
    if link == 0 || link == own || link == owner {
        Ok(file)
    } else {
        Err(OpenError::OfAnother { link, file: owner })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::os::unix::fs::{lchown, symlink};

    use super::*;

    #[test]
    fn a_link_of_somebody_else_shows_no_file_that_is_not_theirs() {
        let dir = tempfile::tempdir().unwrap();
        let (secret, link) = (dir.path().join("secret"), dir.path().join("x.hcl"));
        std::fs::write(&secret, "root:$6$hash:20000").unwrap();
        symlink("secret", &link).unwrap();
        // A link of the agent's user is followed.
        assert!(read(&link).unwrap_err().contains("$6$hash"));
        // Only root makes files of others.
        if rustix::process::geteuid().is_root() {
            lchown(&link, Some(65_534), None).unwrap();
            let said = read(&link).unwrap_err();
            assert!(said.contains("a link of user 65534") && !said.contains("hash"), "{said}");
            lchown(&secret, Some(65_534), None).unwrap();
            assert!(read(&link).unwrap_err().contains("$6$hash"), "their own file");
        }
    }

    #[test]
    fn the_name_of_a_file_forges_no_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a\nERROR forged.hcl");
        std::fs::write(&path, "x").unwrap();
        let said = read(&path).unwrap_err();
        assert!(said.contains(r"a\nERROR forged.hcl") && !said.contains("\nERROR"), "{said}");
        let said = read(&dir.path().join("b\rc.hcl")).unwrap_err();
        assert!(said.contains(r"b\rc.hcl cannot be opened"), "{said}");
    }
}

//! Creates, copies and renames state files so that a crash leaves all or nothing.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::error::{BackendError, StateError};
use crate::durable::sync_parent;
use crate::own_file;

/// The number of bytes compared at once.
const COMPARE_BYTES: usize = 64 * 1024;

/// `path` with a suffix after its name.
pub(super) fn with_suffix(path: &Path, suffix: impl AsRef<OsStr>) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Create an empty file that only its owner may read, in place of whatever had the name.
pub(super) fn create_private(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// Copy a state file of schema `from`, which nobody writes to, to the first free
/// `<name>.schema-<from>[.<n>]`, and return that name when the copy is durable. If a copy with the
/// same content exists, by its bytes or by `same_records`, it was made by an agent that died after
/// that. It is used again, so that a machine that crashes again and again is not filled up.
///
/// # Errors
/// When the copy cannot be made; nothing is left of it then.
pub(super) fn back_up(
    path: &Path,
    from: u16,
    same_records: impl Fn(&Path, &Path) -> bool,
) -> Result<PathBuf, BackendError> {
    let first = with_suffix(path, format!(".schema-{from}"));
    let mut backup = first.clone();
    let unfinished = with_suffix(&first, ".new");
    let mut number: u32 = 1;
    let copied = loop {
        match have_same_content(path, &backup) {
            Ok(Some(same)) if same || same_records(path, &backup) => break Ok(()),
            Ok(Some(_)) => {
                number = number.saturating_add(1);
                backup = with_suffix(&first, format!(".{number}"));
            }
            Ok(None) => break copy(path, &unfinished, &backup),
            Err(error) => break Err(error),
        }
    };
    match copied {
        Ok(()) => Ok(backup),
        Err(source) => {
            // The rest of the copy would take the room that is missing. The first error is
            // reported.
            let _ = fs::remove_file(&unfinished);
            Err(BackendError::Backup { backup, from, source })
        }
    }
}

fn copy(path: &Path, unfinished: &Path, target: &Path) -> io::Result<()> {
    let mut source = own_file::read(path)?;
    let mut file = create_private(unfinished)?;
    let expected = source.metadata()?.len();
    let copied = io::copy(&mut source, &mut file)?;
    if copied != expected {
        return Err(io::Error::other(format!("{copied} of {expected} bytes could be read")));
    }
    file.sync_all()?;
    fs::rename(unfinished, target)?;
    sync_parent(target)
}

/// Keep content durably in a file with the first free name `<name>.aside-<n>`.
///
/// # Errors
/// When it cannot be written; nothing is left of it then.
pub(super) fn keep_aside(path: &Path, content: &[u8]) -> io::Result<PathBuf> {
    let mut number: u32 = 1;
    let target = loop {
        let target = with_suffix(path, format!(".aside-{number}"));
        if !target.try_exists()? {
            break target;
        }
        number = number.saturating_add(1);
    };
    let kept = create_private(&target).and_then(|mut file| {
        file.write_all(content)?;
        file.sync_all()
    });
    match kept.and_then(|()| sync_parent(&target)) {
        Ok(()) => Ok(target),
        Err(error) => {
            // The first error is reported.
            let _ = fs::remove_file(&target);
            Err(error)
        }
    }
}

/// Whether two files have the same content; `None` if there is no second file.
fn have_same_content(left: &Path, right: &Path) -> io::Result<Option<bool>> {
    let right = match own_file::read(right) {
        Ok(right) => right,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let left = own_file::read(left)?;
    if left.metadata()?.len() != right.metadata()?.len() {
        return Ok(Some(false));
    }
    let chunk = |file: &File, into: &mut Vec<u8>| {
        into.clear();
        file.take(COMPARE_BYTES as u64).read_to_end(into)
    };
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    loop {
        chunk(&left, &mut ours)?;
        chunk(&right, &mut theirs)?;
        if ours != theirs || ours.is_empty() {
            return Ok(Some(ours == theirs));
        }
    }
}

/// Rename a state file that cannot be used to the first free `<name>.damaged-<n>`, and return that
/// name. This is done only if a person asked for it, because running tasks are not found again from
/// an empty state.
///
/// # Errors
/// When the file cannot be renamed.
pub fn move_aside(path: &Path) -> Result<PathBuf, StateError> {
    let failed = |source| StateError::MoveAside { path: path.to_owned(), source };
    let mut number: u32 = 1;
    loop {
        let target = with_suffix(path, format!(".damaged-{number}"));
        if !target.try_exists().map_err(failed)? {
            fs::rename(path, &target).map_err(failed)?;
            sync_parent(path).map_err(failed)?;
            return Ok(target);
        }
        number = number.saturating_add(1);
    }
}

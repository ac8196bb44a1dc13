//! Writes rendered files, and reads the files that templates read.
//!
//! A file is written beside its place and then renamed, so that the task sees the old file or the
//! new one, and a link in its place is replaced, not followed. Directories on the path are opened
//! below one that is open already: a link that leads out of it is an error.

use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use cap_std::fs::{Dir, File, MetadataExt as _, OpenOptions, OpenOptionsExt as _};
use rustix::fs::{Gid, Mode, Timespec, Timestamps, Uid};

use crate::alloc::owner::open_or_create;
use ostler_model::ports::FileOwner;
use ostler_model::template::{TEMPLATE_MODE_MAX, TaskTemplate};
use ostler_model::time::Timestamp;

/// The attributes of a file that is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attributes {
    mode: u32,
    /// The owner of the file, unless its template says otherwise, and of directories that are made
    /// on the path. `None`: the agent.
    owner: Option<FileOwner>,
    uid: Option<u32>,
    gid: Option<u32>,
    /// When the file was rendered. A later agent renders it again as of this time.
    at: Timestamp,
}

impl Attributes {
    pub(super) fn from_template(
        template: &TaskTemplate,
        owner: Option<FileOwner>,
        at: Timestamp,
    ) -> Self {
        // No set-user-id bit: nobody becomes another user by running the file.
        let mode = template.mode & TEMPLATE_MODE_MAX;
        Self { mode, owner, uid: template.uid, gid: template.gid, at }
    }

    /// The attributes of a file for the agent alone.
    pub(super) fn of_agent(at: Timestamp) -> Self {
        Self { mode: 0o600, owner: None, uid: None, gid: None, at }
    }
}

/// Tells one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadFileStamp {
    size: u64,
    inode: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The present stamp of a file; `None` where there is no file.
pub(super) fn stamp(dir: &Dir, path: &Path) -> Option<ReadFileStamp> {
    let found = dir.metadata(path).ok()?;
    Some(ReadFileStamp {
        size: found.len(),
        inode: found.ino(),
        modified: (found.mtime(), found.mtime_nsec()),
        changed: (found.ctime(), found.ctime_nsec()),
    })
}

fn open(dir: &Dir, path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // A pipe of the task in the place of a file must not block the open.
    options.read(true).custom_flags(libc::O_NONBLOCK);
    let file = dir.open_with(path, &options)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is not a file")) }
}

/// Read a file of at most `max` bytes.
pub(super) fn read(dir: &Dir, path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(dir, path)?.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > max {
        return Err(io::Error::other(format!("it has more than {max} bytes, the most allowed")));
    }
    Ok(bytes)
}

/// Read a rendered file, and when it was rendered; `None` where there is none, or it
/// cannot be read.
pub(super) fn read_rendered(dir: &Dir, path: &Path, max: u64) -> Option<(Vec<u8>, Timestamp)> {
    let found = open(dir, path).ok()?.metadata().ok()?;
    let seconds = Duration::from_secs(u64::try_from(found.mtime()).ok()?);
    let at = seconds + Duration::from_nanos(u64::try_from(found.mtime_nsec()).ok()?);
    let at = Timestamp::from_nanos(u64::try_from(at.as_nanos()).ok()?);
    Some((read(dir, path, max).ok()?, at))
}

/// Write a file to its place, whatever is there.
pub(super) fn write(dir: &Dir, path: &Path, bytes: &[u8], what: &Attributes) -> io::Result<()> {
    let name = path.file_name().ok_or_else(|| io::Error::other("it has no name"))?;
    let opened = open_or_create(dir, path.parent().unwrap_or(Path::new("")), what.owner)?;
    let beside = format!(".{}.new", name.to_string_lossy());
    match opened.remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut file = opened.open_with(&beside, &options)?;
    let placed = fill(&mut file, bytes, what).and_then(|()| opened.rename(&beside, &opened, name));
    if placed.is_err() {
        // A file that is half done is removed.
        let _gone = opened.remove_file(&beside);
    }
    placed
}

fn fill(file: &mut File, bytes: &[u8], what: &Attributes) -> io::Result<()> {
    file.write_all(bytes)?;
    let uid = what.uid.or(what.owner.map(|owner| owner.uid));
    let gid = what.gid.or(what.owner.map(|owner| owner.gid));
    if uid.or(gid).is_some() {
        rustix::fs::fchown(&*file, uid.map(Uid::from_raw), gid.map(Gid::from_raw))?;
    }
    // The mode comes after the owner, because a change of the owner clears bits of the mode.
    rustix::fs::fchmod(&*file, Mode::from_raw_mode(what.mode))?;
    let nanos = what.at.nanos();
    let second = Timespec {
        tv_sec: i64::try_from(nanos / 1_000_000_000).unwrap_or(0),
        tv_nsec: i64::try_from(nanos % 1_000_000_000).unwrap_or(0),
    };
    rustix::fs::futimens(&*file, &Timestamps { last_access: second, last_modification: second })?;
    Ok(())
}

//! Which subscription an inotify event concerns: bookkeeping over the kernel's watches.
//!
//! ```text
//! path there:      watch it (everything)   and its parent  (its own name: replaced, removed)
//! path not there:  watch the nearest directory above that is (the next name on the way to it)
//! ```
//! After every event about a name or about a watched place itself the path is placed anew, so that a
//! path which appears piece by piece is followed down to it. Links are followed when a path is
//! placed; that a link in the middle of a path leads elsewhere is not seen.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use super::SubscriptionId;

/// How often a path that appears while it is being placed is looked for anew.
const PLACE_TRIES: usize = 8;
/// Events read before other work gets its turn.
const EVENTS_AT_ONCE: usize = 4_096;
/// Room for events of one read, bytes.
const BUFFER_BYTES: usize = 16 * 1024;

/// Somebody's interest in one kernel watch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Interest {
    of: SubscriptionId,
    /// Only what happens to this name in it; absent: everything.
    name: Option<OsString>,
}

/// What one round of reading brought.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Whose paths changed.
    pub changed: BTreeSet<SubscriptionId>,
    /// Of those: whose paths are to be placed anew.
    pub moved: BTreeSet<SubscriptionId>,
    /// The kernel dropped events: everything counts as changed.
    pub overflow: bool,
    /// Nothing can be read any more.
    pub broken: Option<Errno>,
}

/// One inotify instance.
#[derive(Debug)]
pub(super) struct Paths {
    fd: OwnedFd,
    watches: BTreeMap<i32, BTreeSet<Interest>>,
}

impl Paths {
    pub(super) fn new() -> Result<Self, Errno> {
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        Ok(Self { fd, watches: BTreeMap::new() })
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Put watches for these paths in place of those the subscription had. The paths that could not
    /// be watched, with the reason.
    pub(super) fn place(&mut self, of: SubscriptionId, paths: &[PathBuf]) -> Vec<(PathBuf, Errno)> {
        let mut interests = Vec::new();
        let mut failed = Vec::new();
        for path in paths {
            if let Err(error) = self.place_one(of, path, &mut interests) {
                failed.push((path.clone(), error));
            }
        }
        // New watches are added before old ones are removed, so a path that stays watched loses no
        // event.
        self.forget(of);
        for (wd, interest) in interests {
            self.watches.entry(wd).or_default().insert(interest);
        }
        self.sweep();
        failed
    }

    /// Drop everything a subscription had.
    pub(super) fn remove(&mut self, of: SubscriptionId) {
        self.forget(of);
        self.sweep();
    }

    fn forget(&mut self, of: SubscriptionId) {
        for interests in self.watches.values_mut() {
            interests.retain(|interest| interest.of != of);
        }
    }

    fn sweep(&mut self) {
        let fd = &self.fd;
        self.watches.retain(|wd, interests| {
            if interests.is_empty() {
                // An error means that the kernel has removed it already.
                let _gone = inotify::remove_watch(fd, *wd);
            }
            !interests.is_empty()
        });
    }

    fn place_one(
        &self,
        of: SubscriptionId,
        path: &Path,
        into: &mut Vec<(i32, Interest)>,
    ) -> Result<(), Errno> {
        for _ in 0..PLACE_TRIES {
            match self.add(path, everything()) {
                Ok(wd) => {
                    into.push((wd, Interest { of, name: None }));
                    if let (Some(parent), Some(name)) = (path.parent(), path.file_name()) {
                        // An error is ignored: without this watch only a replacement of the path
                        // goes unseen.
                        if let Ok(wd) = self.add(parent, entries()) {
                            into.push((wd, Interest { of, name: Some(name.to_owned()) }));
                        }
                    }
                    return Ok(());
                }
                Err(Errno::NOENT | Errno::NOTDIR) => {
                    let Some((wd, name, child)) = self.nearest(path)? else { return Ok(()) };
                    into.push((wd, Interest { of, name: Some(name) }));
                    if std::fs::symlink_metadata(child).is_err() {
                        return Ok(());
                    }
                    // The path came into being meanwhile: try again, further down.
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Watch the nearest directory above `path` that is there: the watch, and the next name on the
    /// way down.
    fn nearest<'a>(&self, path: &'a Path) -> Result<Option<(i32, OsString, &'a Path)>, Errno> {
        let mut child = path;
        while let (Some(parent), Some(name)) = (child.parent(), child.file_name()) {
            match self.add(parent, entries()) {
                Ok(wd) => return Ok(Some((wd, name.to_owned(), child))),
                Err(Errno::NOENT | Errno::NOTDIR) => child = parent,
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn add(&self, path: &Path, events: WatchFlags) -> Result<i32, Errno> {
        // Added to what somebody else wants of the same place.
        inotify::add_watch(&self.fd, path, events | WatchFlags::MASK_ADD)
    }

    /// Read what is there, up to a bound.
    pub(super) fn read(&mut self) -> Heard {
        let mut heard = Heard::default();
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let mut gone = Vec::new();
        let mut reader = inotify::Reader::new(&self.fd, &mut buffer);
        for _ in 0..EVENTS_AT_ONCE {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(error) => {
                    heard.broken = Some(error);
                    break;
                }
            };
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                heard.overflow = true;
                continue;
            }
            let Some(interests) = self.watches.get(&event.wd()) else { continue };
            let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
            concerned(interests, event.events(), name, &mut heard);
            if event.events().contains(ReadFlags::IGNORED) {
                gone.push(event.wd());
            }
        }
        for wd in gone {
            self.watches.remove(&wd);
        }
        heard
    }

    /// Kernel watches in place.
    pub(super) fn len(&self) -> usize {
        self.watches.len()
    }
}

/// Who of these cares for such an event. `name` is the entry of a directory; absent: the place
/// itself.
fn concerned(
    interests: &BTreeSet<Interest>,
    events: ReadFlags,
    name: Option<&OsStr>,
    heard: &mut Heard,
) {
    let place_gone = events.intersects(
        ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF | ReadFlags::UNMOUNT | ReadFlags::IGNORED,
    );
    for interest in interests {
        let (cares, moves) = match &interest.name {
            None => (true, place_gone),
            Some(own) => {
                let cares = place_gone || name == Some(own.as_os_str());
                (cares, cares)
            }
        };
        if cares {
            heard.changed.insert(interest.of);
        }
        if moves {
            heard.moved.insert(interest.of);
        }
    }
}

/// What is wanted of the path itself.
fn everything() -> WatchFlags {
    entries() | WatchFlags::ATTRIB | WatchFlags::MODIFY | WatchFlags::CLOSE_WRITE
}

/// What is wanted of a directory above it.
fn entries() -> WatchFlags {
    WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
}

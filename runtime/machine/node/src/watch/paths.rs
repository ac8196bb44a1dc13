//! Which subscription an inotify event concerns: bookkeeping over the kernel's watches.
//!
//! ```text
//! path there:      watch it (everything)   and its parent  (its own name: replaced, removed)
//! path not there:  watch the nearest directory above that is (the next name on the way to it)
//! ```
//! After every event about a name or about a watched place itself the path is placed anew, so that
//! a path which appears piece by piece is followed down to it. Links are followed when a path is
//! placed. A later change of a link in the middle of a path is not noticed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use super::SubscriptionId;

/// How often the placing of a path is tried again when the path appears meanwhile.
const PLACE_TRIES: usize = 8;
/// Events read before other work gets its turn.
const EVENTS_AT_ONCE: usize = 4_096;
/// Room for events of one read, bytes.
const BUFFER_BYTES: usize = 16 * 1024;

/// The interest of one subscription in one kernel watch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Interest {
    of: SubscriptionId,
    /// Only events about this name in the directory count; absent: all events.
    name: Option<OsString>,
}

/// The result of one round of reading.
#[derive(Debug, Default)]
pub(super) struct PathNews {
    /// Subscriptions whose paths changed.
    pub changed: BTreeSet<SubscriptionId>,
    /// Those of them whose paths are to be placed anew.
    pub moved: BTreeSet<SubscriptionId>,
    /// The kernel dropped events: everything counts as changed.
    pub overflow: bool,
    /// Why nothing can be read any more.
    pub broken: Option<Errno>,
}

/// One inotify instance with its kernel watches.
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

    /// Put watches for these paths in place of those the subscription had. Returns the paths that
    /// could not be watched, each with the reason.
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

    /// Drop all watches of a subscription.
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
            match self.add(path, path_events()) {
                Ok(wd) => {
                    into.push((wd, Interest { of, name: None }));
                    if let (Some(parent), Some(name)) = (path.parent(), path.file_name()) {
                        // An error is ignored: without this watch only a replacement of the path
                        // goes unseen.
                        if let Ok(wd) = self.add(parent, directory_events()) {
                            into.push((wd, Interest { of, name: Some(name.to_owned()) }));
                        }
                    }
                    return Ok(());
                }
                Err(Errno::NOENT | Errno::NOTDIR) => {
                    let Some((wd, name, child)) = self.watch_nearest(path)? else { return Ok(()) };
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

    /// Watch the nearest existing directory above `path`. Returns the watch and the next name on
    /// the way down.
    fn watch_nearest<'a>(
        &self,
        path: &'a Path,
    ) -> Result<Option<(i32, OsString, &'a Path)>, Errno> {
        let mut child = path;
        while let (Some(parent), Some(name)) = (child.parent(), child.file_name()) {
            match self.add(parent, directory_events()) {
                Ok(wd) => return Ok(Some((wd, name.to_owned(), child))),
                Err(Errno::NOENT | Errno::NOTDIR) => child = parent,
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    fn add(&self, path: &Path, events: WatchFlags) -> Result<i32, Errno> {
        // The events are added to those that others want of the same place.
        inotify::add_watch(&self.fd, path, events | WatchFlags::MASK_ADD)
    }

    /// Read the waiting events, up to a bound.
    pub(super) fn read(&mut self) -> PathNews {
        let mut heard = PathNews::default();
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
            mark_concerned(interests, event.events(), name, &mut heard);
            if event.events().contains(ReadFlags::IGNORED) {
                gone.push(event.wd());
            }
        }
        for wd in gone {
            self.watches.remove(&wd);
        }
        heard
    }

    /// Number of kernel watches in place.
    pub(super) fn len(&self) -> usize {
        self.watches.len()
    }
}

/// Mark the subscriptions that an event concerns. `name` is the entry of a directory; absent: the
/// event is about the watched place itself.
fn mark_concerned(
    interests: &BTreeSet<Interest>,
    events: ReadFlags,
    name: Option<&OsStr>,
    heard: &mut PathNews,
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

/// Events that count for the path itself.
fn path_events() -> WatchFlags {
    directory_events() | WatchFlags::ATTRIB | WatchFlags::MODIFY | WatchFlags::CLOSE_WRITE
}

/// Events that count for a directory above the path.
fn directory_events() -> WatchFlags {
    WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
}

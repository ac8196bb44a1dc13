//! The user id of an allocation, for its isolated tasks that name no user.
//!
//! ```text
//! its directory has a group of the range ─► that one: it was given before, by whatever agent
//!   none; tasks of it ran as the user that all shared, or write to a volume ─► it shares that user
//!   none ─► the next of the range that no directory has ─► the group of its directory, then its tasks'
//! ```
//! The group of an allocation's directory is the record: it is there exactly as long as files may be that the id
//! owns, survives what they survive, and needs no write of its own. The group gives nobody anything: the mode of the
//! directory says nothing of it that it does not say of all. So an id is free when no directory has it, and nobody
//! has to give one back.
//!
//! Ids are given in turn, so that one that was freed is used again as late as possible: a process that somebody
//! left outside of its allocation finds nobody with its id for a long time.
//!
//! What tasks write into a volume outlives their allocation, and the next one has another id. So the tasks of a group
//! that writes to a volume share one user, unless they name their own.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, Gid};

use super::dir::at::{io_error, open_child, open_root};
use super::dir::{AllocDir, AllocDirError};
use ostler_model::alloc::Allocation;
use ostler_model::ids::AllocId;
use ostler_model::job::TaskGroup;
use ostler_model::ports::{AllocUser, FileOwner};

/// Gives allocations their user ids. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct AllocUsers(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Absent: allocations get none.
    range: Option<RangeInclusive<u32>>,
    table: Mutex<Table>,
}

/// Who has which. Pure.
#[derive(Debug, Default, PartialEq, Eq)]
struct Table {
    ids: BTreeMap<u32, AllocId>,
    /// The id that was given last.
    last: Option<u32>,
}

/// No id of the range is free.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no user id is free for this allocation: others have all of {} to {}; remove some that are over (`ostler gc`), or \
     give more ids with client {{ users {{ dynamic_user_min, dynamic_user_max }} }} in the agent's configuration",
    self.of.start(), self.of.end()
)]
pub struct NoUserFree {
    /// Those that there are.
    pub of: RangeInclusive<u32>,
}

/// Why an allocation got none.
#[derive(Debug, thiserror::Error)]
pub enum AllocUserError {
    /// All are given.
    #[error(transparent)]
    NoneFree(#[from] NoUserFree),
    /// Its directory cannot be looked at or changed.
    #[error(transparent)]
    Dir(#[from] AllocDirError),
}

impl Table {
    /// From the groups of directories.
    fn found(
        groups: impl IntoIterator<Item = (AllocId, u32)>,
        range: &RangeInclusive<u32>,
    ) -> Self {
        let mut table = Self::default();
        for (alloc, group) in groups.into_iter().filter(|(_, group)| range.contains(group)) {
            table.last = table.last.max(Some(group));
            // Of two with one id, which nobody here makes, the second gets another.
            table.ids.entry(group).or_insert(alloc);
        }
        table
    }

    fn of(&self, alloc: AllocId) -> Option<u32> {
        self.ids.iter().find(|(_, of)| **of == alloc).map(|(id, _)| *id)
    }

    /// The id of an allocation whose directory has this group.
    fn claim(
        &mut self,
        alloc: AllocId,
        group: u32,
        range: &RangeInclusive<u32>,
    ) -> Result<u32, NoUserFree> {
        if let Some(id) = self.of(alloc) {
            return Ok(id);
        }
        let free = |id: &u32| !self.ids.contains_key(id);
        let id = match Some(group).filter(|group| range.contains(group) && free(group)) {
            Some(known) => known,
            None => {
                let after = self.last.filter(|last| range.contains(last));
                let after = after.map_or(*range.start(), |last| last.saturating_add(1));
                let mut turn = (after..=*range.end()).chain(*range.start()..after);
                turn.find(free).ok_or_else(|| NoUserFree { of: range.clone() })?
            }
        };
        self.last = Some(id);
        self.ids.insert(id, alloc);
        Ok(id)
    }

    /// Only these have a directory.
    fn keep(&mut self, allocs: &BTreeSet<AllocId>) {
        self.ids.retain(|_, of| allocs.contains(of));
    }
}

impl AllocUsers {
    /// Ids of this range; those that directories below `root` have are taken. Blocks.
    ///
    /// # Errors
    /// When the directories cannot be read.
    pub fn find(root: &Path, range: RangeInclusive<u32>) -> Result<Self, AllocDirError> {
        let mut groups = Vec::new();
        for alloc in AllocDir::list(root)? {
            groups.extend(group_of(root, alloc)?.map(|group| (alloc, group)));
        }
        let table = Table::found(groups, &range);
        Ok(Self(Arc::new(Shared { range: Some(range), table: Mutex::new(table) })))
    }

    /// The ids that allocations are given.
    #[must_use]
    pub fn range(&self) -> Option<&RangeInclusive<u32>> {
        self.0.range.as_ref()
    }

    /// Whom the tasks of an allocation run as that are kept apart and name no user: its directory is there.
    /// `shared`: whom those run as whose allocation has no id. Blocks.
    ///
    /// # Errors
    /// When no id is free, or the directory refuses one.
    pub fn of(
        &self,
        root: &Path,
        allocation: &Allocation,
        shared: FileOwner,
    ) -> Result<AllocUser, AllocUserError> {
        let Some(range) = self.range() else { return Ok(AllocUser::Shared) };
        let dir = AllocDir::open(root, allocation.id)?;
        let failed = |error: rustix::io::Errno| io_error("look at", dir.path())(error.into());
        let group = rustix::fs::fstat(dir.fd()).map_err(failed)?.st_gid;
        let shares = !range.contains(&group)
            && allocation
                .task_group()
                .is_some_and(|tasks| writes_volumes(tasks) || ran_as(&dir, tasks, shared));
        match shares {
            true => Ok(AllocUser::Shared),
            false => self.claim(root, allocation.id, &dir, group).map(AllocUser::Own),
        }
    }

    fn claim(
        &self,
        root: &Path,
        alloc: AllocId,
        dir: &AllocDir,
        group: u32,
    ) -> Result<u32, AllocUserError> {
        let Some(range) = self.range() else { return Ok(group) };
        let claimed = self.table().claim(alloc, group, range);
        let id = match claimed {
            Ok(id) => id,
            Err(_) => {
                // Those whose directories are gone have none any more.
                let mut table = self.table();
                table.keep(&AllocDir::list(root)?.into_iter().collect());
                table.claim(alloc, group, range)?
            }
        };
        if group != id {
            rustix::fs::fchown(dir.fd(), None, Some(Gid::from_raw(id)))
                .map_err(|error| io_error("set the group of", dir.path())(error.into()))?;
        }
        Ok(id)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Does a task that names no user write to a volume?
fn writes_volumes(group: &TaskGroup) -> bool {
    let read_only = |volume| group.volumes.get(volume).is_some_and(|asked| asked.read_only);
    let mut unnamed = group.tasks.iter().filter(|task| task.user.is_none());
    unnamed.any(|task| {
        let mut mounts = task.volume_mounts.iter();
        mounts.any(|mount| !mount.read_only && !read_only(&mount.volume))
    })
}

/// Was a task that names no user given its directories as this user? They are not moved from one allocation to
/// the next, so it was one of this. It may run as that still, and what it wrote is its siblings'.
fn ran_as(dir: &AllocDir, group: &TaskGroup, shared: FileOwner) -> bool {
    let mut unnamed = group.tasks.iter().filter(|task| task.user.is_none());
    unnamed.any(|task| {
        let paths = dir.task(&task.name);
        let tmp = open_child(dir.fd(), task.name.as_str(), &paths.path)
            .and_then(|of_task| open_child(of_task.as_fd(), "tmp", &paths.tmp));
        tmp.is_ok_and(|tmp| rustix::fs::fstat(tmp).is_ok_and(|stat| stat.st_uid == shared.uid))
    })
}

fn group_of(root: &Path, alloc: AllocId) -> Result<Option<u32>, AllocDirError> {
    let opened = open_root(root)?;
    let found = rustix::fs::statat(opened.as_fd(), alloc.to_string(), AtFlags::SYMLINK_NOFOLLOW);
    match found {
        Ok(found) => Ok(Some(found.st_gid)),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(error) => Err(io_error("look at", root)(error.into())),
    }
}

#[cfg(test)]
#[path = "users_tests.rs"]
mod tests;

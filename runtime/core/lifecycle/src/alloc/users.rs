//! The user id of an allocation. Its isolated tasks run as this user, unless they name one.
//!
//! ```text
//! its directory has a group of the range ─► that one: it was given before, by whatever agent
//!   none; tasks of it ran as the user that all shared, or write to a volume ─► it shares that user
//!   none ─► the next of the range that no directory has ─► the group of its directory, then its tasks'
//! ```
//! The group of an allocation's directory is the record of the id. It exists exactly as long as
//! files of the id may exist, survives what the files survive, and needs no write of its own. The
//! group grants no rights, because the mode of the directory gives the group no more than
//! everybody. So an id is free when no directory has it, and nobody has to give an id back.
//!
//! Ids are given in turn, so that an id that was freed is used again as late as possible. A process
//! that was left behind outside of its allocation shares its id with nobody for a long time.
//!
//! What tasks write into a volume outlives their allocation, and the next allocation has another
//! id. So the tasks of a group that writes to a volume share one user, unless they name their own.

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
pub struct AllocUsers(Arc<AllocUsersInner>);

#[derive(Debug, Default)]
struct AllocUsersInner {
    /// The ids for allocations; `None`: allocations get no ids.
    range: Option<RangeInclusive<u32>>,
    table: Mutex<UserIdTable>,
}

/// Which allocation has which id. Pure.
#[derive(Debug, Default, PartialEq, Eq)]
struct UserIdTable {
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
    /// The range of all ids for allocations.
    pub of: RangeInclusive<u32>,
}

/// Why an allocation got no id.
#[derive(Debug, thiserror::Error)]
pub enum AllocUserError {
    /// All ids of the range are taken.
    #[error(transparent)]
    NoneFree(#[from] NoUserFree),
    /// The directory of the allocation cannot be read or changed.
    #[error(transparent)]
    Dir(#[from] AllocDirError),
}

impl UserIdTable {
    /// The table by the groups of the allocations' directories.
    fn from_groups(
        groups: impl IntoIterator<Item = (AllocId, u32)>,
        range: &RangeInclusive<u32>,
    ) -> Self {
        let mut table = Self::default();
        for (alloc, group) in groups.into_iter().filter(|(_, group)| range.contains(group)) {
            table.last = table.last.max(Some(group));
            // The agent never gives two allocations one id. If two have one, the
            // second gets another.
            table.ids.entry(group).or_insert(alloc);
        }
        table
    }

    fn id_of_alloc(&self, alloc: AllocId) -> Option<u32> {
        self.ids.iter().find(|(_, of)| **of == alloc).map(|(id, _)| *id)
    }

    /// The id of an allocation whose directory has this group; a new id where it has none yet.
    fn claim(
        &mut self,
        alloc: AllocId,
        group: u32,
        range: &RangeInclusive<u32>,
    ) -> Result<u32, NoUserFree> {
        if let Some(id) = self.id_of_alloc(alloc) {
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

    /// Free the ids of all allocations but these, which have a directory.
    fn retain_allocs(&mut self, allocs: &BTreeSet<AllocId>) {
        self.ids.retain(|_, of| allocs.contains(of));
    }
}

impl AllocUsers {
    /// Give ids of this range. The ids that directories below `root` have are taken. Blocks.
    ///
    /// # Errors
    /// When the directories cannot be read.
    pub fn find(root: &Path, range: RangeInclusive<u32>) -> Result<Self, AllocDirError> {
        let mut groups = Vec::new();
        for alloc in AllocDir::list(root)? {
            groups.extend(group_of(root, alloc)?.map(|group| (alloc, group)));
        }
        let table = UserIdTable::from_groups(groups, &range);
        Ok(Self(Arc::new(AllocUsersInner { range: Some(range), table: Mutex::new(table) })))
    }

    /// The ids that allocations are given.
    #[must_use]
    pub fn range(&self) -> Option<&RangeInclusive<u32>> {
        self.0.range.as_ref()
    }

    /// The user of those tasks of an allocation that are isolated and name no user. The
    /// directory of the allocation must exist. `shared` is the user of tasks whose allocation
    /// has no id. Blocks.
    ///
    /// # Errors
    /// When no id is free, or the directory refuses one.
    pub fn assign_user(
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
        if shares {
            Ok(AllocUser::Shared)
        } else {
            self.claim(root, allocation.id, &dir, group).map(AllocUser::Own)
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
        let claimed = self.lock_table().claim(alloc, group, range);
        let id = match claimed {
            Ok(id) => id,
            Err(_) => {
                // Allocations whose directories are gone need no id any more.
                let mut table = self.lock_table();
                table.retain_allocs(&AllocDir::list(root)?.into_iter().collect());
                table.claim(alloc, group, range)?
            }
        };
        if group != id {
            rustix::fs::fchown(dir.fd(), None, Some(Gid::from_raw(id)))
                .map_err(|error| io_error("set the group of", dir.path())(error.into()))?;
        }
        Ok(id)
    }

    fn lock_table(&self) -> MutexGuard<'_, UserIdTable> {
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

/// Do directories of a task that names no user belong to the shared user? Such directories do not
/// move from one allocation to the next, so a task of this allocation ran as the shared user. It
/// may still run, and its siblings use what it wrote.
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

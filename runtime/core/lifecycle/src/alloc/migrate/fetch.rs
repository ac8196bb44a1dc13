//! The directory in which data from another node is put together, and the move out
//! of that directory.
//!
//! ```text
//! <to>/data fetch/alloc/data          made anew for each try, in a directory that no task sees
//! <to>/data fetch/<task>/local
//!     │ whole, synced ─► journal {from, fetched} ─► rename … ─► journal {done} ─► the place is removed
//!     └── a crash before the journal: fetched again; after it: the move goes on
//! ```
//! So tasks find all of the data or none. Data that is lost here is still on the other node.

use std::os::fd::BorrowedFd;
use std::path::Path;

use super::take_over::take_over_from;
use super::{DataOrigin, MigratedData, TakeOverError};
use crate::alloc::dir::at::{ensure, io_error};
use crate::alloc::dir::lock::AllocDirLock;
use crate::alloc::dir::{AllocDir, AllocDirError, PRIVATE};
use crate::alloc::remove::remove_tree;
use ostler_model::ids::{AllocId, TaskName};

/// A name with a space: no task, so no task's directory, can have it.
const NAME: &str = "data fetch";

/// The directory for fetched data, empty at first.
#[derive(Debug)]
pub struct FetchedDir(AllocDir);

impl FetchedDir {
    /// Make the directory in that of the allocation `to`. What an earlier try left is removed.
    ///
    /// # Errors
    /// When the leftovers cannot be removed, or the operating system refuses.
    pub fn create(root: &Path, to: AllocId) -> Result<Self, AllocDirError> {
        let _held = AllocDirLock::take(&[to])?;
        let target = AllocDir::open(root, to)?;
        clear(&target)?;
        drop(ensure(target.fd(), NAME, PRIVATE, &target.path().join(NAME))?);
        match open_fetched(&target)? {
            Some(place) => Ok(Self(place)),
            None => Err(AllocDirError::Missing { path: target.path().join(NAME) }),
        }
    }

    /// The open directory.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    /// Wait until everything in the directory is on the disk.
    ///
    /// # Errors
    /// When the disk does not take the data.
    pub fn sync(&self) -> Result<(), AllocDirError> {
        // Syncing the files one by one would wait for the disk once for each file.
        rustix::fs::syncfs(self.fd()).map_err(|e| io_error("sync", self.0.path())(e.into()))
    }

    /// Remove the directory with everything in it.
    ///
    /// # Errors
    /// When something cannot be removed.
    pub fn remove(root: &Path, to: AllocId) -> Result<(), AllocDirError> {
        let _held = AllocDirLock::take(&[to])?;
        match AllocDir::open(root, to) {
            Ok(target) => clear(&target),
            Err(AllocDirError::Missing { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Move the fetched data of `from`, which is whole and synced, to its places. When the move fails
/// for good, the directory of `to` is built anew.
///
/// # Errors
/// See [`TakeOverError`].
pub fn move_fetched(
    root: &Path,
    from: AllocId,
    to: AllocId,
    tasks: &[TaskName],
) -> Result<MigratedData, TakeOverError> {
    take_over_from(DataOrigin::Fetched, root, from, to, tasks, &mut |_| Ok(()))
}

/// The directory for fetched data, where there is one.
pub(super) fn open_fetched(target: &AllocDir) -> Result<Option<AllocDir>, AllocDirError> {
    target.open_below(NAME)
}

/// Remove the directory for fetched data once the data is at its places. An error is only logged.
pub(super) fn clear_away(target: &AllocDir) {
    if let Err(error) = clear(target) {
        tracing::warn!(%error, "what is left of a fetch stays until the allocation is removed");
    }
}

/// Remove the directory for fetched data, where there is one.
fn clear(target: &AllocDir) -> Result<(), AllocDirError> {
    let path = || target.path().join(NAME);
    remove_tree(target.fd(), NAME).map_err(|left| AllocDirError::Left { path: path(), left })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use std::fs;

    use super::super::tests::Scene;
    use super::super::{MigrateError, inherit, move_from};
    use super::*;

    /// As after a fetch: the data is in the place, and no directory of this node has it.
    fn fetched_scene() -> Scene {
        let scene = Scene::new();
        let place = FetchedDir::create(scene.root.path(), scene.to).unwrap();
        let top = place.0.path().to_owned();
        for moved in ["alloc/data", "web/local", "db/local"] {
            fs::create_dir_all(top.join(moved).parent().unwrap()).unwrap();
            fs::rename(scene.old(moved), top.join(moved)).unwrap();
        }
        place.sync().unwrap();
        scene
    }

    fn assert_moved(scene: &Scene) {
        scene.assert_all_moved();
        assert!(!scene.new_place(NAME).exists());
    }

    #[test]
    fn what_was_fetched_goes_to_its_places_and_nothing_is_left_of_the_fetch() {
        let scene = fetched_scene();
        AllocDir::destroy(scene.root.path(), scene.from).unwrap();
        let tasks = scene.tasks();
        let moved = move_fetched(scene.root.path(), scene.from, scene.to, &tasks).unwrap();
        assert_eq!(moved.items.len(), 3);
        assert_eq!(fs::read_to_string(scene.new_place("alloc/data/db/rows")).unwrap(), "one, two");
        assert!(!scene.new_place(NAME).exists());
    }

    #[test]
    fn a_crash_at_any_step_of_the_move_is_gone_on_from_as_of_any_other_move() {
        let count = |stop: usize| {
            let (scene, mut met) = (fetched_scene(), 0);
            let tasks = scene.tasks();
            let stopped = move_from(
                DataOrigin::Fetched,
                scene.root.path(),
                scene.from,
                scene.to,
                &tasks,
                &mut |_| {
                    met += 1;
                    let error = || MigrateError::Same { alloc: scene.to };
                    if met > stop { Err(error()) } else { Ok(()) }
                },
            );
            (scene, met, stopped)
        };
        let (_, steps, moved) = count(usize::MAX);
        moved.unwrap();
        for stop in 0..steps {
            let (scene, ..) = count(stop);
            let (root, tasks) = (scene.root.path(), scene.tasks());
            // The next agent looks here first.
            match inherit(root, &[scene.from], scene.to, &tasks) {
                Some(inherited) => drop(inherited.moved.unwrap()),
                // Nothing was begun: it fetches anew.
                None => drop(move_fetched(root, scene.from, scene.to, &tasks).unwrap()),
            }
            assert_moved(&scene);
        }
    }

    #[test]
    fn a_place_that_was_left_half_filled_is_never_taken_for_data() {
        let scene = fetched_scene();
        let (root, tasks) = (scene.root.path(), scene.tasks());
        assert!(inherit(root, &[scene.from], scene.to, &tasks).is_none());
        drop(FetchedDir::create(root, scene.to).unwrap());
        assert_eq!(fs::read_dir(scene.new_place(NAME)).unwrap().count(), 0, "begun anew");
        assert!(move_fetched(root, scene.from, scene.to, &tasks).unwrap().is_nothing());
        FetchedDir::remove(root, scene.to).unwrap();
        assert!(!scene.new_place(NAME).exists());
    }

    #[test]
    fn where_there_are_files_already_nothing_of_it_is_taken() {
        let scene = fetched_scene();
        fs::write(scene.new_place("alloc/data/own"), "x").unwrap();
        let tasks = scene.tasks();
        let failed = move_fetched(scene.root.path(), scene.from, scene.to, &tasks).unwrap_err();
        assert!(failed.stays.is_none(), "{failed:?}");
        assert!(matches!(failed.error, MigrateError::Occupied { .. }), "{failed}");
        assert!(!scene.new_place(NAME).exists(), "the directory is built anew");
        assert_eq!(fs::read_dir(scene.new_place("alloc/data")).unwrap().count(), 0);
    }
}

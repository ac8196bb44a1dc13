//! Takes over the data of a line of allocations of which only the oldest ever started.
//!
//! ```text
//!   first (started) ◄── second (never started) ◄── third (never started) ◄── to
//!     data here, as a rule     or here, when it ended after its move         takes the nearest there is
//! ```
//! An allocation that never started has no data of its own: what is in its directory came from the
//! one before it.

use std::path::Path;

use super::journal::Journal;
use super::{MigrateError, MigratedData, TakeOverError, move_in_steps, take_over};
use crate::alloc::dir::{AllocDir, AllocDirError};
use ostler_model::ids::{AllocId, TaskName};

/// What became of the data of a line of allocations.
#[derive(Debug)]
pub struct InheritedData {
    /// The allocation whose directory the data came from, or should have come from.
    pub from: AllocId,
    /// The directories that were moved, or why they were not.
    pub moved: Result<MigratedData, TakeOverError>,
}

/// As [`take_over`], from the first allocation of `line` that has data. `line` begins with the
/// allocation whose place is taken; each further one had the place before. All but the last never
/// started. `None`: no allocation has data.
#[must_use]
pub fn inherit(
    root: &Path,
    line: &[AllocId],
    to: AllocId,
    tasks: &[TaskName],
) -> Option<InheritedData> {
    // A move that was begun goes on, and a move that is done stays done.
    let begun = read(root, to).ok().flatten().map(|journal| journal.from);
    let line = match begun.filter(|from| line.contains(from)) {
        Some(from) => vec![from],
        None => line.to_vec(),
    };
    for from in line {
        let moved = finish(root, from, tasks)
            .map_err(|error| TakeOverError { error, stays: None })
            .and_then(|()| take_over(root, from, to, tasks));
        if !moved.as_ref().is_ok_and(MigratedData::is_nothing) {
            return Some(InheritedData { from, moved });
        }
    }
    None
}

/// Finish a move to `alloc` that was interrupted by its end.
fn finish(root: &Path, alloc: AllocId, tasks: &[TaskName]) -> Result<(), MigrateError> {
    match read(root, alloc)? {
        Some(Journal { from, done: false, .. }) => {
            move_in_steps(root, from, alloc, tasks, &mut |_| Ok(())).map(drop)
        }
        _ => Ok(()),
    }
}

fn read(root: &Path, alloc: AllocId) -> Result<Option<Journal>, MigrateError> {
    match AllocDir::open(root, alloc) {
        Ok(dir) => Journal::read(&dir),
        Err(AllocDirError::Missing { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::super::tests::Scene;
    use super::*;
    use ostler_model::rng::Rng;

    fn third(scene: &Scene) -> AllocId {
        let id = AllocId::new(Rng::from_seed(99).uuid());
        AllocDir::create(scene.root.path(), id).unwrap();
        id
    }

    #[test]
    fn what_one_that_never_started_did_not_take_is_taken_from_the_one_before_it() {
        let scene = Scene::new();
        let (root, line) = (scene.root.path(), [third(&scene), scene.from]);
        let inherited = inherit(root, &line, scene.to, &scene.tasks()).unwrap();
        assert_eq!(inherited.from, scene.from);
        inherited.moved.unwrap();
        scene.assert_all_moved();
        // Asked again, as after a crash: the same, and nothing is looked for elsewhere.
        let again = inherit(root, &line, scene.to, &scene.tasks()).unwrap();
        assert_eq!(again.from, scene.from);
        assert!(!again.moved.unwrap().is_nothing());
        scene.assert_all_moved();
    }

    #[test]
    fn what_it_took_and_never_used_is_taken_from_it_wherever_its_own_move_was_ended() {
        let steps = {
            let (scene, mut met) = (Scene::new(), 0);
            let middle = third(&scene);
            let mut count = |_: &'static str| {
                met += 1;
                Ok(())
            };
            let tasks = scene.tasks();
            move_in_steps(scene.root.path(), scene.from, middle, &tasks, &mut count).unwrap();
            met
        };
        for ended in 0..=steps {
            let scene = Scene::new();
            let (root, middle, tasks) = (scene.root.path(), third(&scene), scene.tasks());
            let mut met = 0;
            let stopped = move_in_steps(root, scene.from, middle, &tasks, &mut |_| {
                met += 1;
                let error = || MigrateError::Same { alloc: middle };
                if met > ended { Err(error()) } else { Ok(()) }
            });
            assert_eq!(stopped.is_ok(), ended == steps, "{ended}");
            let inherited = inherit(root, &[middle, scene.from], scene.to, &tasks).unwrap();
            inherited.moved.unwrap();
            scene.assert_all_moved();
        }
    }

    #[test]
    fn where_nobody_has_anything_nothing_is_moved_and_nobody_is_named() {
        let scene = Scene::new();
        let root = scene.root.path();
        let gone = AllocId::new(Rng::from_seed(98).uuid());
        let empty = third(&scene);
        assert!(inherit(root, &[gone, empty], scene.to, &scene.tasks()).is_none());
        assert!(inherit(root, &[], scene.to, &scene.tasks()).is_none());
    }
}

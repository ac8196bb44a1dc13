//! Moves data, and cleans up when the move fails: nothing is lost, and wherever possible a program
//! finds the whole data or an empty directory.
//!
//! ```text
//!   move ─ failed ─► once more ─ failed ─► give back what was moved ─ all back ─► new directory rebuilt
//!    │                 │                          └─ not all ─► the new directory stays as it is
//!    └─────────────────┴─► taken over
//! ```
//! A crash in between leaves the journal of the move: the next call goes on with it.

use std::path::Path;

use super::journal::Journal;
use super::{DataOrigin, MigrateError, MigratedData, Step, has_content, move_from, move_item};
use crate::alloc::dir::lock::AllocDirLock;
use crate::alloc::dir::{AllocDir, AllocDirError};
use ostler_model::ids::{AllocId, TaskName};

/// Why the data of another allocation was not taken over, at least not all of it.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct TakeOverError {
    /// Why the move failed.
    #[source]
    pub error: MigrateError,
    /// Why the data could not be given back either: what had been moved is still at the new
    /// allocation. `None`: all data is at the old allocation, and the new directory is empty.
    pub stays: Option<MigrateError>,
}

/// As [`super::move_data`]. When the move fails for good, what was moved goes back to `from`, and
/// the directory of `to` is built anew.
///
/// # Errors
/// See [`TakeOverError`]; each item is at its old or at its new place.
pub fn take_over(
    root: &Path,
    from: AllocId,
    to: AllocId,
    tasks: &[TaskName],
) -> Result<MigratedData, TakeOverError> {
    take_over_from(DataOrigin::Here, root, from, to, tasks, &mut |_| Ok(()))
}

/// As [`take_over`], from any origin. Fetched data does not go back.
pub(super) fn take_over_from(
    origin: DataOrigin,
    root: &Path,
    from: AllocId,
    to: AllocId,
    tasks: &[TaskName],
    step: Step<'_>,
) -> Result<MigratedData, TakeOverError> {
    // The second try goes on where the first one stopped.
    let moved = move_from(origin, root, from, to, tasks, &mut *step)
        .or_else(|_| move_from(origin, root, from, to, tasks, &mut *step));
    moved.map_err(|error| {
        let back = give_back(root, from, to, &mut *step).and_then(|()| {
            step("rebuild")?;
            let rebuilt = AllocDir::destroy(root, to).and_then(|()| AllocDir::create(root, to));
            rebuilt.map(drop).map_err(MigrateError::from)
        });
        TakeOverError { error, stays: back.err() }
    })
}

/// Move every item of an unfinished move to `to` back to `from`.
fn give_back(root: &Path, from: AllocId, to: AllocId, step: Step<'_>) -> Result<(), MigrateError> {
    if from == to {
        return Err(MigrateError::Same { alloc: to });
    }
    let _held = AllocDirLock::take(&[from, to])?;
    let target = AllocDir::open(root, to)?;
    let journal = match Journal::read(&target)? {
        None => return Ok(()),
        // The data of another allocation, or of a whole move, must not be touched.
        Some(journal) if journal.from != from || journal.done => {
            return Err(MigrateError::OtherUnfinished { begun: journal.from, from, to });
        }
        // The other node still has the data.
        Some(journal) if journal.fetched => return Ok(()),
        Some(journal) => journal,
    };
    let moved = journal.items.iter().map(|item| Ok((item, has_content(&target, item)?)));
    let moved = moved.collect::<Result<Vec<_>, AllocDirError>>()?;
    let moved: Vec<_> = moved.into_iter().filter(|(_, there)| *there).collect();
    if moved.is_empty() {
        return Ok(());
    }
    let source = AllocDir::open(root, from)?;
    for (item, _) in moved {
        // An item with content at both places was never moved: the content at the new
        // place is another.
        if !has_content(&source, item)? {
            move_item(&target, &source, item, &mut *step)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::super::tests::Scene;
    use super::*;

    fn broken() -> MigrateError {
        MigrateError::Journal { path: "x".into(), reason: "as asked".to_owned() }
    }

    /// Take over; the steps that `fails` says fail. How many there were.
    fn go(
        scene: &Scene,
        mut fails: impl FnMut(usize) -> bool,
    ) -> (usize, Result<MigratedData, TakeOverError>) {
        let mut met = 0;
        let (root, tasks) = (scene.root.path(), scene.tasks());
        let result =
            take_over_from(DataOrigin::Here, root, scene.from, scene.to, &tasks, &mut |_| {
                met += 1;
                if fails(met - 1) { Err(broken()) } else { Ok(()) }
            });
        (met, result)
    }

    /// Steps of a move that goes well.
    fn steps() -> usize {
        go(&Scene::new(), |_| false).0
    }

    #[test]
    fn what_was_moved_by_a_move_that_fails_goes_back_and_the_new_directory_is_empty() {
        let all = steps();
        for first in 0..all {
            let scene = Scene::new();
            let before = scene.files();
            // The second try goes on where the first stopped, and fails there too.
            let (_, result) = go(&scene, |step| step == first || step == first + 1);
            match result {
                // Its last step failed: then all was moved.
                Ok(_) => scene.assert_all_moved(),
                Err(failed) => {
                    assert!(failed.stays.is_none(), "{first}: {failed:?}");
                    assert_eq!(scene.files(), before, "{first}");
                    assert!(!scene.new_place("data move.json").exists(), "{first}");
                    assert!(scene.new_place("alloc/data").exists(), "{first}: built anew");
                }
            }
        }
    }

    #[test]
    fn nothing_is_lost_whatever_fails_for_good_and_a_later_call_takes_all_over() {
        for first in 0..steps() {
            for back in 0..=16 {
                let scene = Scene::new();
                let before = scene.files();
                // Both tries fail, and from the given step of giving back on everything.
                let fails =
                    |step: usize| step == first || step == first + 1 || step > first + 1 + back;
                let (_, result) = go(&scene, fails);
                let now = scene.files();
                assert!(now.values().all(|places| places.len() == 1), "{first} {back}: {now:?}");
                assert!(now.keys().eq(before.keys()), "{first} {back}: {now:?}");
                if result.is_err() {
                    take_over(scene.root.path(), scene.from, scene.to, &scene.tasks()).unwrap();
                    scene.assert_all_moved();
                }
            }
        }
    }

    #[test]
    fn what_an_unfinished_move_from_another_allocation_brought_is_not_thrown_away() {
        let (scene, all) = (Scene::new(), steps());
        let (_, result) = go(&scene, |step| step >= all - 3);
        assert!(result.unwrap_err().stays.is_some());
        let before = scene.files();
        let other = Scene::new();
        AllocDir::create(scene.root.path(), other.from).unwrap();
        let failed = take_over(scene.root.path(), other.from, scene.to, &scene.tasks());
        assert!(matches!(
            failed.unwrap_err(),
            TakeOverError { error: MigrateError::OtherUnfinished { .. }, stays: Some(_) }
        ));
        assert_eq!(scene.files(), before);
    }
}

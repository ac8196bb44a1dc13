//! Builds the allocation's directory; removes it when the allocation is removed.

use super::{AllocHook, AllocScope, HookFailure, HookResult};
use crate::alloc::dir::{AllocDir, AllocDirError};

pub(super) struct DirHook;

impl AllocHook for DirHook {
    fn name(&self) -> &'static str {
        "alloc_dir"
    }

    /// A task that was started before has its data there: where the directory is gone, an empty one
    /// in its place would let the task go on as if it had never written anything (nomad #27933).
    fn prerun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        let (root, id) = (scope.alloc_root.clone(), scope.allocation.id);
        let must_exist = scope.started_before;
        Box::pin(async move {
            let make = move || {
                if must_exist {
                    AllocDir::open(&root, id)?;
                }
                AllocDir::create(&root, id).map(drop)
            };
            scope.on_disk(make).await?.map_err(|e| failure(&e))
        })
    }

    fn destroy<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        let (root, id) = (scope.alloc_root.clone(), scope.allocation.id);
        Box::pin(async move {
            scope.on_disk(move || AllocDir::destroy(&root, id)).await?.map_err(|e| failure(&e))
        })
    }
}

fn failure(error: &AllocDirError) -> HookFailure {
    let failure = HookFailure::of(error);
    let busy = matches!(error, AllocDirError::Busy { .. });
    HookFailure { node: failure.node || busy, ..failure }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::{Arc, mpsc};

    use tokio::sync::watch;

    use super::*;
    use crate::alloc::hooks::{Background, HookTimes};
    use crate::clock::Clock;
    use crate::model::alloc::AllocState;
    use crate::model::job::JobKind;
    use crate::rng::Rng;
    use crate::state::StateStore;
    use crate::testing::fixtures;

    #[tokio::test]
    async fn a_directory_that_was_being_made_when_its_hook_was_dropped_is_removed_all_the_same() {
        let root = tempfile::tempdir().unwrap();
        let tasks = vec![fixtures::task("web").unwrap()];
        let allocation = fixtures::allocation(JobKind::Batch, tasks, &Rng::seeded(1)).unwrap();
        let id = allocation.id;
        let scope = AllocScope {
            allocation: Arc::new(allocation),
            alloc_root: root.path().to_owned(),
            clock: Clock::default(),
            previous: None,
            started_before: false,
            state: watch::channel(AllocState::default()).1,
            owner: tokio::sync::mpsc::channel(1).0,
            background: Background::default(),
            times: HookTimes::default(),
            disk: Arc::default(),
            store: StateStore::in_memory().unwrap(),
        };
        // A making that is slow, abandoned as a stop abandons it.
        let (go, went) = mpsc::channel::<()>();
        let (begun, begins) = tokio::sync::oneshot::channel();
        let slow = {
            let (scope, root) = (scope.clone(), root.path().to_owned());
            tokio::spawn(async move {
                let make = move || {
                    begun.send(()).unwrap();
                    went.recv().unwrap();
                    AllocDir::create(&root, id).map(drop)
                };
                drop(scope.on_disk(make).await);
            })
        };
        begins.await.unwrap();
        slow.abort();
        let (removed, ()) = tokio::join!(DirHook.destroy(&scope), async { go.send(()).unwrap() });
        removed.unwrap();
        assert!(!root.path().join(id.to_string()).exists());
    }
}

//! Builds the allocation's directory; removes it when the allocation is removed.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

use super::{AllocHook, AllocScope, Blame, FirstRun, HookFailure, HookNews, HookResult};
use crate::alloc::dir::{AllocDir, AllocDirError};
use crate::alloc::secrets;
use ostler_logs::TaskLogs;
use ostler_model::alloc::Allocation;
use ostler_model::clock;
use ostler_model::event::{EventKind, TaskEvent};
use ostler_model::limits::{ALLOC_DIRS_MADE_AT_ONCE_MAX, HOOK_WALL_MAX};

/// The event for every task when the directory was lost.
const GONE: &str = "the allocation's directory was gone and is made again: what was written there, \
                    output included, is lost";

/// Permits for making directories. A job with a count of a thousand asks for as many directories at
/// once, and each would need a blocking thread of its own, of which there are only so many.
static MAKING: Semaphore = Semaphore::const_new(ALLOC_DIRS_MADE_AT_ONCE_MAX);

/// How long a directory waits for a permit. After this time it is made without one.
const TURN_WALL_MAX: Duration = Duration::from_secs(HOOK_WALL_MAX.as_secs() / 4);

pub(super) struct AllocDirHook;

impl AllocHook for AllocDirHook {
    fn name(&self) -> &'static str {
        "alloc_dir"
    }

    /// A task that was started before had its data in the directory. While a run of the task lives,
    /// a lost directory is not made again: the run would go on as if it had never written anything
    /// (nomad #27933). Where no run lives (a power cut took what was not on the disk yet), the task
    /// starts anew, and people are told what is lost.
    fn prerun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        let (root, id) = (scope.node.alloc_root.clone(), scope.allocation.id);
        let (started, lives) = (scope.started_before, Arc::clone(&scope.lives));
        // Data of a previous allocation may arrive by a directory that is built anew.
        let new = !started && scope.allocation.previous.is_none();
        let (allocation, first) = (Arc::clone(&scope.allocation), Arc::clone(&scope.first));
        let secrets_in_memory = scope.node.secrets_in_memory;
        Box::pin(async move {
            // The wait is bounded, because a disk that hangs must not hold up all others for ever.
            let _turn = clock::timeout(TURN_WALL_MAX, MAKING.acquire()).await;
            let make = move || {
                let gone = match started.then(|| AllocDir::open(&root, id)) {
                    Some(Err(AllocDirError::Missing { .. })) if !lives() => true,
                    Some(opened) => opened.map(|_| false)?,
                    None => false,
                };
                let dir = AllocDir::create(&root, id)?;
                if new {
                    make_for_first_runs(&dir, &allocation, &first, secrets_in_memory);
                }
                Ok(gone)
            };
            let gone = scope.on_disk(make).await?.map_err(|e: AllocDirError| failure(&e))?;
            if gone {
                let event = TaskEvent::new(EventKind::HookMessage, scope.node.clock.now(), GONE);
                scope.tell(HookNews::Say(event)).await;
            }
            Ok(())
        })
    }

    fn destroy<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        let (root, id) = (scope.node.alloc_root.clone(), scope.allocation.id);
        Box::pin(async move {
            scope.on_disk(move || AllocDir::destroy(&root, id)).await?.map_err(|e| failure(&e))
        })
    }
}

/// Make the directories of the tasks, and the log files of tasks that begin at once, while
/// this thread may block anyway. What fails here is tried again, and reported, when its task
/// is to start.
fn make_for_first_runs(
    dir: &AllocDir,
    allocation: &Allocation,
    first: &[FirstRun],
    secrets_in_memory: bool,
) {
    let tasks = allocation.task_group().map(|group| group.tasks.as_slice()).unwrap_or_default();
    for task in tasks {
        let Some(run) = first.iter().find(|run| run.task == task.name) else { continue };
        let made = secrets::create_task(dir, task, secrets_in_memory);
        let Ok(made) = made else { continue };
        *run.made.lock().unwrap_or_else(PoisonError::into_inner) = Some((dir.shared(), made));
        if task.lifecycle.is_some() || run.logs.get().is_some() {
            continue;
        }
        let opened = dir.logs_dir().map(|logs| TaskLogs::open(&logs, &task.name, &task.logs));
        if let Ok(Ok(logs)) = opened {
            run.logs.set(Arc::new(logs));
        }
    }
}

fn failure(error: &AllocDirError) -> HookFailure {
    let failure = HookFailure::from_error(error);
    let busy = matches!(error, AllocDirError::Busy { .. });
    if busy { HookFailure { blame: Blame::Node, ..failure } } else { failure }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::mpsc;

    use super::*;
    use crate::alloc::hooks::{Background, HookTimes};
    use crate::alloc::services::AllocServices;
    use crate::context::NodeContext;
    use crate::watch;
    use ostler_model::alloc::AllocState;
    use ostler_model::clock::Clock;
    use ostler_model::job::JobKind;
    use ostler_model::rng::Rng;
    use ostler_state::StateStore;
    use ostler_testing::fake_driver::FakeNode;
    use ostler_testing::fixtures;

    #[tokio::test]
    async fn a_directory_that_was_being_made_when_its_hook_was_dropped_is_removed_all_the_same() {
        let root = tempfile::tempdir().unwrap();
        let tasks = vec![fixtures::task("web").unwrap()];
        let allocation = fixtures::allocation(JobKind::Batch, tasks, &Rng::from_seed(1)).unwrap();
        let id = allocation.id;
        let (node, store) = (FakeNode::new(), StateStore::in_memory().unwrap());
        let node = Arc::new(NodeContext::with_doubles(root.path(), &node, store, Clock::default()));
        let allocation = Arc::new(allocation);
        let scope = AllocScope {
            services: AllocServices::new(Arc::clone(&node), Arc::clone(&allocation)),
            node,
            context: Arc::default(),
            allocation,
            started_before: false,
            lives: Arc::new(|| false),
            state: watch::channel(AllocState::default()).1,
            owner: crate::queue::channel(1).0,
            background: Background::default(),
            times: HookTimes::default(),
            disk: Arc::default(),
            first: Arc::new([]),
            tasks: std::sync::Weak::new(),
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
        let (removed, ()) =
            tokio::join!(AllocDirHook.destroy(&scope), async { go.send(()).unwrap() });
        removed.unwrap();
        assert!(!root.path().join(id.to_string()).exists());
    }
}

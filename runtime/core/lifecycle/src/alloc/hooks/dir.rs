//! Builds the allocation's directory; removes it when the allocation is removed.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::{AllocHook, AllocScope, Blame, FirstRun, HookFailure, HookNews, HookResult};
use crate::alloc::dir::{self, AllocDir, AllocDirError, TaskDir};
use crate::alloc::secrets;
use ostler_logs::TaskLogs;
use ostler_model::alloc::Allocation;
use ostler_model::event::{EventKind, TaskEvent};
use ostler_model::ids::TaskName;

/// The event for every task when the directory was lost.
const GONE: &str = "the allocation's directory was gone and is made again: what was written there, \
                    output included, is lost";

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
            let make = move || {
                let gone = match started.then(|| AllocDir::open(&root, id)) {
                    Some(Err(AllocDirError::Missing { .. })) if !lives() => true,
                    Some(opened) => opened.map(|_| false)?,
                    None => false,
                };
                let late = new && first.iter().all(|run| run.dirs.are_awaited());
                if late {
                    AllocDir::create_bare(&root, id)?;
                    make_for_first_runs(None, &root, &allocation, &first, secrets_in_memory);
                    return Ok(gone);
                }
                let dir = AllocDir::create(&root, id)?;
                if new {
                    make_for_first_runs(Some(&dir), &root, &allocation, &first, secrets_in_memory);
                }
                Ok(gone)
            };
            let gone =
                scope.on_disk_shortly(make).await?.map_err(|e: AllocDirError| failure(&e))?;
            if gone {
                let event = TaskEvent::new(EventKind::HookMessage, scope.node.clock.now(), GONE);
                scope.tell(HookNews::Say(event)).await;
            }
            Ok(())
        })
    }

    fn destroy<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        let (root, id) = (scope.node.alloc_root.clone(), scope.allocation.id);
        let bare = !scope.first.is_empty() && scope.first.iter().all(|run| run.dirs.are_awaited());
        let tasks: Vec<TaskName> = scope.first.iter().map(|run| run.task.clone()).collect();
        let dir_removed = Arc::clone(&scope.dir_removed);
        Box::pin(async move {
            let removed = scope.on_disk_shortly(move || {
                if bare && AllocDir::destroy_bare(&root, id, &tasks) {
                    return Ok(());
                }
                AllocDir::destroy(&root, id)
            });
            removed.await?.map_err(|e| failure(&e))?;
            dir_removed.store(true, Ordering::Release);
            Ok(())
        })
    }
}

/// Make the directories of the tasks that have theirs early, and the log streams of tasks that
/// begin at once. What fails here is tried again, and reported, when its task is to start.
fn make_for_first_runs(
    dir: Option<&AllocDir>,
    root: &Path,
    allocation: &Allocation,
    first: &[FirstRun],
    secrets_in_memory: bool,
) {
    let path = root.join(allocation.id.to_string());
    let Ok(path) = std::path::absolute(path) else { return };
    let tasks = allocation.task_group().map(|group| group.tasks.as_slice()).unwrap_or_default();
    for task in tasks {
        let Some(run) = first.iter().find(|run| run.task == task.name) else { continue };
        let made = match dir {
            Some(dir) if !run.dirs.are_awaited() => {
                secrets::create_task(dir, task, secrets_in_memory)
            }
            _ => Ok(TaskDir::below(&path, &task.name)),
        };
        let Ok(made) = made else { continue };
        let shared = path.join(dir::SHARED);
        *run.made.lock().unwrap_or_else(PoisonError::into_inner) = Some((shared, made));
        if task.lifecycle.is_some() || run.logs.get().is_some() {
            continue;
        }
        let logs = dir::logs_of(root, allocation.id);
        run.logs.set(Arc::new(TaskLogs::new(&logs, &task.name, &task.logs, true)));
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
            dir_removed: Arc::default(),
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

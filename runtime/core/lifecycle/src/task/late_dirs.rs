//! The directories of tasks that may never need them.
//!
//! ```text
//! a new allocation ─► its directory and the one of its logs
//! its task: sees directories only through the host, and nothing comes into them ─► made late:
//!    the task asks for them ─┐
//!    a process is started ───┼─► made, once
//!    it still runs after TASK_DIRS_LATE ─┘
//! any other task ─► made before it starts, as before every later run
//! ```
//! Most WASM tasks that end soon never open a file, and making and removing eight directories takes
//! longer than such a task runs. A task that goes on has its directories soon, so that people find
//! them, and so that it needs no agent when it opens a file at last.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::alloc::dir::{AllocDir, AllocDirError};
use crate::alloc::secrets;
use crate::context::NodeContext;
use ostler_model::alloc::Allocation;
use ostler_model::causes;
use ostler_model::clock::{self, Stopwatch};
use ostler_model::cow_arc::CowArc;
use ostler_model::disk_work::run_disk_work;
use ostler_model::ids::AllocId;
use ostler_model::job::Task;
use ostler_model::limits::TASK_DIRS_LATE;
use ostler_model::ports::{DirMaker, FsIsolation};

/// Makes the directories of one task, when somebody needs them.
pub struct LateDirs {
    root: PathBuf,
    alloc: AllocId,
    task: CowArc<Task>,
    secrets_in_memory: bool,
    /// Whether they are made, or are no matter of this.
    made: AtomicBool,
    /// The task ended without them.
    ended: AtomicBool,
    /// One maker at a time; whoever comes second finds them made.
    turn: tokio::sync::Mutex<()>,
}

impl LateDirs {
    /// The directories of a task. With `late` they are not made yet.
    pub(crate) fn new(
        node: &NodeContext,
        alloc: AllocId,
        task: &CowArc<Task>,
        late: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            root: node.alloc_root.clone(),
            alloc,
            task: task.clone(),
            secrets_in_memory: node.secrets_in_memory,
            made: AtomicBool::new(!late),
            ended: AtomicBool::new(false),
            turn: tokio::sync::Mutex::new(()),
        })
    }

    /// Are they still to be made?
    pub(crate) fn are_awaited(&self) -> bool {
        !self.made.load(Ordering::SeqCst)
    }

    /// Somebody else makes them now.
    pub(crate) fn leave_to_others(&self) {
        self.made.store(true, Ordering::SeqCst);
    }

    /// The run for which they were to be made has ended. A later run has its directories from the start.
    pub(crate) fn note_end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    /// Make the directories, unless they are made.
    ///
    /// # Errors
    /// The text for people: the disk refuses.
    pub async fn make(&self) -> Result<(), String> {
        if !self.are_awaited() {
            return Ok(());
        }
        let _turn = self.turn.lock().await;
        if !self.are_awaited() {
            return Ok(());
        }
        let (root, alloc, task) = (self.root.clone(), self.alloc, self.task.clone());
        let in_memory = self.secrets_in_memory;
        let made = run_disk_work(move || {
            let dir = AllocDir::create(&root, alloc)?;
            secrets::create_task(&dir, &task, in_memory).map(drop)
        });
        let made = made.await.map_err(|error| error.to_string())?;
        made.map_err(|error: AllocDirError| causes::chain(&error))?;
        self.made.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// What drivers and hosts make them with.
    pub(crate) fn maker(self: &Arc<Self>) -> DirMaker {
        let this = Arc::clone(self);
        Arc::new(move || {
            let this = Arc::clone(&this);
            Box::pin(async move { this.make().await })
        })
    }
}

/// May the directories of a task of a new allocation be made late? So it is when the task sees them
/// only through the host, and nothing comes into them before it runs.
pub(crate) fn may_be_late(node: &NodeContext, allocation: &Allocation, task: &Task) -> bool {
    let through_host = || {
        let driver = node.drivers.dispense(&task.driver);
        driver.is_ok_and(|driver| driver.capabilities().fs_isolation == FsIsolation::Preopen)
    };
    allocation.previous.is_none()
        && task.user.is_none()
        && task.payload.is_none()
        && task.volume_mounts.is_empty()
        && task.artifacts.is_empty()
        && task.templates.is_empty()
        && task.resources.devices.is_empty()
        && through_host()
}

/// The tasks that run and whose directories are still to be made, oldest first. Clones share it.
#[derive(Clone, Default)]
pub struct LateDirsQueue(Arc<Mutex<Awaited>>);

#[derive(Default)]
struct Awaited {
    tasks: VecDeque<(Stopwatch, Weak<LateDirs>)>,
    /// Somebody makes them when their time has come.
    served: bool,
}

impl LateDirsQueue {
    /// Make these directories if their task still runs after [`TASK_DIRS_LATE`].
    pub(crate) fn add(&self, dirs: &Arc<LateDirs>) {
        if !dirs.are_awaited() {
            return;
        }
        let mut awaited = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        awaited.tasks.push_back((Stopwatch::start(), Arc::downgrade(dirs)));
        if !std::mem::replace(&mut awaited.served, true) {
            drop(tokio::spawn(serve(Arc::clone(&self.0))));
        }
    }
}

async fn serve(awaited: Arc<Mutex<Awaited>>) {
    loop {
        clock::sleep(TASK_DIRS_LATE).await;
        loop {
            let next = {
                let mut awaited = awaited.lock().unwrap_or_else(PoisonError::into_inner);
                match awaited.tasks.front() {
                    None => {
                        awaited.served = false;
                        return;
                    }
                    Some((since, _)) if since.elapsed() < TASK_DIRS_LATE => break,
                    Some(_) => awaited.tasks.pop_front(),
                }
            };
            let Some(dirs) = next.and_then(|(_, dirs)| dirs.upgrade()) else { continue };
            if dirs.ended.load(Ordering::SeqCst) {
                continue;
            }
            if let Err(error) = dirs.make().await {
                let (alloc, task) = (dirs.alloc, &dirs.task.name);
                tracing::warn!(%alloc, %task, error, "the directories of a task are not made; they are when it asks for them");
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use ostler_model::clock::Clock;
    use ostler_model::rng::Rng;
    use ostler_state::StateStore;
    use ostler_testing::fake_driver::FakeNode;
    use ostler_testing::fixtures;

    fn late(root: &std::path::Path) -> Arc<LateDirs> {
        let store = StateStore::in_memory().unwrap();
        let node = NodeContext::with_doubles(root, &FakeNode::new(), store, Clock::default());
        let alloc = AllocId::new(Rng::from_seed(1).uuid());
        LateDirs::new(&node, alloc, &fixtures::task("web").unwrap().into(), true)
    }

    #[tokio::test]
    async fn the_directories_are_made_once_whoever_asks() {
        let root = tempfile::tempdir().unwrap();
        let dirs = late(root.path());
        let secrets = root.path().join(dirs.alloc.to_string()).join("web/secrets");
        assert!(dirs.are_awaited() && !secrets.exists());
        let maker = dirs.maker();
        let (first, second) = tokio::join!(maker(), dirs.make());
        assert_eq!((first, second), (Ok(()), Ok(())));
        assert!(!dirs.are_awaited() && secrets.exists());
        AllocDir::destroy(root.path(), dirs.alloc).unwrap();
    }

    #[tokio::test]
    async fn a_task_that_goes_on_has_its_directories_and_one_that_ended_never_does() {
        let root = tempfile::tempdir().unwrap();
        let queue = LateDirsQueue::default();
        // Its allocation is there until it is removed, and so are these.
        let ended = late(root.path());
        queue.add(&ended);
        ended.note_end();
        let lives = late(&root.path().join("b"));
        queue.add(&lives);
        while lives.are_awaited() {
            clock::sleep(TASK_DIRS_LATE / 10).await;
        }
        assert!(ended.are_awaited() && !root.path().join(ended.alloc.to_string()).exists());
        AllocDir::destroy(&root.path().join("b"), lives.alloc).unwrap();
    }
}

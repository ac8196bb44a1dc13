//! Allocations on a scripted node and virtual time: times below are exact.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod ending;
mod faults;
mod lifecycle;
mod running;
mod simulation;

use std::sync::Mutex;
use std::time::Duration;

use super::*;
use crate::model::alloc::Allocation;
use crate::model::job::{JobKind, Task};
use crate::model::time::Timestamp;
use crate::rng::Rng;
use crate::testing::fake_driver::FakeNode;
use crate::testing::fixtures;

pub(super) const SECOND: Duration = Duration::from_secs(1);

/// A node, a store, a directory: everything an allocation needs.
pub(super) struct Bench {
    pub node: FakeNode,
    pub store: StateStore,
    pub root: tempfile::TempDir,
    pub kind: JobKind,
    pub alloc_hooks: Vec<Arc<dyn AllocHook>>,
    pub task_hooks: Vec<Arc<dyn TaskHook>>,
}

impl Bench {
    pub fn new() -> Self {
        Self {
            node: FakeNode::new(),
            store: StateStore::in_memory().unwrap(),
            root: tempfile::tempdir().unwrap(),
            kind: JobKind::Batch,
            alloc_hooks: hooks::standard(),
            task_hooks: crate::task::hooks::standard(),
        }
    }

    pub fn run(&self, tasks: Vec<Task>) -> AllocHandle {
        self.run_allocation(fixtures::allocation(self.kind, tasks, &Rng::seeded(7)).unwrap())
    }

    pub fn run_allocation(&self, allocation: Allocation) -> AllocHandle {
        let config = AllocRunnerConfig {
            allocation: Arc::new(allocation),
            node: Arc::default(),
            alloc_root: self.root.path().to_owned(),
            drivers: Arc::new(self.node.clone()),
            workloads: Arc::new(self.node.clone()),
            devices: Arc::new(self.node.clone()),
            state: self.store.clone(),
            clock: Clock::fixed(Timestamp::from_nanos(1_000_000_000)),
            rng: Rng::seeded(1),
            kill_timeout_max: crate::limits::KILL_TIMEOUT_MAX,
        };
        spawn(config, self.alloc_hooks.clone(), &self.task_hooks).unwrap()
    }

    /// When the node was asked for this first, in virtual seconds.
    pub fn when(&self, what: &str) -> f64 {
        self.node
            .when(what)
            .unwrap_or_else(|| panic!("no {what:?} in {:?}", self.node.journal()))
            .as_secs_f64()
    }
}

pub(super) fn task(name: &str) -> Task {
    fixtures::task(name).unwrap()
}

pub(super) fn name(text: &str) -> TaskName {
    TaskName::new(text).unwrap()
}

/// Names of the events of a task.
pub(super) fn events(state: &AllocState, task: &str) -> Vec<&'static str> {
    state.tasks[task].events.iter().map(|e| e.kind.as_str()).collect()
}

/// Wait until the allocation looks like this.
pub(super) async fn until(handle: &AllocHandle, like: impl Fn(&AllocState) -> bool) -> AllocState {
    let mut state = handle.state();
    let found = clock::timeout(Duration::from_secs(86_400), state.wait_for(|s| like(s))).await;
    found.expect("the state never came").unwrap().clone()
}

pub(super) async fn until_running(handle: &AllocHandle, task: &str) {
    until(handle, |s| s.tasks[task].status == TaskStatus::Running).await;
}

/// A shared list tests write into from probes and hooks.
pub(super) type Seen<T> = Arc<Mutex<Vec<T>>>;

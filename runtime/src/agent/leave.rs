//! How the agent ends.
//!
//! ```text
//!   Drain ─► every allocation told to stop (durable) ─► wait ─ deadline ─► kill
//!     │
//!   LeaveTasks ─► owners end, states durable, native tasks run on ─► plugins ─► WASM tasks ─► state
//! ```
//! A drained allocation is stopped for good; its job is not. So the next start puts a new one in
//! its place, with the old one's data where the group says so.

use std::sync::PoisonError;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::task::TaskTracker;

use super::AgentHandle;
use super::proposal::stopped_copy;
use super::views::{LeaveMode, Stage};
use ostler_model::clock;
use ostler_state::{Key, StateError};

/// How long owners may take to end: they only write down what they know.
const LEAVE_WALL: Duration = Duration::from_secs(20);
/// How long allocations may take once their tasks were killed.
const KILLED_WALL: Duration = Duration::from_secs(10);

impl AgentHandle {
    /// Leave as `mode` says. Nothing of the agent runs when this returns, but for native tasks that
    /// are left.
    pub async fn leave(&self, mode: LeaveMode) {
        if let LeaveMode::Drain { deadline } = mode {
            self.drain(deadline).await;
        }
        self.shutdown().await;
    }

    /// Kill every task now, descendants of native ones included, without asking drivers. Their
    /// owners see the exits and come to their end.
    pub fn kill_tasks(&self) {
        self.0.services.processes.kill_all();
        self.0.services.wasm_tasks.kill_all();
    }

    /// Leave: stop asking plugins, end what still runs in this process (of an embedded agent:
    /// native tasks too), close the state. Jobs are stopped before, through their handles.
    pub async fn shutdown(&self) {
        self.0.stage.send_replace(Stage::Leaving);
        self.0.ended.cancel();
        // Starts that wait for a compiler would be waited for.
        self.0.services.sandbox.code().close();
        // Owners are made under this lock, and not any more once it was held.
        drop(clock::timeout(LEAVE_WALL, self.0.order.lock()).await);
        ended("work beside the agent", &self.0.beside).await;
        if !self.0.kill_with_agent {
            self.leave_allocs().await;
        }
        self.0.drivers.shutdown().await;
        self.0.devices.shutdown().await;
        if self.0.kill_with_agent {
            self.0.services.processes.kill_all();
        }
        self.0.services.wasm_tasks.kill_all();
        if let Some(follower) = self.0.follower.get() {
            follower.stop().await;
        }
        self.0.state.close().await;
        self.unowned_removed().await;
        // Those of an embedded agent: its directory is free when they are gone.
        self.leave_allocs().await;
        // Begun while the others ended.
        ended("work beside the agent", &self.0.beside).await;
    }

    /// Wait for the removal of directories without a record; it ends with the present one.
    async fn unowned_removed(&self) {
        let removal = self.0.unowned.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(removal) = removal else { return };
        if clock::timeout(LEAVE_WALL, removal).await.is_none() {
            tracing::warn!("a directory without a record is still being removed");
        }
    }

    /// Every owner ends, side by side; native tasks run on.
    async fn leave_allocs(&self) {
        let handles = self.registry().take_handles();
        let mut leaving: JoinSet<()> =
            handles.into_iter().map(|handle| async move { handle.shutdown().await }).collect();
        let all = async { while leaving.join_next().await.is_some() {} };
        if clock::timeout(LEAVE_WALL, all).await.is_none() {
            tracing::error!(left = leaving.len(), "owners of allocations did not end in time");
        }
        ended("what follows allocations", &self.0.followers).await;
    }

    /// Stop every allocation, in order, and kill what is left at the deadline.
    async fn drain(&self, deadline: Duration) {
        self.0.stage.send_replace(Stage::Leaving);
        let stopped = {
            let _order = self.0.order.lock().await;
            let now = self.0.clock.now();
            let copies: Vec<_> = {
                let mut registry = self.registry();
                let index = registry.next_index();
                let live = registry.live();
                let copies = live.iter().map(|alloc| {
                    stopped_copy(alloc, "alloc is stopped because the agent drains", index)
                });
                let copies: Vec<_> = copies.collect();
                for copy in &copies {
                    registry.put_alloc(copy.clone(), true, now);
                }
                copies
            };
            for copy in &copies {
                told(self.0.state.put_later(&Key::Alloc(copy.id), &**copy).await.map(drop));
            }
            copies
        };
        told(self.0.state.flush().await);
        for alloc in &stopped {
            self.tell_owner(alloc, false);
        }
        let owners: Vec<_> = {
            let registry = self.registry();
            let owner = |id| registry.alloc(id).and_then(|entry| entry.handle.clone());
            stopped.iter().filter_map(|alloc| owner(alloc.id)).collect()
        };
        let over = async {
            for owner in &owners {
                owner.wait_done().await;
            }
        };
        tokio::pin!(over);
        if clock::timeout(deadline, &mut over).await.is_some() {
            return;
        }
        tracing::warn!("allocations did not end within the deadline and are killed");
        self.kill_tasks();
        // A second stop gives up delays and poststop tasks.
        for owner in &owners {
            owner.stop("the agent's deadline to drain has passed").await;
        }
        self.kill_tasks();
        if clock::timeout(KILLED_WALL, over).await.is_none() {
            tracing::error!("allocations did not end although they were killed");
        }
    }
}

/// Wait until all of it has ended.
async fn ended(what: &str, tasks: &TaskTracker) {
    tasks.close();
    if clock::timeout(LEAVE_WALL, tasks.wait()).await.is_none() {
        tracing::warn!(left = tasks.len(), "{what} did not end in time");
    }
}

fn told(written: Result<(), StateError>) {
    if let Err(error) = written {
        tracing::error!(%error, "the stop of allocations is not on record; they are stopped all the same");
    }
}

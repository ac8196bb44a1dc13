//! How the agent ends.
//!
//! ```text
//!   Drain ─► every allocation told to stop (durable) ─► wait ─ deadline ─► kill
//!     │
//!   LeaveTasks ─► owners end, states durable, tasks run on ─► plugins ─► workers left ─► state
//! ```
//! A drained allocation is stopped for good; its job is not. So the next start puts a new one in
//! its place, with the old one's data where the group says so.

use std::sync::PoisonError;

use tokio_util::task::TaskTracker;

use super::AgentHandle;
use super::views::LeaveMode;
use ostler_control::machine::LEAVE_WALL_MAX;
use ostler_model::clock;

impl AgentHandle {
    /// Leave as `mode` says. Nothing of the agent runs when this returns, but for tasks that are
    /// left.
    pub async fn leave(&self, mode: LeaveMode) {
        if self.0.mode.serves()
            && let Err(error) = self.0.lock.ends()
        {
            tracing::debug!(%error, "that the agent ends is not in its lock file");
        }
        if let LeaveMode::Drain { deadline } = mode {
            self.0.control.drain(deadline).await;
        }
        self.shutdown().await;
    }

    /// Is it letting go of what it knows?
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.0.ended.is_cancelled()
    }

    /// Kill every task now, descendants of native ones included, without asking drivers. Their
    /// owners see the exits and come to their end.
    pub fn kill_tasks(&self) {
        self.0.services.processes.kill_all();
        self.0.services.wasm_tasks.kill_all();
    }

    /// Leave: stop asking plugins, end the tasks that are to end with the agent, close the state. Jobs are stopped before, through their handles.
    pub async fn shutdown(&self) {
        self.0.ended.cancel();
        // Or starts that wait for the compiler would hold up the end.
        self.0.services.sandbox.code().close();
        // Before changes are refused: this work may ask for one.
        ended("work beside the agent", &self.0.beside).await;
        self.0.control.leave().await;
        if !self.0.mode.ends_tasks() {
            self.0.control.leave_allocs().await;
        }
        self.0.drivers.shutdown().await;
        self.0.devices.shutdown().await;
        if self.0.mode.ends_tasks() {
            self.0.services.processes.kill_all();
        }
        self.0.services.wasm_tasks.leave().await;
        if let Some(follower) = self.0.follower.get() {
            follower.stop().await;
        }
        self.0.state.close().await;
        self.unowned_removed().await;
        // Where tasks end with the agent owners stayed until now. When they have ended its directory is
        // free.
        self.0.control.leave_allocs().await;
        self.owner_ended().await;
        // Work that was begun while the rest ended.
        ended("work beside the agent", &self.0.beside).await;
    }

    /// Wait for the end of the owner of jobs and allocations.
    async fn owner_ended(&self) {
        self.0.control.close().await;
        let owner = self.0.owner.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(owner) = owner else { return };
        if clock::timeout(LEAVE_WALL_MAX, owner).await.is_none() {
            tracing::warn!("the owner of jobs and allocations did not end in time");
        }
    }

    /// Wait for the removal of directories without a record; it ends with the present one.
    async fn unowned_removed(&self) {
        let removal = self.0.unowned.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(removal) = removal else { return };
        if clock::timeout(LEAVE_WALL_MAX, removal).await.is_none() {
            tracing::warn!("a directory without a record is still being removed");
        }
    }
}

/// Wait until all of it has ended.
async fn ended(what: &str, tasks: &TaskTracker) {
    tasks.close();
    if clock::timeout(LEAVE_WALL_MAX, tasks.wait()).await.is_none() {
        tracing::warn!(left = tasks.len(), "{what} did not end in time");
    }
}

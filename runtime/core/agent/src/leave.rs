//! The end of the agent.
//!
//! ```text
//!   Drain ─► every allocation told to stop (durable) ─► wait ─ deadline ─► kill
//!     │
//!   LeaveTasks ─► owners end, states durable, tasks run on ─► plugins ─► workers left ─► state
//! ```
//! A drained allocation is stopped for good, but its job is not. So the next start puts a new
//! allocation in its place, with the old one's data if the group says so.

use std::sync::PoisonError;

use tokio_util::task::TaskTracker;

use super::AgentHandle;
use super::views::LeaveMode;
use ostler_control::machine::LEAVE_WALL_MAX;
use ostler_model::clock;

impl AgentHandle {
    /// Leave as `mode` says. Nothing of the agent runs when this returns, except tasks that are
    /// left running.
    pub async fn leave(&self, mode: LeaveMode) {
        if self.0.mode.serves()
            && let Err(error) = self.0.lock.note_ending()
        {
            tracing::debug!(%error, "the lock file could not be marked with the agent's shutdown");
        }
        if let LeaveMode::Drain { deadline } = mode {
            self.0.control.drain(deadline).await;
        }
        self.shutdown().await;
    }

    /// Whether the agent is on its way to its end.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        self.0.ended.is_cancelled()
    }

    /// Kill every task now, descendants of native ones included, without asking drivers. The owners
    /// of the tasks see the exits and come to their end.
    pub fn kill_tasks(&self) {
        self.0.services.processes.kill_all();
        self.0.services.wasm_tasks.kill_all();
    }

    /// Leave: stop asking plugins, end the tasks that must end with the agent, and close the state.
    /// Jobs are stopped before this, through their handles.
    pub async fn shutdown(&self) {
        self.0.ended.cancel();
        // Otherwise starts that wait for the compiler would delay the end.
        self.0.services.sandbox.code().close();
        // This comes before changes are refused, because this work may still ask for one.
        wait_tasks_end("work beside the agent", &self.0.beside).await;
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
        self.0.context.state.close().await;
        self.wait_unowned_removal().await;
        // If tasks end with the agent, their owners stayed until now. When the owners have ended,
        // the agent's directory is free.
        self.0.control.leave_allocs().await;
        self.wait_owner_end().await;
        let late = "exit records of runs that have ended are still being removed; the next agent \
                    removes what is left";
        wait_in_time(self.0.services.processes.finish_removals(), late).await;
        // This waits for work that was started while the rest ended.
        wait_tasks_end("work beside the agent", &self.0.beside).await;
    }

    /// Wait for the end of the owner of jobs and allocations.
    async fn wait_owner_end(&self) {
        self.0.control.close().await;
        let owner = self.0.owner.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(owner) = owner else { return };
        wait_in_time(owner, "the owner of jobs and allocations did not end in time").await;
    }

    /// Wait for the removal of directories without a record. It ends with the directory that is
    /// being removed now.
    async fn wait_unowned_removal(&self) {
        let removal = self.0.unowned.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(removal) = removal else { return };
        wait_in_time(removal, "a directory without a record is still being removed").await;
    }
}

/// Wait, for a limited time, until something has ended. Logs `late` if it has not.
async fn wait_in_time(end: impl Future, late: &str) {
    if clock::timeout(LEAVE_WALL_MAX, end).await.is_none() {
        tracing::warn!("{late}");
    }
}

/// Wait, for a limited time, until all of these tasks have ended.
async fn wait_tasks_end(what: &str, tasks: &TaskTracker) {
    tasks.close();
    if clock::timeout(LEAVE_WALL_MAX, tasks.wait()).await.is_none() {
        tracing::warn!(left = tasks.len(), "{what} did not end in time");
    }
}

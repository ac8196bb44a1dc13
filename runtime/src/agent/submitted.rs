//! A submit under way: all of it starts, or nothing of it is left.

use super::AgentHandle;
use ostler_lifecycle::alloc::AllocHandle;
use ostler_model::ids::AllocId;

/// Allocations that were placed. Unless they are [kept](Self::keep), they are ended and removed:
/// what ran of them, what admission lent, and their records, so that the next start does not take
/// them for allocations of an agent that crashed.
pub(super) struct Submitted {
    agent: AgentHandle,
    allocs: Vec<AllocId>,
    handles: Vec<AllocHandle>,
}

impl Submitted {
    pub(super) fn new(agent: AgentHandle, allocs: impl Iterator<Item = AllocId>) -> Self {
        Self { agent, allocs: allocs.collect(), handles: Vec::new() }
    }

    /// One of them has an owner now.
    pub(super) fn started(&mut self, handle: AllocHandle) {
        self.handles.push(handle);
    }

    /// All of them run.
    pub(super) fn keep(mut self) {
        self.allocs.clear();
    }

    /// Remove them; nothing is left when this returns.
    pub(super) async fn undo(mut self) {
        let allocs = std::mem::take(&mut self.allocs);
        remove(self.agent.clone(), allocs, std::mem::take(&mut self.handles)).await;
    }
}

impl Drop for Submitted {
    /// The submit was given up in the middle: the same, without waiting for it.
    fn drop(&mut self) {
        let allocs = std::mem::take(&mut self.allocs);
        if allocs.is_empty() {
            return;
        }
        let removal = remove(self.agent.clone(), allocs, std::mem::take(&mut self.handles));
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(self.agent.0.beside.spawn_on(removal, &runtime)),
            // Dropped outside the runtime, at the end of the process: the next start closes them.
            Err(_) => drop(removal),
        }
    }
}

async fn remove(agent: AgentHandle, allocs: Vec<AllocId>, handles: Vec<AllocHandle>) {
    for handle in &handles {
        handle.destroy().await;
    }
    for id in &allocs {
        // Also of those never written: a write on its way must not come after this.
        if let Err(error) = agent.0.state.destroy_alloc(*id).await {
            tracing::error!(alloc = %id, %error, "records of a refused allocation not removed");
        }
        agent.release(*id).await;
    }
}

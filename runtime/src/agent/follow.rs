//! Watches allocations for the registry: every change is a visible one, and what an allocation
//! held is free when it is over.

use super::AgentHandle;
use crate::alloc::AllocHandle;

/// Follow an allocation until its owner is gone. Holds neither the agent nor the owner.
pub(super) fn spawn(agent: &AgentHandle, handle: &AllocHandle) {
    let (weak, id) = (std::sync::Arc::downgrade(&agent.0), handle.id());
    let (mut state, mut phase) = (handle.state(), handle.phase());
    tokio::spawn(async move {
        let mut over = false;
        loop {
            let gone = tokio::select! {
                changed = state.changed() => changed.is_err(),
                changed = phase.changed() => changed.is_err(),
            };
            let Some(agent) = weak.upgrade().map(AgentHandle) else { return };
            let finished = phase.borrow_and_update().finished();
            agent.registry().touch(id, agent.0.clock.now());
            if finished && !over {
                over = true;
                if let Some(entry) = agent.registry().alloc_mut(id) {
                    entry.over = true;
                }
                agent.release(id).await;
            }
            if gone {
                return;
            }
        }
    });
}

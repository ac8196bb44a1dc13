//! Watches allocations for the registry: every change is a visible one, and what an allocation
//! held is free when it is over.
//!
//! ```text
//!   state, phase (watch) ─► index grows
//!   phase finished       ─► ports, devices, memory free ─► blocked placements are tried again
//!                           job purged? ─► collected
//! ```

use std::sync::{Arc, Weak};

use super::{AgentHandle, Inner};
use ostler_lifecycle::alloc::{AllocHandle, AllocPhase};
use ostler_model::ids::AllocId;

/// Follow an allocation until its owner is gone. Holds neither the agent nor the owner.
pub(super) fn spawn(agent: &AgentHandle, handle: &AllocHandle) {
    let (weak, id) = (Arc::downgrade(&agent.0), handle.id());
    let (mut state, mut phase) = (handle.state(), handle.phase());
    drop(agent.0.followers.spawn(async move {
        let mut over = false;
        loop {
            state.borrow_and_update();
            let finished = is_over(*phase.borrow_and_update());
            if !seen(&weak, id, finished && !over).await {
                return;
            }
            over |= finished;
            let gone = tokio::select! {
                changed = state.changed() => changed.is_err(),
                changed = phase.changed() => changed.is_err(),
            };
            if gone {
                return;
            }
        }
    }));
}

/// Nothing of it runs or will run. One whose owner only left with the agent is not over.
const fn is_over(phase: AllocPhase) -> bool {
    matches!(phase, AllocPhase::Done | AllocPhase::Destroying | AllocPhase::Destroyed)
}

/// `false`: the agent is gone.
async fn seen(agent: &Weak<Inner>, id: AllocId, ended: bool) -> bool {
    let Some(agent) = agent.upgrade().map(AgentHandle) else { return false };
    agent.registry().touch(id, ended, agent.0.clock.now());
    if ended {
        // Boxed: it happens once, and each allocation has one of these.
        Box::pin(agent.release(id)).await;
        agent.collect_purged(|_| vec![id]);
        agent.0.wake.notify_one();
        if let Some(gc) = agent.0.gc.get() {
            gc.poke();
        }
    }
    true
}

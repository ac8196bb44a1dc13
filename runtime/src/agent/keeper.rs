//! Fills the places of jobs that could not be filled at once, as soon as something changes.
//!
//! ```text
//!   an allocation is over ─┐
//!   the node changed ──────┼─► every job with blocked placements ─► change(Fill)
//!   RETRY_WALL ────────────┘        (a port may have become free unseen)
//! ```

use std::sync::Arc;
use std::time::Duration;

use super::{AgentHandle, SubmitError};
use ostler_model::clock;

/// How often placements are tried again without a reason.
const RETRY_WALL: Duration = Duration::from_secs(5);

/// Keep at it until the agent ends.
pub(super) fn spawn(agent: &AgentHandle) {
    let weak = Arc::downgrade(&agent.0);
    let (ended, wake) = (agent.0.ended.clone(), Arc::clone(&agent.0.wake));
    let mut node = agent.0.node.changes();
    agent.beside(async move {
        loop {
            let Some(agent) = weak.upgrade().map(AgentHandle) else { return };
            let waiting = agent.fill().await;
            drop(agent);
            let again = async {
                if waiting {
                    clock::sleep(RETRY_WALL).await;
                } else {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                () = ended.cancelled() => return,
                () = wake.notified() => {}
                changed = node.next(), if waiting => if changed.is_err() { return },
                () = again => {}
            }
        }
    });
}

impl AgentHandle {
    /// Try blocked placements. Whether some are left.
    async fn fill(&self) -> bool {
        let jobs = self.registry().blocked();
        let mut waiting = false;
        for job in jobs {
            match self.fill_in_turn(&job).await {
                Ok(change) => {
                    waiting |= change.is_none_or(|change| !change.blocked().is_empty());
                }
                Err(SubmitError::Leaving) => return false,
                Err(error) => {
                    waiting = true;
                    tracing::warn!(%job, %error, "a placement of the job failed, tried again");
                }
            }
        }
        waiting
    }
}

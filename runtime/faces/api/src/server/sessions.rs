//! The sessions of commands inside tasks, and the places that they take.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use super::shares::{CallerShares, Share};
use ostler_model::limits::EXEC_HANDSHAKES_MAX;

/// The sessions of commands that clients run over the API.
pub(super) struct Sessions {
    pub places: CallerShares,
    /// The places of sessions whose clients have not yet said who they are.
    pub unknown: Arc<Semaphore>,
    /// The tasks of the sessions. Each outlives the HTTP connection that it came by.
    pub tasks: TaskTracker,
}

impl Default for Sessions {
    fn default() -> Self {
        let places = CallerShares::for_commands();
        let unknown = Arc::new(Semaphore::new(EXEC_HANDSHAKES_MAX));
        Self { places, unknown, tasks: TaskTracker::new() }
    }
}

/// The place that a session holds until it ends.
pub(super) enum SessionPlace {
    Unknown(#[expect(dead_code, reason = "free again when it is dropped")] OwnedSemaphorePermit),
    Known(#[expect(dead_code, reason = "free again when it is dropped")] Share),
}

//! Allocations of earlier agents get their owners back.
//!
//! ```text
//!  state file ─► Recorded: jobs, allocations, their tasks
//!    │ not kept ─► what lives of it is ended or held back (`held`), records removed or closed
//!    ▼ kept
//!  ControlHandle::restore ─► owners ─► every job: what is missing is placed
//! ```
//! An embedded agent restores nothing: it lets the kept allocations be, counts what they hold as
//! assigned, and ends the others.

use super::AgentHandle;
use ostler_control::recorded::Recorded;
use ostler_model::ids::RunId;
use ostler_state::StateError;

/// What an earlier agent left, and whose exit records are of interest.
pub(super) struct Left {
    pub(super) records: Recorded,
    /// Exit records of runs that are not here belong to nobody, but for those of these processes
    /// (pid, start time). Absent: any may be of interest.
    pub(super) sweep: Option<Vec<(u32, u64)>>,
}

impl AgentHandle {
    /// Take over what was found: its owners are made, and what is left to do for each job is done. An
    /// embedded agent only counts what the kept allocations hold.
    ///
    /// # Errors
    /// When records cannot be queued.
    pub(super) async fn restore(&self, left: Left) -> Result<(), StateError> {
        let Left { records, sweep } = left;
        let own = self.0.mode.serves();
        self.follow_events();
        if own {
            let known = records.runs().into_iter().collect();
            let unknown = self.0.services.wasm_tasks.sweep(&known);
            if unknown > 0 {
                tracing::warn!(unknown, "ended WASM tasks of runs that are not on record");
            }
        }
        // Before anything starts: the exit record of a new run must not be swept.
        if let Some(live) = sweep.filter(|_| own) {
            self.sweep_exits(records.runs(), live).await;
        }
        let (restored, owners) = records.into_restored(own);
        self.0.control.restore(restored, owners).await
    }

    /// Remove the exit records of runs that nobody knows.
    async fn sweep_exits(&self, known: Vec<RunId>, live: Vec<(u32, u64)>) {
        let processes = self.0.services.processes.clone();
        match tokio::task::spawn_blocking(move || processes.sweep(&known, &live)).await {
            Ok(Ok(0)) => {}
            Ok(Ok(removed)) => tracing::info!(removed, "exit records of unknown runs removed"),
            Ok(Err(error)) => tracing::warn!(%error, "exit records of unknown runs stay"),
            Err(error) => tracing::error!(%error, "exit records of unknown runs stay"),
        }
    }
}

//! Gives the allocations of earlier agents their owners back.
//!
//! ```text
//!  state file ─► NodeRecords: jobs, allocations, their tasks
//!    │ not kept ─► what lives of it is ended or held back (`held_runs`), records removed or closed
//!    ▼ kept
//!  ControlHandle::restore ─► owners ─► every job: what is missing is placed
//! ```
//! An embedded agent restores nothing: it leaves the kept allocations alone, counts what they hold
//! as assigned, and ends the others.

use std::collections::BTreeSet;
use std::time::Duration;

use super::AgentHandle;
use ostler_control::node_records::NodeRecords;
use ostler_model::clock;
use ostler_model::ids::RunId;
use ostler_model::limits::UNRELEASED_RECORDS_AFTER;
use ostler_state::StateError;

/// What an earlier agent left, and the processes whose exit records are still of interest.
pub(super) struct RestoredState {
    pub(super) records: NodeRecords,
    /// The processes, by pid and start time, that may still write exit records. Records of other
    /// runs that are not here belong to nobody. `None` means that any record may be of interest.
    pub(super) sweep: Option<Vec<(u32, u64)>>,
    /// The runs of WASM tasks that are alive. Those that are not on record are held back.
    pub(super) wasm_runs: BTreeSet<RunId>,
}

impl AgentHandle {
    /// Take over what was found: create the owners, and do what is left to do for each job. An
    /// embedded agent only counts what the kept allocations hold.
    ///
    /// # Errors
    /// When records cannot be queued.
    pub(super) async fn restore(&self, left: RestoredState) -> Result<(), StateError> {
        let RestoredState { records, sweep, wasm_runs } = left;
        let own = self.0.mode.serves();
        self.follow_events();
        if own && sweep.is_some() {
            let known = records.runs().into_iter().chain(wasm_runs).collect();
            let unknown = self.0.services.wasm_tasks.sweep(&known);
            if unknown > 0 {
                tracing::info!(
                    unknown,
                    "the ends of WASM tasks whose runs are not on record are dropped"
                );
            }
        }
        // This is done before anything starts, so that the exit record of a new run is not swept.
        if let Some(live) = sweep.filter(|_| own) {
            self.sweep_exits(records.runs(), live).await;
        }
        if own {
            self.forget_unreleased(records.intents());
        }
        let (restored, owners) = records.into_restored(own);
        self.0.control.restore(restored, owners).await
    }

    /// Remove the exit records of runs that an earlier agent held when it was killed: those that
    /// are there, and those of supervisors that are about to end.
    fn forget_unreleased(&self, runs: Vec<RunId>) {
        if runs.is_empty() {
            return;
        }
        let (processes, ended) = (self.0.services.processes.clone(), self.0.ended.clone());
        self.spawn_beside(async move {
            for pause in [Duration::ZERO, UNRELEASED_RECORDS_AFTER] {
                tokio::select! {
                    () = ended.cancelled() => return,
                    () = clock::sleep(pause) => {}
                }
                let (processes, runs) = (processes.clone(), runs.clone());
                let removed =
                    tokio::task::spawn_blocking(move || processes.forget_unreleased(&runs));
                if let Ok(Err(error)) = removed.await {
                    tracing::warn!(%error, "exit records of what was never let go stay");
                }
            }
        });
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

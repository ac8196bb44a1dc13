//! Many nodes of one cluster: what they cost its servers, and how long they are silent.
//!
//! ```text
//! ScalePlan ─► Cluster: agents and clients as they are shipped, one double of the servers, virtual time
//!                 └─ registration ─► idle ─► placing ─► running ─► drain ─► fail-over ─► ScaleReport
//! ```
//! The same plan gives the same calls. Memory and wall time differ, and a little the bytes of connections and what
//! a fail-over costs: yamux sends signs of life by the machine's clock, which no simulation moves.
//!
//! Start reading at `scale/phases.rs`.

mod cluster;
mod phases;
pub mod picture;
pub mod report;

use std::path::Path;

use ostler_model::clock::{self, Stopwatch};

use report::ScaleReport;

/// How large a cluster is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScalePlan {
    /// Nodes, all started at once.
    pub nodes: usize,
    /// Allocations, all placed at once.
    pub allocs: usize,
    /// What is random comes from it.
    pub seed: u64,
}

/// Play it in a directory of its own.
///
/// # Errors
/// When nodes do not start, or do not do in time what the servers want.
pub fn play(plan: &ScalePlan, dir: &Path) -> Result<ScaleReport, String> {
    // Before the time is virtual.
    let begun = Stopwatch::start();
    clock::simulate();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .map_err(|error| error.to_string())?;
    let mut report = runtime.block_on(phases::play(plan, dir))?;
    report.measured.wall = begun.elapsed();
    Ok(report)
}

//! Remembers runs that have ended. Pure.

use std::collections::{HashSet, VecDeque};

use ostler_model::ids::RunId;

/// How many ended runs are remembered. A call that was given up is over within a tick or two, long
/// before this many other runs end.
const ENDED_RUNS_MAX: usize = 16_384;

/// Runs that were killed or forgotten. A driver call that was given up may still be on its way to
/// start something in such a run, which would belong to nobody.
#[derive(Debug, Default)]
pub struct EndedRuns {
    runs: HashSet<RunId>,
    /// The same runs, oldest first.
    in_order: VecDeque<RunId>,
}

impl EndedRuns {
    /// Has this run ended?
    #[must_use]
    pub fn has(&self, run: &RunId) -> bool {
        self.runs.contains(run)
    }

    /// Note that a run has ended.
    pub fn add(&mut self, run: &RunId) {
        if !self.runs.insert(run.clone()) {
            return;
        }
        self.in_order.push_back(run.clone());
        if self.in_order.len() > ENDED_RUNS_MAX
            && let Some(oldest) = self.in_order.pop_front()
        {
            self.runs.remove(&oldest);
        }
    }
}

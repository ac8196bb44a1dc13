//! Runs that are over. Pure.

use std::collections::{HashSet, VecDeque};

use ostler_model::ids::RunId;

/// Ended runs remembered. A call that was given up is over within a tick or two, long before this
/// many others end.
const ENDED_RUNS_MAX: usize = 16_384;

/// Runs that were killed or forgotten: a driver call that was given up may still be on its way to
/// start something in one, which would belong to nobody.
#[derive(Debug, Default)]
pub struct EndedRuns {
    runs: HashSet<RunId>,
    /// The same, oldest first.
    in_order: VecDeque<RunId>,
}

impl EndedRuns {
    /// Is it over?
    #[must_use]
    pub fn has(&self, run: &RunId) -> bool {
        self.runs.contains(run)
    }

    /// It is over from here on.
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

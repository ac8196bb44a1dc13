//! The shortest plan that fails still.

use crate::plan::Plan;

/// Leave out steps, many at once and then one by one, as long as `fails` says so.
#[must_use]
pub fn shrink(plan: &Plan, fails: impl Fn(&Plan) -> bool) -> Plan {
    let mut best = plan.clone();
    let mut size = best.steps.len().div_ceil(2).max(1);
    loop {
        let mut at = 0;
        let mut shorter = false;
        while at < best.steps.len() {
            let mut trial = best.clone();
            let end = at.saturating_add(size).min(trial.steps.len());
            trial.steps.drain(at..end);
            if fails(&trial) {
                best = trial;
                shorter = true;
            } else {
                at = end;
            }
        }
        if size == 1 && !shorter {
            return best;
        }
        size = size.div_ceil(2).max(1);
    }
}

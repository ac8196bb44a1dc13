//! The shortest list of steps that fails still.

/// Leave out steps, many at once and then one by one, as long as `fails` says so.
#[must_use]
pub fn shrink<T: Clone>(steps: &[T], fails: impl Fn(&[T]) -> bool) -> Vec<T> {
    let mut best = steps.to_vec();
    let mut size = best.len().div_ceil(2).max(1);
    loop {
        let mut at = 0;
        let mut shorter = false;
        while at < best.len() {
            let mut trial = best.clone();
            let end = at.saturating_add(size).min(trial.len());
            trial.drain(at..end);
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

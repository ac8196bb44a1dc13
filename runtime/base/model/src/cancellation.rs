//! Cancellation of work: whether anybody still waits for its result. Code that computes for
//! untrusted clients checks this now and then, and stops when nobody waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The side of the work. By default it is never cancelled.
#[derive(Clone, Debug, Default)]
pub struct CancelFlag(Option<Arc<AtomicBool>>);

/// The side of the waiter. When it is dropped, the work is cancelled.
#[derive(Debug)]
pub struct CancelGuard(Arc<AtomicBool>);

impl CancelFlag {
    /// Make both sides. The work is wanted until the guard is dropped.
    #[must_use]
    pub fn new_pair() -> (CancelGuard, Self) {
        let given_up = Arc::new(AtomicBool::new(false));
        (CancelGuard(Arc::clone(&given_up)), Self(Some(given_up)))
    }

    /// Whether nobody waits for the result any more.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.as_ref().is_some_and(|given_up| given_up.load(Ordering::Relaxed))
    }
}

impl Drop for CancelGuard {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_wanted_for_as_long_as_somebody_waits() {
        let (waiter, wanted) = CancelFlag::new_pair();
        let theirs = wanted.clone();
        assert!(!theirs.is_cancelled());
        drop(waiter);
        assert!(theirs.is_cancelled() && wanted.is_cancelled());
        assert!(!CancelFlag::default().is_cancelled());
    }
}

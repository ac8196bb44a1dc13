//! Whether anybody still waits for what is computed: who computes for strangers looks now and then, and stops when
//! nobody does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// For who computes. By default somebody always waits.
#[derive(Clone, Debug, Default)]
pub struct Awaited(Option<Arc<AtomicBool>>);

/// Held by who waits: when it is dropped, nobody does any more.
#[derive(Debug)]
pub struct Waiter(Arc<AtomicBool>);

impl Awaited {
    /// For as long as the other is held.
    #[must_use]
    pub fn while_held() -> (Waiter, Self) {
        let given_up = Arc::new(AtomicBool::new(false));
        (Waiter(Arc::clone(&given_up)), Self(Some(given_up)))
    }

    /// Does nobody wait any more?
    #[must_use]
    pub fn is_given_up(&self) -> bool {
        self.0.as_ref().is_some_and(|given_up| given_up.load(Ordering::Relaxed))
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_wanted_for_as_long_as_somebody_waits() {
        let (waiter, wanted) = Awaited::while_held();
        let theirs = wanted.clone();
        assert!(!theirs.is_given_up());
        drop(waiter);
        assert!(theirs.is_given_up() && wanted.is_given_up());
        assert!(!Awaited::default().is_given_up());
    }
}

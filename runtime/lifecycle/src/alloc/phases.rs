//! Where the owner of an allocation is, for several who wait for it.
//!
//! As a `tokio::sync::watch`, which wakes those who wait in random order: here it is the order in which
//! they began to wait, so that a simulation plays the same each time.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

use super::AllocPhase;

/// The owner is gone: its phase is the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the owner of the allocation is gone")]
pub struct OwnerGone;

/// The owner's end.
pub(super) struct Phases {
    // Before the bell: who is woken by its end finds the owner gone.
    phase: watch::Sender<AllocPhase>,
    bell: Bell,
}

/// Rings when it is dropped.
struct Bell(Arc<Notify>);

impl Drop for Bell {
    fn drop(&mut self) {
        self.0.notify_waiters();
    }
}

impl Phases {
    pub(super) fn new(phase: AllocPhase) -> (Self, PhaseWatch) {
        let (phase, seen) = watch::channel(phase);
        let bell = Arc::new(Notify::new());
        (Self { phase, bell: Bell(Arc::clone(&bell)) }, PhaseWatch { phase: seen, bell })
    }

    pub(super) fn set(&self, phase: AllocPhase) {
        if self.phase.send_if_modified(|known| std::mem::replace(known, phase) != phase) {
            self.bell.0.notify_waiters();
        }
    }
}

/// Follows the phase of an allocation.
#[derive(Clone, Debug)]
pub struct PhaseWatch {
    phase: watch::Receiver<AllocPhase>,
    bell: Arc<Notify>,
}

impl PhaseWatch {
    /// The phase now.
    #[must_use]
    pub fn borrow(&self) -> watch::Ref<'_, AllocPhase> {
        self.phase.borrow()
    }

    /// The phase now; it counts as seen.
    pub fn borrow_and_update(&mut self) -> watch::Ref<'_, AllocPhase> {
        self.phase.borrow_and_update()
    }

    /// Wait until the phase is another one than was seen last; it counts as seen.
    ///
    /// # Errors
    /// When it was seen and the owner is gone.
    pub async fn changed(&mut self) -> Result<(), OwnerGone> {
        loop {
            // Registered before the look, so that no change is missed.
            let heard = self.bell.notified();
            let gone = self.phase.has_changed().is_err();
            if self.phase.borrow().has_changed() {
                self.phase.mark_unchanged();
                return Ok(());
            }
            if gone {
                return Err(OwnerGone);
            }
            heard.await;
        }
    }

    /// Wait until the phase is such a one; it counts as seen.
    ///
    /// # Errors
    /// When it is not and the owner is gone.
    pub async fn wait_for(&mut self, such: impl Fn(&AllocPhase) -> bool) -> Result<(), OwnerGone> {
        loop {
            let seen = *self.phase.borrow_and_update();
            if such(&seen) {
                return Ok(());
            }
            self.changed().await?;
        }
    }
}

//! The phase of an allocation's owner, for several followers that wait for it.

use crate::watch;

use super::AllocPhase;

/// The owner is gone, so its phase is final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the owner of the allocation is gone")]
pub struct OwnerGone;

/// The end that the owner sets its phase by.
pub(super) struct Phases(watch::Publisher<AllocPhase>);

impl Phases {
    pub(super) fn new(phase: AllocPhase) -> (Self, PhaseWatch) {
        let (phase, seen) = watch::channel(phase);
        (Self(phase), PhaseWatch(seen))
    }

    pub(super) fn set(&self, phase: AllocPhase) {
        self.0.send_if_modified(|known| std::mem::replace(known, phase) != phase);
    }
}

/// Follows the phase of an allocation.
#[derive(Clone, Debug)]
pub struct PhaseWatch(watch::Subscriber<AllocPhase>);

impl PhaseWatch {
    /// The present phase.
    #[must_use]
    pub fn borrow(&self) -> watch::Ref<'_, AllocPhase> {
        self.0.borrow()
    }

    /// The present phase; it counts as seen from now on.
    pub fn borrow_and_update(&mut self) -> watch::Ref<'_, AllocPhase> {
        self.0.borrow_and_update()
    }

    /// Wait until the phase differs from the one that was seen last, and mark it as seen.
    ///
    /// # Errors
    /// When the phase was seen and the owner is gone.
    pub async fn changed(&mut self) -> Result<(), OwnerGone> {
        self.0.changed().await.map_err(|_gone| OwnerGone)
    }

    /// Wait until the phase satisfies `such`, and mark it as seen.
    ///
    /// # Errors
    /// When the phase does not satisfy `such` and the owner is gone.
    pub async fn wait_for(&mut self, such: impl Fn(&AllocPhase) -> bool) -> Result<(), OwnerGone> {
        self.0.wait_for(such).await.map(drop).map_err(|_gone| OwnerGone)
    }
}

//! Where the owner of an allocation is, for several who wait for it.

use crate::watch;

use super::AllocPhase;

/// The owner is gone: its phase is the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the owner of the allocation is gone")]
pub struct OwnerGone;

/// The owner's end.
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
    /// The phase now.
    #[must_use]
    pub fn borrow(&self) -> watch::Ref<'_, AllocPhase> {
        self.0.borrow()
    }

    /// The phase now; it counts as seen.
    pub fn borrow_and_update(&mut self) -> watch::Ref<'_, AllocPhase> {
        self.0.borrow_and_update()
    }

    /// Wait until the phase is another one than was seen last; it counts as seen.
    ///
    /// # Errors
    /// When it was seen and the owner is gone.
    pub async fn changed(&mut self) -> Result<(), OwnerGone> {
        self.0.changed().await.map_err(|_gone| OwnerGone)
    }

    /// Wait until the phase is such a one; it counts as seen.
    ///
    /// # Errors
    /// When it is not and the owner is gone.
    pub async fn wait_for(&mut self, such: impl Fn(&AllocPhase) -> bool) -> Result<(), OwnerGone> {
        self.0.wait_for(such).await.map(drop).map_err(|_gone| OwnerGone)
    }
}

//! The saved state of an allocation: follows the task states while it lives, and is durable before
//! its end is told.

use super::super::machine::AllocPhase;
use super::{Call, Runner};
use crate::model::ids::AllocId;
use crate::model::saved::SavedAllocState;
use crate::state::{Key, StateStore};
use crate::task::handle::durable;

impl Runner {
    /// Write the saved state when it differs from the one written last, one write at a time, so
    /// that an older one never follows a newer one.
    pub(super) fn save_if_due(&mut self) {
        let last = self.cleaned && self.machine.phase() == AllocPhase::Cleaning;
        let now = SavedAllocState::from(self.machine.public());
        if self.saving || !last && self.saved.as_ref() == Some(&now) {
            return;
        }
        self.saving = true;
        self.saved = Some(now.clone());
        let (store, id) = (self.store.clone(), self.scope.allocation.id);
        let call = if last { Call::SaveLast } else { Call::Save };
        self.call(call, async move {
            save(&store, id, &now, last).await;
            Ok(())
        });
    }
}

/// Write the saved state; durable when this returns if it is the last one.
async fn save(store: &StateStore, id: AllocId, state: &SavedAllocState, last: bool) {
    let key = Key::AllocState(id);
    let put = async {
        if last { store.put(&key, state).await } else { store.put_later(&key, state).await }
    };
    match durable(put).await {
        Some(Ok(_)) => {}
        Some(Err(error)) => tracing::error!(alloc = %id, %error, "state not written"),
        None => tracing::error!(alloc = %id, "state not written in time"),
    }
}

//! The saved state of an allocation: follows the task states while it lives, and is durable before
//! its end is told. The verdict on its health is durable before it is told.

use super::{Call, Runner};
use crate::alloc::machine::AllocPhase;
use crate::model::ids::AllocId;
use crate::model::saved::{DeploymentStatus, SavedAllocState};
use crate::state::{Key, StateStore};
use crate::task::handle::durable;

impl Runner {
    /// Write the saved state when it differs from the one written last, one write at a time, so
    /// that an older one never follows a newer one.
    pub(super) fn save_if_due(&mut self) {
        let phase = self.machine.phase();
        // Whatever is told of the end is durable by then, and what is removed is not written again.
        if phase.finished() {
            return;
        }
        let last = self.cleaned && phase == AllocPhase::Cleaning && !self.last_saved;
        let public = self.machine.public();
        let now = SavedAllocState {
            client_status: public.client_status,
            client_description: public.client_description.clone(),
            forced: self.machine.forced(),
            finished: self.cleaned,
        };
        if self.saving || !last && self.saved.as_ref() == Some(&now) {
            return;
        }
        // Derived from nothing: a crash must not take it back.
        let newly_forced = now.forced && !self.saved.as_ref().is_some_and(|saved| saved.forced);
        self.saving = true;
        self.saved = Some(now.clone());
        let (store, id) = (self.store.clone(), self.scope.allocation.id);
        let call = if last { Call::SaveLast } else { Call::Save };
        self.call(call, async move {
            save(&store, id, &now, last || newly_forced).await;
            Ok(())
        });
    }

    /// Write the verdict on the health.
    pub(super) fn save_health(&mut self, verdict: DeploymentStatus) {
        let (store, id) = (self.store.clone(), self.scope.allocation.id);
        self.call(Call::SaveHealth, async move {
            let key = Key::DeploymentStatus(id);
            match durable(store.put(&key, &verdict)).await {
                Some(Ok(_)) => {}
                Some(Err(error)) => tracing::error!(alloc = %id, %error, "verdict not written"),
                None => tracing::error!(alloc = %id, "verdict not written in time"),
            }
            Ok(())
        });
    }
}

/// Write the saved state, durable when this returns if asked.
async fn save(store: &StateStore, id: AllocId, state: &SavedAllocState, lasting: bool) {
    let key = Key::AllocState(id);
    let put = async {
        if lasting { store.put(&key, state).await } else { store.put_later(&key, state).await }
    };
    match durable(put).await {
        Some(Ok(_)) => {}
        Some(Err(error)) => tracing::error!(alloc = %id, %error, "state not written"),
        None => tracing::error!(alloc = %id, "state not written in time"),
    }
}

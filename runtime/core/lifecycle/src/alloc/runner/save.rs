//! Writes the saved state of an allocation. It follows the task states while the allocation lives,
//! and is durable before the end is published. The verdict on the health is durable before it is
//! published. Where the store refuses, both are written again until they are durable. The next
//! agent would not know of an end that is not durable: it would run the allocation again, perhaps
//! beside the one that has its place by then.

use std::time::Duration;

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::{AllocCall, AllocCallFailure, AllocRunnerLoop};
use crate::alloc::machine::AllocPhase;
use crate::task::handle::await_write;
use ostler_model::clock;
use ostler_model::limits::STATE_LASTING_PAUSES;
use ostler_model::saved::{DeploymentStatus, SavedAllocState};
use ostler_state::records::{AllocStateKey, DeploymentStatusKey, KeyFor};
use ostler_state::{StateError, StateStore};

impl AllocRunnerLoop {
    /// Write the saved state when it differs from the one written last. One write runs at a time,
    /// so that an older state never follows a newer one.
    pub(super) fn save_if_due(&mut self) {
        let phase = self.machine.phase();
        // The end is durable by now, and records of a removed allocation must not be written again.
        if phase.has_ended() {
            return;
        }
        let last = self.cleaned && phase == AllocPhase::Cleaning && !self.last_saved;
        let (public, forced) = (self.machine.public(), self.machine.is_forced());
        let same = |saved: &SavedAllocState| {
            saved.client_status == public.client_status
                && saved.client_description == public.client_description
                && (saved.forced, saved.finished) == (forced, self.cleaned)
        };
        if self.saving || !last && self.saved.as_ref().is_some_and(same) {
            return;
        }
        let now = SavedAllocState {
            client_status: public.client_status,
            client_description: public.client_description.clone(),
            forced,
            finished: self.cleaned,
        };
        // A forced status cannot be derived from other records, so it must be durable at once.
        let newly_forced = now.forced && !self.saved.as_ref().is_some_and(|saved| saved.forced);
        self.saving = true;
        self.saved = Some(now.clone());
        let (store, id) = (self.scope.node.state.clone(), self.scope.allocation.id);
        let key = AllocStateKey::of(id);
        if last {
            let closing = self.closing.clone();
            self.call(AllocCall::SaveLast, async move {
                write_until_durable(&store, &key, &now, &closing)
                    .await
                    .map_err(AllocCallFailure::from)
            });
        } else {
            self.call(AllocCall::Save, async move {
                let written = async {
                    if newly_forced {
                        store.put(&key, &now).await
                    } else {
                        store.put_later(&key, &now).await
                    }
                };
                match await_write(written).await {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => tracing::error!(key = %*key, %error, "state not written"),
                    None => tracing::error!(key = %*key, "state not written in time"),
                }
                Ok(())
            });
        }
    }

    /// Write the verdict on the health.
    pub(super) fn save_health(&mut self, verdict: DeploymentStatus) {
        let key = DeploymentStatusKey::of(self.scope.allocation.id);
        let (store, closing) = (self.scope.node.state.clone(), self.closing.clone());
        self.call(AllocCall::SaveHealth, async move {
            write_until_durable(&store, &key, &verdict, &closing)
                .await
                .map_err(AllocCallFailure::from)
        });
    }
}

/// Write a value until it is durable. A store that refuses is asked again until `closing` is
/// cancelled, or until the store itself is closed. An error means that the value is not durable.
async fn write_until_durable<T: Serialize + Sync>(
    store: &StateStore,
    key: &(impl KeyFor<T> + Sync),
    value: &T,
    closing: &CancellationToken,
) -> Result<(), String> {
    let mut pauses = STATE_LASTING_PAUSES.into_iter();
    let mut pause = Duration::ZERO;
    loop {
        // Read before the try: when `closing` comes during the pause, one more try is made.
        let last = closing.is_cancelled();
        let (error, closed) = match await_write(store.put(key, value)).await {
            Some(Ok(_)) => return Ok(()),
            Some(Err(error)) => (error.to_string(), matches!(error, StateError::Closed { .. })),
            None => ("the disk did not answer in time".to_owned(), false),
        };
        if last || closed {
            tracing::error!(key = %key.record_key(), %error, "not written: what it says of the allocation's end is lost with the agent");
            return Err(error);
        }
        pause = pauses.next().unwrap_or(pause);
        tracing::error!(key = %key.record_key(), %error, "not written, and not told as done before it is; tried again in {pause:?}");
        tokio::select! {
            biased;
            () = clock::sleep(pause) => {}
            () = closing.cancelled() => {}
        }
    }
}

//! The states of allocations that servers have acknowledged, on record.

use std::collections::BTreeMap;

use ostler_model::alloc::AllocState;
use ostler_model::ids::AllocId;
use ostler_model::saved::AcknowledgedState;
use ostler_state::records::AcknowledgedStateKey;
use ostler_state::{StateError, StateStore};

use super::ControlHandle;
use super::node_records::skip_unreadable;

/// The state of an allocation in the form in which servers are told it.
#[must_use]
pub fn acknowledged_state(state: &AllocState) -> AcknowledgedState {
    let tasks = state.tasks.iter().map(|(name, state)| (name.clone(), (**state).clone()));
    AcknowledgedState {
        client_status: state.client_status,
        client_description: state.client_description.clone(),
        deployment_status: state.health.clone(),
        network_status: state.network.as_deref().cloned(),
        tasks: tasks.collect(),
    }
}

/// Record what servers have acknowledged. The record may lag: a state that is lost is
/// told once more.
///
/// # Errors
/// When the store does not take the records.
pub async fn keep_acknowledged(
    control: &ControlHandle,
    state: &StateStore,
    told: &BTreeMap<AllocId, AcknowledgedState>,
) -> Result<(), StateError> {
    for (id, known) in told {
        // An allocation that is gone gets no record again.
        if control.alloc(*id).is_some() {
            state.put_later(&AcknowledgedStateKey::of(*id), known).await?;
        }
    }
    Ok(())
}

/// Read what servers have acknowledged of these allocations.
#[must_use]
pub fn read_acknowledged(
    state: &StateStore,
    of: &[AllocId],
) -> BTreeMap<AllocId, AcknowledgedState> {
    let read = |id: &AllocId| {
        let known = state.get(&AcknowledgedStateKey::of(*id));
        Some((*id, skip_unreadable(known).ok().flatten()?))
    };
    of.iter().filter_map(read).collect()
}

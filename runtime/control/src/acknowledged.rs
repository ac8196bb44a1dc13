//! What servers have acknowledged of allocations that they placed, on record.

use std::collections::BTreeMap;

use ostler_model::alloc::AllocState;
use ostler_model::ids::AllocId;
use ostler_model::saved::AcknowledgedState;
use ostler_state::{Key, StateError, StateStore};

use super::ControlHandle;
use super::recorded::readable;

/// An allocation's state, as servers are told of it.
#[must_use]
pub fn state_of(state: &AllocState) -> AcknowledgedState {
    let tasks = state.tasks.iter().map(|(name, state)| (name.clone(), (**state).clone()));
    AcknowledgedState {
        client_status: state.client_status,
        client_description: state.client_description.clone(),
        deployment_status: state.health.clone(),
        network_status: state.network.as_deref().cloned(),
        tasks: tasks.collect(),
    }
}

/// Remember what servers have acknowledged. It may lag: what is lost is told once more.
///
/// # Errors
/// When the store does not take it.
pub async fn keep(
    control: &ControlHandle,
    state: &StateStore,
    told: &BTreeMap<AllocId, AcknowledgedState>,
) -> Result<(), StateError> {
    for (id, known) in told {
        // One that is gone gets no record again.
        if control.alloc(*id).is_some() {
            state.put_later(&Key::AcknowledgedState(*id), known).await?;
        }
    }
    Ok(())
}

/// What servers have acknowledged of these allocations.
#[must_use]
pub fn read(state: &StateStore, of: &[AllocId]) -> BTreeMap<AllocId, AcknowledgedState> {
    let read = |id: &AllocId| {
        let known = state.get(&Key::AcknowledgedState(*id));
        Some((*id, readable(known).ok().flatten()?))
    };
    of.iter().filter_map(read).collect()
}

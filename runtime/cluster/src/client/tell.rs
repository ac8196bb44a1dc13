//! What servers hear of allocations.

use std::collections::{BTreeMap, BTreeSet};

use ostler_agent::AllocView;
use ostler_model::causes;
use ostler_model::clock;
use ostler_model::ids::AllocId;
use ostler_model::limits::CLUSTER_TELL_TICK;
use ostler_model::saved::AcknowledgedState;

use super::links::Line;
use super::{Client, Pauses};
use crate::described;
use crate::updates::UpdateBatch;

pub(super) async fn run(client: &Client) {
    client.is_registered().await;
    let mut pauses = Pauses::new(&client.options.rng);
    let mut changes = client.agent.changes();
    let mut seen = BTreeMap::new();
    loop {
        changes.borrow_and_update();
        look(client, &mut seen);
        if client.updates().is_quiet() {
            tokio::select! {
                changed = changes.changed() => if changed.is_err() {
                    return;
                },
                () = client.news.notified() => {}
            }
        }
        clock::sleep(CLUSTER_TELL_TICK).await;
        let Some(batch) = client.updates().tick() else { continue };
        match send(client, &batch).await {
            Ok(()) => {
                pauses.reset();
                let told = client.updates().sent(true);
                if let Err(error) = client.agent.acknowledge(&told).await {
                    tracing::warn!(%error, "what the servers know is not on record: it is told again");
                }
            }
            Err(error) => {
                client.updates().sent(false);
                tracing::warn!(error, "the servers do not hear of allocations");
                pauses.pause().await;
            }
        }
    }
}

/// Find what has changed since the last look.
fn look(client: &Client, seen: &mut BTreeMap<AllocId, u64>) {
    let here = client.agent.assigned();
    let ids: BTreeSet<_> = here.iter().map(|alloc| alloc.allocation.id).collect();
    seen.retain(|id, _| ids.contains(id));
    for alloc in here {
        let (id, index) = (alloc.allocation.id, alloc.modify_index);
        if seen.insert(id, index) != Some(index) {
            client.updates().changed(id, state(alloc.view()));
        }
    }
}

fn state(view: AllocView) -> AcknowledgedState {
    let tasks = view.state.tasks.iter().map(|(name, state)| (name.clone(), (**state).clone()));
    AcknowledgedState {
        client_status: view.state.client_status,
        client_description: view.state.client_description.clone(),
        deployment_status: view.state.health.clone(),
        network_status: None,
        tasks: tasks.collect(),
    }
}

async fn send(client: &Client, batch: &UpdateBatch) -> Result<(), String> {
    let calls = client.links.calls(Line::Tell).await.map_err(|error| causes::chain(&error))?;
    let told = batch.iter().map(|(id, state)| described::alloc(*id, client.node, state));
    calls.update_allocs(told.collect()).await.map_err(|error| error.to_string())
}

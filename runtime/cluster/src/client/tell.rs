//! What servers hear of allocations.

use std::collections::BTreeMap;

use ostler_model::causes;
use ostler_model::clock::{self, Stopwatch};
use ostler_model::ids::AllocId;
use ostler_model::limits::CLUSTER_TELL_TICK;

use super::links::Line;
use super::{Client, Pauses};
use crate::described;
use crate::updates::UpdateBatch;

pub(super) async fn run(client: &Client) {
    client.caught_up().await;
    let (mut pauses, time) = (Pauses::new(&client.options.rng), Stopwatch::start());
    let mut changes = client.node.changes();
    let mut seen = BTreeMap::new();
    loop {
        changes.borrow_and_update();
        ends_told(client, look(client, &mut seen)).await;
        let (quiet, doubt) = {
            let updates = client.updates();
            (updates.is_quiet(), updates.doubt_ends())
        };
        if quiet {
            let doubt = async {
                match doubt {
                    Some(until) => clock::sleep(until.saturating_sub(time.elapsed())).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                changed = changes.changed() => if changed.is_err() {
                    return;
                },
                () = client.news.notified() => {}
                () = doubt => {}
            }
        }
        clock::sleep(CLUSTER_TELL_TICK).await;
        let Some(batch) = client.updates().tick(time.elapsed()) else { continue };
        match send(client, &batch).await {
            Ok(()) => {
                pauses.reset();
                let told = client.updates().sent(true, time.elapsed());
                ends_told(client, told.keys().copied().collect()).await;
                if let Err(error) = client.node.acknowledge(&told).await {
                    tracing::warn!(%error, "what the servers know is not on record: it is told again");
                }
            }
            Err(error) => {
                client.updates().sent(false, time.elapsed());
                tracing::warn!(error, "the servers do not hear of allocations");
                pauses.pause().await;
            }
        }
    }
}

/// Find what has changed since the last look, and queue what of it servers do not know.
fn look(client: &Client, seen: &mut BTreeMap<AllocId, u64>) -> Vec<AllocId> {
    let here: BTreeMap<_, _> = client.node.assigned().into_iter().collect();
    seen.retain(|id, _| here.contains_key(id));
    let mut changed = Vec::new();
    for (id, index) in here {
        if seen.insert(id, index) != Some(index)
            && let Some(state) = client.node.state(id)
        {
            client.updates().changed(id, state);
            changed.push(id);
        }
    }
    changed
}

/// Of these, those of which servers know that they have ended may be collected.
async fn ends_told(client: &Client, mut allocs: Vec<AllocId>) {
    allocs.retain(|id| client.updates().is_end_known(*id));
    if !allocs.is_empty() {
        client.node.ends_told(allocs).await;
    }
}

async fn send(client: &Client, batch: &UpdateBatch) -> Result<(), String> {
    let calls = client.calls(Line::Tell).await.map_err(|error| causes::chain(&error))?;
    let told = batch.iter().map(|(id, state)| described::alloc(*id, client.id, state));
    calls.update_allocs(told.collect()).await.map_err(|error| error.to_string())
}

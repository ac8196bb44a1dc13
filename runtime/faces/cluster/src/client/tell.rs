//! Reports the states of allocations to the servers.

use std::collections::BTreeMap;

use ostler_model::causes;
use ostler_model::clock::{self, Stopwatch};
use ostler_model::ids::AllocId;
use ostler_model::limits::CLUSTER_TELL_TICK;

use super::links::LinkPurpose;
use super::{ClusterClient, RetryPauses};
use crate::reports;
use crate::updates::UpdateBatch;

pub(super) async fn run(client: &ClusterClient) {
    client.wait_caught_up().await;
    let (mut pauses, time) = (RetryPauses::new(&client.options.rng), Stopwatch::start());
    let mut changes = client.node.changes();
    let mut seen = BTreeMap::new();
    loop {
        changes.borrow_and_update();
        report_known_ends(client, queue_changes(client, &mut seen)).await;
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
                let told = client.updates().finish_call(true, time.elapsed());
                report_known_ends(client, told.keys().copied().collect()).await;
                if let Err(error) = client.node.acknowledge(&told).await {
                    tracing::warn!(%error, "what the servers know could not be recorded: they are told again");
                }
            }
            Err(error) => {
                client.updates().finish_call(false, time.elapsed());
                tracing::warn!(error, "the servers could not be told of allocations");
                pauses.pause().await;
            }
        }
    }
}

/// Find the allocations that have changed since the last call, and queue what servers do not know.
fn queue_changes(client: &ClusterClient, seen: &mut BTreeMap<AllocId, u64>) -> Vec<AllocId> {
    let here: BTreeMap<_, _> = client.node.assigned_allocs().into_iter().collect();
    seen.retain(|id, _| here.contains_key(id));
    let mut changed = Vec::new();
    for (id, index) in here {
        if seen.insert(id, index) != Some(index)
            && let Some(state) = client.node.state(id)
        {
            client.updates().update_state(id, state);
            changed.push(id);
        }
    }
    changed
}

/// Allow the collection of those allocations whose end the servers know.
async fn report_known_ends(client: &ClusterClient, mut allocs: Vec<AllocId>) {
    allocs.retain(|id| client.updates().is_end_known(*id));
    if !allocs.is_empty() {
        client.node.mark_ends_known(allocs).await;
    }
}

async fn send(client: &ClusterClient, batch: &UpdateBatch) -> Result<(), String> {
    let calls = client.calls(LinkPurpose::Tell).await.map_err(|error| causes::chain(&error))?;
    let told = batch.iter().map(|(id, state)| reports::alloc_report(*id, client.id, state));
    calls.update_allocs(told.collect()).await.map_err(|error| error.to_string())
}

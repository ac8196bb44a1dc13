//! Reports events of the node itself to the servers.

use std::future::pending;

use ostler_model::causes;
use ostler_model::clock;
use ostler_model::limits::CLUSTER_EVENTS_WALL;
use ostler_wire::{WireNodeEvent, message};

use super::links::LinkPurpose;
use super::{ClusterClient, RetryPauses};
use crate::node_events::{EventQueue, events_between};

pub(super) async fn run(client: &ClusterClient) {
    client.wait_registered().await;
    let mut pauses = RetryPauses::new(&client.options.rng);
    let (mut views, mut queue) = (client.node.views(), EventQueue::default());
    let mut before = views.borrow_and_update().clone();
    loop {
        let waited = async {
            if queue.is_empty() {
                pending::<()>().await;
            } else {
                clock::sleep(CLUSTER_EVENTS_WALL).await;
            }
        };
        tokio::select! {
            biased;
            changed = views.changed() => {
                if changed.is_err() {
                    return;
                }
                let now = views.borrow_and_update().clone();
                queue.add(events_between(&before, &now, client.options.clock.now()));
                before = now;
            }
            () = waited => {
                let events = queue.take();
                match emit(client, &events).await {
                    Ok(()) => pauses.reset(),
                    Err(error) => {
                        tracing::debug!(error, "the servers could not be told of the node's events");
                        queue.put_back(events);
                        pauses.pause().await;
                    }
                }
            }
        }
    }
}

async fn emit(client: &ClusterClient, events: &[WireNodeEvent<'_>]) -> Result<(), String> {
    let calls = client.calls(LinkPurpose::Tell).await.map_err(|error| causes::chain(&error))?;
    let values = events.iter().map(message).collect();
    calls.emit_events(client.id, values).await.map_err(|error| error.to_string())
}

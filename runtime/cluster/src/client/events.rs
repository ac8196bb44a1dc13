//! What servers hear of the node itself.

use std::future::pending;

use ostler_model::causes;
use ostler_model::clock;
use ostler_model::limits::CLUSTER_EVENTS_WALL;

use super::links::Line;
use super::{Client, Pauses};
use crate::node_events::{EventQueue, NodeEvent, between};

pub(super) async fn run(client: &Client) {
    client.is_registered().await;
    let mut pauses = Pauses::new(&client.options.rng);
    let (mut views, mut queue) = (client.node.views(), EventQueue::default());
    let mut before = views.borrow_and_update().clone();
    loop {
        let waited = async {
            match queue.is_empty() {
                true => pending().await,
                false => clock::sleep(CLUSTER_EVENTS_WALL).await,
            }
        };
        tokio::select! {
            biased;
            changed = views.changed() => {
                if changed.is_err() {
                    return;
                }
                let now = views.borrow_and_update().clone();
                queue.add(between(&before, &now, client.options.clock.now()));
                before = now;
            }
            () = waited => {
                let events = queue.take();
                match emit(client, &events).await {
                    Ok(()) => pauses.reset(),
                    Err(error) => {
                        tracing::debug!(error, "the servers do not hear of the node's events");
                        queue.put_back(events);
                        pauses.pause().await;
                    }
                }
            }
        }
    }
}

async fn emit(client: &Client, events: &[NodeEvent]) -> Result<(), String> {
    let calls = client.calls(Line::Tell).await.map_err(|error| causes::chain(&error))?;
    let values = events.iter().map(NodeEvent::value).collect();
    calls.emit_events(client.id, values).await.map_err(|error| error.to_string())
}

//! Registration and heartbeats.
//!
//! ```text
//! register ─► ready ─► every `within`: heartbeat ─► refused: not known ─► register
//!                        node has changed, 5 s ───────────────────────► register
//!                        failed ─► another server, after a pause ─► heartbeat
//! ```

use std::sync::Arc;
use std::time::Duration;

use ostler_model::causes;
use ostler_model::clock::{self, Stopwatch};
use ostler_model::limits::{CLUSTER_BEAT_MAX, CLUSTER_BEAT_MIN, CLUSTER_NODE_CHANGES_WALL};
use ostler_node::NodeView;

use super::links::LinkPurpose;
use super::{ClusterClient, DiskServerAddress, JoinProgress, RetryPauses};
use crate::caller::ServerCallError;
use crate::credentials::NodeStanding;
use crate::reports::{self, NodeRegistrationFacts};
use crate::servers::{Heartbeat, NodeStatus};

/// The next call of this loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextCall {
    Register,
    Beat,
}

pub(super) async fn run(client: &ClusterClient) {
    let mut pauses = RetryPauses::new(&client.options.rng);
    let (mut next, mut told) = (NextCall::Register, node_to_report(client));
    loop {
        let beaten = match next {
            NextCall::Register => {
                told = node_to_report(client);
                register(client, &told).await
            }
            NextCall::Beat => beat(client).await,
        };
        match beaten {
            Ok(beat) => {
                client.links.add_servers(beat.servers);
                client.heard.send_replace(Stopwatch::start());
                let standing = client.credentials().note_accepted(beat.signed);
                keep(client, standing).await;
                if next == NextCall::Register {
                    // It becomes ready at once, because tasks wait for it.
                    next = NextCall::Beat;
                    continue;
                }
                pauses.reset();
                client.advance_to(JoinProgress::Registered);
                next = wait_for_next(client, &told, beat.within).await;
            }
            Err(LiveError::NotKnown) => {
                next = NextCall::Register;
                // There is a pause, in case the servers never know the node.
                pauses.pause().await;
            }
            Err(LiveError::Other(error)) => {
                tracing::warn!(error, "the servers cannot be told that this node lives");
                client.links.give_up().await;
                pauses.pause().await;
            }
        }
    }
}

/// What the servers were told about the node.
struct ReportedNode {
    view: Arc<NodeView>,
    serves: Option<DiskServerAddress>,
}

fn node_to_report(client: &ClusterClient) -> ReportedNode {
    let view = client.node.views().borrow().clone();
    ReportedNode { view, serves: client.serves.borrow().clone() }
}

enum LiveError {
    NotKnown,
    Other(String),
}

impl From<ServerCallError> for LiveError {
    fn from(error: ServerCallError) -> Self {
        let not_known = |text: &str| text.to_lowercase().contains("node not found");
        match &error {
            ServerCallError::Refused { message, .. } if not_known(message) => Self::NotKnown,
            _ => Self::Other(error.to_string()),
        }
    }
}

async fn calls(client: &ClusterClient) -> Result<crate::servers::ServerCalls, LiveError> {
    client.calls(LinkPurpose::Live).await.map_err(|error| LiveError::Other(causes::chain(&error)))
}

async fn register(client: &ClusterClient, told: &ReportedNode) -> Result<Heartbeat, LiveError> {
    let facts = NodeRegistrationFacts {
        secret: client.options.secret.clone(),
        class: client.options.class.clone(),
        pool: client.options.pool.clone(),
        // This address is for other nodes that fetch disks; servers reach the node through its own
        // connection.
        http_address: told.serves.as_ref().map(|at| at.address.clone()).unwrap_or_default(),
        tls: told.serves.as_ref().is_some_and(|at| at.tls),
        now: client.options.clock.now(),
    };
    let node = reports::registration(&told.view, &facts);
    let token = client.credentials().register_token().to_owned();
    let registered = calls(client).await?.with_token(&token).register(node).await;
    if registered.as_ref().is_err_and(is_not_permitted) {
        let refused = client.credentials().note_refused();
        keep(client, refused).await;
    }
    let beat = registered?;
    tracing::info!(node = %client.id, nodes = beat.nodes, "registered with the servers");
    Ok(beat)
}

async fn beat(client: &ClusterClient) -> Result<Heartbeat, LiveError> {
    let calls = calls(client).await?;
    let beat = async || {
        let token = client.credentials().beat_token().to_owned();
        calls.clone().with_token(&token).update_status(client.id, NodeStatus::Ready).await
    };
    match beat().await {
        Err(error) if is_not_permitted(&error) && client.credentials().note_beat_refused() => {
            Ok(beat().await?)
        }
        beaten => Ok(beaten?),
    }
}

fn is_not_permitted(error: &ServerCallError) -> bool {
    error.to_string().to_lowercase().contains("permission denied")
}

/// Record the standing of this node with the servers, if it has changed.
async fn keep(client: &ClusterClient, standing: Option<NodeStanding>) {
    let Some(standing) = standing else { return };
    if let Err(error) = client.node.keep_standing(standing).await {
        tracing::warn!(error, "the state of this node's registration could not be recorded");
    }
}

/// Wait until the next heartbeat is due, or until the node differs from what the servers were told.
async fn wait_for_next(client: &ClusterClient, told: &ReportedNode, within: Duration) -> NextCall {
    let (mut views, mut serves) = (client.node.views(), client.serves.clone());
    let within = within.clamp(CLUSTER_BEAT_MIN, CLUSTER_BEAT_MAX);
    let due = clock::timeout(within, async {
        let elsewhere = async {
            if serves.wait_for(|now| *now != told.serves).await.is_err() {
                // The sender is gone, so it never changes.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            // An error means that the agent ends.
            _changed = views.wait_for(|now| differs(&told.view, now)) => {}
            () = elsewhere => {}
        }
        clock::sleep(CLUSTER_NODE_CHANGES_WALL).await;
    });
    if due.await.is_some() { NextCall::Register } else { NextCall::Beat }
}

/// Whether the node has changed so that the servers must be told. The free space of disks changes
/// all the time and does not count.
fn differs(told: &NodeView, now: &NodeView) -> bool {
    let facts = |view: &NodeView| {
        let lasting =
            view.attributes.iter().filter(|(name, _)| !name.starts_with("unique.storage."));
        lasting.map(|(name, value)| (name.clone(), value.clone())).collect::<Vec<_>>()
    };
    (&told.drivers, &told.devices, &told.meta, told.resources)
        != (&now.drivers, &now.devices, &now.meta, now.resources)
        || facts(told) != facts(now)
}

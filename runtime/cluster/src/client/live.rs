//! Registering, and heartbeats.
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

use super::links::Line;
use super::{Client, Pauses, Progress, ServedAt};
use crate::caller::ServerCallError;
use crate::credentials::Standing;
use crate::described::{self, NodeRegistrationFacts};
use crate::servers::{Heartbeat, NodeStatus};

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Register,
    Beat,
}

pub(super) async fn run(client: &Client) {
    let mut pauses = Pauses::new(&client.options.rng);
    let (mut next, mut told) = (Next::Register, told_of(client));
    loop {
        let beaten = match next {
            Next::Register => {
                told = told_of(client);
                register(client, &told).await
            }
            Next::Beat => beat(client).await,
        };
        match beaten {
            Ok(beat) => {
                client.links.named(beat.servers);
                client.heard.send_replace(Stopwatch::start());
                let standing = client.credentials().accepted(beat.signed);
                keep(client, standing).await;
                if next == Next::Register {
                    // Ready at once: tasks wait for it.
                    next = Next::Beat;
                    continue;
                }
                pauses.reset();
                client.comes_to(Progress::Registered);
                next = until_next(client, &told, beat.within).await;
            }
            Err(Failed::NotKnown) => {
                next = Next::Register;
                // A server that never knows it is not asked without pause.
                pauses.pause().await;
            }
            Err(Failed::Other(error)) => {
                tracing::warn!(error, "the servers cannot be told that this node lives");
                client.links.give_up().await;
                pauses.pause().await;
            }
        }
    }
}

/// What servers are told of the node.
struct Told {
    view: Arc<NodeView>,
    serves: Option<ServedAt>,
}

fn told_of(client: &Client) -> Told {
    let view = client.node.views().borrow().clone();
    Told { view, serves: client.serves.borrow().clone() }
}

enum Failed {
    NotKnown,
    Other(String),
}

impl From<ServerCallError> for Failed {
    fn from(error: ServerCallError) -> Self {
        let not_known = |text: &str| text.to_lowercase().contains("node not found");
        match &error {
            ServerCallError::Refused { message, .. } if not_known(message) => Self::NotKnown,
            _ => Self::Other(error.to_string()),
        }
    }
}

async fn calls(client: &Client) -> Result<crate::servers::ServerCalls, Failed> {
    client.calls(Line::Live).await.map_err(|error| Failed::Other(causes::chain(&error)))
}

async fn register(client: &Client, told: &Told) -> Result<Heartbeat, Failed> {
    let facts = NodeRegistrationFacts {
        secret: client.options.secret.clone(),
        class: client.options.class.clone(),
        pool: client.options.pool.clone(),
        // Servers reach the node through its own connection; other nodes fetch disks there.
        http_address: told.serves.as_ref().map(|at| at.address.clone()).unwrap_or_default(),
        tls: told.serves.as_ref().is_some_and(|at| at.tls),
        now: client.options.clock.now(),
    };
    let node = described::node(&told.view, &facts);
    let token = client.credentials().to_register().to_owned();
    let registered = calls(client).await?.showing(&token).register(node).await;
    if registered.as_ref().is_err_and(is_not_permitted) {
        let refused = client.credentials().refused();
        keep(client, refused).await;
    }
    let beat = registered?;
    tracing::info!(node = %client.id, nodes = beat.nodes, "registered with the servers");
    Ok(beat)
}

async fn beat(client: &Client) -> Result<Heartbeat, Failed> {
    let calls = calls(client).await?;
    let beat = async || {
        let token = client.credentials().to_beat().to_owned();
        calls.clone().showing(&token).update_status(client.id, NodeStatus::Ready).await
    };
    match beat().await {
        Err(error) if is_not_permitted(&error) && client.credentials().beat_refused() => {
            Ok(beat().await?)
        }
        beaten => Ok(beaten?),
    }
}

fn is_not_permitted(error: &ServerCallError) -> bool {
    error.to_string().to_lowercase().contains("permission denied")
}

/// Put how this node stands with the servers on record, where that has changed.
async fn keep(client: &Client, standing: Option<Standing>) {
    let Some(standing) = standing else { return };
    if let Err(error) = client.node.keep_standing(standing).await {
        tracing::warn!(error, "how this node stands with the servers is not on record");
    }
}

/// Wait for the next heartbeat, or for the node to be another one than the servers were told of.
async fn until_next(client: &Client, told: &Told, within: Duration) -> Next {
    let (mut views, mut serves) = (client.node.views(), client.serves.clone());
    let within = within.clamp(CLUSTER_BEAT_MIN, CLUSTER_BEAT_MAX);
    let due = clock::timeout(within, async {
        let elsewhere = async {
            if serves.wait_for(|now| *now != told.serves).await.is_err() {
                // Nobody says more of it.
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
    if due.await.is_some() { Next::Register } else { Next::Beat }
}

/// Is this to be told? What a disk has free changes all the time.
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

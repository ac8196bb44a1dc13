//! What owners of allocations ask of servers and other nodes: see [`OtherNodes`].
//!
//! ```text
//! over: Alloc.GetAlloc, held by the server ─► lives: again ─► over
//! disk: Alloc.GetAlloc ─► Node.GetNode ─► DiskDoor ─► pieces
//! ```
//! Owners may ask before the node has joined: they wait. Each question has a stream of its own, because a
//! server answers one after the other on a stream.

use std::sync::{Arc, Weak};

use ostler_model::causes;
use ostler_model::clock;
use ostler_model::ids::AllocId;
use ostler_model::limits::{
    CLUSTER_BLOCK_GRACE, DISK_FETCH_JOINED_WALL, PREVIOUS_ASKED_AT_ONCE_MAX, PREVIOUS_HOLD,
};
use ostler_model::other_nodes::{NoDisk, OtherNodes, RemoteDisk};
use ostler_model::ports::BoxFuture;
use tokio::sync::{Semaphore, watch};

use super::{Client, Pauses};
use crate::caller::ServerCallError;
use crate::previous::{self, PreviousAnswer};

/// Questions that are open.
static ASKING: Semaphore = Semaphore::const_new(PREVIOUS_ASKED_AT_ONCE_MAX);

/// The other nodes of a cluster, for an agent that is about to join it. Clones are the same.
#[derive(Clone, Debug)]
pub struct ClusterNodes(watch::Sender<Weak<Client>>);

impl Default for ClusterNodes {
    fn default() -> Self {
        Self(watch::Sender::new(Weak::new()))
    }
}

impl ClusterNodes {
    /// The node has joined; until the client goes it can be asked.
    pub(super) fn joined(&self, client: &Arc<Client>) {
        self.0.send_replace(Arc::downgrade(client));
    }

    /// The client, once the node has joined.
    pub(super) async fn client(&self) -> Arc<Client> {
        let mut joined = self.0.subscribe();
        loop {
            let client = joined.borrow_and_update().upgrade();
            if let Some(client) = client {
                return client;
            }
            if joined.changed().await.is_err() {
                // Never: the sender is held by `self`.
                std::future::pending::<()>().await;
            }
        }
    }
}

impl OtherNodes for ClusterNodes {
    fn over(&self, previous: AllocId) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let client = self.client().await;
            client.is_registered().await;
            client.over(previous).await
        })
    }

    fn disk(&self, previous: AllocId, new: AllocId) -> BoxFuture<'_, Result<RemoteDisk, NoDisk>> {
        Box::pin(async move {
            let client = self.client().await;
            client.disk(previous, new).await
        })
    }
}

impl Client {
    async fn over(&self, id: AllocId) -> Result<(), String> {
        let mut pauses = Pauses::new(&self.options.rng);
        let mut index = 0;
        loop {
            match self.previous(id, index).await {
                Ok(PreviousAnswer::Lives { index: newer }) => {
                    pauses.reset();
                    // A server that is set back would answer at once, again and again.
                    if newer <= index {
                        pauses.pause().await;
                    }
                    index = newer.max(1);
                }
                Ok(PreviousAnswer::Gone | PreviousAnswer::Over { .. }) => return Ok(()),
                Err(NoDisk::Ever(why)) => return Err(why),
                Err(NoDisk::Now(why)) => {
                    tracing::debug!(alloc = %id, why, "whether it is over is not known yet");
                    // The next one asked may be another server, at another index.
                    index = 0;
                    pauses.pause().await;
                }
            }
        }
    }

    /// What the servers say of an allocation; past an index, when it has changed, or after a while.
    async fn previous(&self, id: AllocId, index: u64) -> Result<PreviousAnswer, NoDisk> {
        let _turn = ASKING.acquire().await.map_err(|error| NoDisk::Now(error.to_string()))?;
        let calls = self.line_of_its_own().await;
        let calls = calls.map_err(|error| NoDisk::Now(causes::chain(&error)))?;
        let answer = calls.one_alloc(id, index, PREVIOUS_HOLD).await.map_err(unanswered)?;
        previous::previous(&answer)
            .ok_or_else(|| NoDisk::Now("an answer of a server cannot be read".to_owned()))
    }

    async fn disk(&self, previous: AllocId, new: AllocId) -> Result<RemoteDisk, NoDisk> {
        let token = clock::timeout(DISK_FETCH_JOINED_WALL, self.migrate_token(new)).await;
        let token = token.ok_or_else(|| NoDisk::Now("the servers do not answer".to_owned()))?;
        let asked = clock::timeout(CLUSTER_BLOCK_GRACE, self.previous(previous, 0)).await;
        let asked = asked.ok_or_else(|| NoDisk::Now("the servers do not answer".to_owned()))?;
        let holder = previous::holder(asked?, self.id)?;
        let calls = self.line_of_its_own().await;
        let calls = calls.map_err(|error| NoDisk::Now(causes::chain(&error)))?;
        let node = calls.one_node(holder).await.map_err(unanswered)?;
        let source = previous::source(previous, &node, token.as_deref())?;
        tracing::info!(alloc = %new, %previous, node = source.node, address = %source.address, "fetching a disk");
        let pieces = self.disks.fetch(&source).await?;
        Ok(RemoteDisk { node: source.node, pieces })
    }

    /// What shows another node that this allocation may have the disk of the one before it; as soon as the
    /// servers have told.
    async fn migrate_token(&self, new: AllocId) -> Option<String> {
        let mut tokens = self.migrate_tokens.subscribe();
        // The sender is held by `self`.
        let told = tokens.wait_for(Option::is_some).await.ok()?;
        told.as_ref()?.get(&new).cloned()
    }
}

/// No server could be asked, this one does not know now, or none will say.
fn unanswered(error: ServerCallError) -> NoDisk {
    match &error {
        ServerCallError::Refused { message, .. } if previous::is_final(message) => {
            NoDisk::Ever(error.to_string())
        }
        _ => NoDisk::Now(error.to_string()),
    }
}

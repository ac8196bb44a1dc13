//! Answers what owners of allocations ask about other nodes; see [`OtherNodes`].
//!
//! ```text
//! end:  Alloc.GetAlloc, held by the server ─► lives: again ─► has ended
//! disk: Alloc.GetAlloc ─► Node.GetNode ─► DiskDoor ─► pieces
//! ```
//! Owners may ask before the node has joined; then they wait. Each question has a stream of its
//! own, because a server answers the calls of a stream one after another.

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

use super::{ClusterClient, RetryPauses};
use crate::caller::ServerCallError;
use crate::previous::{self, PreviousAnswer};

/// Limits the number of open questions.
static ASKING: Semaphore = Semaphore::const_new(PREVIOUS_ASKED_AT_ONCE_MAX);

/// The other nodes of a cluster, for an agent that is about to join it. Clones share the state.
#[derive(Clone, Debug)]
pub struct ClusterNodes(watch::Sender<Weak<ClusterClient>>);

impl Default for ClusterNodes {
    fn default() -> Self {
        Self(watch::Sender::new(Weak::new()))
    }
}

impl ClusterNodes {
    /// Note that the node has joined. The client can be asked until it is dropped.
    pub(super) fn set_client(&self, client: &Arc<ClusterClient>) {
        self.0.send_replace(Arc::downgrade(client));
    }

    /// Wait for the client, which exists once the node has joined.
    pub(super) async fn client(&self) -> Arc<ClusterClient> {
        let mut joined = self.0.subscribe();
        loop {
            let client = joined.borrow_and_update().upgrade();
            if let Some(client) = client {
                return client;
            }
            if joined.changed().await.is_err() {
                // This never happens, because `self` holds the sender.
                std::future::pending::<()>().await;
            }
        }
    }
}

impl OtherNodes for ClusterNodes {
    fn wait_until_over(&self, previous: AllocId) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let client = self.client().await;
            client.wait_registered().await;
            client.wait_until_over(previous).await
        })
    }

    fn fetch_disk(
        &self,
        previous: AllocId,
        new: AllocId,
    ) -> BoxFuture<'_, Result<RemoteDisk, NoDisk>> {
        Box::pin(async move {
            let client = self.client().await;
            client.disk(previous, new).await
        })
    }
}

impl ClusterClient {
    async fn wait_until_over(&self, id: AllocId) -> Result<(), String> {
        let mut pauses = RetryPauses::new(&self.options.rng);
        let mut index = 0;
        loop {
            match self.ask_previous(id, index).await {
                Ok(PreviousAnswer::Lives { index: newer }) => {
                    pauses.reset();
                    // A server that was set back would answer at once, again and again.
                    if newer <= index {
                        pauses.pause().await;
                    }
                    index = newer.max(1);
                }
                Ok(PreviousAnswer::Gone | PreviousAnswer::Over { .. }) => return Ok(()),
                Err(NoDisk::Ever(why)) => return Err(why),
                Err(NoDisk::Now(why)) => {
                    tracing::debug!(alloc = %id, why, "whether it is over is not known yet");
                    // The next question may go to another server, at another index.
                    index = 0;
                    pauses.pause().await;
                }
            }
        }
    }

    /// Ask the servers about an allocation. They answer when it has changed past `index`, or after
    /// a while.
    async fn ask_previous(&self, id: AllocId, index: u64) -> Result<PreviousAnswer, NoDisk> {
        let _turn = ASKING.acquire().await.map_err(|error| NoDisk::Now(error.to_string()))?;
        let calls = self.open_own_stream().await;
        let calls = calls.map_err(|error| NoDisk::Now(causes::chain(&error)))?;
        let answer = calls.one_alloc(id, index, PREVIOUS_HOLD).await.map_err(no_disk_error)?;
        previous::parse_previous(&answer)
            .ok_or_else(|| NoDisk::Now("an answer of a server cannot be read".to_owned()))
    }

    async fn disk(&self, previous: AllocId, new: AllocId) -> Result<RemoteDisk, NoDisk> {
        let token = clock::timeout(DISK_FETCH_JOINED_WALL, self.migrate_token(new)).await;
        let token = token.ok_or_else(|| NoDisk::Now("the servers do not answer".to_owned()))?;
        let asked = clock::timeout(CLUSTER_BLOCK_GRACE, self.ask_previous(previous, 0)).await;
        let asked = asked.ok_or_else(|| NoDisk::Now("the servers do not answer".to_owned()))?;
        let holder = previous::disk_holder(asked?, self.id)?;
        let calls = self.open_own_stream().await;
        let calls = calls.map_err(|error| NoDisk::Now(causes::chain(&error)))?;
        let node = calls.one_node(holder).await.map_err(no_disk_error)?;
        let source = previous::disk_source(previous, &node, token.as_deref())?;
        tracing::info!(alloc = %new, %previous, node = source.node, address = %source.address, "fetching a disk");
        let pieces = self.disks.fetch(&source).await?;
        Ok(RemoteDisk { node: source.node, pieces })
    }

    /// The token by which another node knows that this allocation may have the disk of the previous
    /// one. It waits until the servers have sent one.
    async fn migrate_token(&self, new: AllocId) -> Option<String> {
        let mut tokens = self.migrate_tokens.subscribe();
        // This cannot fail, because `self` holds the sender.
        let told = tokens.wait_for(Option::is_some).await.ok()?;
        told.as_ref()?.get(&new).cloned()
    }
}

/// The error of a question without an answer. It is final if no server will ever answer it.
fn no_disk_error(error: ServerCallError) -> NoDisk {
    match &error {
        ServerCallError::Refused { message, .. } if previous::is_final(message) => {
            NoDisk::Ever(error.to_string())
        }
        _ => NoDisk::Now(error.to_string()),
    }
}

//! A node of a cluster: loops over one connection.
//!
//! ```text
//! links: the connection, to whichever server takes it
//!   ├─ live:   register ─► ready ─► heartbeats; registers again when the node has changed or is unknown
//!   ├─ follow: Node.GetClientAllocs ─► WantedAllocs ─► Alloc.GetAllocs ─► assign, stop, collect
//!   ├─ previous: allocations on other nodes, for those that take their place here
//!   ├─ silence: no server answers for as long as a group allows ─► stop
//!   ├─ events: drivers and devices that become unhealthy or healthy ─► Node.EmitEvents
//!   └─ tell:   states of allocations ─► AllocUpdates ─► Node.UpdateAlloc ─► acknowledged, on record
//! ```
//! The caller gets the streams that servers open on each new connection, to answer their calls.
//! While no server is reachable, allocations keep running; what happened meanwhile is reported when
//! one is reachable again.

mod access;
mod events;
mod failures;
mod follow;
mod links;
mod live;
mod ports;
mod previous;
mod silence;
mod tell;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ostler_model::clock::{self, Clock, Stopwatch};
use ostler_model::ids::{AllocId, NodeId};
use ostler_model::limits::{CLUSTER_RETRY_FIRST, CLUSTER_RETRY_MAX};
use ostler_model::rng::Rng;
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::credentials::{NodeCredentials, NodeStanding};
use super::dial::DialError;
use super::servers::ServerCalls;
use super::session::Arrivals;
use super::updates::AllocUpdates;
use links::{LinkPurpose, ServerLinks};
use ostler_model::server_address::ServerAddress;
pub use ports::{ClusterNode, DiskDoor, EnterError, PlacedAlloc, ServerDoor, UnenteredAllocs};
pub use previous::ClusterNodes;

/// The options of a node that joins a cluster.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// The addresses of servers; the ones that servers name themselves are added.
    pub servers: Vec<ServerAddress>,
    /// The region of the servers.
    pub region: String,
    /// The class of the node, for constraints; may be empty.
    pub class: String,
    /// The pool of the node; none for the default pool of the servers.
    pub pool: Option<String>,
    /// The secret by which the node proves that it is the same one as before.
    pub secret: String,
    /// The token that introduces the node to servers that do not know it, if they ask for one.
    pub introduction: Option<String>,
    /// The standing of the node with the servers, from an earlier agent.
    pub standing: NodeStanding,
    /// The clock for the time of day.
    pub clock: Clock,
    /// The random numbers for pauses.
    pub rng: Rng,
}

/// The address at which a node serves the disks of its allocations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskServerAddress {
    /// The address as `HOST:PORT`, as other nodes reach it.
    pub address: String,
    /// Whether it has TLS.
    pub tls: bool,
}

/// The state that all loops share.
struct ClusterClient {
    node: Arc<dyn ClusterNode>,
    id: NodeId,
    options: ClusterOptions,
    links: ServerLinks,
    updates: Mutex<AllocUpdates>,
    /// Notified when there is something to report that is no change of the agent.
    news: Notify,
    /// How far the node has joined.
    progress: watch::Sender<JoinProgress>,
    /// The tokens of the newest list of allocations, by allocation; none before the first list.
    migrate_tokens: watch::Sender<Option<BTreeMap<AllocId, String>>>,
    disks: Arc<dyn DiskDoor>,
    serves: watch::Receiver<Option<DiskServerAddress>>,
    credentials: Mutex<NodeCredentials>,
    /// The time since a server last answered, or since the start before the first answer.
    heard: watch::Sender<Stopwatch>,
}

/// How far a node has joined; see [`Client::progress`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum JoinProgress {
    /// The servers do not know this node yet.
    Nothing,
    /// The servers know this node.
    Registered,
    /// This node has asked for its allocations, or tried to, so that it does not report allocations
    /// as running that the servers count as ended.
    CaughtUp,
}

impl std::fmt::Debug for ClusterClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("id", &self.id).finish_non_exhaustive()
    }
}

impl ClusterClient {
    fn updates(&self) -> MutexGuard<'_, AllocUpdates> {
        self.updates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn credentials(&self) -> MutexGuard<'_, NodeCredentials> {
        self.credentials.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls of this node on the stream for this purpose.
    async fn calls(&self, line: LinkPurpose) -> Result<ServerCalls, DialError> {
        let calls = self.links.calls(line).await?;
        Ok(calls.with_token(self.credentials().token()))
    }

    /// Calls of this node on a new stream, which no other call delays and which ends with them.
    async fn open_own_stream(&self) -> Result<ServerCalls, DialError> {
        let calls = self.links.open_own_stream().await?;
        Ok(calls.with_token(self.credentials().token()))
    }

    /// Wait until the servers know this node.
    async fn wait_registered(&self) {
        self.wait_for_progress(JoinProgress::Registered).await;
    }

    /// Wait until this node has asked the servers for its allocations.
    async fn wait_caught_up(&self) {
        self.wait_for_progress(JoinProgress::CaughtUp).await;
    }

    async fn wait_for_progress(&self, least: JoinProgress) {
        let mut progress = self.progress.subscribe();
        // This cannot fail, because `self` holds the sender.
        let _gone = progress.wait_for(|progress| *progress >= least).await;
    }

    fn advance_to(&self, progress: JoinProgress) {
        self.progress.send_if_modified(|now| {
            let further = *now < progress;
            *now = progress.max(*now);
            further
        });
    }
}

/// The connections of a node to everybody else.
#[derive(Clone)]
pub struct ClusterDoors {
    /// The door to the servers.
    pub servers: Arc<dyn ServerDoor>,
    /// The door to the disks on other nodes.
    pub disks: Arc<dyn DiskDoor>,
    /// Gets the streams that servers open on each new connection. If it is full, nobody answers on
    /// that connection.
    pub arrived: mpsc::Sender<Arrivals>,
    /// The object through which owners of allocations ask other nodes.
    pub others: ClusterNodes,
    /// The address at which other nodes fetch disks of this one; none while they cannot.
    pub serves: watch::Receiver<Option<DiskServerAddress>>,
}

/// Run as a node of the cluster until `ended`.
pub async fn run(
    node: Arc<dyn ClusterNode>,
    doors: ClusterDoors,
    options: ClusterOptions,
    ended: CancellationToken,
) {
    let here: Vec<_> = node.assigned_allocs().into_iter().map(|(id, _)| id).collect();
    let updates = Mutex::new(AllocUpdates::new(node.acknowledged_states(&here)));
    let id = node.views().borrow().id;
    let ClusterDoors { servers, disks, arrived, others, serves } = doors;
    let links = ServerLinks::new(&options, servers, arrived);
    let (progress, migrate_tokens) =
        (watch::Sender::new(JoinProgress::Nothing), watch::Sender::new(None));
    let ClusterOptions { secret, introduction, standing, .. } = options.clone();
    let credentials = Mutex::new(NodeCredentials::new(secret, introduction, standing));
    let heard = watch::Sender::new(Stopwatch::start());
    let news = Notify::new();
    let client = Arc::new(ClusterClient {
        node,
        id,
        options,
        links,
        updates,
        news,
        progress,
        migrate_tokens,
        disks,
        serves,
        credentials,
        heard,
    });
    others.set_client(&client);
    let loops = async {
        tokio::join!(
            live::run(&client),
            follow::run(&client),
            silence::run(&client),
            events::run(&client),
            tell::run(&client)
        );
    };
    ended.run_until_cancelled(loops).await;
}

/// Pauses after failures. Each one is twice as long as the one before, with some randomness.
struct RetryPauses {
    rng: Rng,
    next: Duration,
}

impl RetryPauses {
    fn new(rng: &Rng) -> Self {
        Self { rng: rng.clone(), next: CLUSTER_RETRY_FIRST }
    }

    fn reset(&mut self) {
        self.next = CLUSTER_RETRY_FIRST;
    }

    async fn pause(&mut self) {
        let most = u64::try_from(self.next.as_millis()).unwrap_or(u64::MAX);
        let time = Duration::from_millis(most / 2 + self.rng.number_below(most / 2 + 1));
        self.next = self.next.saturating_mul(2).min(CLUSTER_RETRY_MAX);
        clock::sleep(time).await;
    }
}

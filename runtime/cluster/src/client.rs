//! A node of a cluster: loops over one connection.
//!
//! ```text
//! links: the connection, to whichever server takes it
//!   ├─ live:   register ─► ready ─► heartbeats; again when the node has changed or is not known
//!   ├─ follow: Node.GetClientAllocs ─► WantedAllocs ─► Alloc.GetAllocs ─► assign, stop, collect
//!   ├─ previous: allocations on other nodes, for those that take their place here
//!   ├─ silence: no server heard for as long as a group stands it ─► stop
//!   ├─ events: drivers and devices that become ill or well ─► Node.EmitEvents
//!   └─ tell:   states of allocations ─► AllocUpdates ─► Node.UpdateAlloc ─► acknowledged, on record
//! ```
//! Who runs them is told of each new connection's streams that servers open, to answer what they ask.
//! While no server is there, what runs goes on; what happened meanwhile is told when one is.

mod access;
mod events;
mod failed;
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

use super::credentials::{Credentials, Standing};
use super::dial::DialError;
use super::servers::ServerCalls;
use super::session::Arrivals;
use super::updates::AllocUpdates;
use links::{Line, Links};
use ostler_model::server_address::ServerAddress;
pub use ports::{ClusterNode, DiskDoor, EnterError, PlacedAlloc, ServerDoor, Unentered};
pub use previous::ClusterNodes;

/// How a node joins.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// Where servers are; those that they name themselves are added.
    pub servers: Vec<ServerAddress>,
    /// Region of the servers.
    pub region: String,
    /// Class of the node, for constraints; may be empty.
    pub class: String,
    /// Pool of the node; the servers' default where none is named.
    pub pool: Option<String>,
    /// What the node proves with that it is the same one.
    pub secret: String,
    /// What introduces it to servers that do not know it, where they ask for that.
    pub introduction: Option<String>,
    /// How it stands with them since an earlier agent.
    pub standing: Standing,
    /// Time of day.
    pub clock: Clock,
    /// For pauses.
    pub rng: Rng,
}

/// Where a node serves the disks of its allocations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedAt {
    /// `HOST:PORT`, as other nodes reach it.
    pub address: String,
    /// With TLS.
    pub tls: bool,
}

/// What the loops share.
struct Client {
    node: Arc<dyn ClusterNode>,
    id: NodeId,
    options: ClusterOptions,
    links: Links,
    updates: Mutex<AllocUpdates>,
    /// Something is to be told that no change of the agent tells of.
    news: Notify,
    /// How far the servers and this node know each other.
    progress: watch::Sender<Progress>,
    /// By the newest list of allocations; none before the first.
    migrate_tokens: watch::Sender<Option<BTreeMap<AllocId, String>>>,
    disks: Arc<dyn DiskDoor>,
    serves: watch::Receiver<Option<ServedAt>>,
    credentials: Mutex<Credentials>,
    /// Since a server was heard last; since the begin before the first.
    heard: watch::Sender<Stopwatch>,
}

/// See [`Client::progress`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Progress {
    /// Not at all.
    Nothing,
    /// The servers know this node.
    Registered,
    /// This node knows what they want of it, or tried to: what they count as over is not told to run.
    CaughtUp,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Client {
    fn updates(&self) -> MutexGuard<'_, AllocUpdates> {
        self.updates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn credentials(&self) -> MutexGuard<'_, Credentials> {
        self.credentials.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls of this node on a line of its own.
    async fn calls(&self, line: Line) -> Result<ServerCalls, DialError> {
        let calls = self.links.calls(line).await?;
        Ok(calls.showing(self.credentials().token()))
    }

    /// Calls of this node that nobody else's hold up, and that end with them.
    async fn line_of_its_own(&self) -> Result<ServerCalls, DialError> {
        let calls = self.links.line_of_its_own().await?;
        Ok(calls.showing(self.credentials().token()))
    }

    /// Wait until the servers know this node.
    async fn is_registered(&self) {
        self.is_at(Progress::Registered).await;
    }

    /// Wait until this node has asked them what they want.
    async fn caught_up(&self) {
        self.is_at(Progress::CaughtUp).await;
    }

    async fn is_at(&self, least: Progress) {
        let mut progress = self.progress.subscribe();
        // The sender is held by `self`.
        let _gone = progress.wait_for(|progress| *progress >= least).await;
    }

    fn comes_to(&self, progress: Progress) {
        self.progress.send_if_modified(|now| {
            let further = *now < progress;
            *now = progress.max(*now);
            further
        });
    }
}

/// The ways to everybody else.
#[derive(Clone)]
pub struct ClusterDoors {
    /// To servers.
    pub servers: Arc<dyn ServerDoor>,
    /// To disks on other nodes.
    pub disks: Arc<dyn DiskDoor>,
    /// Gets the streams that servers open, of each new connection; where it takes no more, nobody answers on
    /// that one.
    pub arrived: mpsc::Sender<Arrivals>,
    /// What owners of allocations ask through.
    pub others: ClusterNodes,
    /// Where other nodes fetch disks of this one; none while they cannot.
    pub serves: watch::Receiver<Option<ServedAt>>,
}

/// Be a node of the cluster until `ended`.
pub async fn run(
    node: Arc<dyn ClusterNode>,
    doors: ClusterDoors,
    options: ClusterOptions,
    ended: CancellationToken,
) {
    let here: Vec<_> = node.assigned().into_iter().map(|(id, _)| id).collect();
    let updates = Mutex::new(AllocUpdates::new(node.acknowledged(&here)));
    let id = node.views().borrow().id;
    let ClusterDoors { servers, disks, arrived, others, serves } = doors;
    let links = Links::new(&options, servers, arrived);
    let (progress, migrate_tokens) =
        (watch::Sender::new(Progress::Nothing), watch::Sender::new(None));
    let ClusterOptions { secret, introduction, standing, .. } = options.clone();
    let credentials = Mutex::new(Credentials::new(secret, introduction, standing));
    let heard = watch::Sender::new(Stopwatch::start());
    let news = Notify::new();
    let client = Arc::new(Client {
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
    others.joined(&client);
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

/// Pauses after failures: twice as long each time, and never quite the same.
struct Pauses {
    rng: Rng,
    next: Duration,
}

impl Pauses {
    fn new(rng: &Rng) -> Self {
        Self { rng: rng.clone(), next: CLUSTER_RETRY_FIRST }
    }

    fn reset(&mut self) {
        self.next = CLUSTER_RETRY_FIRST;
    }

    async fn pause(&mut self) {
        let most = u64::try_from(self.next.as_millis()).unwrap_or(u64::MAX);
        let time = Duration::from_millis(most / 2 + self.rng.below(most / 2 + 1));
        self.next = self.next.saturating_mul(2).min(CLUSTER_RETRY_MAX);
        clock::sleep(time).await;
    }
}

//! Connections between nodes and servers: in memory, on virtual time, with faults.
//!
//! ```text
//! node ─ duplex ─ carry ─► latency, fault, meter ─► duplex ─ server      and the same way back
//! ```
//! What a connection has lost once it goes on losing: a stream of bytes has no holes.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ostler_cluster::client::{ClusterDoors, ClusterNodes, DiskDoor, ServerDoor};
use ostler_cluster::dial::{self, DialError};
use ostler_cluster::previous::DiskSource;
use ostler_cluster::session::{Arrivals, ClusterSession};
use ostler_model::clock;
use ostler_model::limits::CLUSTER_STEP_WALL_DEFAULT;
use ostler_model::other_nodes::{DiskPieces, NoDisk};
use ostler_model::ports::BoxFuture;
use ostler_model::rng::Rng;
use ostler_model::server_address::ServerAddress;
use ostler_testing::servers::ServerDouble;
use ostler_testing::servers::traffic::{FrameMeter, Traffic};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};

use crate::world::World;

/// Bytes on the way in one direction of a connection, at most.
const WINDOW: usize = 16 * 1024;
/// Bytes carried at once.
const PIECE: usize = 8 * 1024;
/// From one end to the other.
const LATENCY: Duration = Duration::from_millis(1);

/// Disks do not move in a simulation: no allocation asks for one.
struct NoDisks;

impl DiskDoor for NoDisks {
    fn fetch<'a>(
        &'a self,
        _from: &'a DiskSource,
    ) -> BoxFuture<'a, Result<Box<dyn DiskPieces>, NoDisk>> {
        let why = "no disks move in a simulation".to_owned();
        Box::pin(std::future::ready(Err(NoDisk::Ever(why))))
    }
}

/// The ways of a node to its servers, and to nobody else.
pub(crate) fn doors(servers: SimDoor, arrived: mpsc::Sender<Arrivals>) -> ClusterDoors {
    let (_, serves) = watch::channel(None);
    let others = ClusterNodes::default();
    ClusterDoors { servers: Arc::new(servers), disks: Arc::new(NoDisks), arrived, others, serves }
}

/// How the way to a server is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// As it should be.
    #[default]
    Works,
    /// Nobody takes connections.
    Refuses,
    /// What is sent in either direction is lost, and nobody says so.
    Silent,
    /// What the node sends is lost.
    Deaf,
    /// What the server sends is lost.
    Mute,
    /// What the server sends comes as other bytes.
    Garbles,
    /// Each piece takes so long, in seconds.
    Slow(u64),
}

/// A direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Towards {
    Server,
    Node,
}

/// The network. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Net(Arc<Shared>);

struct Shared {
    double: ServerDouble,
    rng: Rng,
    state: Mutex<NetState>,
    /// Connections to servers of these names are cut, each time.
    cuts: watch::Sender<BTreeMap<String, u64>>,
}

#[derive(Default)]
struct NetState {
    ways: BTreeMap<String, Way>,
    /// Connections that stand, and most at once.
    open: usize,
    most: usize,
    dials: u64,
    /// How often a way became another one, or was cut.
    disturbed: u64,
    /// Dials in each second of virtual time; and what went to and from servers.
    traffic: [Traffic; 2],
}

impl Net {
    pub(crate) fn new(double: ServerDouble, rng: Rng) -> Self {
        let (state, cuts) = (Mutex::default(), watch::Sender::default());
        Self(Arc::new(Shared { double, rng, state, cuts }))
    }

    fn state(&self) -> MutexGuard<'_, NetState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the way to a server is so.
    pub(crate) fn set(&self, server: &str, way: Way) {
        let mut state = self.state();
        state.disturbed = state.disturbed.saturating_add(1);
        state.ways.insert(server.to_owned(), way);
    }

    /// Every way is as it should be.
    pub(crate) fn mend(&self) {
        self.state().ways.clear();
    }

    /// Is every way as it should be?
    pub(crate) fn is_well(&self) -> bool {
        self.state().ways.values().all(|way| *way == Way::Works)
    }

    /// How often a way became another one, or was cut: that may be over before anybody looks.
    pub(crate) fn disturbed(&self) -> u64 {
        self.state().disturbed
    }

    fn way(&self, server: &str) -> Way {
        self.state().ways.get(server).copied().unwrap_or_default()
    }

    /// The connections to a server end now.
    pub(crate) fn cut(&self, server: &str) {
        {
            let mut state = self.state();
            state.disturbed = state.disturbed.saturating_add(1);
        }
        self.0.cuts.send_modify(|cuts| {
            let cut = cuts.entry(server.to_owned()).or_default();
            *cut = cut.saturating_add(1);
        });
    }

    /// Connections that stand; most at once.
    pub(crate) fn open(&self) -> (usize, usize) {
        let state = self.state();
        (state.open, state.most)
    }

    /// Connections that were asked for.
    pub(crate) fn dials(&self) -> u64 {
        self.state().dials
    }

    /// What went to servers and what came from them.
    pub(crate) fn traffic(&self) -> [Traffic; 2] {
        self.state().traffic
    }

    /// No node is there any more.
    pub(crate) fn end_life(&self) {
        self.state().open = 0;
    }

    async fn connect(&self, server: &ServerAddress, world: &World) -> io::Result<DuplexStream> {
        self.state().dials += 1;
        clock::sleep(LATENCY).await;
        match self.way(&server.host) {
            Way::Refuses => return Err(io::ErrorKind::ConnectionRefused.into()),
            Way::Silent | Way::Deaf | Way::Mute => std::future::pending().await,
            Way::Slow(seconds) => clock::sleep(Duration::from_secs(seconds)).await,
            Way::Works | Way::Garbles => {}
        }
        let (node, inner) = tokio::io::duplex(WINDOW);
        let (server_inner, server_end) = tokio::io::duplex(WINDOW);
        {
            let mut state = self.state();
            state.open += 1;
            state.most = state.most.max(state.open);
        }
        let (reads, writes) = tokio::io::split(inner);
        let (server_reads, server_writes) = tokio::io::split(server_inner);
        let way = (self.clone(), server.host.clone(), world.clone());
        drop(tokio::spawn(async move {
            let (net, server, world) = way;
            let mut cuts = net.0.cuts.subscribe();
            let of = |cuts: &BTreeMap<String, u64>| cuts.get(&server).copied();
            let before = of(&cuts.borrow_and_update());
            let carried = async {
                tokio::join!(
                    net.carry(&server, &world, Towards::Server, reads, server_writes),
                    net.carry(&server, &world, Towards::Node, server_reads, writes),
                );
            };
            tokio::select! {
                biased;
                _ = cuts.wait_for(|cuts| of(cuts) != before) => {}
                () = carried => {}
            }
            let mut state = net.state();
            state.open = state.open.saturating_sub(1);
        }));
        drop(tokio::spawn(self.0.double.clone().serve(server_end)));
        Ok(node)
    }

    async fn carry(
        &self,
        server: &str,
        world: &World,
        towards: Towards,
        mut from: ReadHalf<DuplexStream>,
        mut to: WriteHalf<DuplexStream>,
    ) {
        let mut meter = FrameMeter::new(towards == Towards::Server);
        let (mut piece, mut lost) = (vec![0; PIECE], false);
        while let Ok(length @ 1..) = from.read(&mut piece).await {
            let bytes = piece.get_mut(..length).unwrap_or_default();
            // The node may be killed with its last words not sent, or before it hears.
            world.pass(if towards == Towards::Server { "say" } else { "hear" }).await;
            let before = meter.traffic;
            meter.count(bytes);
            {
                let of = usize::from(towards == Towards::Node);
                if let Some(traffic) = self.state().traffic.get_mut(of) {
                    *traffic = traffic.plus(meter.traffic.since(before));
                }
            }
            lost |= match (self.way(server), towards) {
                (Way::Silent, _) => true,
                (Way::Deaf, towards) => towards == Towards::Server,
                (Way::Mute, towards) => towards == Towards::Node,
                (Way::Garbles, Towards::Node) => {
                    self.0.rng.fill(bytes);
                    false
                }
                (Way::Slow(seconds), _) => {
                    clock::sleep(Duration::from_secs(seconds)).await;
                    false
                }
                _ => false,
            };
            if lost {
                continue;
            }
            clock::sleep(LATENCY).await;
            if to.write_all(bytes).await.is_err() {
                return;
            }
        }
        let _ended = to.shutdown().await;
    }
}

/// The way of one node to servers.
pub(crate) struct SimDoor {
    pub(crate) net: Net,
    pub(crate) world: World,
}

impl ServerDoor for SimDoor {
    fn dial<'a>(
        &'a self,
        to: &'a ServerAddress,
    ) -> BoxFuture<'a, Result<(ClusterSession, Arrivals), DialError>> {
        Box::pin(async move {
            let wall = CLUSTER_STEP_WALL_DEFAULT;
            let connected = clock::timeout(wall, self.net.connect(to, &self.world)).await;
            let at = std::net::SocketAddr::from(([127, 0, 0, 1], to.port));
            let connected = connected.ok_or(DialError::Late { step: "connecting", wall })?;
            let socket = connected.map_err(|source| DialError::Connect { at, source })?;
            dial::start_session(Box::new(socket), wall).await
        })
    }
}

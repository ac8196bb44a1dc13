//! Nodes and servers of a cluster.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ostler_cluster::NodeStanding;
use ostler_cluster::client::{self, ClusterOptions};
use ostler_cluster::msgpack::Value;
use ostler_cluster::rpc::{Header, field};
use ostler_model::clock::{Clock, Stopwatch};
use ostler_model::rng::Rng;
use ostler_model::server_address::ServerAddress;
use ostler_model::time::Timestamp;
use ostler_node::{NodeId, NodeTotals, NodeView};
use ostler_testing::servers::{BeatRule, BookAlloc, CallFault, Fields, ServerDouble};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::ScalePlan;
use super::report::PhaseMeter;
use crate::joined::net::{Net, SimDoor, doors};
use crate::joined::node::SimNode;
use crate::joined::servers::{common, is_over, is_stopped};
use crate::play::agent::{Agent, AgentPlace, view};
use crate::play::disk::SimDisk;
use crate::world::World;

/// Names of the servers; every node is told of all of them.
pub(super) const SERVERS: [&str; 3] = ["s1", "s2", "s3"];
/// Ended allocations that a node keeps.
const MAX_ALLOCS: u32 = 50;
/// What a node says of itself, as one with Linux does.
const ATTRIBUTES: [(&str, &str); 22] = [
    ("cpu.arch", "amd64"),
    ("cpu.frequency", "2600"),
    ("cpu.modelname", "Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz"),
    ("cpu.numcores", "16"),
    ("cpu.totalcompute", "46400"),
    ("kernel.arch", "x86_64"),
    ("kernel.landlock", "v4"),
    ("kernel.name", "linux"),
    ("kernel.version", "6.8.0-45-generic"),
    ("memory.totalbytes", "67108864000"),
    ("os.cgroups.controllers", "cpuset,cpu,io,memory,hugetlb,pids,rdma,misc"),
    ("os.cgroups.version", "2"),
    ("os.name", "ubuntu"),
    ("os.signals", "SIGABRT,SIGALRM,SIGHUP,SIGINT,SIGIO,SIGKILL,SIGPIPE,SIGQUIT,SIGTERM,SIGUSR1"),
    ("os.version", "24.04"),
    ("unique.cgroup.mountpoint", "/sys/fs/cgroup"),
    ("unique.hostname", "node.example.net"),
    ("unique.network.interface", "ens5"),
    ("unique.network.ip-address", "192.0.2.17"),
    ("unique.storage.bytesfree", "101234567168"),
    ("unique.storage.bytestotal", "133003395072"),
    ("unique.storage.volume", "/dev/nvme0n1p1"),
];

/// A node, and what it stands on.
pub(super) struct ClusterMember {
    pub(super) id: String,
    world: World,
    _agent: Agent,
}

/// See the module.
pub(super) struct Cluster {
    pub(super) double: ServerDouble,
    pub(super) net: Net,
    pub(super) members: Vec<ClusterMember>,
    /// No server leads.
    pub(super) leaderless: Arc<AtomicBool>,
    common: Arc<Fields>,
    rng: Rng,
    since: Stopwatch,
}

impl Cluster {
    /// Servers without nodes.
    pub(super) fn new(seed: u64) -> Self {
        let (leaderless, since) = (Arc::new(AtomicBool::new(false)), Stopwatch::start());
        let asked = Arc::clone(&leaderless);
        let troubles = move |_: &Header, body: &Value| {
            let stale = field(body, "AllowStale").and_then(Value::as_bool).unwrap_or(false);
            let refused = asked.load(Ordering::Relaxed) && !stale;
            refused.then_some(CallFault::Refused("No cluster leader"))
        };
        let clock = Clock::from_fn(move || timestamp(since));
        let double = ServerDouble::new(clock, Box::new(troubles));
        let rng = Rng::from_seed(seed);
        {
            let mut book = double.book();
            book.beats = BeatRule::Stock(Rng::from_seed(seed ^ 1));
            book.servers = SERVERS.iter().map(|name| format!("{name}:4647")).collect();
        }
        let net = Net::new(double.clone(), Rng::from_seed(seed ^ 2));
        let common = Arc::new(common("web", false));
        Self { double, net, members: Vec::new(), leaderless, common, rng, since }
    }

    /// The time of the servers.
    pub(super) fn now(&self) -> Timestamp {
        timestamp(self.since)
    }

    /// Begin to count.
    pub(super) fn meter(&self) -> PhaseMeter {
        PhaseMeter::begin(&self.double, &self.net, self.now())
    }

    /// Start all nodes, at one moment.
    pub(super) async fn start(&mut self, plan: &ScalePlan, dir: &Path) -> Result<(), String> {
        for at in 0..plan.nodes {
            let member = self.member(at, &dir.join(at.to_string())).await?;
            self.members.push(member);
        }
        Ok(())
    }

    async fn member(&self, at: usize, dir: &Path) -> Result<ClusterMember, String> {
        std::fs::create_dir_all(dir).map_err(|error| error.to_string())?;
        let world = World::new(self.rng.number_below(u64::MAX), &[]);
        {
            let mut inner = world.lock();
            // Tasks run until they are stopped; nobody reads what happened.
            (inner.settled, inner.journaled) = (true, false);
        }
        world.begin_life(None);
        let disk = SimDisk::new(world.clone(), self.rng.number_below(u64::MAX), dir, false);
        let disk = Arc::new(disk.map_err(|error| error.to_string())?);
        let node = described(at, &self.rng);
        let id = node.id.to_string();
        let place = AgentPlace {
            world: &world,
            disk: &disk,
            dir,
            files: None,
            node,
            max_allocs: MAX_ALLOCS,
        };
        let agent = Agent::start(place).await?;
        let servers = SERVERS.iter();
        let servers =
            servers.map(|name| ServerAddress { host: (*name).to_owned(), port: 4647 }).collect();
        let options = ClusterOptions {
            servers,
            region: "global".to_owned(),
            class: String::new(),
            pool: None,
            secret: self.rng.uuid().to_string(),
            introduction: None,
            standing: NodeStanding::default(),
            clock: agent.clock.clone(),
            rng: agent.rng.clone(),
        };
        let node = Arc::new(SimNode::new(&agent, &world, &Arc::default()));
        let door = SimDoor { net: self.net.clone(), world: world.clone() };
        let (arrived, mut arrivals) = mpsc::channel(2);
        let doors = doors(door, arrived);
        drop(tokio::spawn(client::run(node, doors, options, CancellationToken::new())));
        drop(tokio::spawn(async move {
            // Nobody asks.
            while let Some(mut streams) = arrivals.recv().await {
                while streams.recv().await.is_some() {}
            }
        }));
        Ok(ClusterMember { id, world, _agent: agent })
    }

    /// Place so many allocations on these nodes, one after another.
    pub(super) fn place(&self, count: usize, on: &[ClusterMember]) {
        let mut book = self.double.book();
        for member in on.iter().cycle().take(count) {
            let id = self.rng.uuid().to_string();
            let own = [
                ("ID", id.as_str().into()),
                ("NodeID", member.id.as_str().into()),
                ("DesiredStatus", "run".into()),
                ("ClientStatus", "pending".into()),
            ];
            let own: BTreeMap<_, _> = own.map(|(name, value)| (name.to_owned(), value)).into();
            book.place(Some(&member.id), Arc::clone(&self.common), own);
        }
    }

    /// Stop every allocation of these nodes. How many there are.
    pub(super) fn stop_all(&self, of: &[ClusterMember]) -> usize {
        let mut book = self.double.book();
        let of: std::collections::BTreeSet<&str> = of.iter().map(|one| one.id.as_str()).collect();
        let on = |alloc: &BookAlloc| alloc.node.as_deref().is_some_and(|node| of.contains(node));
        let stopped = book.allocs().iter().filter(|(_, alloc)| on(alloc) && !is_stopped(alloc));
        let stopped: Vec<_> = stopped.map(|(id, _)| id.clone()).collect();
        for id in &stopped {
            book.change(id, &[("DesiredStatus", "stop".into())]);
        }
        stopped.len()
    }

    /// Do the servers know that everything is as they want it?
    pub(super) fn is_as_wanted(&self) -> bool {
        let running = |alloc: &BookAlloc| {
            alloc.field("ClientStatus").and_then(ostler_cluster::rpc::text) == Some("running")
        };
        let book = self.double.book();
        let registered =
            book.nodes.values().filter(|node| node.registrations > 0 && node.beats > 0);
        let as_wanted =
            |alloc: &BookAlloc| if is_stopped(alloc) { is_over(alloc) } else { running(alloc) };
        registered.count() == self.members.len() && book.allocs().values().all(as_wanted)
    }

    /// What a world saw that must not be.
    pub(super) fn broken(&self) -> Option<String> {
        self.members.iter().find_map(|member| member.world.broken())
    }

    /// Processes that run on all nodes.
    pub(super) fn live(&self) -> usize {
        self.members.iter().map(|member| member.world.live().len()).sum()
    }
}

fn timestamp(since: Stopwatch) -> Timestamp {
    Timestamp::from_nanos(u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

fn described(at: usize, rng: &Rng) -> NodeView {
    let of = view();
    let mut node = NodeView::new(NodeId::new(rng.uuid()), format!("node-{at}"));
    node.drivers = of.drivers;
    node.attributes =
        ATTRIBUTES.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
    node.resources = NodeTotals { cpu_mhz: 46_400, memory_mb: 64_000 };
    node
}

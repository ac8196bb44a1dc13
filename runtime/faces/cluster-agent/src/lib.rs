//! An agent joined to Nomad's servers.
//!
//! ```text
//! AgentHandle ─► AgentNode ─► the loops of ostler_cluster::client ─► servers
//!      ▲                                         │ streams that servers open
//!      └── server_calls ── bridge: files, logs, figures ── exec: commands ◄──┘
//! other nodes ─► disk_serve: disks of allocations that have ended      disk_fetch: theirs ─► OtherNodes
//! ```
//! The loops know the agent only by [`ClusterNode`](ostler_cluster::client::ClusterNode).
//! Start with [`run`].

mod bridge;
mod disk_fetch;
mod disk_peers;
mod disk_request;
mod disk_serve;
mod exec;
pub mod fuzz;
mod node;
mod server_calls;

use std::sync::Arc;

use ostler_agent::AgentHandle;
use ostler_cluster::client::{self, ClusterDoors, ClusterNodes, ClusterOptions, DiskServerAddress};
use ostler_cluster::dial::TcpDoor;
use ostler_cluster::tls::ServerTls;
use ostler_cluster::tls_nodes::NodeTls;
use ostler_model::config::HttpConfig;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use disk_fetch::HttpDisks;
use disk_request::DiskPlace;
use disk_serve::DiskServer;
use node::AgentNode;

/// The options of an agent that joins a cluster.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// The options of the loops.
    pub cluster: ClusterOptions,
    /// The TLS towards servers, if they want it.
    pub tls: Option<ServerTls>,
    /// The TLS between nodes.
    pub node_tls: Option<NodeTls>,
    /// Where to serve disks to other nodes.
    pub http: HttpConfig,
    /// The object by which the agent asks other nodes.
    pub others: ClusterNodes,
}

/// What is needed to answer the calls of servers.
struct ServerCallContext {
    agent: AgentHandle,
    /// The places of commands that run inside tasks.
    commands: exec::Commands,
    /// Asks the servers what a caller may do.
    others: ClusterNodes,
}

/// Run the agent as a node of the cluster until `ended`.
pub async fn run(agent: AgentHandle, options: JoinOptions, ended: CancellationToken) {
    let JoinOptions { cluster, tls, node_tls, http, others } = options;
    // There is room for the newest connection, and for one that ends.
    let (arrived, mut arrivals) = mpsc::channel(2);
    let (served, serves) = watch::channel(None);
    let secret = cluster.secret.clone();
    let serve = serve_disks(&agent, secret, node_tls.as_ref(), &http, served);
    let node = Arc::new(AgentNode(agent.clone()));
    let servers = Arc::new(TcpDoor { tls });
    let disks = Arc::new(HttpDisks { tls: node_tls.clone().map(Arc::new) });
    let commands = exec::Commands::default();
    let asked =
        Arc::new(ServerCallContext { agent: agent.clone(), commands, others: others.clone() });
    let doors = ClusterDoors { servers, disks, arrived, others, serves };
    let answer = async {
        while let Some(arrivals) = arrivals.recv().await {
            server_calls::run(&asked, arrivals).await;
        }
    };
    let live = client::run(node, doors, cluster, ended.clone());
    ended.run_until_cancelled(async { tokio::join!(live, answer, serve) }).await;
}

/// Serve the disks of this node's allocations to other nodes, or log why it does not.
async fn serve_disks(
    agent: &AgentHandle,
    secret: String,
    tls: Option<&NodeTls>,
    http: &HttpConfig,
    served: watch::Sender<Option<DiskServerAddress>>,
) {
    let acceptor = tls.and_then(|tls| tls.acceptor.clone());
    let with_tls = tls.map(|tls| tls.acceptor.is_some());
    let place = disk_request::disk_place(http, agent.node().host_ip, with_tls);
    if place.is_bare() {
        tracing::warn!(
            "disks of allocations are served to other nodes without TLS: whoever is on the network path can \
             read them, and fetch them again; add a tls block, or ports {{ http = 0 }} to serve none"
        );
    }
    match place {
        DiskPlace::Off(why) => {
            tracing::info!("disks of allocations are not served to other nodes: {why}");
        }
        DiskPlace::At { bind, advertised, tls: with_tls } => {
            if let Some(tls) = tls.filter(|tls| !tls.is_named) {
                let name = tls.name.to_str();
                tracing::warn!(
                    "other nodes will not fetch disks here: the certificate of this one does not name {name}"
                );
            }
            let at = DiskServerAddress { address: advertised, tls: with_tls };
            let allocs = Arc::new(agent.clone());
            disk_serve::run(DiskServer { allocs, secret, bind, at, tls: acceptor }, served).await;
        }
    }
}

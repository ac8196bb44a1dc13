//! An agent joined to Nomad's servers.
//!
//! ```text
//! AgentHandle ─► AgentNode ─► the loops of ostler_cluster::client ─► servers
//!      ▲                                         │ streams that servers open
//!      └── asked: calls ── bridge: files, logs, figures ── exec: commands ◄──┘
//! ```
//! The loops know the agent by [`ClusterNode`](ostler_cluster::client::ClusterNode) alone. Start with [`run`].

mod asked;
mod bridge;
mod exec;
pub mod fuzz;
mod node;

use std::sync::Arc;

use ostler_agent::AgentHandle;
use ostler_cluster::client::{self, ClusterOptions};
use ostler_cluster::dial::TcpDoor;
use ostler_cluster::tls::ServerTls;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use node::AgentNode;

/// How an agent joins.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// What the loops know.
    pub cluster: ClusterOptions,
    /// TLS, where the servers want it.
    pub tls: Option<ServerTls>,
    /// People at the other end of a server may run commands inside tasks.
    pub remote_exec: bool,
}

/// What servers ask is answered with this.
struct AskedAgent {
    agent: AgentHandle,
    remote_exec: bool,
}

/// Be a node of the cluster until `ended`.
pub async fn run(agent: AgentHandle, options: JoinOptions, ended: CancellationToken) {
    let JoinOptions { cluster, tls, remote_exec } = options;
    // The newest connection, and one that ends.
    let (arrived, mut arrivals) = mpsc::channel(2);
    let (node, door) = (Arc::new(AgentNode(agent.clone())), Arc::new(TcpDoor { tls }));
    let asked = Arc::new(AskedAgent { agent, remote_exec });
    let answer = async {
        while let Some(arrivals) = arrivals.recv().await {
            asked::run(&asked, arrivals).await;
        }
    };
    let live = client::run(node, door, cluster, arrived, ended.clone());
    ended.run_until_cancelled(async { tokio::join!(live, answer) }).await;
}

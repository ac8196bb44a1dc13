//! What this node calls at its servers, in types.
//!
//! ```text
//! region, token ─► every request        answer ─► Heartbeat: how soon the next, where the servers are
//! ```

use std::time::Duration;

use ostler_model::ids::NodeId;
use ostler_model::time::Timestamp;

use super::address::ServerAddress;
use super::caller::{Caller, ServerCallError};
use super::msgpack::Value;
use super::rpc::{field, map, text};

/// How a node is, as servers call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeStatus {
    /// It is known, and gets no work yet.
    Initializing,
    /// It takes work.
    Ready,
    /// It is gone.
    Down,
}

impl NodeStatus {
    const fn word(self) -> &'static str {
        match self {
            Self::Initializing => "initializing",
            Self::Ready => "ready",
            Self::Down => "down",
        }
    }
}

/// What a server says to a node that registers or beats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The next heartbeat is due within this; zero after the last one.
    pub within: Duration,
    /// The servers of the region, in no order that means anything.
    pub servers: Vec<ServerAddress>,
    /// Nodes of the cluster.
    pub nodes: u64,
}

/// Calls of one node to one server.
#[derive(Clone, Debug)]
pub struct ServerCalls {
    caller: Caller,
    region: String,
    token: String,
    wall: Duration,
}

impl ServerCalls {
    /// Calls through this stream. `wall`: how long each may take.
    #[must_use]
    pub const fn new(caller: Caller, region: String, token: String, wall: Duration) -> Self {
        Self { caller, region, token, wall }
    }

    /// Is somebody there?
    ///
    /// # Errors
    /// When the call fails.
    pub async fn ping(&self) -> Result<(), ServerCallError> {
        self.caller.call("Status.Ping", &map([]), self.wall).await.map(drop)
    }

    /// The leader of the region; none while the servers have none.
    ///
    /// # Errors
    /// When the call fails: also when the server knows no such region.
    pub async fn leader(&self) -> Result<Option<String>, ServerCallError> {
        let answer = self.call("Status.Leader", []).await?;
        // Not a struct: the answer is the text itself.
        let leader = text(&answer).ok_or_else(|| unread("Status.Leader", "leader"))?;
        Ok(Some(leader.to_owned()).filter(|leader| !leader.is_empty()))
    }

    /// Register this node, or say that it has changed. `node` is the whole of it.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn register(&self, node: Value) -> Result<Heartbeat, ServerCallError> {
        const METHOD: &str = "Node.Register";
        heartbeat(METHOD, &self.call(METHOD, [("Node", node), ("NodeEvent", Value::Nil)]).await?)
    }

    /// Say how this node is: the heartbeat.
    ///
    /// # Errors
    /// When the call fails: also when the server does not know the node any more.
    pub async fn update_status(
        &self,
        node: NodeId,
        status: NodeStatus,
        now: Timestamp,
    ) -> Result<Heartbeat, ServerCallError> {
        const METHOD: &str = "Node.UpdateStatus";
        let seconds = now.nanos() / 1_000_000_000;
        let fields = [
            ("NodeID", node.to_string().into()),
            ("Status", status.word().into()),
            ("NodeEvent", Value::Nil),
            ("UpdatedAt", seconds.into()),
        ];
        heartbeat(METHOD, &self.call(METHOD, fields).await?)
    }

    /// Have this node forgotten. Where access is controlled it takes a token that may write nodes.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn deregister(&self, node: NodeId) -> Result<(), ServerCallError> {
        self.call("Node.Deregister", [("NodeID", node.to_string().into())]).await.map(drop)
    }

    async fn call<const N: usize>(
        &self,
        method: &str,
        fields: [(&str, Value); N],
    ) -> Result<Value, ServerCallError> {
        let common = [
            ("Region", self.region.as_str().into()),
            ("Namespace", "".into()),
            ("AuthToken", self.token.as_str().into()),
            ("Forwarded", false.into()),
        ];
        let body = map(common.into_iter().chain(fields));
        self.caller.call(method, &body, self.wall).await
    }
}

fn unread(method: &str, what: &'static str) -> ServerCallError {
    ServerCallError::Answer { method: method.to_owned(), what }
}

fn heartbeat(method: &str, answer: &Value) -> Result<Heartbeat, ServerCallError> {
    let number = |name| field(answer, name).and_then(Value::as_u64);
    let within = number("HeartbeatTTL").ok_or_else(|| unread(method, "HeartbeatTTL"))?;
    let servers = field(answer, "Servers").and_then(Value::as_array);
    let servers = servers
        .into_iter()
        .flatten()
        .filter_map(|server| field(server, "RPCAdvertiseAddr").and_then(text)?.parse().ok());
    Ok(Heartbeat {
        within: Duration::from_nanos(within),
        servers: servers.take(ostler_model::limits::CLUSTER_SERVERS_MAX).collect(),
        nodes: number("NumNodes").unwrap_or_default(),
    })
}

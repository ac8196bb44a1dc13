//! What this node calls at its servers, in types.
//!
//! ```text
//! region, token ─► every request        answer ─► Heartbeat: how soon the next, where the servers are
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use ostler_model::ids::{AllocId, NodeId};
use ostler_model::limits::{CLUSTER_BLOCK_GRACE, CLUSTER_BLOCK_WALL, CLUSTER_TEXT_BYTES_MAX};
use ostler_model::shown::shown;

use super::caller::{Caller, ServerCallError};
use super::credentials::signing_key;
use super::msgpack::Value;
use super::rpc::{field, map, text};
use ostler_model::server_address::ServerAddress;

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
    /// What the node shows from now on, where servers sign identities and this is a new one.
    pub signed: Option<String>,
}

/// The allocations of a node as its servers want them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientAllocs {
    /// Index of the answer.
    pub index: u64,
    /// Each with the index of its last change.
    pub allocs: BTreeMap<AllocId, u64>,
    /// What shows another node that these may have the disk of the allocation before them.
    pub migrate_tokens: BTreeMap<AllocId, String>,
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

    /// The same calls with another token.
    #[must_use]
    pub fn showing(mut self, token: &str) -> Self {
        token.clone_into(&mut self.token);
        self
    }

    /// Is somebody there?
    ///
    /// # Errors
    /// When the call fails.
    pub async fn ping(&self) -> Result<(), ServerCallError> {
        self.caller.call("Status.Ping", &map([]), self.wall).await.map(drop)
    }

    /// Can calls still be made?
    #[must_use]
    pub fn stands(&self) -> bool {
        self.caller.stands()
    }

    /// The leader of the region; none while the servers have none.
    ///
    /// # Errors
    /// When the call fails: also when the server knows no such region.
    pub async fn leader(&self) -> Result<Option<String>, ServerCallError> {
        let answer = self.call("Status.Leader", []).await?;
        // Not a struct: the answer is the text itself.
        let leader = text(&answer).ok_or_else(|| unread("Status.Leader", "leader"))?;
        let leader = shown(leader, CLUSTER_TEXT_BYTES_MAX);
        Ok(Some(leader).filter(|leader| !leader.is_empty()))
    }

    /// Register this node, or say that it has changed. `node` is the whole of it.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn register(&self, node: Value) -> Result<Heartbeat, ServerCallError> {
        const METHOD: &str = "Node.Register";
        heartbeat(METHOD, &self.call(METHOD, [("Node", node)]).await?)
    }

    /// Say how this node is: the heartbeat.
    ///
    /// # Errors
    /// When the call fails: also when the server does not know the node any more.
    pub async fn update_status(
        &self,
        node: NodeId,
        status: NodeStatus,
    ) -> Result<Heartbeat, ServerCallError> {
        const METHOD: &str = "Node.UpdateStatus";
        let key = signing_key(&self.token).map(|key| ("IdentitySigningKeyID", key.into()));
        let fields = [("NodeID", node.to_string().into()), ("Status", status.word().into())];
        heartbeat(METHOD, &self.call(METHOD, fields.into_iter().chain(key)).await?)
    }

    /// Every allocation of the node, when the servers are past `index`. They hold the question until then, or for the time of [`CLUSTER_BLOCK_WALL`].
    ///
    /// # Errors
    /// When the call fails.
    pub async fn client_allocs(
        &self,
        node: NodeId,
        secret: &str,
        index: u64,
    ) -> Result<ClientAllocs, ServerCallError> {
        const METHOD: &str = "Node.GetClientAllocs";
        let hold = u64::try_from(CLUSTER_BLOCK_WALL.as_nanos()).unwrap_or(u64::MAX);
        let fields = [
            ("NodeID", node.to_string().into()),
            ("SecretID", secret.into()),
            ("MinQueryIndex", index.into()),
            ("MaxQueryTime", hold.into()),
            // The first answer must be the leader's: what is not in it is ended.
            ("AllowStale", (index > 0).into()),
        ];
        let wall = CLUSTER_BLOCK_WALL.saturating_add(CLUSTER_BLOCK_GRACE);
        listed(METHOD, &self.call_for(METHOD, fields, wall).await?)
    }

    /// One allocation, whole, of whatever node; when the servers are past `index`, which they hold the
    /// question for until then, or for the time of `hold`. Nothing may be in the answer.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn one_alloc(
        &self,
        id: AllocId,
        index: u64,
        hold: Duration,
    ) -> Result<Value, ServerCallError> {
        let nanos = u64::try_from(hold.as_nanos()).unwrap_or(u64::MAX);
        let fields = [
            ("AllocID", id.to_string().into()),
            ("MinQueryIndex", index.into()),
            ("MaxQueryTime", nanos.into()),
            // A follower that is behind would say that there is none.
            ("AllowStale", (index > 0).into()),
        ];
        let wall = if index > 0 { self.wall.saturating_add(hold) } else { self.wall };
        self.call_for("Alloc.GetAlloc", fields, wall).await
    }

    /// Another node. Nothing may be in the answer.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn one_node(&self, id: NodeId) -> Result<Value, ServerCallError> {
        self.call("Node.GetNode", [("NodeID", id.to_string().into())]).await
    }

    /// These allocations, whole, from a server that is at `min_index` at least; with `older` from one that may
    /// not have heard what this node told since.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn allocs(
        &self,
        ids: &[AllocId],
        secret: &str,
        min_index: u64,
        older: bool,
    ) -> Result<Vec<Value>, ServerCallError> {
        const METHOD: &str = "Alloc.GetAllocs";
        let list = ids.iter().map(|id| Value::from(id.to_string())).collect();
        let fields = [
            ("AllocIDs", Value::Array(list)),
            ("AuthToken", secret.into()),
            ("AllowStale", older.into()),
            // A follower that is behind waits instead of answering with what was.
            ("MinQueryIndex", min_index.saturating_sub(1).into()),
        ];
        described(METHOD, &self.call(METHOD, fields).await?)
    }

    /// Tell where allocations are.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn update_allocs(&self, allocs: Vec<Value>) -> Result<(), ServerCallError> {
        const METHOD: &str = "Node.UpdateAlloc";
        let answer = self.call(METHOD, [("Alloc", Value::Array(allocs))]).await?;
        // What is taken for told is not told again.
        field(&answer, "Index")
            .and_then(Value::as_u64)
            .map(drop)
            .ok_or_else(|| unread(METHOD, "Index"))
    }

    /// Tell what happened to this node.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn emit_events(
        &self,
        node: NodeId,
        events: Vec<Value>,
    ) -> Result<(), ServerCallError> {
        let events = map([(node.to_string().as_str(), Value::Array(events))]);
        self.call("Node.EmitEvents", [("NodeEvents", events)]).await.map(drop)
    }

    /// The token of this secret; nothing is in the answer where there is none.
    ///
    /// # Errors
    /// When the call fails: also when the servers control no access.
    pub async fn token(&self, secret: &str) -> Result<Value, ServerCallError> {
        let fields = [("SecretID", secret.into()), ("AllowStale", true.into())];
        self.call("ACL.ResolveToken", fields).await
    }

    /// Policies of the token that these calls show.
    ///
    /// # Errors
    /// When the call fails: also when one is not of the token, or the servers control no access.
    pub async fn policies(&self, names: &[String]) -> Result<Value, ServerCallError> {
        let names = names.iter().map(|name| name.as_str().into()).collect();
        let fields = [("Names", Value::Array(names)), ("AllowStale", true.into())];
        self.call("ACL.GetPolicies", fields).await
    }

    /// Have this node forgotten. Where access is controlled it takes a token that may write nodes.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn deregister(&self, node: NodeId) -> Result<(), ServerCallError> {
        self.call("Node.Deregister", [("NodeID", node.to_string().into())]).await.map(drop)
    }

    async fn call<'a>(
        &self,
        method: &str,
        fields: impl IntoIterator<Item = (&'a str, Value)>,
    ) -> Result<Value, ServerCallError> {
        self.call_for(method, fields, self.wall).await
    }

    async fn call_for<'a>(
        &self,
        method: &str,
        fields: impl IntoIterator<Item = (&'a str, Value)>,
        wall: Duration,
    ) -> Result<Value, ServerCallError> {
        // What is not in a request is empty to the server. Heartbeats are most of what an idle node sends.
        let fields: Vec<_> = fields.into_iter().collect();
        let token = Some(("AuthToken", self.token.as_str().into()));
        // A request has each field once.
        let given = fields.iter().any(|(field, _)| *field == "AuthToken");
        let token = token.filter(|_| !given && !self.token.is_empty());
        let common = [("Region", self.region.as_str().into())].into_iter().chain(token);
        let body = map(common.chain(fields));
        self.caller.call(method, &body, wall).await
    }
}

fn unread(method: &str, what: &'static str) -> ServerCallError {
    ServerCallError::Answer { method: method.to_owned(), what }
}

/// The allocations of a node.
pub(crate) fn listed(method: &str, answer: &Value) -> Result<ClientAllocs, ServerCallError> {
    let index = field(answer, "Index").and_then(Value::as_u64);
    let index = index.ok_or_else(|| unread(method, "Index"))?;
    let entries = |name| match field(answer, name) {
        None | Some(Value::Nil) => Ok(&[][..]),
        Some(listed) => listed.as_map().map(Vec::as_slice).ok_or_else(|| unread(method, name)),
    };
    let read = |(id, index): &(Value, Value)| Some((text(id)?.parse().ok()?, index.as_u64()?));
    let listed: Option<_> = entries("Allocs")?.iter().map(read).collect();
    // One that cannot be read would count as gone, and be ended.
    let allocs = listed.ok_or_else(|| unread(method, "Allocs"))?;
    let token =
        |(id, token): &(Value, Value)| Some((text(id)?.parse().ok()?, text(token)?.to_owned()));
    let migrate_tokens = entries("MigrateTokens")?.iter().filter_map(token).collect();
    Ok(ClientAllocs { index, allocs, migrate_tokens })
}

/// Allocations, each whole.
pub(crate) fn described(method: &str, answer: &Value) -> Result<Vec<Value>, ServerCallError> {
    match field(answer, "Allocs") {
        None | Some(Value::Nil) => Ok(Vec::new()),
        Some(Value::Array(allocs)) => Ok(allocs.clone()),
        Some(_) => Err(unread(method, "Allocs")),
    }
}

pub(crate) fn heartbeat(method: &str, answer: &Value) -> Result<Heartbeat, ServerCallError> {
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
        signed: field(answer, "SignedIdentity").and_then(text).map(str::to_owned),
    })
}

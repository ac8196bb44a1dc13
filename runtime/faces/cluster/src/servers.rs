//! The calls of this node to its servers, as typed functions.
//!
//! ```text
//! region, token ─► every request        answer ─► Heartbeat: how soon the next, where the servers are
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use ostler_model::ids::{AllocId, NodeId};
use ostler_model::limits::{CLUSTER_BLOCK_GRACE, CLUSTER_BLOCK_WALL, CLUSTER_TEXT_BYTES_MAX};
use ostler_model::printable::printable_line;

use super::caller::{ServerCallError, ServerCaller};
use super::credentials::signing_key;
use super::msgpack::Value;
use super::rpc::{field, map, text};
use ostler_model::server_address::ServerAddress;

/// The status of a node in the servers' terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeStatus {
    /// The node is registered and gets no work yet.
    Initializing,
    /// The node takes work.
    Ready,
    /// The node is gone.
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

/// The answer of a server to a registration or a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The time within which the next heartbeat is due; zero after the last one.
    pub within: Duration,
    /// The servers of the region, in no particular order.
    pub servers: Vec<ServerAddress>,
    /// The number of nodes in the cluster.
    pub nodes: u64,
    /// The new identity of the node, if the servers have signed one.
    pub signed: Option<String>,
}

/// The allocations that the servers want on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientAllocs {
    /// The index of the answer.
    pub index: u64,
    /// The allocations, each with the index of its last change.
    pub allocs: BTreeMap<AllocId, u64>,
    /// The tokens by which other nodes know that these allocations may have the disk of the
    /// previous one.
    pub migrate_tokens: BTreeMap<AllocId, String>,
}

/// The calls of one node to one server.
#[derive(Clone, Debug)]
pub struct ServerCalls {
    caller: ServerCaller,
    region: String,
    token: String,
    wall: Duration,
}

impl ServerCalls {
    /// Calls on this stream. `wall` is how long each may take.
    #[must_use]
    pub const fn new(caller: ServerCaller, region: String, token: String, wall: Duration) -> Self {
        Self { caller, region, token, wall }
    }

    /// The same calls with this token.
    #[must_use]
    pub fn with_token(mut self, token: &str) -> Self {
        token.clone_into(&mut self.token);
        self
    }

    /// Check that the server answers.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn ping(&self) -> Result<(), ServerCallError> {
        self.caller.call("Status.Ping", &map([]), self.wall).await.map(drop)
    }

    /// Whether calls can still be made.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.caller.is_open()
    }

    /// The address of the leader of the region; none while there is none.
    ///
    /// # Errors
    /// When the call fails, for example because the server does not know the region.
    pub async fn leader(&self) -> Result<Option<String>, ServerCallError> {
        let answer = self.call("Status.Leader", []).await?;
        // The answer is no struct but the text itself.
        let leader = text(&answer).ok_or_else(|| unreadable_answer("Status.Leader", "leader"))?;
        let leader = printable_line(leader, CLUSTER_TEXT_BYTES_MAX);
        Ok(Some(leader).filter(|leader| !leader.is_empty()))
    }

    /// Register this node, or report that it has changed. `node` is its whole description.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn register(&self, node: Value) -> Result<Heartbeat, ServerCallError> {
        const METHOD: &str = "Node.Register";
        parse_heartbeat(METHOD, &self.call(METHOD, [("Node", node)]).await?)
    }

    /// Send a heartbeat with the status of this node.
    ///
    /// # Errors
    /// When the call fails, for example because the server does not know the node any more.
    pub async fn update_status(
        &self,
        node: NodeId,
        status: NodeStatus,
    ) -> Result<Heartbeat, ServerCallError> {
        const METHOD: &str = "Node.UpdateStatus";
        let key = signing_key(&self.token).map(|key| ("IdentitySigningKeyID", key.into()));
        let fields = [("NodeID", node.to_string().into()), ("Status", status.word().into())];
        parse_heartbeat(METHOD, &self.call(METHOD, fields.into_iter().chain(key)).await?)
    }

    /// Read the list of all allocations of the node once the servers are past `index`. They hold
    /// the question until then, or for [`CLUSTER_BLOCK_WALL`].
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
            // The first answer must come from the leader, because allocations that are not in it
            // are stopped.
            ("AllowStale", (index > 0).into()),
        ];
        let wall = CLUSTER_BLOCK_WALL.saturating_add(CLUSTER_BLOCK_GRACE);
        parse_client_allocs(METHOD, &self.call_for(METHOD, fields, wall).await?)
    }

    /// Read one allocation of any node once the servers are past `index`. They hold the question
    /// until then, or for `hold`. The answer may have no allocation.
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
            // A follower that is behind would answer that there is none.
            ("AllowStale", (index > 0).into()),
        ];
        let wall = if index > 0 { self.wall.saturating_add(hold) } else { self.wall };
        self.call_for("Alloc.GetAlloc", fields, wall).await
    }

    /// Read another node. The answer may have no node.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn one_node(&self, id: NodeId) -> Result<Value, ServerCallError> {
        self.call("Node.GetNode", [("NodeID", id.to_string().into())]).await
    }

    /// Read these allocations from a server that is at least at `min_index`. With `older`, the
    /// server may not know what this node reported since.
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
            // A follower that is behind waits instead of answering with an older state.
            ("MinQueryIndex", min_index.saturating_sub(1).into()),
        ];
        parse_allocs(METHOD, &self.call(METHOD, fields).await?)
    }

    /// Report the states of allocations.
    ///
    /// # Errors
    /// When the call fails.
    pub async fn update_allocs(&self, allocs: Vec<Value>) -> Result<(), ServerCallError> {
        const METHOD: &str = "Node.UpdateAlloc";
        let answer = self.call(METHOD, [("Alloc", Value::Array(allocs))]).await?;
        // The answer must be right, because a report that counts as sent is not sent again.
        field(&answer, "Index")
            .and_then(Value::as_u64)
            .map(drop)
            .ok_or_else(|| unreadable_answer(METHOD, "Index"))
    }

    /// Report events of this node.
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

    /// Read the token with this secret. The answer has none if there is none.
    ///
    /// # Errors
    /// When the call fails, for example because the servers do not use access control.
    pub async fn token(&self, secret: &str) -> Result<Value, ServerCallError> {
        let fields = [("SecretID", secret.into()), ("AllowStale", true.into())];
        self.call("ACL.ResolveToken", fields).await
    }

    /// Read policies of the token that these calls use.
    ///
    /// # Errors
    /// When the call fails, for example because a policy is not of the token, or the servers do not
    /// use access control.
    pub async fn policies(&self, names: &[String]) -> Result<Value, ServerCallError> {
        let names = names.iter().map(|name| name.as_str().into()).collect();
        let fields = [("Names", Value::Array(names)), ("AllowStale", true.into())];
        self.call("ACL.GetPolicies", fields).await
    }

    /// Remove this node from the servers. With access control, the token must allow to write nodes.
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
        // A field that is not in a request counts as empty. Short requests matter, because an idle
        // node sends mostly heartbeats.
        let fields: Vec<_> = fields.into_iter().collect();
        let token = Some(("AuthToken", self.token.as_str().into()));
        // A request must not have a field twice.
        let given = fields.iter().any(|(field, _)| *field == "AuthToken");
        let token = token.filter(|_| !given && !self.token.is_empty());
        let common = [("Region", self.region.as_str().into())].into_iter().chain(token);
        let body = map(common.chain(fields));
        self.caller.call(method, &body, wall).await
    }
}

fn unreadable_answer(method: &str, what: &'static str) -> ServerCallError {
    ServerCallError::Answer { method: method.to_owned(), what }
}

/// Parse the list of allocations of a node.
pub(crate) fn parse_client_allocs(
    method: &str,
    answer: &Value,
) -> Result<ClientAllocs, ServerCallError> {
    let index = field(answer, "Index").and_then(Value::as_u64);
    let index = index.ok_or_else(|| unreadable_answer(method, "Index"))?;
    let entries = |name| match field(answer, name) {
        None | Some(Value::Nil) => Ok(&[][..]),
        Some(listed) => {
            listed.as_map().map(Vec::as_slice).ok_or_else(|| unreadable_answer(method, name))
        }
    };
    let read = |(id, index): &(Value, Value)| Some((text(id)?.parse().ok()?, index.as_u64()?));
    let listed: Option<_> = entries("Allocs")?.iter().map(read).collect();
    // An allocation that cannot be read would count as gone and be stopped.
    let allocs = listed.ok_or_else(|| unreadable_answer(method, "Allocs"))?;
    let token =
        |(id, token): &(Value, Value)| Some((text(id)?.parse().ok()?, text(token)?.to_owned()));
    let migrate_tokens = entries("MigrateTokens")?.iter().filter_map(token).collect();
    Ok(ClientAllocs { index, allocs, migrate_tokens })
}

/// The descriptions of allocations in an answer.
pub(crate) fn parse_allocs(method: &str, answer: &Value) -> Result<Vec<Value>, ServerCallError> {
    match field(answer, "Allocs") {
        None | Some(Value::Nil) => Ok(Vec::new()),
        Some(Value::Array(allocs)) => Ok(allocs.clone()),
        Some(_) => Err(unreadable_answer(method, "Allocs")),
    }
}

pub(crate) fn parse_heartbeat(method: &str, answer: &Value) -> Result<Heartbeat, ServerCallError> {
    let number = |name| field(answer, name).and_then(Value::as_u64);
    let within = number("HeartbeatTTL").ok_or_else(|| unreadable_answer(method, "HeartbeatTTL"))?;
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

//! Checks, step by step, whether a node can join a cluster.
//!
//! ```text
//! each server:    name ─► connection ─► [TLS] ─► answer ─► region
//! the first one that knows the region:  registration ─► heartbeat ─► removal
//! ```
//! The node that is registered is made up for the check. It takes no work, and it is removed again.

use std::time::Duration;

use ostler_model::causes;
use ostler_model::clock::Stopwatch;
use ostler_model::ids::NodeId;
use ostler_model::limits::CLUSTER_ANSWER_BYTES_MAX;
use ostler_model::rng::Rng;
use serde::Serialize;

use super::caller::{ServerCallError, ServerCaller};
use super::dial::{self, DialError};
use super::msgpack::Value;
use super::rpc::map;
use super::servers::{NodeStatus, ServerCalls};
use super::session::ClusterSession;
use super::tls::ServerTls;
use ostler_model::server_address::ServerAddress;

/// The servers to check, and the node to check them with.
#[derive(Clone, Debug)]
pub struct JoinCheckRequest {
    /// The servers to try.
    pub servers: Vec<ServerAddress>,
    /// The region of the servers.
    pub region: String,
    /// The data center that the node would be in.
    pub datacenter: String,
    /// The name that the node would have in the servers' lists.
    pub name: String,
    /// The TLS to use, if the servers want it.
    pub tls: Option<ServerTls>,
    /// How long each step may take.
    pub wall: Duration,
}

/// One step of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum JoinStep {
    /// The name of the server can be resolved.
    Name,
    /// The server accepts a connection.
    Connection,
    /// TLS is agreed on, and the server has the right certificate.
    Tls,
    /// The server answers calls.
    Answer,
    /// The server knows the region, and the region has a leader.
    Region,
    /// The servers accept the registration of a node.
    Registration,
    /// The servers accept its heartbeats.
    Heartbeat,
    /// The servers remove the node again.
    Removal,
}

impl JoinStep {
    /// The name of the step in one word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Connection => "connection",
            Self::Tls => "tls",
            Self::Answer => "answer",
            Self::Region => "region",
            Self::Registration => "registration",
            Self::Heartbeat => "heartbeat",
            Self::Removal => "removal",
        }
    }
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JoinFinding {
    /// The server that was checked.
    pub server: String,
    /// The step that was checked.
    pub step: JoinStep,
    /// Whether the step works.
    pub works: bool,
    /// What was found, or why the step does not work.
    pub found: String,
    /// Advice on what to do; none if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// How long the step took, milliseconds.
    pub took_ms: u64,
}

/// Whether a node can join. It is no obstacle that a node cannot be removed again.
#[must_use]
pub fn can_join(findings: &[JoinFinding]) -> bool {
    let beats = |finding: &JoinFinding| finding.step == JoinStep::Heartbeat;
    let needed = |finding: &&JoinFinding| finding.step != JoinStep::Removal;
    findings.iter().any(beats) && findings.iter().filter(needed).all(|finding| finding.works)
}

/// Why a step does not work, and advice on what to do.
type StepFailure = (String, Option<String>);

/// Check every server, and then the calls of a node. `told` is called with the result of each step.
pub async fn join_check(
    ask: &JoinCheckRequest,
    rng: &Rng,
    mut told: impl FnMut(&JoinFinding),
) -> Vec<JoinFinding> {
    let mut findings = Vec::new();
    let mut ready = None;
    for server in &ask.servers {
        let mut way = ServerCheck { server, findings: &mut findings, told: &mut told };
        let calls = way.reach(ask).await;
        ready = ready.or(calls.map(|calls| (server, calls)));
    }
    if let Some((server, calls)) = ready {
        let node = NodeId::new(rng.uuid());
        let mut way = ServerCheck { server, findings: &mut findings, told: &mut told };
        way.check_node_life(ask, &calls, node, rng).await;
    }
    findings
}

/// The steps of the check with one server.
struct ServerCheck<'a, T> {
    server: &'a ServerAddress,
    findings: &'a mut Vec<JoinFinding>,
    told: &'a mut T,
}

impl<T: FnMut(&JoinFinding)> ServerCheck<'_, T> {
    /// Run a step and record its result. Returns what the step gave, if it works.
    async fn step<R>(
        &mut self,
        step: JoinStep,
        done: impl Future<Output = Result<(R, String), StepFailure>>,
    ) -> Option<R> {
        let watch = Stopwatch::start();
        let (given, works, found, advice) = match done.await {
            Ok((given, found)) => (Some(given), true, found, None),
            Err((why, advice)) => (None, false, why, advice),
        };
        let took_ms = u64::try_from(watch.elapsed().as_millis()).unwrap_or(u64::MAX);
        let server = self.server.to_string();
        let finding = JoinFinding { server, step, works, found, advice, took_ms };
        (self.told)(&finding);
        self.findings.push(finding);
        given
    }

    /// Run the steps from the name to the region.
    async fn reach(&mut self, ask: &JoinCheckRequest) -> Option<ServerCalls> {
        let (server, wall) = (self.server, ask.wall);
        let resolved = async {
            let found = dial::resolve(server, wall).await.map_err(dial_failure)?;
            let shown: Vec<_> = found.iter().map(ToString::to_string).collect();
            Ok((found, shown.join(", ")))
        };
        let addresses = self.step(JoinStep::Name, resolved).await?;
        let connected = async {
            let stream = dial::connect(&addresses, wall).await.map_err(dial_failure)?;
            let at = stream.peer_addr().map_err(DialError::Ended).map_err(dial_failure)?;
            let bare = ask.tls.is_none() && !at.ip().is_loopback();
            let bare = if bare {
                "; without TLS, whoever is on the network path can read and change it"
            } else {
                ""
            };
            Ok((stream, format!("connected to {at}{bare}")))
        };
        let stream = self.step(JoinStep::Connection, connected).await?;
        let socket: Box<dyn ostler_net::Stream> = match &ask.tls {
            None => Box::new(stream),
            Some(tls) => {
                let secured = async {
                    let socket = dial::secure(stream, tls, wall).await.map_err(dial_failure)?;
                    Ok((socket, "the server's certificate is the right one".to_owned()))
                };
                self.step(JoinStep::Tls, secured).await?
            }
        };
        let caller = self.step(JoinStep::Answer, ping_server(socket, ask)).await?;
        let calls = ServerCalls::new(caller, ask.region.clone(), String::new(), wall);
        let led = async {
            let leader = calls.leader().await.map_err(|error| {
                let advice = format!("give the servers' own region, in place of {:?}", ask.region);
                (error.to_string(), refused_for(&error, "region").then_some(advice))
            })?;
            let none = || {
                let why = format!("the region {} has no leader", ask.region);
                (
                    why,
                    Some("wait until its servers have elected one, and look at their logs".into()),
                )
            };
            let leader = leader.ok_or_else(none)?;
            Ok(((), format!("the leader of {} is {leader}", ask.region)))
        };
        self.step(JoinStep::Region, led).await?;
        Some(calls)
    }

    /// Run the steps of a node: registration, heartbeat and removal.
    async fn check_node_life(
        &mut self,
        ask: &JoinCheckRequest,
        calls: &ServerCalls,
        node: NodeId,
        rng: &Rng,
    ) {
        let registered = async {
            let made_up = made_up_node(ask, node, rng);
            let beat = calls.register(made_up).await.map_err(|error| {
                let advice = "servers that ask for an introduction token or a client certificate \
                              take no node without one";
                let denied = refused_for(&error, "denied");
                (error.to_string(), denied.then(|| advice.to_owned()))
            })?;
            let servers: Vec<_> = beat.servers.iter().map(ToString::to_string).collect();
            Ok((
                (),
                format!("as {node}, one of {} nodes; servers: {}", beat.nodes, servers.join(", ")),
            ))
        };
        if self.step(JoinStep::Registration, registered).await.is_none() {
            return;
        }
        let beaten = async {
            let beat = calls.update_status(node, NodeStatus::Initializing).await;
            let within = beat.map_err(call_failure)?.within;
            Ok(((), format!("the next one is due within {:.1} s", within.as_secs_f64())))
        };
        self.step(JoinStep::Heartbeat, beaten).await;
        let removed = async {
            let gone = calls.deregister(node).await;
            if gone.is_err() {
                // As a down node it is collected later with others.
                let _tried = calls.update_status(node, NodeStatus::Down).await;
            }
            let advice =
                format!("remove {node} by hand, or leave it: it is down and takes no work");
            gone.map_err(|error| (error.to_string(), Some(advice)))?;
            Ok(((), "the servers have forgotten it".to_owned()))
        };
        self.step(JoinStep::Removal, removed).await;
    }
}

async fn ping_server(
    socket: Box<dyn ostler_net::Stream>,
    ask: &JoinCheckRequest,
) -> Result<(ServerCaller, String), StepFailure> {
    // Streams that the server opens are dropped, because it calls no node that is not ready.
    let (session, _arrivals) = dial::start_session(socket, ask.wall).await.map_err(dial_failure)?;
    let caller = open(&session).await?;
    let calls = ServerCalls::new(caller.clone(), String::new(), String::new(), ask.wall);
    calls.ping().await.map_err(|error| {
        let advice = match (&error, &ask.tls) {
            (ServerCallError::Ended { .. }, None) => {
                "the server hung up: it may want TLS (give its authorities), and the port must be \
                 that of its RPC, 4647 where nothing else is set"
            }
            _ => "the port must be that of the server's RPC, 4647 where nothing else is set",
        };
        (error.to_string(), Some(advice.to_owned()))
    })?;
    Ok((caller, "a server answers".to_owned()))
}

async fn open(session: &ClusterSession) -> Result<ServerCaller, StepFailure> {
    let opened = ServerCaller::open(session, CLUSTER_ANSWER_BYTES_MAX).await;
    opened.map_err(|error| (error.to_string(), None))
}

fn refused_for(error: &ServerCallError, word: &str) -> bool {
    matches!(error, ServerCallError::Refused { message, .. } if message.to_lowercase().contains(word))
}

fn call_failure(error: ServerCallError) -> StepFailure {
    (error.to_string(), None)
}

fn dial_failure(error: DialError) -> StepFailure {
    let advice = match &error {
        DialError::Name { .. } => "correct the name, or give an address",
        DialError::Connect { .. } => "start the server, or open the way to its port",
        DialError::Tls(_) => {
            "the authorities must be those that signed the server's certificate, which must name \
             its region; the server must have TLS for its RPC"
        }
        DialError::NoServer => "give the address of a server",
        DialError::Ended(_) => "look at the server's log",
        DialError::Late { .. } => "something on the way drops what is sent: look at the firewalls",
    };
    (causes::chain(&error), Some(advice.to_owned()))
}

/// A node that takes no work.
fn made_up_node(ask: &JoinCheckRequest, node: NodeId, rng: &Rng) -> Value {
    let text = |text: &str| Value::from(text);
    let attributes = map([("kernel.name", text("linux")), ("ostler.join_check", text("true"))]);
    let resources = map([
        ("Cpu", map([("CpuShares", 0.into())])),
        ("Memory", map([("MemoryMB", 0.into())])),
        ("Disk", map([("DiskMB", 0.into())])),
    ]);
    map([
        ("ID", node.to_string().into()),
        ("SecretID", rng.uuid().to_string().into()),
        ("Name", ask.name.as_str().into()),
        ("Datacenter", ask.datacenter.as_str().into()),
        ("Status", text("initializing")),
        ("SchedulingEligibility", text("ineligible")),
        ("Attributes", attributes),
        ("NodeResources", resources),
        ("Drivers", map([])),
        ("Meta", map([])),
    ])
}

#[cfg(test)]
#[path = "join_check_tests.rs"]
mod tests;

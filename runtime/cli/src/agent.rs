//! `ostler agent`: the process that keeps jobs.
//!
//! ```text
//! config ─► Place ─► Agent::begin (state, node) ─► API ─► Begun::ready (plugins, restore) ─► ready
//!                                                    │                                 │ SIGHUP:
//!                        ┌── SIGTERM, SIGINT ◄───────┴─────────────────────────────────┘ jobs again
//!                        ▼
//!   leave (native tasks go on) or drain (they end in order) ─► exit 0
//!                        │ a second signal
//!                        └─► exit at once
//! ```

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::agent_place::Place;
use super::args::agent::AgentCommandArgs;
use super::connect::Stop;
use super::exit::Exit;
use super::input;
use super::interrupt::{Interrupt, Interrupts};
use super::join::{self, ToCluster};
use super::notify;
use super::output;
use super::start::StartError;
use ostler_agent::{Agent, AgentHandle, AgentMode, AgentOptions, Begun, LeaveMode};
use ostler_api::SOCKET_NAME;
use ostler_api::server::{self, ApiServer};
use ostler_cluster::client::ClusterNodes;
use ostler_model::causes;
use ostler_model::clock::{self, Clock};
use ostler_model::config::{AgentConfig, ClusterConfig};
use ostler_model::other_nodes::OtherNodes;
use ostler_model::rng::Rng;

/// How long an agent that leaves may take beyond the deadline of a drain; what it waits for then
/// holds up nobody any more.
const LEAVE_WAIT: Duration = Duration::from_secs(30);

/// Run the agent until a signal ends it.
pub(super) async fn run(args: &AgentCommandArgs) -> Result<Exit, Stop> {
    let mut interrupts = Interrupts::new()
        .map_err(|error| Stop::Cannot(format!("cannot wait for signals: {error}")))?;
    let config = config(args)?;
    let place = Place::of(args.data_dir.clone(), &config)?;
    let cluster = args.to.over(config.cluster.clone());
    let cluster = match &args.node_class {
        None => cluster,
        class => ClusterConfig { node_class: class.clone(), ..cluster },
    };
    let joins = !cluster.servers.is_empty();
    let tls = join::tls(&cluster)?;
    if joins && (config.jobs_dir.is_some() || place.mode != AgentMode::Durable) {
        return Err(Stop::Wrong(
            "a node of a cluster (--servers, client.servers) takes its jobs from its servers and must know them again: it \
             needs --data-dir, and has no --jobs-dir"
                .to_owned(),
        ));
    }
    // The agent itself refuses jobs of its own, from its first request on.
    let config = AgentConfig { cluster: cluster.clone(), ..config };
    let others = ClusterNodes::default();
    // Allocations of an earlier agent may ask for them before this one has joined.
    let asked = joins.then(|| Arc::new(others.clone()) as Arc<dyn OtherNodes>);
    let (agent, api) = started(&place, config, asked, &mut interrupts).await?;
    let joined = CancellationToken::new();
    if joins {
        let ways = ToCluster { tls, introduction: args.intro_token.clone(), others };
        let begun = join::join(&agent, &cluster, ways, joined.clone()).await;
        if let Err(stop) = begun {
            leave(agent, api, LeaveMode::LeaveTasks).await;
            return Err(stop);
        }
    }
    notify::tell("READY=1\nSTATUS=ready");
    output::say(&format!("ready: the agent answers at {}", api.socket().display()));
    if place.mode == AgentMode::InMemory {
        output::say(
            "no data directory is named: jobs are kept in memory and end with the agent; to keep them, \
             give --data-dir DIR",
        );
    }
    let signal = ending(&mut interrupts, || agent.rescan_jobs_dir()).await;
    // Tasks that cannot outlive the agent end in order with it.
    let drain = args.drain || place.mode.ends_tasks();
    let mode = match drain {
        true => LeaveMode::Drain { deadline: args.drain_deadline },
        false => LeaveMode::LeaveTasks,
    };
    joined.cancel();
    notify::tell("STOPPING=1\nSTATUS=ending");
    let what = if drain { "stopping all tasks" } else { "native tasks go on" };
    output::say(&format!("{}: the agent ends, {what}; once more ends it at once", signal.name()));
    tokio::select! {
        () = leave(agent, api, mode) => {
            output::say("the agent has ended");
            Ok(Exit::Success)
        }
        signal = ending(&mut interrupts, || {}) => Ok(signal.exit()),
    }
}

/// The agent when it is ready. It answers before; why it does not come to be ready is said.
async fn started(
    place: &Place,
    config: AgentConfig,
    other_nodes: Option<Arc<dyn OtherNodes>>,
    interrupts: &mut Interrupts,
) -> Result<(AgentHandle, ApiServer), Stop> {
    let given_up = |signal: Interrupt| {
        output::say(&format!("{}: given up before the agent was ready", signal.name()));
        Stop::Exit(signal.exit())
    };
    let begun = tokio::select! {
        begun = begin(place, config, other_nodes) => begun,
        signal = ending(interrupts, || {}) => return Err(given_up(signal)),
    };
    let (begun, api) = begun?;
    let agent = begun.agent().clone();
    let signal = tokio::select! {
        ready = begun.ready() => match ready {
            Ok(agent) => return Ok((agent, api)),
            Err(error) => {
                api.stop().await;
                return Err(Stop::Cannot(causes::chain(&error)));
            }
        },
        signal = ending(interrupts, || {}) => signal,
    };
    let exit = given_up(signal);
    tokio::select! {
        () = leave(agent, api, LeaveMode::LeaveTasks) => {}
        _again = ending(interrupts, || {}) => {}
    }
    Err(exit)
}

/// From here on the agent answers, if only how far it is.
async fn begin(
    place: &Place,
    config: AgentConfig,
    other_nodes: Option<Arc<dyn OtherNodes>>,
) -> Result<(Begun, ApiServer), StartError> {
    let options = AgentOptions {
        data_dir: place.data_dir.clone(),
        socket_dir: Some(place.socket_dir.clone()).filter(|dir| *dir != place.data_dir),
        config,
        mode: place.mode,
        compiler: None,
        code_dir: place.code_dir(),
        clock: Clock::system(),
        rng: Rng::system(),
        other_nodes,
    };
    let begun = Agent::begin(options).await;
    let begun = begun.map_err(|error| StartError::Agent(causes::chain(&error)))?;
    let agent = begun.agent();
    let socket = place.socket_dir.join(SOCKET_NAME);
    match server::serve(agent.clone(), &socket, CancellationToken::new()) {
        Ok(api) => Ok((begun, api)),
        Err(error) => {
            agent.leave(LeaveMode::LeaveTasks).await;
            Err(StartError::Agent(causes::chain(&error)))
        }
    }
}

fn config(args: &AgentCommandArgs) -> Result<AgentConfig, StartError> {
    let mut config = input::config(args.config.as_deref()).map_err(StartError::Input)?;
    if let Some(dir) = &args.plugin_dir {
        config.plugin_dir = Some(super::start::absolute(dir.clone())?);
    }
    if let Some(dir) = &args.jobs_dir {
        config.jobs_dir = Some(super::start::absolute(dir.clone())?);
    }
    Ok(config)
}

/// Wait for a signal that ends the agent; `again` is done at each SIGHUP before. May be dropped
/// and called again.
async fn ending(interrupts: &mut Interrupts, again: impl Fn()) -> Interrupt {
    loop {
        match interrupts.next().await {
            Interrupt::Hup => {
                tracing::info!("SIGHUP: reading the jobs directory again");
                again();
            }
            signal => return signal,
        }
    }
}

/// The API ends last, so that one can look on while tasks end.
async fn leave(agent: AgentHandle, api: ApiServer, mode: LeaveMode) {
    let wall = match mode {
        LeaveMode::LeaveTasks => LEAVE_WAIT,
        LeaveMode::Drain { deadline } => deadline + LEAVE_WAIT,
    };
    if clock::timeout(wall, agent.leave(mode)).await.is_none() {
        tracing::warn!("the agent did not end in time; what is left ends with the program");
    }
    api.stop().await;
}

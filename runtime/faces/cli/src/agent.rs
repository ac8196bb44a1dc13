//! `ostler agent`: the process that keeps jobs.
//!
//! ```text
//! config ─► directories ─► begin (state, node) ─► API ─► plugins, restore ─► ready ◄─┐
//!                                                  │                         │ SIGHUP: reload
//!                        ┌── SIGTERM, SIGINT ◄─────┴─────────────────────────┘ (agent/reload)
//!                        ▼
//!   leave (tasks go on) or drain (they end in order) ─► exit 0
//!                        │ a second signal
//!                        └─► exit at once
//! ```

mod api_face;
mod api_reload;
mod config;
mod dirs;
mod notify;
mod reload;
mod watchdog;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::args::agent::AgentCommandArgs;
use super::connect::CliError;
use super::exit::Exit;
use super::interrupt::{Interrupt, Interrupts};
use super::join::{self, JoinInputs};
use super::logging;
use super::output;
use super::start::AgentStartError;
use super::traces;
use api_reload::ApiReload;
use config::AgentInvocation;
use dirs::AgentDirs;
use ostler_agent::{Agent, AgentHandle, AgentMode, AgentOptions, LeaveMode, StartingAgent};
use ostler_api::SOCKET_NAME;
use ostler_api::server::{self, ApiServer, ListenOptions, TcpListenOptions};
use ostler_cluster::client::ClusterNodes;
use ostler_model::causes;
use ostler_model::clock::{self, Clock};
use ostler_model::config::AgentConfig;
use ostler_model::other_nodes::OtherNodes;
use ostler_model::rng::Rng;
use reload::LogReload;

/// How long an agent that leaves may take beyond the deadline of a drain. The program ends after
/// that, whatever the agent still waits for.
const LEAVE_WAIT: Duration = Duration::from_secs(30);

/// Run the agent until a signal ends it.
pub(super) async fn run(args: &Arc<AgentCommandArgs>, verbose: u8) -> Result<Exit, CliError> {
    let given = AgentInvocation { args, verbose };
    let mut interrupts = Interrupts::new()
        .map_err(|error| CliError::Cannot(format!("cannot wait for signals: {error}")))?;
    let config = given.read_config()?;
    logging::configure(&given.log_config(&config.log)).map_err(CliError::Wrong)?;
    let traces = traces::start_traces(&config.telemetry).map_err(CliError::Wrong)?;
    let place = AgentDirs::from_config(args.data_dir.clone(), args.socket_dir.clone(), &config)?;
    let cluster = config.cluster.clone();
    let joins = !cluster.servers.is_empty();
    let tls = join::cluster_tls(&cluster)?;
    if joins && (config.jobs_dir.is_some() || place.mode != AgentMode::Durable) {
        return Err(CliError::Wrong(
            "a node of a cluster (--servers, client.servers) gets its jobs from its servers and must recognise \
             them after a restart: it needs --data-dir, and cannot have --jobs-dir"
                .to_owned(),
        ));
    }
    let others = ClusterNodes::default();
    // Allocations of an earlier agent may ask for other nodes before this agent has joined.
    let asked = joins.then(|| Arc::new(others.clone()) as Arc<dyn OtherNodes>);
    let tcp = api_face::load_tcp_face(&config)?;
    let tls_of_api = tcp.as_ref().and_then(|face| face.tls.clone());
    let (agent, api) = start_until_ready(&place, config, tcp, asked, &mut interrupts).await?;
    let joined = CancellationToken::new();
    if joins {
        let ways = JoinInputs { tls, introduction: args.intro_token.clone(), others };
        let begun = join::join(&agent, &cluster, ways, joined.clone()).await;
        if let Err(stop) = begun {
            leave(&place, agent, api, LeaveMode::LeaveTasks).await;
            return Err(stop);
        }
    }
    agent.reloads(Arc::new(LogReload::new(Arc::clone(args), verbose)));
    agent.reloads(Arc::new(ApiReload { tokens: api.tokens().clone(), tls: tls_of_api }));
    let watched = tokio::spawn(watchdog::watch(agent.clone(), joined.clone()));
    let _watched = AbortOnDropHandle::new(watched);
    notify::notify_manager("READY=1\nSTATUS=ready");
    say_ready(&api, &place, args.dev);
    let signal = loop {
        match interrupts.next().await {
            Interrupt::Hup => drop(reload::reload(&agent, &given).await),
            signal => break signal,
        }
    };
    // Tasks that cannot outlive the agent end in order with it.
    let drain = args.drain || place.mode.ends_tasks();
    let mode = if drain {
        LeaveMode::Drain { deadline: args.drain_deadline }
    } else {
        LeaveMode::LeaveTasks
    };
    joined.cancel();
    notify::notify_manager("STOPPING=1\nSTATUS=ending");
    let what = if drain { "stopping all tasks" } else { "tasks go on" };
    output::say(&format!(
        "{}: the agent is shutting down, {what}; a second signal ends it at once",
        signal.name()
    ));
    tokio::select! {
        () = leave(&place, agent, api, mode) => {
            traces::end_traces(traces).await;
            output::say("the agent has ended");
            Ok(Exit::Success)
        }
        signal = next_end_signal(&mut interrupts) => Ok(signal.exit()),
    }
}

fn say_ready(api: &ApiServer, place: &AgentDirs, dev: bool) {
    let socket = api.socket().display();
    let url = api.url();
    let also = url.as_ref().map(|url| format!(" and {url}")).unwrap_or_default();
    output::say(&format!("ready: the agent answers at {socket}{also}"));
    if !dev && place.mode == AgentMode::InMemory {
        output::say(
            "no data directory is given: jobs are kept in memory and end with the agent; to keep them, \
             give --data-dir DIR",
        );
    }
    if !dev {
        return;
    }
    output::say(
        "an agent for development: raw_exec runs any program, and nothing is kept when it ends",
    );
    output::say(&format!("for ostler: export OSTLER_ADDR=unix://{socket}"));
    match url {
        Some(url) => {
            output::say(&format!("for nomad:  export NOMAD_ADDR={url}; in a browser: {url}/ui/"));
        }
        None => output::say(
            "for nomad and browsers, which need TCP: start it with --http 127.0.0.1:4646",
        ),
    }
}

/// Start the agent and wait until it is ready. It answers requests before that. A signal ends the
/// wait; a failure is returned with its reason.
async fn start_until_ready(
    place: &AgentDirs,
    config: AgentConfig,
    tcp: Option<TcpListenOptions>,
    other_nodes: Option<Arc<dyn OtherNodes>>,
    interrupts: &mut Interrupts,
) -> Result<(AgentHandle, ApiServer), CliError> {
    let given_up = |signal: Interrupt| {
        output::say(&format!("{}: interrupted before the agent was ready", signal.name()));
        CliError::Exit(signal.exit())
    };
    let begun = tokio::select! {
        begun = start_serving(place, config, tcp, other_nodes) => begun,
        signal = next_end_signal(interrupts) => return Err(given_up(signal)),
    };
    let (begun, api) = begun?;
    let agent = begun.agent().clone();
    let signal = tokio::select! {
        ready = begun.into_ready() => match ready {
            Ok(agent) => return Ok((agent, api)),
            Err(error) => {
                api.stop().await;
                return Err(CliError::Cannot(causes::chain(&error)));
            }
        },
        signal = next_end_signal(interrupts) => signal,
    };
    let exit = given_up(signal);
    tokio::select! {
        () = leave(place, agent, api, LeaveMode::LeaveTasks) => {}
        _again = next_end_signal(interrupts) => {}
    }
    Err(exit)
}

/// Begin the agent and serve its API. From here on the agent answers requests, at first only with
/// how far its start has come.
async fn start_serving(
    place: &AgentDirs,
    config: AgentConfig,
    tcp: Option<TcpListenOptions>,
    other_nodes: Option<Arc<dyn OtherNodes>>,
) -> Result<(StartingAgent, ApiServer), AgentStartError> {
    let acl = config.acl.clone();
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
    let begun = Agent::begin_start(options).await;
    let begun = begun.map_err(|error| AgentStartError::Agent(causes::chain(&error)))?;
    let agent = begun.agent();
    let socket = place.socket_dir.join(SOCKET_NAME);
    let serve = || {
        let tokens = agent.tokens(&acl).map_err(|error| causes::chain(&error))?;
        let faces = ListenOptions { socket: &socket, tcp, tokens };
        let api = server::serve(agent.clone(), faces, CancellationToken::new());
        api.map_err(|error| causes::chain(&error))
    };
    match serve() {
        Ok(api) => Ok((begun, api)),
        Err(why) => {
            agent.leave(LeaveMode::LeaveTasks).await;
            Err(AgentStartError::Agent(why))
        }
    }
}

/// Wait for a signal that ends the agent. May be dropped and called again.
async fn next_end_signal(interrupts: &mut Interrupts) -> Interrupt {
    loop {
        match interrupts.next().await {
            Interrupt::Hup => {
                tracing::info!(
                    "SIGHUP: nothing is read again while the agent starts or shuts down"
                );
            }
            signal => return signal,
        }
    }
}

/// End the agent. The API ends last, so that people can watch while tasks end.
async fn leave(place: &AgentDirs, agent: AgentHandle, api: ApiServer, mode: LeaveMode) {
    place.announce_end();
    let wall = match mode {
        LeaveMode::LeaveTasks => LEAVE_WAIT,
        LeaveMode::Drain { deadline } => deadline + LEAVE_WAIT,
    };
    if clock::timeout(wall, agent.leave(mode)).await.is_none() {
        tracing::warn!("the agent did not end in time; what is left ends with the program");
    }
    api.stop().await;
}

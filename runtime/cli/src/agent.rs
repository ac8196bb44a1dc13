//! `ostler agent`: the process that keeps jobs.
//!
//! ```text
//! config ─► Place ─► Agent::begin (state, node) ─► API ─► Begun::ready (plugins, restore) ─► ready ◄─┐
//!                                                    │                                 │ SIGHUP: reload
//!                        ┌── SIGTERM, SIGINT ◄───────┴─────────────────────────────────┘ (agent_reload)
//!                        ▼
//!   leave (native tasks go on) or drain (they end in order) ─► exit 0
//!                        │ a second signal
//!                        └─► exit at once
//! ```

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::agent_config::Given;
use super::agent_place::Place;
use super::agent_reload::{self, LogReload};
use super::api_face;
use super::api_reload::ApiReload;
use super::args::agent::AgentCommandArgs;
use super::connect::Stop;
use super::exit::Exit;
use super::interrupt::{Interrupt, Interrupts};
use super::join::{self, ToCluster};
use super::logging;
use super::notify;
use super::output;
use super::start::StartError;
use super::traces;
use super::watchdog;
use ostler_agent::{Agent, AgentHandle, AgentMode, AgentOptions, Begun, LeaveMode};
use ostler_api::SOCKET_NAME;
use ostler_api::server::{self, ApiServer, Faces, TcpFace};
use ostler_cluster::client::ClusterNodes;
use ostler_model::causes;
use ostler_model::clock::{self, Clock};
use ostler_model::config::AgentConfig;
use ostler_model::other_nodes::OtherNodes;
use ostler_model::rng::Rng;

/// How long an agent that leaves may take beyond the deadline of a drain; what it waits for then
/// holds up nobody any more.
const LEAVE_WAIT: Duration = Duration::from_secs(30);

/// Run the agent until a signal ends it.
pub(super) async fn run(args: &Arc<AgentCommandArgs>, verbose: u8) -> Result<Exit, Stop> {
    let given = Given { args, verbose };
    let mut interrupts = Interrupts::new()
        .map_err(|error| Stop::Cannot(format!("cannot wait for signals: {error}")))?;
    let config = given.config()?;
    logging::configure(&given.log(&config.log)).map_err(Stop::Wrong)?;
    let traces = traces::begin(&config.telemetry).map_err(Stop::Wrong)?;
    let place = Place::of(args.data_dir.clone(), args.socket_dir.clone(), &config)?;
    let cluster = config.cluster.clone();
    let joins = !cluster.servers.is_empty();
    let tls = join::tls(&cluster)?;
    if joins && (config.jobs_dir.is_some() || place.mode != AgentMode::Durable) {
        return Err(Stop::Wrong(
            "a node of a cluster (--servers, client.servers) takes its jobs from its servers and must know them again: it \
             needs --data-dir, and has no --jobs-dir"
                .to_owned(),
        ));
    }
    let others = ClusterNodes::default();
    // Allocations of an earlier agent may ask for them before this one has joined.
    let asked = joins.then(|| Arc::new(others.clone()) as Arc<dyn OtherNodes>);
    let tcp = api_face::of(&config)?;
    let tls_of_api = tcp.as_ref().and_then(|face| face.tls.clone());
    let (agent, api) = started(&place, config, tcp, asked, &mut interrupts).await?;
    let joined = CancellationToken::new();
    if joins {
        let ways = ToCluster { tls, introduction: args.intro_token.clone(), others };
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
    notify::tell("READY=1\nSTATUS=ready");
    say_ready(&api, &place, args.dev);
    let signal = loop {
        match interrupts.next().await {
            Interrupt::Hup => drop(agent_reload::reload(&agent, &given).await),
            signal => break signal,
        }
    };
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
        () = leave(&place, agent, api, mode) => {
            traces::end(traces).await;
            output::say("the agent has ended");
            Ok(Exit::Success)
        }
        signal = ending(&mut interrupts) => Ok(signal.exit()),
    }
}

fn say_ready(api: &ApiServer, place: &Place, dev: bool) {
    let socket = api.socket().display();
    let url = api.url();
    let also = url.as_ref().map(|url| format!(" and {url}")).unwrap_or_default();
    output::say(&format!("ready: the agent answers at {socket}{also}"));
    if !dev && place.mode == AgentMode::InMemory {
        output::say(
            "no data directory is named: jobs are kept in memory and end with the agent; to keep them, \
             give --data-dir DIR",
        );
    }
    if !dev {
        return;
    }
    output::say(
        "an agent for development: raw_exec runs any program, and nothing is kept at its end",
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

/// The agent when it is ready. It answers before; why it does not come to be ready is said.
async fn started(
    place: &Place,
    config: AgentConfig,
    tcp: Option<TcpFace>,
    other_nodes: Option<Arc<dyn OtherNodes>>,
    interrupts: &mut Interrupts,
) -> Result<(AgentHandle, ApiServer), Stop> {
    let given_up = |signal: Interrupt| {
        output::say(&format!("{}: given up before the agent was ready", signal.name()));
        Stop::Exit(signal.exit())
    };
    let begun = tokio::select! {
        begun = begin(place, config, tcp, other_nodes) => begun,
        signal = ending(interrupts) => return Err(given_up(signal)),
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
        signal = ending(interrupts) => signal,
    };
    let exit = given_up(signal);
    tokio::select! {
        () = leave(place, agent, api, LeaveMode::LeaveTasks) => {}
        _again = ending(interrupts) => {}
    }
    Err(exit)
}

/// From here on the agent answers, if only how far it is.
async fn begin(
    place: &Place,
    config: AgentConfig,
    tcp: Option<TcpFace>,
    other_nodes: Option<Arc<dyn OtherNodes>>,
) -> Result<(Begun, ApiServer), StartError> {
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
    let begun = Agent::begin(options).await;
    let begun = begun.map_err(|error| StartError::Agent(causes::chain(&error)))?;
    let agent = begun.agent();
    let socket = place.socket_dir.join(SOCKET_NAME);
    let serve = || {
        let tokens = agent.tokens(&acl).map_err(|error| causes::chain(&error))?;
        let faces = Faces { socket: &socket, tcp, tokens };
        let api = server::serve(agent.clone(), faces, CancellationToken::new());
        api.map_err(|error| causes::chain(&error))
    };
    match serve() {
        Ok(api) => Ok((begun, api)),
        Err(why) => {
            agent.leave(LeaveMode::LeaveTasks).await;
            Err(StartError::Agent(why))
        }
    }
}

/// Wait for a signal that ends the agent. May be dropped and called again.
async fn ending(interrupts: &mut Interrupts) -> Interrupt {
    loop {
        match interrupts.next().await {
            Interrupt::Hup => {
                tracing::info!("SIGHUP: nothing is read again while the agent begins or ends");
            }
            signal => return signal,
        }
    }
}

/// The API ends last, so that one can look on while tasks end.
async fn leave(place: &Place, agent: AgentHandle, api: ApiServer, mode: LeaveMode) {
    place.ends();
    let wall = match mode {
        LeaveMode::LeaveTasks => LEAVE_WAIT,
        LeaveMode::Drain { deadline } => deadline + LEAVE_WAIT,
    };
    if clock::timeout(wall, agent.leave(mode)).await.is_none() {
        tracing::warn!("the agent did not end in time; what is left ends with the program");
    }
    api.stop().await;
}

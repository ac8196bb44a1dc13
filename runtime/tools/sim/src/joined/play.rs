//! One history of one node and its servers.
//!
//! ```text
//! agent, client ─ steps ─ killed at a door, or left ─► gone ─► agent, client ─ … ─► all is well again
//!    ─► rest: servers and node agree, a quiet hour ─► a start that tells nothing again ─► all stopped, forgotten
//! ```

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ostler_cluster::NodeStanding;
use ostler_cluster::client::{self, ClusterOptions};
use ostler_model::clock;
use ostler_model::ids::AllocId;
use ostler_model::rng::Rng;
use ostler_model::server_address::ServerAddress;
use ostler_state::StateError;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::checks;
use super::net::{Net, SimDoor, doors};
use super::node::SimNode;
use super::plan::{JoinedAct, JoinedPlan, SERVERS};
use super::servers::Servers;
use crate::plan::{Disk, Mode};
use crate::play::agent::{Agent, AgentPlace, view};
use crate::play::disk::SimDisk;
use crate::play::{Failure, Played, stops};
use crate::world::World;

/// Ended allocations that a node keeps: few, so that some go before the servers have heard of them.
const MAX_ALLOCS: u32 = 6;

/// What outlives an agent.
pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) disk: Arc<SimDisk>,
    pub(crate) servers: Servers,
    pub(crate) net: Net,
    /// Allocations that an agent was seen to have ended.
    pub(crate) ended: Arc<Mutex<BTreeSet<AllocId>>>,
    next: usize,
    /// All is well, and how far the end is.
    resting: Resting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resting {
    /// Things happen still.
    No,
    /// Everything was checked, and the agent started again.
    Again,
}

/// How the life of an agent ended.
enum End {
    Killed,
    Left(Duration),
    Rested,
}

/// An agent that is joined.
pub(crate) struct Joined {
    pub(crate) agent: Agent,
    ended: CancellationToken,
}

impl Joined {
    async fn leave(self) {
        self.ended.cancel();
        self.agent.leave(false).await;
    }
}

/// Play a plan in a directory of its own.
///
/// # Errors
/// See [`Failure`].
pub fn play(plan: &JoinedPlan, dir: &Path) -> Result<Played, Box<Failure>> {
    clock::simulate();
    let world = World::new(plan.seed ^ 0x0057_1e12, &[]);
    let failed = |error: StateError| {
        Box::new(Failure { what: format!("no state file: {error}"), journal: Vec::new() })
    };
    let disk = SimDisk::new(world.clone(), plan.seed, dir, false).map_err(failed)?;
    let servers = Servers::new(plan.seed, view().id.to_string(), &world);
    let net = Net::new(servers.double.clone(), Rng::from_seed(plan.seed ^ 0x0e7));
    let mut scene = Scene {
        world: world.clone(),
        disk: Arc::new(disk),
        servers,
        net,
        ended: Arc::default(),
        next: 0,
        resting: Resting::No,
    };
    let (mut lives, mut gone) = (0, (Duration::ZERO, 0));
    let result = loop {
        lives += 1;
        if lives > 200 {
            break Err("the node does not come to rest in 200 lives".to_owned());
        }
        let end = match live(plan, dir, &mut scene, &mut gone) {
            Ok(end) => end,
            Err(why) => break Err(why),
        };
        scene.net.end_life();
        match end {
            End::Killed => {
                let power = world.lock().power;
                world.end_life(true, gone.0);
                scene.disk.resume(power);
                // What happens while nobody is there.
                for _ in 0..gone.1 {
                    let Some(step) = plan.steps.get(scene.next) else { break };
                    scene.next += 1;
                    world.note(&format!("meanwhile: {:?}", step.act));
                    happen(&scene, step.act);
                }
            }
            End::Left(gone) => world.end_life(false, gone),
            End::Rested => break Ok(()),
        }
        if let Some(broken) = world.broken() {
            break Err(broken);
        }
    };
    world.lock().store = None;
    let what = match (result, world.broken()) {
        (_, Some(broken)) | (Err(broken), None) => broken,
        (Ok(()), None) => {
            let doors = world.lock().doors;
            let (time, journal) = (world.time(), world.journal());
            return Ok(Played { lives, doors, time, journal });
        }
    };
    Err(Box::new(Failure { what, journal: world.journal() }))
}

/// The life of one agent, on a runtime of its own, which goes with it, and every connection too.
fn live(
    plan: &JoinedPlan,
    dir: &Path,
    scene: &mut Scene,
    gone: &mut (Duration, usize),
) -> Result<End, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .map_err(|error| error.to_string())?;
    let world = scene.world.clone();
    runtime.block_on(async {
        world.begin_life(None);
        let mut killed = world.killed.subscribe();
        let end = tokio::select! {
            biased;
            _ = killed.wait_for(|killed| *killed) => Ok(End::Killed),
            end = steps(plan, dir, scene, gone) => end,
        };
        world.stop_clock();
        end
    })
}

/// Start an agent and its client.
async fn join(scene: &Scene, dir: &Path) -> Result<Joined, String> {
    let place = AgentPlace {
        world: &scene.world,
        disk: &scene.disk,
        dir,
        files: None,
        node: view(),
        max_allocs: MAX_ALLOCS,
    };
    let agent = Agent::start(place).await?;
    let ended = CancellationToken::new();
    let known = SERVERS.iter().take(2);
    let options = ClusterOptions {
        servers: known.map(|name| address(name)).collect(),
        region: "global".to_owned(),
        class: String::new(),
        pool: None,
        secret: "secret".to_owned(),
        introduction: None,
        standing: NodeStanding::default(),
        clock: agent.clock.clone(),
        rng: agent.rng.clone(),
    };
    let node = SimNode::new(&agent, &scene.world, &scene.ended);
    let door = SimDoor { net: scene.net.clone(), world: scene.world.clone() };
    let (arrived, mut arrivals) = mpsc::channel(2);
    let running = client::run(Arc::new(node), doors(door, arrived), options, ended.clone());
    drop(tokio::spawn(running));
    drop(tokio::spawn(async move {
        // Nobody asks.
        while let Some(mut streams) = arrivals.recv().await {
            while streams.recv().await.is_some() {}
        }
    }));
    drop(tokio::spawn(stops::watch(scene.world.clone(), agent.control.clone())));
    let watched = checks::watch(checks::Watched::new(scene, &agent));
    let of_life = ended.clone();
    drop(tokio::spawn(async move { of_life.run_until_cancelled(watched).await }));
    Ok(Joined { agent, ended })
}

fn address(name: &str) -> ServerAddress {
    ServerAddress { host: name.to_owned(), port: 4647 }
}

async fn steps(
    plan: &JoinedPlan,
    dir: &Path,
    scene: &mut Scene,
    gone: &mut (Duration, usize),
) -> Result<End, String> {
    let joined = match join(scene, dir).await {
        Ok(joined) => joined,
        // Whoever runs it sees to the disk and starts it again.
        Err(why) if scene.disk.refuses() => {
            scene.world.note(&why);
            scene.disk.set(Disk::Works);
            return Ok(End::Left(Duration::from_secs(60)));
        }
        Err(why) => return Err(why),
    };
    if scene.resting == Resting::Again {
        checks::nothing_is_told_again(scene).await?;
        checks::everything_goes(scene, &joined, dir).await?;
        return Ok(End::Rested);
    }
    while let Some(step) = plan.steps.get(scene.next) {
        clock::sleep(step.after).await;
        scene.next += 1;
        scene.world.note(&format!("{:?}", step.act));
        match step.act {
            JoinedAct::Kill { doors, gone: time, power, away } => {
                *gone = (time, away);
                let mut inner = scene.world.lock();
                inner.power = power;
                inner.kill_at = Some(inner.doors.saturating_add(doors).saturating_add(1));
            }
            JoinedAct::Leave(gone) => {
                joined.leave().await;
                return Ok(End::Left(gone));
            }
            act => happen(scene, act),
        }
        if let Some(broken) = scene.world.broken() {
            return Err(broken);
        }
    }
    well(scene);
    checks::rest(scene, &joined, plan).await?;
    joined.leave().await;
    scene.resting = Resting::Again;
    Ok(End::Left(Duration::from_secs(5)))
}

fn happen(scene: &Scene, act: JoinedAct) {
    match act {
        JoinedAct::Way(server, way) => {
            SERVERS.get(server).iter().for_each(|name| scene.net.set(name, way));
        }
        JoinedAct::Cut(server) => SERVERS.get(server).iter().for_each(|name| scene.net.cut(name)),
        JoinedAct::Disk(disk) => scene.disk.set(disk),
        JoinedAct::End(pick, code) => {
            let mut inner = scene.world.lock();
            let live = inner.runs.iter().filter(|(_, run)| run.lives() && !run.held);
            let live: Vec<_> = live.map(|(id, _)| id.clone()).collect();
            let count = u64::try_from(live.len()).unwrap_or(u64::MAX).max(1);
            let at = usize::try_from(pick % count).unwrap_or(0);
            if let Some(id) = live.get(at) {
                inner.end_itself(id, code);
            }
        }
        JoinedAct::Mend => {
            scene.net.mend();
            scene.servers.act(JoinedAct::Mood(super::plan::Mood::Works));
            scene.disk.set(Disk::Works);
        }
        act => scene.servers.act(act),
    }
}

/// All is well again.
fn well(scene: &Scene) {
    {
        let mut inner = scene.world.lock();
        inner.driver = Mode::Works;
        (inner.settled, inner.kill_at) = (true, None);
        inner.note("all is well again");
    }
    scene.disk.set(Disk::Works);
    scene.net.mend();
    scene.servers.mend();
}

//! What must be so of a node and its servers.
//!
//! - Always: heartbeats in time while the way is well; no loop that asks without pause; few connections;
//!   no allocation that is over is told to run; no copy is carried out after a newer one (`node.rs`).
//! - When all is well: what the servers want runs, once; nothing else does; they know how everything is.
//! - In a quiet hour: heartbeats, and the question for news. After a start: nothing is told again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ostler_cluster::msgpack::{self, Value};
use ostler_cluster::reports::alloc_report;
use ostler_control::{ControlHandle, acknowledgement};
use ostler_lifecycle::alloc::dir::AllocDir;
use ostler_model::clock;
use ostler_model::ids::AllocId;
use ostler_model::limits::{CLUSTER_RETRY_MAX, CLUSTER_STEP_WALL_DEFAULT};
use ostler_state::KeyPrefix;

use super::net::Net;
use super::plan::{JoinedAct, JoinedPlan};
use super::play::{Joined, Scene};
use super::servers::{Servers, TTL, is_stopped};
use crate::play::agent::{Agent, view};
use crate::play::disk::SimDisk;
use crate::play::stops;
use crate::world::World;

/// What is under way ends within this time.
const SETTLE: Duration = Duration::from_secs(3_600);
/// Calls in a second that are more than a node of a dozen allocations has reason for.
const CALLS_MAX: u64 = 40;
/// Connections at once: one that is given up may take a while to end.
const CONNECTIONS_MAX: usize = 3;
/// How long after the last fault a node may take to be heard of: a call is given up, a pause, a server that
/// is not there, another one, registering first.
const BACK: Duration =
    CLUSTER_RETRY_MAX.saturating_mul(2).saturating_add(CLUSTER_STEP_WALL_DEFAULT.saturating_mul(3));
/// How soon after a disk works again everything that waited for it is on record.
const WRITTEN: Duration = Duration::from_secs(60);
/// How much later than it was asked to a heartbeat may come: the way of a call.
const LATE: Duration = Duration::from_secs(1);

/// What is looked at all the time.
pub(crate) struct Watched {
    world: World,
    servers: Servers,
    net: Net,
    disk: Arc<SimDisk>,
    control: ControlHandle,
    ended: Arc<Mutex<BTreeSet<AllocId>>>,
}

impl Watched {
    pub(crate) fn new(scene: &Scene, agent: &Agent) -> Self {
        Self {
            world: scene.world.clone(),
            servers: scene.servers.clone(),
            net: scene.net.clone(),
            disk: Arc::clone(&scene.disk),
            control: agent.control.clone(),
            ended: Arc::clone(&scene.ended),
        }
    }

    fn look(
        &self,
        well_since: Option<Duration>,
        works_since: Option<Duration>,
    ) -> Result<(), String> {
        let now = self.world.time();
        // While the disk refuses, one may be seen to end that never came on record, and is taken back; so it
        // may until what waited to be written is.
        let durable = works_since.is_some_and(|since| now > since + WRITTEN);
        for alloc in self.control.allocs().iter().filter(|alloc| durable && alloc.phase.has_ended())
        {
            let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            ended.insert(alloc.allocation.id);
        }
        let book = self.servers.double.book();
        if let Some(id) = book.revived.first() {
            return Err(format!("allocation {id} was told to run after it was over"));
        }
        if let Some((second, calls)) = book.busy.iter().find(|(_, calls)| **calls > CALLS_MAX) {
            return Err(format!("the node makes {calls} calls in second {second}"));
        }
        let most = self.net.open().1;
        if most > CONNECTIONS_MAX {
            return Err(format!("the node has {most} connections"));
        }
        let node = book.nodes.values().next();
        let heard = node.and_then(|node| node.heard).map(|at| Duration::from_nanos(at.nanos()));
        let silent = now.saturating_sub(heard.unwrap_or_default());
        match well_since {
            Some(since) if now > since + BACK && silent > TTL + LATE => Err(format!(
                "the way is well since {since:?}, and the node is silent for {silent:?}"
            )),
            _ => Ok(()),
        }
    }
}

/// Look at them once a second, for as long as the runtime of the agent lives.
pub(crate) async fn watch(watched: Watched) {
    let (mut well_since, mut works_since, mut before) = (None, None, (0, 0));
    loop {
        // What was wrong and is mended within a second counts, too: what was lost is waited for.
        let now = (watched.net.disturbed(), watched.servers.moods());
        let well = watched.net.is_well() && watched.servers.works() && now == before;
        before = now;
        well_since = if well { well_since.or(Some(watched.world.time())) } else { None };
        let works = watched.disk.works();
        works_since = if works { works_since.or(Some(watched.world.time())) } else { None };
        if let Err(what) = watched.look(well_since, works_since) {
            watched.world.lock().break_with(what);
            return;
        }
        clock::sleep(Duration::from_secs(1)).await;
    }
}

/// Nothing more happens: what must be so then.
pub(crate) async fn rest(scene: &Scene, joined: &Joined, plan: &JoinedPlan) -> Result<(), String> {
    clock::sleep(SETTLE).await;
    agree(scene, joined)?;
    let before = asked(scene);
    let written = scene.disk.commits();
    clock::sleep(SETTLE).await;
    broken(scene)?;
    let mut calls = asked(scene);
    for (method, count) in &mut calls {
        *count -= before.get(method).copied().unwrap_or_default();
    }
    // The question is asked again every five minutes.
    let most = 2 + SETTLE.as_secs() / TTL.as_secs() + SETTLE.as_secs() / 300;
    if calls.values().sum::<u64>() > most {
        return Err(format!("the quiet node calls in an hour: {calls:?}"));
    }
    if scene.disk.commits() > written {
        return Err("the quiet node wrote to its disk".to_owned());
    }
    let open = scene.net.open().0;
    if open != 1 {
        return Err(format!("the quiet node has {open} connections"));
    }
    let again = scene.servers.double.book().told_again;
    let undisturbed = plan.steps.iter().all(|step| {
        use JoinedAct::{Change, Collect, End, Forget, Place, Remember, Replace, Stop};
        let all = [Collect, Remember, Replace].contains(&step.act);
        all || matches!(step.act, Place(_) | Stop(_) | Change(_) | Forget(_) | End(..))
    });
    if undisturbed && again > 0 {
        Err(format!("{again} states were told twice, and nothing was wrong"))
    } else {
        Ok(())
    }
}

fn asked(scene: &Scene) -> BTreeMap<String, u64> {
    scene.servers.double.book().asked.clone()
}

fn broken(scene: &Scene) -> Result<(), String> {
    scene.world.broken().map_or(Ok(()), Err)
}

fn written(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    msgpack::write(&mut bytes, value);
    bytes
}

/// Servers and node say the same.
fn agree(scene: &Scene, joined: &Joined) -> Result<(), String> {
    broken(scene)?;
    let control = &joined.agent.control;
    let mut live: Vec<AllocId> = scene.world.live().into_iter().map(|(id, _)| id).collect();
    let book = scene.servers.double.book();
    for (name, alloc) in book.allocs() {
        let id: AllocId = name.parse().map_err(|_| format!("{name} is no id"))?;
        let runs = live.iter().filter(|run| **run == id).count();
        live.retain(|run| *run != id);
        let told = book.last_report(name);
        let status = book.reported_status(name);
        let here = control.alloc(id);
        if let Some(here) = &here {
            let state = acknowledgement::acknowledged_state(&here.state);
            let now = alloc_report(id, view().id, &state);
            if told.as_ref().map(written) != Some(written(&now)) {
                let is = state.client_status;
                return Err(format!("{} is {is:?}, and the servers know {status:?}", id.short()));
            }
        }
        let over = ["complete", "failed"].contains(&status.as_str());
        let wanted = !is_stopped(alloc);
        let fits = match (wanted, over) {
            (true, false) => status == "running" && runs == 1 && here.is_some(),
            (false, false) => false,
            (_, true) => runs == 0,
        };
        if !fits {
            let here = here.map(|here| (here.state.client_status, here.phase));
            return Err(format!(
                "{}: wanted {wanted}, told {status:?}, {runs} runs, on the node {here:?}",
                id.short()
            ));
        }
    }
    if let Some(id) = live.first() {
        return Err(format!("{} runs, and the servers do not know it", id.short()));
    }
    let unknown = control.assigned_allocs().into_iter().find(|alloc| {
        let id = alloc.allocation.id.to_string();
        !book.allocs().contains_key(&id)
    });
    match unknown {
        Some(alloc) => Err(format!(
            "{} is on the node, and the servers do not know it",
            alloc.allocation.id.short()
        )),
        None => Ok(()),
    }
}

/// The agent was started again after a quiet hour: of each task that runs there is one event more, which is
/// told, and nothing else.
pub(crate) async fn nothing_is_told_again(scene: &Scene) -> Result<(), String> {
    let (tellings, again, running) = {
        let book = scene.servers.double.book();
        let running =
            book.allocs().keys().filter(|id| book.reported_status(id) == "running").count();
        (book.tellings, book.told_again, running)
    };
    clock::sleep(Duration::from_secs(600)).await;
    broken(scene)?;
    let book = scene.servers.double.book();
    let (told, again) = (book.tellings - tellings, book.told_again - again);
    match (usize::try_from(told).is_ok_and(|told| told <= running), again) {
        (true, 0) => Ok(()),
        _ => Err(format!("{told} states of {running} that run were told, {again} of them again")),
    }
}

/// Everything is stopped and forgotten: nothing is left.
pub(crate) async fn everything_goes(
    scene: &Scene,
    joined: &Joined,
    dir: &Path,
) -> Result<(), String> {
    let ids: Vec<String> = scene.servers.double.book().allocs().keys().cloned().collect();
    ids.iter().for_each(|id| scene.servers.stop(id));
    clock::sleep(stops::bound()).await;
    agree(scene, joined)?;
    let failed = ids.iter().find(|id| {
        let status = scene.servers.double.book().reported_status(id);
        !["complete", "failed"].contains(&status.as_str())
    });
    if let Some(id) = failed {
        return Err(format!("{id} was stopped, and the servers do not know that it is over"));
    }
    scene.servers.double.book().forget_all();
    clock::sleep(stops::removal_bound()).await;
    broken(scene)?;
    if let Some((id, _)) = scene.world.live().first() {
        return Err(format!("{} runs after everything was forgotten", id.short()));
    }
    if let Some(alloc) = joined.agent.control.assigned_allocs().first() {
        return Err(format!("{} is left on the node", alloc.allocation.id.short()));
    }
    let dirs = AllocDir::list(&dir.join("allocs")).map_err(|error| error.to_string())?;
    if let Some(id) = dirs.first() {
        return Err(format!("the directory of {} is left", id.short()));
    }
    let records = joined.agent.state.scan(&KeyPrefix::Allocs).map_err(|error| error.to_string())?;
    match records.first() {
        Some(record) => Err(format!("record {} is left", record.key)),
        None => Ok(()),
    }
}

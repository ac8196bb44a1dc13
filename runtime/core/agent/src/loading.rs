//! Brings plugins into use while the agent can be asked already.
//!
//! ```text
//! all looked at ─► in use: drivers, devices, quarantines ─► told ─► their first answers, a while
//!    (catalogue)                                                      └─► records, upgrades, files
//!         └─ late ones ─► each in use when it comes
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::catalogue::{
    self, CatalogueDirs, LateLoads, LateResult, LoadOutcome, PluginEntry, PluginStatus,
};
use super::records::{self, RecordsWriter};
use super::upgrade::{self, UpgradeSlots};
use super::{AgentConfig, AgentError, AgentHandle, quarantine};
use ostler_model::clock;
use ostler_model::ids::PluginName;

/// How long the start of an embedded agent waits for plugins to say whether they can be used,
/// because its one job comes at once.
const FIRST_FINGERPRINT_WALL: Duration = Duration::from_secs(15);
/// The same limit for an agent that serves: a slow plugin must not keep it from being ready.
const FIRST_FINGERPRINT_WALL_AGENT: Duration = Duration::from_secs(3);

/// The plugins of the agent, once all were examined.
pub(super) struct PluginTable {
    /// All plugins, each with its state.
    pub(super) entries: Vec<PluginEntry>,
    /// The upgrade slots of the plugins in use.
    pub(super) upgrades: UpgradeSlots,
    /// The results of late plugins, by block and source.
    pub(super) came: Mutex<BTreeMap<(String, String), PluginEntry>>,
}

/// Load the plugins and follow them. `told` is signalled when they are in use. Returns the notices
/// for the operator. The work ends with the agent.
pub(super) async fn run(
    agent: AgentHandle,
    config: AgentConfig,
    told: oneshot::Sender<()>,
) -> Result<Vec<String>, AgentError> {
    let ended = agent.0.ended.clone();
    tokio::select! {
        loaded = load(&agent, &config, told) => loaded,
        () = ended.cancelled() => Ok(Vec::new()),
    }
}

async fn load(
    agent: &AgentHandle,
    config: &AgentConfig,
    told: oneshot::Sender<()>,
) -> Result<Vec<String>, AgentError> {
    let inner = &agent.0;
    let managers = (&inner.drivers, &inner.devices);
    let embedded = !inner.mode.serves();
    let loading = catalogue::load_all(
        config,
        CatalogueDirs { data: &inner.data_dir, socket: inner.socket_dir.as_deref() },
        &inner.runtime,
        managers,
        &inner.board,
        embedded,
    );
    let LoadOutcome { entries, meters, first, waiting, seeds, late } = loading.await;
    for entry in &entries {
        if let PluginStatus::Refused(reason) = &entry.status {
            let (plugin, source) = (entry.own_name(), &entry.source);
            if embedded {
                // The program that embeds the agent reports this in its own words.
                tracing::info!(%plugin, %source, "not used: {reason}");
            } else {
                tracing::warn!(%plugin, %source, "not used: {reason}");
            }
            inner.node.update(|node| {
                node.refused_plugins.insert(entry.name.clone(), reason.clone());
            });
        }
    }
    let mut notices = quarantine::restore(&inner.data_dir, &entries, &meters);
    *agent.meters() = meters;
    *inner.waiting.lock().unwrap_or_else(PoisonError::into_inner) = waiting;
    let (upgrades, came) = (UpgradeSlots::new(seeds), Mutex::default());
    let used = PluginTable { entries: entries.clone(), upgrades, came };
    // This is done once.
    let _second = inner.plugins.set(used);
    if late.is_empty() {
        inner.board.clear_loading();
    } else {
        drop(inner.beside.spawn(take_late_plugins(agent.clone(), late)));
    }
    let answers = inner.beside.spawn(track_answers(agent.clone(), first));
    // Nobody may wait for this.
    let _gone = told.send(());
    let (handles, changed) = records::remember_plugins(&inner.context.state, &entries).await?;
    notices.extend(changed);
    for notice in &notices {
        tracing::info!("{notice}");
    }
    // Owners of restored tasks wait for their own driver, and jobs that come now find most drivers.
    let embedded = !inner.mode.serves();
    let wall = if embedded { FIRST_FINGERPRINT_WALL } else { FIRST_FINGERPRINT_WALL_AGENT };
    let _slow = clock::timeout(wall, answers).await;
    // The follower starts only now, because answers that plugins have not given yet are no news.
    let follower = RecordsWriter::spawn(inner.context.state.clone(), &inner.node, handles);
    let _first = inner.follower.set(follower);
    quarantine::follow_quarantines(agent);
    let files = agent.upgrades().map(UpgradeSlots::files).unwrap_or_default();
    let dir = inner.data_dir.clone();
    if !embedded && !files.is_empty() {
        drop(inner.beside.spawn_blocking(move || upgrade::copies::copy_used(&dir, files)));
    }
    upgrade::watch(agent);
    Ok(notices)
}

/// Keep the list of plugins that have not answered yet.
async fn track_answers(agent: AgentHandle, mut first: JoinSet<PluginName>) {
    let weak = Arc::downgrade(&agent.0);
    let ended = agent.0.ended.clone();
    drop(agent);
    loop {
        let answer = tokio::select! {
            answer = first.join_next() => answer,
            () = ended.cancelled() => return,
        };
        let Some(agent) = weak.upgrade() else { return };
        let mut waiting = agent.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match answer {
            Some(Ok(name)) => drop(waiting.remove(&name)),
            Some(Err(error)) => tracing::error!(%error, "gave up on a first fingerprint"),
            None => {
                waiting.clear();
                return;
            }
        }
    }
}

/// Take late plugins into use as their loads end.
async fn take_late_plugins(agent: AgentHandle, mut late: LateLoads) {
    let ended = agent.0.ended.clone();
    loop {
        let (drivers, devices) = (agent.0.drivers.clone(), agent.0.devices.clone());
        let next = late.next(&agent.0.board, &drivers, &devices);
        let Some(Some(came)) = ended.run_until_cancelled(next).await else { break };
        for one in came {
            take_late_plugin(&agent, one).await;
        }
    }
    agent.0.board.clear_loading();
}

async fn take_late_plugin(agent: &AgentHandle, one: LateResult) {
    let LateResult { entry, used } = one;
    let inner = &agent.0;
    if let PluginStatus::Refused(reason) = &entry.status {
        tracing::warn!(plugin = %entry.own_name(), source = %entry.source, "not used: {reason}");
        inner.node.update(|node| {
            node.refused_plugins.insert(entry.name.clone(), reason.clone());
        });
    }
    if let Some(catalogue::LatePlugin { seed, meter, kind, first }) = used {
        let name = seed.name.clone();
        let key = (kind, name.to_string());
        let meters = BTreeMap::from([(key.clone(), Arc::clone(&meter))]);
        for said in quarantine::restore(&inner.data_dir, std::slice::from_ref(&entry), &meters) {
            tracing::info!("{said}");
        }
        inner.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(name);
        if let Some(used) = inner.plugins.get() {
            used.upgrades.add(seed);
        }
        agent.set_meter(key, meter);
        drop(inner.beside.spawn(track_answers(agent.clone(), first)));
        records::remember_upgrade(&inner.context.state, &entry).await;
    }
    if let Some(used) = inner.plugins.get() {
        let mut came = used.came.lock().unwrap_or_else(PoisonError::into_inner);
        came.insert((entry.name.clone(), entry.source.clone()), entry);
    }
}

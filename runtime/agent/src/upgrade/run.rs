//! One upgrade from the file to its end.

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::step::{Effect, Event, Outcome, Release, RequestedBy, grown};
use super::trial::{self, Tried, Twin};
use super::{Code, Now, Slot, UpgradeReport, kept};
use crate::catalogue::{self, PluginEntry, Verified};
use crate::{AgentHandle, records};
use ostler_model::clock;
use ostler_model::grants::Authority;
use ostler_model::ids::RunId;
use ostler_model::limits::UPGRADE_DRY_WALL_MAX;
use ostler_model::plugin::Manifest;
use ostler_model::ports::BoxFuture;
use ostler_model::trust::Voucher;
use ostler_plugin::Plugin;

/// Everything of one upgrade.
struct Offer {
    agent: AgentHandle,
    slot: Arc<Slot>,
    bytes: Arc<[u8]>,
    manifest: Manifest,
    voucher: Voucher,
    /// As far as it got.
    report: UpgradeReport,
    twin: Option<Twin>,
    owned: BTreeSet<RunId>,
}

/// Offer a file to a slot and do what follows. Told when it is in its place, or that it will not be.
pub(super) async fn upgrade(
    agent: AgentHandle,
    slot: Arc<Slot>,
    file: PathBuf,
    by: RequestedBy,
) -> UpgradeReport {
    let mut report = UpgradeReport {
        name: slot.name.to_string(),
        at: agent.0.clock.now(),
        by_itself: by == RequestedBy::Itself,
        from: slot.now().machine.running().clone(),
        to: Release::default(),
        file: file.clone(),
        tasks_tried: 0,
        announces: Vec::new(),
        outcome: Outcome::Same,
    };
    let of = Arc::clone(&slot);
    let read = tokio::task::spawn_blocking(move || of.seed.verified(of.name.as_str(), &file)).await;
    let read = read.unwrap_or_else(|_| Err("reading the file was given up".to_owned()));
    let Verified { bytes, manifest, voucher } = match read {
        Ok(read) => read,
        Err(reason) => {
            report.outcome = Outcome::Refused { reason };
            told(&slot, &report);
            return report;
        }
    };
    report.to.digest.clone_from(&manifest.digest);
    let digest = manifest.digest.clone();
    let owned = BTreeSet::new();
    let offer = Offer { agent, slot, bytes, manifest, voucher, report, twin: None, owned };
    offer.run(Event::Offered { digest, by }).await
}

impl Offer {
    async fn run(mut self, offered: Event) -> UpgradeReport {
        let mut effects = VecDeque::from(self.step(offered));
        while let Some(effect) = effects.pop_front() {
            let event = match effect {
                Effect::Look => Event::Looked(self.look()),
                Effect::Load => Event::Loaded(self.load().await),
                Effect::Try => Event::Tried(self.try_dry().await),
                Effect::Switch => {
                    effects.extend(self.switch().await);
                    continue;
                }
                Effect::Prove(_) => {
                    let turn = self.slot.now().turn;
                    let (agent, slot) = (self.agent.clone(), Arc::clone(&self.slot));
                    until_ended(&self.agent, prove(agent, slot, turn, self.twin.clone()));
                    continue;
                }
                Effect::End(outcome) => {
                    self.report.outcome = outcome;
                    told(&self.slot, &self.report);
                    continue;
                }
                // Only the task that watches a proof gets these, see `follow`.
                Effect::RollBack | Effect::DropPrevious => continue,
            };
            effects.extend(self.step(event));
        }
        self.report
    }

    fn step(&self, event: Event) -> Vec<Effect> {
        let now = self.agent.0.clock.now();
        self.slot.now().machine.step(self.slot.proof(), now, event)
    }

    /// What it asks for beyond the one in use; nothing of it runs.
    fn look(&self) -> Result<Vec<String>, String> {
        let slot = &self.slot;
        if self.manifest.kind != slot.kind {
            return Err(format!(
                "it is a {} plugin, and {} a {}",
                self.manifest.kind, slot.name, slot.kind
            ));
        }
        let now = slot.now();
        let imports = |manifest: &'_ Manifest| manifest.imports.clone();
        let (old, new) = (imports(&now.manifest), imports(&self.manifest));
        // What is denied it does not get, however much it asks.
        let grants = &slot.seed.spec.grants;
        let harmless =
            |import: &str| Authority::of_import(import).harmless() || grants.denies(import);
        Ok(grown(old.iter().map(String::as_str), new.iter().map(String::as_str), harmless))
    }

    async fn load(&mut self) -> Result<String, String> {
        let runtime = &self.agent.0.runtime;
        let (spec, bytes) = (self.slot.seed.spec.clone(), Arc::clone(&self.bytes));
        let loaded = runtime.load_dry(spec, self.manifest.clone(), bytes).await;
        let plugin =
            loaded.map_err(|error| catalogue::reason(&error, self.slot.seed.origin.as_ref()))?;
        if plugin.name() != &self.slot.name {
            return Err(format!(
                "it calls itself {}, and jobs know {}",
                plugin.name(),
                self.slot.name
            ));
        }
        let version = plugin.version().to_owned();
        self.report.to.version = Some(version.clone());
        self.twin = Some(plugin.into());
        Ok(version)
    }

    async fn try_dry(&mut self) -> Result<(), String> {
        let Some(twin) = self.twin.clone() else { return Err("it is not loaded".to_owned()) };
        let tried = clock::timeout(UPGRADE_DRY_WALL_MAX, trial::run(&self.agent, &twin)).await;
        let late = || Err(format!("its dry run was not over within {UPGRADE_DRY_WALL_MAX:?}"));
        let Tried { owned, announces } = tried.unwrap_or_else(late)?;
        self.report.tasks_tried = owned.len();
        (self.owned, self.report.announces) = (owned, announces);
        Ok(())
    }

    /// Load it for good, and put it in its place: one moment to everybody else.
    async fn switch(&mut self) -> Vec<Effect> {
        let runtime = &self.agent.0.runtime;
        let (spec, bytes) = (self.slot.seed.spec.clone(), Arc::clone(&self.bytes));
        let plugin = match runtime.load(spec, self.manifest.clone(), bytes).await {
            Ok(plugin) => plugin,
            Err(error) => return self.step(Event::Switched(Err(error.to_string()))),
        };
        let said = Some((plugin.name(), plugin.version()));
        let before = self.report.to.version.as_deref();
        if said != before.map(|version| (&self.slot.name, version)) {
            let reason = "it describes itself in one way and then in another".to_owned();
            return self.step(Event::Switched(Err(reason)));
        }
        let (dir, bytes) = (self.agent.data_dir().to_owned(), Arc::clone(&self.bytes));
        let file = self.report.file.clone();
        let copied = tokio::task::spawn_blocking(move || kept::copy_new(&dir, &bytes, &file));
        // An error means that the task panicked, which was logged there.
        let _copied = copied.await;
        let code = match plugin {
            Plugin::Driver(plugin) => Code::Driver(Arc::new(plugin)),
            Plugin::Device(plugin) => Code::Device(Arc::new(plugin)),
        };
        let mut now = self.slot.now();
        let Some(old) = current(&self.agent, &self.slot) else {
            drop(now);
            return self.step(Event::Switched(Err("the plugin is gone".to_owned())));
        };
        code.meter().excuse(old.meter().struck_tasks());
        let began = self.agent.0.clock.now();
        let effects = now.machine.step(self.slot.proof(), began, Event::Switched(Ok(())));
        let entry = PluginEntry {
            version: self.report.to.version.clone(),
            interface_version: Some(self.manifest.interface_version.clone()),
            digest: Some(self.manifest.digest.clone()),
            size_bytes: self.manifest.size_bytes,
            asks: self.manifest.asks().into_iter().map(|(authority, _)| authority).collect(),
            source: self.report.file.display().to_string(),
            trust: Some(self.voucher.clone()),
            ..now.entry.clone()
        };
        let entry_before = std::mem::replace(&mut now.entry, entry);
        let manifest_before = std::mem::replace(&mut now.manifest, self.manifest.clone());
        now.before.get_or_insert((old, entry_before, manifest_before));
        now.owned = std::mem::take(&mut self.owned);
        now.turn += 1;
        now.status.upgraded_at = Some(began);
        now.status.previous = now.machine.accepted_before().cloned();
        put(&self.agent, &self.slot, code);
        effects
    }
}

/// The code that is called now.
fn current(agent: &AgentHandle, slot: &Slot) -> Option<Code> {
    let driver = agent.0.drivers.plugin(&slot.name).map(Code::Driver);
    match slot.kind {
        ostler_model::plugin::PluginKind::Driver => driver,
        ostler_model::plugin::PluginKind::Device => {
            agent.0.devices.source(&slot.name).map(Code::Device)
        }
    }
}

/// Put code in its place. What it says first comes in the background.
fn put(agent: &AgentHandle, slot: &Slot, code: Code) {
    let meter = code.meter();
    let asked: Option<BoxFuture<'static, ()>> = match code {
        Code::Driver(plugin) => agent.0.drivers.switch(plugin).map(|asked| Box::pin(asked) as _),
        Code::Device(plugin) => agent.0.devices.switch(plugin).map(|asked| Box::pin(asked) as _),
    };
    agent.set_meter((slot.kind, slot.name.to_string()), meter);
    if let Some(asked) = asked {
        until_ended(agent, asked);
    }
}

/// Do something beside the agent, until it ends.
fn until_ended(agent: &AgentHandle, work: impl Future<Output = ()> + Send + 'static) {
    let ended = agent.0.ended.clone();
    agent.beside(async move {
        let _before_its_end = ended.run_until_cancelled(work).await;
    });
}

/// See how a plugin does that is in its place since `turn`, until it is accepted or rolled back.
async fn prove(agent: AgentHandle, slot: Arc<Slot>, turn: u64, twin: Option<Twin>) {
    let (weak, ended) = (Arc::downgrade(&agent.0), agent.0.ended.clone());
    let Some(meter) = current(&agent, &slot).map(|code| code.meter()) else { return };
    drop(agent);
    loop {
        let Some(agent) = weak.upgrade().map(AgentHandle) else { return };
        let (left, strikes) = {
            let now = slot.now();
            let Some(until) = now.machine.proving().filter(|_| now.turn == turn) else { return };
            (until.since(agent.0.clock.now()), meter.struck())
        };
        let mut event = Event::Passed;
        if strikes >= slot.proof().strikes {
            let last = meter.last_error().map(|error| error.reason).unwrap_or_default();
            event = Event::Struck { strikes, last };
        } else if left.is_zero() {
            event = not_owned(&agent, &slot, twin.as_ref()).await.unwrap_or(event);
        }
        let over = follow(&agent, &slot, turn, event).await;
        drop(agent);
        if over {
            return;
        }
        // While another offer is looked at, strikes change nothing: look again soon, but not at
        // once.
        let soon = Duration::from_millis(100);
        let wait = if strikes >= slot.proof().strikes { soon } else { left.max(soon) };
        tokio::select! {
            () = ended.cancelled() => return,
            () = meter.strikes() => {}
            () = clock::sleep(wait) => {}
        }
    }
}

/// Tasks that the old one started while it was replaced were not tried before.
async fn not_owned(agent: &AgentHandle, slot: &Slot, twin: Option<&Twin>) -> Option<Event> {
    let Some(Twin::Driver(twin)) = twin else { return None };
    let owned = slot.now().owned.clone();
    let tried = clock::timeout(UPGRADE_DRY_WALL_MAX, trial::owns(agent, twin, &owned)).await;
    match tried {
        Some(Err(reason)) => Some(Event::Disowned(reason)),
        Some(Ok(_)) | None => None,
    }
}

/// Take in how a proof goes, and do what follows. Whether it is over.
async fn follow(agent: &AgentHandle, slot: &Arc<Slot>, turn: u64, event: Event) -> bool {
    let (mut report, effects, entry) = {
        let mut now = slot.now();
        if now.turn != turn {
            return true;
        }
        let running = now.machine.running().clone();
        let effects = now.machine.step(slot.proof(), agent.0.clock.now(), event);
        let back = effects.contains(&Effect::RollBack);
        if back {
            roll_back(agent, slot, &mut now);
        }
        if effects.contains(&Effect::DropPrevious) {
            now.before = None;
        }
        let Some(last) = now.placed.clone() else { return true };
        let from = if back { now.machine.running().clone() } else { last.from };
        let report = UpgradeReport { at: agent.0.clock.now(), from, to: running, ..last };
        (report, effects, now.entry.clone())
    };
    let mut over = false;
    for effect in effects {
        if let Effect::End(outcome) = effect {
            report.outcome = outcome;
            told(slot, &report);
            records::upgraded(&agent.0.state, &entry).await;
            kept::remember(agent, &slot.seed, &report).await;
            over = true;
        }
    }
    over
}

/// Under the lock of the slot: nobody offers another in between.
fn roll_back(agent: &AgentHandle, slot: &Slot, now: &mut Now) {
    let Some((code, entry, manifest)) = now.before.take() else { return };
    now.entry = entry;
    now.manifest = manifest;
    now.turn += 1;
    now.status.upgraded_at = None;
    now.status.previous = None;
    put(agent, slot, code);
}

/// In the log, and for `plugin status`.
fn told(slot: &Slot, report: &UpgradeReport) {
    let (plugin, file) = (report.name.as_str(), report.file.display());
    let version = |release: &Release| release.version.clone().unwrap_or_default();
    let (from, to) = (version(&report.from), version(&report.to));
    match &report.outcome {
        Outcome::Same => tracing::debug!(plugin, %file, "this is the plugin in use already"),
        Outcome::Switched => {
            tracing::info!(plugin, from, to, %file, tasks = report.tasks_tried, "plugin upgraded, it proves itself now")
        }
        Outcome::Accepted => tracing::info!(plugin, to, "the upgraded plugin proved itself"),
        Outcome::ConsentNeeded { asks, downgrade } => {
            tracing::warn!(plugin, ?asks, ?downgrade, %file, "not upgraded: a person must agree; ostler plugin upgrade --yes does");
        }
        Outcome::Refused { reason } => tracing::warn!(plugin, %file, "not upgraded: {reason}"),
        Outcome::RolledBack { reason } => {
            tracing::error!(plugin, from, to, "upgrade rolled back: {reason}")
        }
    }
    if report.outcome == Outcome::Same {
        return;
    }
    let mut now = slot.now();
    if matches!(report.outcome, Outcome::RolledBack { .. }) {
        now.status.rolled_back = Some(report.clone());
    }
    if report.outcome == Outcome::Switched {
        now.placed = Some(report.clone());
    }
    now.status.last = Some(report.clone());
}

//! Runs one upgrade from the file to its end.

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::step::{
    Release, RequestedBy, UpgradeEffect, UpgradeEvent, UpgradeOutcome, added_interfaces,
};
use super::trial::{self, TrialResult, Twin};
use super::{PluginCode, SlotState, UpgradeReport, UpgradeSlot, copies};
use crate::catalogue::{self, PluginEntry, VerifiedFile};
use crate::{AgentHandle, records};
use ostler_model::clock;
use ostler_model::grants::Authority;
use ostler_model::ids::RunId;
use ostler_model::limits::UPGRADE_DRY_WALL_MAX;
use ostler_model::plugin::PluginManifest;
use ostler_model::ports::BoxFuture;
use ostler_model::trust::Voucher;
use ostler_plugin::Plugin;

/// The state of one upgrade.
struct PluginUpgrade {
    agent: AgentHandle,
    slot: Arc<UpgradeSlot>,
    bytes: Arc<[u8]>,
    manifest: PluginManifest,
    voucher: Voucher,
    /// The report, as far as the upgrade got.
    report: UpgradeReport,
    twin: Option<Twin>,
    owned: BTreeSet<RunId>,
}

/// Offer a file to a slot and do what follows. Returns when the file is in place, or when it is
/// certain that it will not be.
pub(super) async fn upgrade(
    agent: AgentHandle,
    slot: Arc<UpgradeSlot>,
    file: PathBuf,
    by: RequestedBy,
) -> UpgradeReport {
    let mut report = UpgradeReport {
        name: slot.name.to_string(),
        at: agent.0.context.clock.now(),
        by_itself: by == RequestedBy::Itself,
        from: slot.now().machine.running_release().clone(),
        to: Release::default(),
        file: file.clone(),
        tasks_tried: 0,
        announces: Vec::new(),
        outcome: UpgradeOutcome::Same,
    };
    let of = Arc::clone(&slot);
    let read =
        tokio::task::spawn_blocking(move || of.seed.verify_file(of.name.as_str(), &file)).await;
    let read = read.unwrap_or_else(|_| Err("reading the file was given up".to_owned()));
    let VerifiedFile { bytes, manifest, voucher } = match read {
        Ok(read) => read,
        Err(reason) => {
            report.outcome = UpgradeOutcome::Refused { reason };
            record_report(&slot, &report);
            return report;
        }
    };
    report.to.digest.clone_from(&manifest.digest);
    let digest = manifest.digest.clone();
    let owned = BTreeSet::new();
    let offer = PluginUpgrade { agent, slot, bytes, manifest, voucher, report, twin: None, owned };
    offer.run(UpgradeEvent::Offered { digest, by }).await
}

impl PluginUpgrade {
    async fn run(mut self, offered: UpgradeEvent) -> UpgradeReport {
        let mut effects = VecDeque::from(self.step(offered));
        while let Some(effect) = effects.pop_front() {
            let event = match effect {
                UpgradeEffect::Look => UpgradeEvent::Examined(self.added_imports()),
                UpgradeEffect::Load => UpgradeEvent::Loaded(self.load().await),
                UpgradeEffect::Try => UpgradeEvent::Tried(self.try_dry().await),
                UpgradeEffect::Switch => {
                    effects.extend(self.switch().await);
                    continue;
                }
                UpgradeEffect::Prove(_) => {
                    let turn = self.slot.now().turn;
                    let (agent, slot) = (self.agent.clone(), Arc::clone(&self.slot));
                    spawn_until_end(&self.agent, prove(agent, slot, turn, self.twin.clone()));
                    continue;
                }
                UpgradeEffect::End(outcome) => {
                    self.report.outcome = outcome;
                    record_report(&self.slot, &self.report);
                    continue;
                }
                // Only the task that watches a proof gets these, see `apply_proof_event`.
                UpgradeEffect::RollBack | UpgradeEffect::DropPrevious => continue,
            };
            effects.extend(self.step(event));
        }
        self.report
    }

    fn step(&self, event: UpgradeEvent) -> Vec<UpgradeEffect> {
        let now = self.agent.0.context.clock.now();
        self.slot.now().machine.step(self.slot.proof(), now, event)
    }

    /// The asks of the new plugin beyond those of the one in use. Nothing of the new plugin runs.
    fn added_imports(&self) -> Result<Vec<String>, String> {
        let slot = &self.slot;
        if self.manifest.kind != slot.kind {
            return Err(format!(
                "it is a {} plugin, but {} is a {} plugin",
                self.manifest.kind, slot.name, slot.kind
            ));
        }
        let now = slot.now();
        let imports = |manifest: &'_ PluginManifest| manifest.imports.clone();
        let (old, new) = (imports(&now.manifest), imports(&self.manifest));
        // A denied import does not count, because the plugin does not get it in any case.
        let grants = &slot.seed.spec.grants;
        let harmless =
            |import: &str| Authority::of_import(import).is_harmless() || grants.denies(import);
        Ok(added_interfaces(
            old.iter().map(String::as_str),
            new.iter().map(String::as_str),
            harmless,
        ))
    }

    async fn load(&mut self) -> Result<String, String> {
        let runtime = &self.agent.0.runtime;
        let (spec, bytes) = (self.slot.seed.spec.clone(), Arc::clone(&self.bytes));
        let loaded = runtime.load_dry(spec, self.manifest.clone(), bytes).await;
        let plugin = loaded
            .map_err(|error| catalogue::refusal_reason(&error, self.slot.seed.origin.as_ref()))?;
        if plugin.name() != &self.slot.name {
            return Err(format!(
                "it calls itself {}, but jobs refer to it as {}",
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
        let late = || Err(format!("its dry run did not finish within {UPGRADE_DRY_WALL_MAX:?}"));
        let TrialResult { owned, announces } = tried.unwrap_or_else(late)?;
        self.report.tasks_tried = owned.len();
        (self.owned, self.report.announces) = (owned, announces);
        Ok(())
    }

    /// Load the new plugin for use, and put it in its place in a single step.
    async fn switch(&mut self) -> Vec<UpgradeEffect> {
        let runtime = &self.agent.0.runtime;
        let (spec, bytes) = (self.slot.seed.spec.clone(), Arc::clone(&self.bytes));
        let plugin = match runtime.load(spec, self.manifest.clone(), bytes).await {
            Ok(plugin) => plugin,
            Err(error) => return self.step(UpgradeEvent::Switched(Err(error.to_string()))),
        };
        let said = Some((plugin.name(), plugin.version()));
        let before = self.report.to.version.as_deref();
        if said != before.map(|version| (&self.slot.name, version)) {
            let reason = "it describes itself differently each time".to_owned();
            return self.step(UpgradeEvent::Switched(Err(reason)));
        }
        let (dir, bytes) = (self.agent.data_dir().to_owned(), Arc::clone(&self.bytes));
        let file = self.report.file.clone();
        let copied = tokio::task::spawn_blocking(move || copies::copy_new(&dir, &bytes, &file));
        // An error means that the task panicked, which was logged there.
        let _copied = copied.await;
        let code = match plugin {
            Plugin::Driver(plugin) => PluginCode::Driver(Arc::new(plugin)),
            Plugin::Device(plugin) => PluginCode::Device(Arc::new(plugin)),
        };
        let mut now = self.slot.now();
        let Some(old) = current_code(&self.agent, &self.slot) else {
            drop(now);
            return self.step(UpgradeEvent::Switched(Err("the plugin is gone".to_owned())));
        };
        code.meter().excuse_tasks(old.meter().struck_tasks());
        let began = self.agent.0.context.clock.now();
        let effects = now.machine.step(self.slot.proof(), began, UpgradeEvent::Switched(Ok(())));
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
        now.status.previous = now.machine.accepted_release().cloned();
        put_code(&self.agent, &self.slot, code);
        effects
    }
}

/// The code that is called at present.
fn current_code(agent: &AgentHandle, slot: &UpgradeSlot) -> Option<PluginCode> {
    let driver = agent.0.drivers.plugin(&slot.name).map(PluginCode::Driver);
    match slot.kind {
        ostler_model::plugin::PluginKind::Driver => driver,
        ostler_model::plugin::PluginKind::Device => {
            agent.0.devices.source(&slot.name).map(PluginCode::Device)
        }
    }
}

/// Put code in its place. Its first fingerprint follows in the background.
fn put_code(agent: &AgentHandle, slot: &UpgradeSlot, code: PluginCode) {
    let meter = code.meter();
    let asked: Option<BoxFuture<'static, ()>> = match code {
        PluginCode::Driver(plugin) => {
            agent.0.drivers.switch(plugin).map(|asked| Box::pin(asked) as _)
        }
        PluginCode::Device(plugin) => {
            agent.0.devices.switch(plugin).map(|asked| Box::pin(asked) as _)
        }
    };
    agent.set_meter((slot.kind, slot.name.to_string()), meter);
    if let Some(asked) = asked {
        spawn_until_end(agent, asked);
    }
}

/// Run work beside the agent, until the agent ends.
fn spawn_until_end(agent: &AgentHandle, work: impl Future<Output = ()> + Send + 'static) {
    let ended = agent.0.ended.clone();
    agent.spawn_beside(async move {
        let _before_its_end = ended.run_until_cancelled(work).await;
    });
}

/// Watch a plugin that is in its place since `turn`, until it is accepted or rolled back.
async fn prove(agent: AgentHandle, slot: Arc<UpgradeSlot>, turn: u64, twin: Option<Twin>) {
    let (weak, ended) = (Arc::downgrade(&agent.0), agent.0.ended.clone());
    let Some(meter) = current_code(&agent, &slot).map(|code| code.meter()) else { return };
    drop(agent);
    loop {
        let Some(agent) = weak.upgrade().map(AgentHandle) else { return };
        let (left, strikes) = {
            let now = slot.now();
            let Some(until) = now.machine.proving_until().filter(|_| now.turn == turn) else {
                return;
            };
            (until.since(agent.0.context.clock.now()), meter.strike_count())
        };
        let mut event = UpgradeEvent::Passed;
        if strikes >= slot.proof().strikes {
            let last = meter.last_error().map(|error| error.reason).unwrap_or_default();
            event = UpgradeEvent::Struck { strikes, last };
        } else if left.is_zero() {
            event = check_unowned(&agent, &slot, twin.as_ref()).await.unwrap_or(event);
        }
        let over = apply_proof_event(&agent, &slot, turn, event).await;
        drop(agent);
        if over {
            return;
        }
        // While another offer is examined, strikes change nothing. So check again soon, but not at
        // once.
        let soon = Duration::from_millis(100);
        let wait = if strikes >= slot.proof().strikes { soon } else { left.max(soon) };
        tokio::select! {
            () = ended.cancelled() => return,
            () = meter.wait_strike() => {}
            () = clock::sleep(wait) => {}
        }
    }
}

/// Check the tasks that the old plugin started while it was replaced. They were not tried before.
async fn check_unowned(
    agent: &AgentHandle,
    slot: &UpgradeSlot,
    twin: Option<&Twin>,
) -> Option<UpgradeEvent> {
    let Some(Twin::Driver(twin)) = twin else { return None };
    let owned = slot.now().owned.clone();
    let tried =
        clock::timeout(UPGRADE_DRY_WALL_MAX, trial::find_ownable_runs(agent, twin, &owned)).await;
    match tried {
        Some(Err(reason)) => Some(UpgradeEvent::Disowned(reason)),
        Some(Ok(_)) | None => None,
    }
}

/// Apply an event to a proof, and do what follows. Returns whether the proof is over.
async fn apply_proof_event(
    agent: &AgentHandle,
    slot: &Arc<UpgradeSlot>,
    turn: u64,
    event: UpgradeEvent,
) -> bool {
    let (mut report, effects, entry) = {
        let mut now = slot.now();
        if now.turn != turn {
            return true;
        }
        let running = now.machine.running_release().clone();
        let effects = now.machine.step(slot.proof(), agent.0.context.clock.now(), event);
        let back = effects.contains(&UpgradeEffect::RollBack);
        if back {
            roll_back(agent, slot, &mut now);
        }
        if effects.contains(&UpgradeEffect::DropPrevious) {
            now.before = None;
        }
        let Some(last) = now.placed.clone() else { return true };
        let from = if back { now.machine.running_release().clone() } else { last.from };
        let report = UpgradeReport { at: agent.0.context.clock.now(), from, to: running, ..last };
        (report, effects, now.entry.clone())
    };
    let mut over = false;
    for effect in effects {
        if let UpgradeEffect::End(outcome) = effect {
            report.outcome = outcome;
            record_report(slot, &report);
            records::remember_upgrade(&agent.0.context.state, &entry).await;
            copies::remember_outcome(agent, &slot.seed, &report).await;
            over = true;
        }
    }
    over
}

/// Put the accepted code back. The caller holds the lock of the slot, so nobody can offer another
/// release in between.
fn roll_back(agent: &AgentHandle, slot: &UpgradeSlot, now: &mut SlotState) {
    let Some((code, entry, manifest)) = now.before.take() else { return };
    now.entry = entry;
    now.manifest = manifest;
    now.turn += 1;
    now.status.upgraded_at = None;
    now.status.previous = None;
    put_code(agent, slot, code);
}

/// Report an upgrade in the log, and keep the report for `plugin status`.
fn record_report(slot: &UpgradeSlot, report: &UpgradeReport) {
    let (plugin, file) = (report.name.as_str(), report.file.display());
    let version = |release: &Release| release.version.clone().unwrap_or_default();
    let (from, to) = (version(&report.from), version(&report.to));
    match &report.outcome {
        UpgradeOutcome::Same => tracing::debug!(plugin, %file, "this plugin is already in use"),
        UpgradeOutcome::Switched => {
            tracing::info!(plugin, from, to, %file, tasks = report.tasks_tried, "plugin upgraded; it is now \
                proving itself")
        }
        UpgradeOutcome::Accepted => tracing::info!(plugin, to, "the upgraded plugin proved itself"),
        UpgradeOutcome::ConsentNeeded { asks, downgrade } => {
            tracing::warn!(plugin, ?asks, ?downgrade, %file, "not upgraded: it needs consent; run `ostler \
                plugin upgrade --yes` to give it");
        }
        UpgradeOutcome::Refused { reason } => {
            tracing::warn!(plugin, %file, "not upgraded: {reason}")
        }
        UpgradeOutcome::RolledBack { reason } => {
            tracing::error!(plugin, from, to, "upgrade rolled back: {reason}")
        }
    }
    if report.outcome == UpgradeOutcome::Same {
        return;
    }
    let mut now = slot.now();
    if matches!(report.outcome, UpgradeOutcome::RolledBack { .. }) {
        now.status.rolled_back = Some(report.clone());
    }
    if report.outcome == UpgradeOutcome::Switched {
        now.placed = Some(report.clone());
    }
    now.status.last = Some(report.clone());
}

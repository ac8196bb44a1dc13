//! Drives the claims of tasks: each [`Claim`] decides, and this module asks the plugins.
//!
//! ```text
//!  reserve ─► lock of the claim ─► step ─► effect ─► answer ─► step … ─► granted or denied
//!  release ─► a task of its own: the same; the asker waits for the first round only
//!                 └─► wait, next round … ─► released ─► LedgerBook::clear_holder
//! ```
//! A reserve is dropped when its asker is dropped (a kill); the claim then knows that something may
//! have been reserved. Only the end of the agent drops a release, which then stays in the ledger.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::oneshot;

use super::{DeviceManager, call_bounded, lock};
use crate::ledger::InstanceHolder;
use crate::reservation::{Claim, ClaimEffect, ClaimEvent, ClaimPhase};
use ostler_model::clock;
use ostler_model::device::Reservation;
use ostler_model::grants::answers::{MountConflict, check_mount_paths};
use ostler_model::ids::{AllocId, PluginName, TaskName};
use ostler_model::limits::{DEVICE_CALL_WALL_MAX, DEVICE_LOADED_WALL};
use ostler_model::ports::{BoxFuture, PluginCallError};
use ostler_model::resources::AllocatedDevice;

/// The agent's ledger: the record of who holds what.
pub trait LedgerBook: Send + Sync {
    /// Make sure that the holder's entry is on disk, because a plugin is about to be asked for it.
    /// The wait is bounded.
    ///
    /// # Errors
    /// The reason why the entry is not on disk; the task may try again.
    fn keep<'a>(&'a self, holder: &'a InstanceHolder)
    -> BoxFuture<'a, Result<(), PluginCallError>>;
    /// The holder owes no release any more: its entry may go.
    fn clear_holder<'a>(&'a self, holder: &'a InstanceHolder) -> BoxFuture<'a, ()>;
}

/// The state of a claim, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClaimState {
    /// Plugins are being asked for the devices.
    Reserving,
    /// All plugins granted the devices.
    Reserved,
    /// Nothing is reserved: a plugin refused, or the task has not been started yet.
    Claimed,
    /// The task ended, and plugins are being asked to release the devices.
    Releasing,
}

/// A claim of one task, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClaimReport {
    /// Id of the allocation.
    pub alloc: AllocId,
    /// Name of the task in its allocation.
    pub task: TaskName,
    /// The devices of the claim, one entry for each request.
    pub devices: Vec<AllocatedDevice>,
    /// How far the claim is.
    pub state: ClaimState,
    /// Number of release rounds after which something was left.
    pub tries: u32,
    /// Text of the last refusal or failure of a plugin.
    pub last_error: Option<String>,
}

/// The claim of one task, with what the manager keeps beside it.
pub(super) struct ClaimEntry {
    claim: tokio::sync::Mutex<Claim>,
    /// A copy of the claim after its last step, for people.
    shown: Mutex<Claim>,
    /// The holder's entry in the ledger is needed.
    owes: AtomicBool,
    /// The allocation is over, so the claim is removed when it is released.
    over: AtomicBool,
}

impl ClaimEntry {
    fn new(claim: Claim) -> Arc<Self> {
        let owes = AtomicBool::new(claim.keeps_entry());
        let shown = Mutex::new(claim.clone());
        let claim = tokio::sync::Mutex::new(claim);
        Arc::new(Self { claim, shown, owes, over: AtomicBool::new(false) })
    }
}

/// The result of driving a claim.
enum DriveOutcome {
    Granted,
    Denied(PluginCallError),
    Wait(Duration),
    Done,
    Nothing,
}

impl DeviceManager {
    /// Take over the claim of a task of an earlier agent: plugins may have been asked
    /// for these devices.
    pub fn restore_claim(&self, holder: InstanceHolder, devices: &[AllocatedDevice]) {
        lock(&self.0.claims).insert(holder, ClaimEntry::new(Claim::from_ledger(devices)));
    }

    /// The allocation is over: release what its tasks still hold. Returns the tasks whose
    /// release is not done yet. Their instances must not be assigned until
    /// [`LedgerBook::clear_holder`] is called.
    pub fn end_alloc(&self, alloc: AllocId) -> BTreeSet<TaskName> {
        let claims = lock(&self.0.claims);
        let of_alloc = claims.iter().filter(|(holder, _)| holder.alloc == alloc);
        let entries: Vec<(InstanceHolder, Arc<ClaimEntry>)> =
            of_alloc.map(|(holder, entry)| (holder.clone(), Arc::clone(entry))).collect();
        drop(claims);
        let mut owing = BTreeSet::new();
        for (holder, entry) in entries {
            entry.over.store(true, Ordering::SeqCst);
            if entry.owes.load(Ordering::SeqCst) {
                owing.insert(holder.task.clone());
                drop(self.spawn_release(holder, entry));
            } else {
                self.forget(&holder, &entry);
            }
        }
        owing
    }

    /// A report of every claim, by holder.
    #[must_use]
    pub fn claims(&self) -> Vec<ClaimReport> {
        let claims = lock(&self.0.claims);
        claims
            .iter()
            .filter_map(|(holder, entry)| claim_report(holder, &lock(&entry.shown)))
            .collect()
    }

    pub(super) async fn reserve_claim(
        &self,
        holder: InstanceHolder,
        devices: &[AllocatedDevice],
    ) -> Result<Reservation, PluginCallError> {
        let entry = Arc::clone(
            lock(&self.0.claims)
                .entry(holder.clone())
                .or_insert_with(|| ClaimEntry::new(Claim::default())),
        );
        let mut claim = entry.claim.lock().await;
        let mut whole = Reservation::default();
        let asked = ClaimEvent::Reserve(devices.to_vec());
        match self.drive(&holder, &entry, &mut claim, asked, &mut whole).await {
            DriveOutcome::Granted => Ok(whole),
            DriveOutcome::Denied(error) => Err(error),
            DriveOutcome::Wait(_) | DriveOutcome::Done | DriveOutcome::Nothing => {
                Err(PluginCallError::Recoverable("the devices are still being released".to_owned()))
            }
        }
    }

    pub(super) async fn release_claim(&self, holder: InstanceHolder) {
        let Some(entry) = lock(&self.0.claims).get(&holder).cloned() else { return };
        // An error means that the agent ends.
        let _first_round = self.spawn_release(holder, entry).await;
    }

    /// Release in rounds until everything is released. The receiver is told when the
    /// first round ends.
    fn spawn_release(
        &self,
        holder: InstanceHolder,
        entry: Arc<ClaimEntry>,
    ) -> oneshot::Receiver<()> {
        let (first, heard) = oneshot::channel();
        let manager = self.clone();
        self.0.running.spawn(async move {
            let (mut event, mut first) = (ClaimEvent::End, Some(first));
            loop {
                let mut claim = entry.claim.lock().await;
                let mut nothing = Reservation::default();
                let driven = manager.drive(&holder, &entry, &mut claim, event, &mut nothing).await;
                drop(claim);
                if let Some(first) = first.take() {
                    let _nobody_waits = first.send(());
                }
                let DriveOutcome::Wait(wait) = driven else { break };
                tokio::select! {
                    biased;
                    () = manager.0.stop.cancelled() => return,
                    () = clock::sleep(wait) => {}
                }
                event = ClaimEvent::Again;
            }
            if entry.over.load(Ordering::SeqCst) && !entry.owes.load(Ordering::SeqCst) {
                manager.forget(&holder, &entry);
            }
        });
        heard
    }

    fn forget(&self, holder: &InstanceHolder, entry: &Arc<ClaimEntry>) {
        let mut claims = lock(&self.0.claims);
        if claims.get(holder).is_some_and(|known| Arc::ptr_eq(known, entry)) {
            claims.remove(holder);
        }
    }

    /// Take an event and carry out what follows from it. `whole` collects the plugins'
    /// answers to reserves.
    async fn drive(
        &self,
        holder: &InstanceHolder,
        entry: &ClaimEntry,
        claim: &mut Claim,
        event: ClaimEvent,
        whole: &mut Reservation,
    ) -> DriveOutcome {
        if claim.is_in_flight() {
            // The future that drove the claim was dropped while a plugin was being asked.
            claim.step(ClaimEvent::Dropped);
        }
        let mut event = event;
        loop {
            let effect = claim.step(event);
            lock(&entry.shown).clone_from(claim);
            event = match effect {
                None => return DriveOutcome::Nothing,
                Some(ClaimEffect::Keep) => {
                    entry.owes.store(true, Ordering::SeqCst);
                    ClaimEvent::Kept(self.keep(holder).await)
                }
                Some(ClaimEffect::Reserve(device)) => match self.reserve_one(&device).await {
                    Ok((plugin, part)) => match merge_answer(whole, part) {
                        Ok(()) => ClaimEvent::Reserved(plugin),
                        Err(error) => ClaimEvent::Refused(PluginCallError::NotGranted(format!(
                            "what plugin {plugin} answers for {} cannot be given to the task: {error}",
                            device.group
                        ))),
                    },
                    Err(error) => ClaimEvent::Refused(error),
                },
                Some(ClaimEffect::Release(device, plugin)) => {
                    let answer = self.release_one(&device, plugin.as_ref()).await;
                    if let Err(error) = &answer {
                        tracing::debug!(%holder, group = %device.group, %error, "release refused");
                    }
                    ClaimEvent::Released(answer)
                }
                Some(ClaimEffect::Granted) => return DriveOutcome::Granted,
                Some(ClaimEffect::Denied(error)) => return DriveOutcome::Denied(error),
                Some(ClaimEffect::Wait(wait)) => {
                    tracing::warn!(
                        %holder, ?wait, error = claim.last_error(),
                        "a device plugin was not told of the end of the task, tried again"
                    );
                    return DriveOutcome::Wait(wait);
                }
                Some(ClaimEffect::Done(left)) => {
                    for item in left {
                        tracing::error!(
                            %holder, group = %item.device.group, instances = ?item.device.ids,
                            "release given up: the devices are assigned again as they are"
                        );
                    }
                    if let Some(book) = &self.0.book {
                        book.clear_holder(holder).await;
                    }
                    entry.owes.store(false, Ordering::SeqCst);
                    return DriveOutcome::Done;
                }
            };
        }
    }

    async fn keep(&self, holder: &InstanceHolder) -> Result<(), PluginCallError> {
        match &self.0.book {
            Some(book) => book.keep(holder).await,
            None => Ok(()),
        }
    }

    /// Wait for plugins that are being loaded, as long as none reports the device.
    async fn wait_until_reported(&self, device: &AllocatedDevice) {
        let mut views = self.0.node.subscribe();
        let settled = views.wait_for(|view| {
            view.loading.is_empty()
                || lock(&self.0.inventory).owner_with(&device.group, &device.ids).is_ok()
        });
        // After an error, or after the bound, the plugins known by then count.
        let _settled = clock::timeout(DEVICE_LOADED_WALL, settled).await;
    }

    async fn reserve_one(
        &self,
        device: &AllocatedDevice,
    ) -> Result<(PluginName, Reservation), PluginCallError> {
        self.wait_until_reported(device).await;
        let plugin = self.owner(device)?;
        let name = plugin.source.name().clone();
        // The plugin has not been asked yet, so a failure here has no effect on it.
        let slot = clock::timeout(DEVICE_CALL_WALL_MAX, plugin.slots.acquire()).await;
        let Some(Ok(_slot)) = slot else {
            return Err(PluginCallError::NotReady {
                name: name.to_string(),
                reason: format!("busy with other calls for {DEVICE_CALL_WALL_MAX:?}"),
            });
        };
        match call_bounded(&*plugin.source, "reserve", plugin.source.reserve(device)).await {
            Ok(part) => Ok((name, part)),
            // The device was removed since the last fingerprint. It may come back, so this is
            // tried again.
            Err(PluginCallError::NotFound(reason)) => Err(PluginCallError::Recoverable(format!(
                "plugin {name} does not find instance {} of the device group {} now: {reason}",
                device.ids.join(", "),
                device.group
            ))),
            Err(error) => Err(error),
        }
    }

    async fn release_one(
        &self,
        device: &AllocatedDevice,
        plugin: Option<&PluginName>,
    ) -> Result<(), PluginCallError> {
        let plugin = match plugin {
            Some(name) => self.plugin(name)?,
            None => self.owner(device)?,
        };
        let name = plugin.source.name();
        let slot = clock::timeout(DEVICE_CALL_WALL_MAX, plugin.slots.acquire()).await;
        let Some(Ok(_slot)) = slot else {
            return Err(PluginCallError::NotReady {
                name: name.to_string(),
                reason: format!("busy with other calls for {DEVICE_CALL_WALL_MAX:?}"),
            });
        };
        call_bounded(&*plugin.source, "release", plugin.source.release(device)).await
    }
}

/// Add the answer of one plugin to what the task gets, provided that it hides nothing of the rest.
fn merge_answer(whole: &mut Reservation, part: Reservation) -> Result<(), MountConflict> {
    whole.env.extend(part.env);
    // Several devices may ask for the same mount or node.
    for mount in part.mounts {
        if !whole.mounts.contains(&mount) {
            whole.mounts.push(mount);
        }
    }
    for node in part.device_nodes {
        if !whole.device_nodes.contains(&node) {
            whole.device_nodes.push(node);
        }
    }
    check_mount_paths(whole)
}

fn claim_report(holder: &InstanceHolder, claim: &Claim) -> Option<ClaimReport> {
    let (state, tries) = match claim.phase() {
        ClaimPhase::Done => return None,
        ClaimPhase::Idle if claim.items().iter().all(|item| item.owed) => (ClaimState::Reserved, 0),
        ClaimPhase::Idle => (ClaimState::Claimed, 0),
        ClaimPhase::Keeping | ClaimPhase::Reserving { .. } | ClaimPhase::Undoing { .. } => {
            (ClaimState::Reserving, 0)
        }
        ClaimPhase::Releasing { tries, .. } | ClaimPhase::Waiting { tries } => {
            (ClaimState::Releasing, *tries)
        }
    };
    Some(ClaimReport {
        alloc: holder.alloc,
        task: holder.task.clone(),
        devices: claim.items().iter().map(|item| item.device.clone()).collect(),
        state,
        tries,
        last_error: claim.last_error().map(str::to_owned),
    })
}

//! What tasks hold, towards the plugins: [`Claim`] driven against the world.
//!
//! ```text
//!  reserve ─► lock of the claim ─► step ─► effect ─► answer ─► step … ─► granted or denied
//!  release ─► a task of its own: the same; the asker waits for the first round only
//!                 └─► wait, next round … ─► released ─► LedgerBook
//! ```
//! A reserve is dropped with its asker (a kill); the claim then knows that something may have been
//! reserved. A release is never dropped but by the end of the agent, which leaves it in the ledger.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::oneshot;

use super::{DeviceManager, bounded, lock};
use crate::ledger::InstanceHolder;
use crate::reservation::{Claim, ClaimEffect, ClaimEvent, ClaimPhase};
use ostler_model::clock;
use ostler_model::device::Reservation;
use ostler_model::grants::answers::{PlaceError, places};
use ostler_model::ids::{AllocId, PluginName, TaskName};
use ostler_model::limits::{DEVICE_CALL_WALL_MAX, DEVICE_LOADED_WALL};
use ostler_model::ports::{BoxFuture, PluginCallError};
use ostler_model::resources::AllocatedDevice;

/// Where it is written who holds what: the agent's ledger.
pub trait LedgerBook: Send + Sync {
    /// See that the holder's entry is on disk: a plugin is about to be asked for it. Bounded.
    ///
    /// # Errors
    /// Why it is not; the task may try again.
    fn keep<'a>(&'a self, holder: &'a InstanceHolder)
    -> BoxFuture<'a, Result<(), PluginCallError>>;
    /// No release is owed for the holder any more: its entry may go.
    fn released<'a>(&'a self, holder: &'a InstanceHolder) -> BoxFuture<'a, ()>;
}

/// Where a claim is, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClaimState {
    /// Plugins are being asked.
    Reserving,
    /// All answered.
    Reserved,
    /// Nothing is reserved: a plugin refused, or the task has not been started yet.
    Claimed,
    /// The task ended; plugins are told.
    Releasing,
}

/// What a task holds, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClaimReport {
    /// The allocation.
    pub alloc: AllocId,
    /// Its task.
    pub task: TaskName,
    /// The devices.
    pub devices: Vec<AllocatedDevice>,
    /// Where it is.
    pub state: ClaimState,
    /// Rounds of a release that left something.
    pub tries: u32,
    /// What a plugin last refused or failed with.
    pub last_error: Option<String>,
}

/// One claim.
pub(super) struct Entry {
    claim: tokio::sync::Mutex<Claim>,
    /// As it was after the last step.
    shown: Mutex<Claim>,
    /// The ledger's entry is needed.
    owes: AtomicBool,
    /// The allocation is over: gone when it is released.
    over: AtomicBool,
}

impl Entry {
    fn new(claim: Claim) -> Arc<Self> {
        let owes = AtomicBool::new(claim.keeps_entry());
        let shown = Mutex::new(claim.clone());
        let claim = tokio::sync::Mutex::new(claim);
        Arc::new(Self { claim, shown, owes, over: AtomicBool::new(false) })
    }
}

/// How driving a claim ended.
enum Driven {
    Granted,
    Denied(PluginCallError),
    Wait(Duration),
    Done,
    Nothing,
}

impl DeviceManager {
    /// A task of an earlier agent holds these devices; plugins may have been asked for them.
    pub fn restore_claim(&self, holder: InstanceHolder, devices: &[AllocatedDevice]) {
        lock(&self.0.claims).insert(holder, Entry::new(Claim::restored(devices)));
    }

    /// The allocation is over: release what its tasks still hold. The tasks for which that is not
    /// done yet: their instances must not be assigned until [`LedgerBook::released`].
    pub fn end_alloc(&self, alloc: AllocId) -> BTreeSet<TaskName> {
        let claims = lock(&self.0.claims);
        let of_alloc = claims.iter().filter(|(holder, _)| holder.alloc == alloc);
        let entries: Vec<(InstanceHolder, Arc<Entry>)> =
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

    /// Every claim, by holder.
    #[must_use]
    pub fn claims(&self) -> Vec<ClaimReport> {
        let claims = lock(&self.0.claims);
        claims.iter().filter_map(|(holder, entry)| report(holder, &lock(&entry.shown))).collect()
    }

    pub(super) async fn reserve_claim(
        &self,
        holder: InstanceHolder,
        devices: &[AllocatedDevice],
    ) -> Result<Reservation, PluginCallError> {
        let entry = Arc::clone(
            lock(&self.0.claims)
                .entry(holder.clone())
                .or_insert_with(|| Entry::new(Claim::default())),
        );
        let mut claim = entry.claim.lock().await;
        let mut whole = Reservation::default();
        let asked = ClaimEvent::Reserve(devices.to_vec());
        match self.drive(&holder, &entry, &mut claim, asked, &mut whole).await {
            Driven::Granted => Ok(whole),
            Driven::Denied(error) => Err(error),
            Driven::Wait(_) | Driven::Done | Driven::Nothing => {
                Err(PluginCallError::Recoverable("the devices are still being released".to_owned()))
            }
        }
    }

    pub(super) async fn release_claim(&self, holder: InstanceHolder) {
        let Some(entry) = lock(&self.0.claims).get(&holder).cloned() else { return };
        // An error means that the agent ends.
        let _first_round = self.spawn_release(holder, entry).await;
    }

    /// Release until it is released. The receiver hears of the end of the first round.
    fn spawn_release(&self, holder: InstanceHolder, entry: Arc<Entry>) -> oneshot::Receiver<()> {
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
                let Driven::Wait(wait) = driven else { break };
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

    fn forget(&self, holder: &InstanceHolder, entry: &Arc<Entry>) {
        let mut claims = lock(&self.0.claims);
        if claims.get(holder).is_some_and(|known| Arc::ptr_eq(known, entry)) {
            claims.remove(holder);
        }
    }

    /// Take an event and do what follows from it. `whole` gets what plugins answer to reserves.
    async fn drive(
        &self,
        holder: &InstanceHolder,
        entry: &Entry,
        claim: &mut Claim,
        event: ClaimEvent,
        whole: &mut Reservation,
    ) -> Driven {
        if claim.in_flight() {
            // The future that drove the claim was dropped while a plugin was being asked.
            claim.step(ClaimEvent::Dropped);
        }
        let mut event = event;
        loop {
            let effect = claim.step(event);
            lock(&entry.shown).clone_from(claim);
            event = match effect {
                None => return Driven::Nothing,
                Some(ClaimEffect::Keep) => {
                    entry.owes.store(true, Ordering::SeqCst);
                    ClaimEvent::Kept(self.keep(holder).await)
                }
                Some(ClaimEffect::Reserve(device)) => match self.reserve_one(&device).await {
                    Ok((plugin, part)) => match add(whole, part) {
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
                Some(ClaimEffect::Granted) => return Driven::Granted,
                Some(ClaimEffect::Denied(error)) => return Driven::Denied(error),
                Some(ClaimEffect::Wait(wait)) => {
                    tracing::warn!(
                        %holder, ?wait, error = claim.last_error(),
                        "a device plugin was not told of the end of the task, tried again"
                    );
                    return Driven::Wait(wait);
                }
                Some(ClaimEffect::Done(left)) => {
                    for item in left {
                        tracing::error!(
                            %holder, group = %item.device.group, instances = ?item.device.ids,
                            "release given up: the devices are assigned again as they are"
                        );
                    }
                    if let Some(book) = self.0.book.get() {
                        book.released(holder).await;
                    }
                    entry.owes.store(false, Ordering::SeqCst);
                    return Driven::Done;
                }
            };
        }
    }

    async fn keep(&self, holder: &InstanceHolder) -> Result<(), PluginCallError> {
        match self.0.book.get() {
            Some(book) => book.keep(holder).await,
            None => Ok(()),
        }
    }

    /// Wait for plugins that are being loaded, where none reports the device yet.
    async fn reported(&self, device: &AllocatedDevice) {
        let mut views = self.0.node.subscribe();
        let settled = views.wait_for(|view| {
            view.loading.is_empty()
                || lock(&self.0.inventory).owner_with(&device.group, &device.ids).is_ok()
        });
        // An error, or nothing in time: what is known by then counts.
        let _settled = clock::timeout(DEVICE_LOADED_WALL, settled).await;
    }

    async fn reserve_one(
        &self,
        device: &AllocatedDevice,
    ) -> Result<(PluginName, Reservation), PluginCallError> {
        self.reported(device).await;
        let plugin = self.owner(device)?;
        let name = plugin.source.name().clone();
        // The plugin is not asked yet: a failure here has no effect on it.
        let slot = clock::timeout(DEVICE_CALL_WALL_MAX, plugin.slots.acquire()).await;
        let Some(Ok(_slot)) = slot else {
            return Err(PluginCallError::NotReady {
                name: name.to_string(),
                reason: format!("busy with other calls for {DEVICE_CALL_WALL_MAX:?}"),
            });
        };
        match bounded(&*plugin.source, "reserve", plugin.source.reserve(device)).await {
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
        bounded(&*plugin.source, "release", plugin.source.release(device)).await
    }
}

/// Add what one plugin answered to what the task gets, where nothing of it hides the rest.
fn add(whole: &mut Reservation, part: Reservation) -> Result<(), PlaceError> {
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
    places(whole)
}

fn report(holder: &InstanceHolder, claim: &Claim) -> Option<ClaimReport> {
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

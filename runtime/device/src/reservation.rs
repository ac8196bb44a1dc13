//! What is owed to device plugins for what one task holds: claim, reserve, commit, release.
//!
//! ```text
//!            Reserve            Kept           Reserved … Reserved
//!  claimed ──────────► keeping ──────► reserving ─────────────────► committed ─┐ asked again before
//!     ▲                                    │ Refused                  ▲        │ each start; a
//!     │   all released, last first         ▼                          └────────┘ refusal undoes
//!     └──────────────────────────────── undoing                                  nothing
//!
//!            End                     Released                     Again
//!  any of these ──────► releasing ───────────────► settled    waiting ───► releasing
//!                          └── a plugin is not there ──► waiting ─┘ (up to a bound, then settled)
//! ```
//! Pure. The claim itself is in the [`super::ledger`], and the ledger's entry is what a crash leaves:
//! an entry on disk means that a release may be owed. So it is there before the first plugin is
//! asked ([`Effect::Keep`]) and goes when none is owed any more ([`Effect::Settled`]); whoever starts
//! after a crash begins with [`Claim::restored`] and owes all of it.
//!
//! Each reserve that may have had an effect is released once: one that was answered, and one of which
//! it is not known (the call trapped, hung or was dropped). A crash between a plugin's answer to a
//! release and the ledger's entry going repeats that one release; the instance is lent to nobody in
//! between.
//!
//! An instance whose plugin cannot be reached is not lent again while its release is tried: the next
//! holder would find it as the last one left it. After [`DEVICE_RELEASE_TRIES_MAX`] rounds it is
//! given up and lent again, for a plugin that never comes back must not take the device with it:
//! each start reserves anew, and a plugin has to make a device usable whatever was before.

use std::time::Duration;

use ostler_model::ids::PluginName;
use ostler_model::limits::{
    DEVICE_RELEASE_RETRY_FIRST, DEVICE_RELEASE_RETRY_MAX, DEVICE_RELEASE_TRIES_MAX,
};
use ostler_model::ports::PluginCallError;
use ostler_model::resources::AllocatedDevice;

/// Instances of one group that the task holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Which instances.
    pub device: AllocatedDevice,
    /// The plugin that answered, where one did: it gets the release, whoever has the group by then.
    pub plugin: Option<PluginName>,
    /// A reserve may have had an effect that was not released.
    pub owed: bool,
}

/// Where a claim is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// No plugin is being asked.
    #[default]
    Idle,
    /// The ledger's entry is made durable.
    Keeping,
    /// The plugin of this item is asked.
    Reserving {
        /// Index of the item.
        at: usize,
        /// It was owed before this question.
        before: bool,
    },
    /// One refused: the others are released, this one now.
    Undoing {
        /// Index of the item.
        at: usize,
        /// The refusal.
        error: PluginCallError,
    },
    /// The task ended: this item is released.
    Releasing {
        /// Index of the item.
        at: usize,
        /// Rounds that left something.
        tries: u32,
    },
    /// Some plugin did not answer; tried again later.
    Waiting {
        /// Rounds so far.
        tries: u32,
    },
    /// Nothing is owed and the task needs nothing any more.
    Settled,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The task is about to start, or goes on after the agent was away, with these instances.
    Reserve(Vec<AllocatedDevice>),
    /// The entry in the ledger is durable, or could not be made so.
    Kept(Result<(), PluginCallError>),
    /// The plugin said how the instances are used.
    Reserved(PluginName),
    /// It did not.
    Refused(PluginCallError),
    /// A release was answered.
    Released(Result<(), PluginCallError>),
    /// Whoever was asking is gone; its question may have had an effect.
    Dropped,
    /// The task ended for good.
    End,
    /// The wait for the next round is over.
    Again,
}

/// What is to be done. Each is answered by the event in parentheses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// See that the ledger's entry is on disk ([`Event::Kept`]).
    Keep,
    /// Ask the plugin how these instances are used ([`Event::Reserved`], [`Event::Refused`]).
    Reserve(AllocatedDevice),
    /// Tell the plugin that they are no longer ([`Event::Released`]).
    Release(AllocatedDevice, Option<PluginName>),
    /// All plugins answered (none).
    Granted,
    /// Not all did; nothing was changed, or all was undone (none).
    Denied(PluginCallError),
    /// Come back after this time ([`Event::Again`]).
    Wait(Duration),
    /// Free the ledger's entry; these were given up (none).
    Settled(Vec<Item>),
}

/// The claim of one task. See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    items: Vec<Item>,
    phase: Phase,
    /// The entry in the ledger is durable.
    kept: bool,
    /// All plugins answered at once since the claim began: the task may run with it.
    committed: bool,
    last_error: Option<String>,
}

impl Claim {
    /// The claim of a task that an earlier agent left, where the ledger has an entry for it: what
    /// was answered is not known, so that all of it is owed.
    #[must_use]
    pub fn restored(devices: &[AllocatedDevice]) -> Self {
        let item =
            |device: &AllocatedDevice| Item { device: device.clone(), plugin: None, owed: true };
        let items = devices.iter().map(item).collect();
        Self { items, kept: true, committed: true, ..Self::default() }
    }

    /// Where it is.
    #[must_use]
    pub const fn phase(&self) -> &Phase {
        &self.phase
    }

    /// What it has.
    #[must_use]
    pub fn items(&self) -> &[Item] {
        &self.items
    }

    /// Why the last release or reserve did not succeed.
    #[must_use]
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// Somebody has to answer an effect. When nobody does any more, [`Event::Dropped`] says so.
    #[must_use]
    pub const fn in_flight(&self) -> bool {
        !matches!(self.phase, Phase::Idle | Phase::Waiting { .. } | Phase::Settled)
    }

    /// The ledger's entry is still needed.
    #[must_use]
    pub const fn keeps_entry(&self) -> bool {
        self.kept
    }

    /// Take an event; what is to be done about it. One that does not fit the phase (a late answer,
    /// a wait that is over after the task was started again) changes nothing.
    pub fn step(&mut self, event: Event) -> Option<Effect> {
        match (std::mem::take(&mut self.phase), event) {
            (Phase::Idle | Phase::Waiting { .. } | Phase::Settled, Event::Reserve(devices)) => {
                self.begin(devices)
            }
            (Phase::Keeping, Event::Kept(Ok(()))) => {
                self.kept = true;
                self.ask(0)
            }
            (Phase::Keeping, Event::Kept(Err(error))) => self.denied(error),
            (Phase::Reserving { at, .. }, Event::Reserved(plugin)) => {
                if let Some(item) = self.items.get_mut(at) {
                    item.plugin = Some(plugin);
                }
                self.ask(at + 1)
            }
            (Phase::Reserving { at, before }, Event::Refused(error)) => {
                self.refused(at, before, error)
            }
            (Phase::Undoing { at, error }, Event::Released(answer)) => {
                self.answered(at, answer);
                self.undo(at, error)
            }
            (Phase::Releasing { at, tries }, Event::Released(answer)) => {
                self.answered(at, answer);
                self.release(at, tries)
            }
            (phase, Event::Dropped) => {
                self.dropped(phase);
                None
            }
            (Phase::Idle, Event::End) => self.release(self.items.len(), 0),
            (Phase::Waiting { tries }, Event::Again) => self.release(self.items.len(), tries),
            (phase, _) => {
                self.phase = phase;
                None
            }
        }
    }

    fn begin(&mut self, devices: Vec<AllocatedDevice>) -> Option<Effect> {
        for device in devices {
            if !self.items.iter().any(|item| item.device == device) {
                self.items.push(Item { device, plugin: None, owed: false });
            }
        }
        if self.items.is_empty() {
            return Some(Effect::Granted);
        }
        if self.kept {
            return self.ask(0);
        }
        self.phase = Phase::Keeping;
        Some(Effect::Keep)
    }

    fn ask(&mut self, at: usize) -> Option<Effect> {
        let Some(item) = self.items.get_mut(at) else {
            self.committed = true;
            self.last_error = None;
            return Some(Effect::Granted);
        };
        // From here on: whatever becomes of the question, it may have had an effect.
        let before = std::mem::replace(&mut item.owed, true);
        self.phase = Phase::Reserving { at, before };
        Some(Effect::Reserve(item.device.clone()))
    }

    fn refused(&mut self, at: usize, before: bool, error: PluginCallError) -> Option<Effect> {
        if let Some(item) = self.items.get_mut(at) {
            // A call that failed may have reserved, one whose answer is not taken has; a plugin that
            // said no has not.
            item.owed = before
                || matches!(
                    error,
                    PluginCallError::CallFailed { .. } | PluginCallError::NotGranted(_)
                );
        }
        // What the task was once given stays its own until it ends: it may be running.
        if self.committed { self.denied(error) } else { self.undo(self.items.len(), error) }
    }

    fn denied(&mut self, error: PluginCallError) -> Option<Effect> {
        self.last_error = Some(error.to_string());
        Some(Effect::Denied(error))
    }

    /// Release the last item before `end` that is owed.
    fn undo(&mut self, end: usize, error: PluginCallError) -> Option<Effect> {
        let Some((at, effect)) = self.last_owed(end) else { return self.denied(error) };
        self.phase = Phase::Undoing { at, error };
        Some(effect)
    }

    fn release(&mut self, end: usize, tries: u32) -> Option<Effect> {
        if let Some((at, effect)) = self.last_owed(end) {
            self.phase = Phase::Releasing { at, tries };
            return Some(effect);
        }
        let left: Vec<Item> = self.items.iter().filter(|item| item.owed).cloned().collect();
        let tries = tries.saturating_add(1);
        if !left.is_empty() && tries < DEVICE_RELEASE_TRIES_MAX {
            self.phase = Phase::Waiting { tries };
            return Some(Effect::Wait(back_off(tries)));
        }
        *self = Self { phase: Phase::Settled, ..Self::default() };
        Some(Effect::Settled(left))
    }

    fn last_owed(&self, end: usize) -> Option<(usize, Effect)> {
        let owed = self.items.iter().enumerate().take(end).rev().find(|(_, item)| item.owed);
        owed.map(|(at, item)| (at, Effect::Release(item.device.clone(), item.plugin.clone())))
    }

    fn answered(&mut self, at: usize, answer: Result<(), PluginCallError>) {
        let Some(item) = self.items.get_mut(at) else { return };
        match answer {
            // Not known, or nothing to do: then nothing is held.
            Ok(()) | Err(PluginCallError::NotFound(_) | PluginCallError::Unsupported(_)) => {
                item.owed = false;
            }
            Err(error) => self.last_error = Some(error.to_string()),
        }
    }

    /// Nobody waits for the answer. What was asked may have had an effect: it stays owed.
    fn dropped(&mut self, phase: Phase) {
        self.phase = match phase {
            Phase::Releasing { tries, .. } => Phase::Waiting { tries },
            Phase::Waiting { .. } | Phase::Settled => phase,
            Phase::Idle | Phase::Keeping | Phase::Reserving { .. } | Phase::Undoing { .. } => {
                Phase::Idle
            }
        };
    }
}

/// Doubles with each round, up to its bound.
fn back_off(tries: u32) -> Duration {
    let doublings = tries.saturating_sub(1).min(16);
    DEVICE_RELEASE_RETRY_FIRST.saturating_mul(1 << doublings).min(DEVICE_RELEASE_RETRY_MAX)
}

#[cfg(test)]
#[path = "reservation_tests.rs"]
mod tests;

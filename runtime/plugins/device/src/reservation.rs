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
//!  any of these ──────► releasing ───────────────► released    waiting ───► releasing
//!                          └── a plugin is not there ──► waiting ─┘ (up to a bound, then released)
//! ```
//! Pure. The claim itself is in the [`super::ledger`]. A crash leaves the ledger's entry: an entry
//! on disk means that a release may be owed. So the entry is there before the first plugin is asked
//! ([`ClaimEffect::Keep`]), and it goes when no release is owed any more ([`ClaimEffect::Done`]).
//! An agent that starts after a crash begins with [`Claim::from_ledger`] and owes every release.
//!
//! Each reserve that may have had an effect is released once: one that was answered, and one whose
//! result is not known (the call trapped, hung or was dropped). A crash after a plugin's answer to
//! a release and before the entry goes repeats that one release; meanwhile the instance is assigned
//! to nobody.
//!
//! While the plugin of an instance cannot be reached, its release is tried and the instance is not
//! assigned again: the next holder would find it as the last one left it. After
//! [`DEVICE_RELEASE_TRIES_MAX`] rounds the release is given up and the instance is assigned again,
//! because a plugin that never comes back must not take the device with it. Each start reserves
//! anew, and a plugin has to make a device usable in any case.

use std::time::Duration;

use ostler_model::ids::PluginName;
use ostler_model::limits::{
    DEVICE_RELEASE_RETRY_FIRST, DEVICE_RELEASE_RETRY_MAX, DEVICE_RELEASE_TRIES_MAX,
};
use ostler_model::ports::PluginCallError;
use ostler_model::resources::AllocatedDevice;

/// Instances of one group that the task holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimItem {
    /// The group and the ids of the instances.
    pub device: AllocatedDevice,
    /// The plugin that granted them, where one did. It gets the release, whoever owns the
    /// group by then.
    pub plugin: Option<PluginName>,
    /// A reserve may have had an effect that was not released.
    pub owed: bool,
}

/// The step that a claim is at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClaimPhase {
    /// No plugin is being asked.
    #[default]
    Idle,
    /// The ledger's entry is made durable.
    Keeping,
    /// The plugin of this item is asked.
    Reserving {
        /// Index of the item.
        at: usize,
        /// A release was owed before this question already.
        before: bool,
    },
    /// One plugin refused: the others are released, this item now.
    Undoing {
        /// Index of the item.
        at: usize,
        /// The error of the plugin that refused.
        error: PluginCallError,
    },
    /// The task ended: this item is released.
    Releasing {
        /// Index of the item.
        at: usize,
        /// Number of rounds after which something was left.
        tries: u32,
    },
    /// Some plugin did not answer; the release is tried again later.
    Waiting {
        /// Number of rounds so far.
        tries: u32,
    },
    /// Nothing is owed and the task needs nothing any more.
    Done,
}

/// An event for the claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimEvent {
    /// The task is about to start, or goes on after the agent was away, with these instances.
    Reserve(Vec<AllocatedDevice>),
    /// The entry in the ledger is durable, or could not be made so.
    Kept(Result<(), PluginCallError>),
    /// The plugin said how the instances are used.
    Reserved(PluginName),
    /// The plugin refused, or did not answer.
    Refused(PluginCallError),
    /// A plugin answered a release.
    Released(Result<(), PluginCallError>),
    /// The future that was asking is gone; its question may have had an effect.
    Dropped,
    /// The task ended for good.
    End,
    /// The wait for the next round is over.
    Again,
}

/// What is to be done. The event in parentheses answers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimEffect {
    /// See that the ledger's entry is on disk ([`ClaimEvent::Kept`]).
    Keep,
    /// Ask the plugin how these instances are used ([`ClaimEvent::Reserved`], [`ClaimEvent::Refused`]).
    Reserve(AllocatedDevice),
    /// Tell the plugin that they are not used any more ([`ClaimEvent::Released`]).
    Release(AllocatedDevice, Option<PluginName>),
    /// All plugins granted the devices (no answer).
    Granted,
    /// Not all plugins did; nothing was changed, or everything was undone (no answer).
    Denied(PluginCallError),
    /// Come back after this time ([`ClaimEvent::Again`]).
    Wait(Duration),
    /// Free the ledger's entry; the items whose release was given up are listed (no answer).
    Done(Vec<ClaimItem>),
}

/// The claim of one task. See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    items: Vec<ClaimItem>,
    phase: ClaimPhase,
    /// The entry in the ledger is durable.
    kept: bool,
    /// All plugins answered at once since the claim began: the task may run with it.
    committed: bool,
    last_error: Option<String>,
}

impl Claim {
    /// The claim of a task that an earlier agent left, where the ledger has an entry for it. The
    /// plugins' answers are not known, so all of it is owed.
    #[must_use]
    pub fn from_ledger(devices: &[AllocatedDevice]) -> Self {
        let item = |device: &AllocatedDevice| ClaimItem {
            device: device.clone(),
            plugin: None,
            owed: true,
        };
        let items = devices.iter().map(item).collect();
        Self { items, kept: true, committed: true, ..Self::default() }
    }

    /// The step that the claim is at.
    #[must_use]
    pub const fn phase(&self) -> &ClaimPhase {
        &self.phase
    }

    /// The items of the claim, one for each request.
    #[must_use]
    pub fn items(&self) -> &[ClaimItem] {
        &self.items
    }

    /// Why the last release or reserve did not succeed.
    #[must_use]
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    /// An effect waits for its answer. When nobody will give it, [`ClaimEvent::Dropped`] says so.
    #[must_use]
    pub const fn is_in_flight(&self) -> bool {
        !matches!(self.phase, ClaimPhase::Idle | ClaimPhase::Waiting { .. } | ClaimPhase::Done)
    }

    /// The ledger's entry is still needed.
    #[must_use]
    pub const fn keeps_entry(&self) -> bool {
        self.kept
    }

    /// Take an event; returns what is to be done. An event that does not fit the phase (a late
    /// answer, the end of a wait after the task was started again) changes nothing.
    pub fn step(&mut self, event: ClaimEvent) -> Option<ClaimEffect> {
        match (std::mem::take(&mut self.phase), event) {
            (
                ClaimPhase::Idle | ClaimPhase::Waiting { .. } | ClaimPhase::Done,
                ClaimEvent::Reserve(devices),
            ) => self.begin_reserve(devices),
            (ClaimPhase::Keeping, ClaimEvent::Kept(Ok(()))) => {
                self.kept = true;
                self.ask(0)
            }
            (ClaimPhase::Keeping, ClaimEvent::Kept(Err(error))) => self.deny(error),
            (ClaimPhase::Reserving { at, .. }, ClaimEvent::Reserved(plugin)) => {
                if let Some(item) = self.items.get_mut(at) {
                    item.plugin = Some(plugin);
                }
                self.ask(at + 1)
            }
            (ClaimPhase::Reserving { at, before }, ClaimEvent::Refused(error)) => {
                self.handle_refusal(at, before, error)
            }
            (ClaimPhase::Undoing { at, error }, ClaimEvent::Released(answer)) => {
                self.take_release_answer(at, answer);
                self.undo(at, error)
            }
            (ClaimPhase::Releasing { at, tries }, ClaimEvent::Released(answer)) => {
                self.take_release_answer(at, answer);
                self.release(at, tries)
            }
            (phase, ClaimEvent::Dropped) => {
                self.handle_drop(phase);
                None
            }
            (ClaimPhase::Idle, ClaimEvent::End) => self.release(self.items.len(), 0),
            (ClaimPhase::Waiting { tries }, ClaimEvent::Again) => {
                self.release(self.items.len(), tries)
            }
            (phase, _) => {
                self.phase = phase;
                None
            }
        }
    }

    fn begin_reserve(&mut self, devices: Vec<AllocatedDevice>) -> Option<ClaimEffect> {
        for device in devices {
            if !self.items.iter().any(|item| item.device == device) {
                self.items.push(ClaimItem { device, plugin: None, owed: false });
            }
        }
        if self.items.is_empty() {
            return Some(ClaimEffect::Granted);
        }
        if self.kept {
            return self.ask(0);
        }
        self.phase = ClaimPhase::Keeping;
        Some(ClaimEffect::Keep)
    }

    fn ask(&mut self, at: usize) -> Option<ClaimEffect> {
        let Some(item) = self.items.get_mut(at) else {
            self.committed = true;
            self.last_error = None;
            return Some(ClaimEffect::Granted);
        };
        // From here on a release is owed, however the call ends: it may have had an effect.
        let before = std::mem::replace(&mut item.owed, true);
        self.phase = ClaimPhase::Reserving { at, before };
        Some(ClaimEffect::Reserve(item.device.clone()))
    }

    fn handle_refusal(
        &mut self,
        at: usize,
        before: bool,
        error: PluginCallError,
    ) -> Option<ClaimEffect> {
        if let Some(item) = self.items.get_mut(at) {
            // A call that failed may have reserved the device. A plugin whose answer the grants
            // refused has reserved it. A plugin that answered with an error has not.
            item.owed = before
                || matches!(
                    error,
                    PluginCallError::CallFailed { .. } | PluginCallError::NotGranted(_)
                );
        }
        // A task that was granted its devices may be running, so it keeps them.
        if self.committed { self.deny(error) } else { self.undo(self.items.len(), error) }
    }

    fn deny(&mut self, error: PluginCallError) -> Option<ClaimEffect> {
        self.last_error = Some(error.to_string());
        Some(ClaimEffect::Denied(error))
    }

    /// Release the last item before `end` that is owed.
    fn undo(&mut self, end: usize, error: PluginCallError) -> Option<ClaimEffect> {
        let Some((at, effect)) = self.last_owed(end) else { return self.deny(error) };
        self.phase = ClaimPhase::Undoing { at, error };
        Some(effect)
    }

    fn release(&mut self, end: usize, tries: u32) -> Option<ClaimEffect> {
        if let Some((at, effect)) = self.last_owed(end) {
            self.phase = ClaimPhase::Releasing { at, tries };
            return Some(effect);
        }
        let left: Vec<ClaimItem> = self.items.iter().filter(|item| item.owed).cloned().collect();
        let tries = tries.saturating_add(1);
        if !left.is_empty() && tries < DEVICE_RELEASE_TRIES_MAX {
            self.phase = ClaimPhase::Waiting { tries };
            return Some(ClaimEffect::Wait(back_off(tries)));
        }
        *self = Self { phase: ClaimPhase::Done, ..Self::default() };
        Some(ClaimEffect::Done(left))
    }

    fn last_owed(&self, end: usize) -> Option<(usize, ClaimEffect)> {
        let owed = self.items.iter().enumerate().take(end).rev().find(|(_, item)| item.owed);
        owed.map(|(at, item)| (at, ClaimEffect::Release(item.device.clone(), item.plugin.clone())))
    }

    fn take_release_answer(&mut self, at: usize, answer: Result<(), PluginCallError>) {
        let Some(item) = self.items.get_mut(at) else { return };
        match answer {
            // The plugin does not know the device or has nothing to release, so nothing is held.
            Ok(()) | Err(PluginCallError::NotFound(_) | PluginCallError::Unsupported(_)) => {
                item.owed = false;
            }
            Err(error) => self.last_error = Some(error.to_string()),
        }
    }

    /// Nobody waits for the answer. The question may have had an effect, so the item stays owed.
    fn handle_drop(&mut self, phase: ClaimPhase) {
        self.phase = match phase {
            ClaimPhase::Releasing { tries, .. } => ClaimPhase::Waiting { tries },
            ClaimPhase::Waiting { .. } | ClaimPhase::Done => phase,
            ClaimPhase::Idle
            | ClaimPhase::Keeping
            | ClaimPhase::Reserving { .. }
            | ClaimPhase::Undoing { .. } => ClaimPhase::Idle,
        };
    }
}

/// The wait before the next round. It doubles with each round, up to its bound.
fn back_off(tries: u32) -> Duration {
    let doublings = tries.saturating_sub(1).min(16);
    DEVICE_RELEASE_RETRY_FIRST.saturating_mul(1 << doublings).min(DEVICE_RELEASE_RETRY_MAX)
}

#[cfg(test)]
#[path = "reservation_tests.rs"]
mod tests;

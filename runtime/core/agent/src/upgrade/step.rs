//! The state machine of upgrading one plugin. It does no I/O and has no clock.
//!
//! ```text
//!        offered            looked at          loaded             tried dry        in its place
//! Idle ─────────► Looking ───────────► Loading ────────► Trying ───────────► Switching ─────► Proving
//!  ▲ refused         │ refused, asks      │ refused,        │ failed              │ cannot      │  │
//!  │                 │ grew               │ downgrade       │                     │             │  │ time over:
//!  └─────────────────┴────────────────────┴─────────────────┴─────────────────────┘             │  │ accepted
//!  ▲                                                     strikes, or a task it cannot own:      │  │
//!  └──────────────────────────────────────────────────── back to what was accepted last ◄───────┘  │
//!  ▲                                                                                               │
//!  └───────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//! Nothing of a new plugin runs before its asks are known and consented to, and only a dry run
//! happens before it takes the place of the old one. A file that was rolled back is not taken again
//! automatically. While one release proves itself, a person may offer another; a roll-back then
//! still goes to the release that was accepted last.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use ostler_model::limits::UPGRADES_BARRED_MAX;
use ostler_model::time::Timestamp;

/// A release of a plugin, for people and to tell it from others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// The version it gives itself; `None` if it has not been asked.
    pub version: Option<String>,
    /// SHA-256 of the file, hex.
    pub digest: String,
}

/// Who requested an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestedBy {
    /// The file changed, and the configuration says `upgrade = "auto"`.
    Itself,
    /// A person, who may have consented to more asks or an older version.
    Person {
        /// Whether `--yes` was given.
        consents: bool,
    },
}

impl RequestedBy {
    const fn consents(self) -> bool {
        matches!(self, Self::Person { consents: true })
    }
}

/// The result of one upgrade.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum UpgradeOutcome {
    /// The offered file is what runs already.
    Same,
    /// The new release is in place, and proves itself.
    Switched,
    /// The new release has proved itself.
    Accepted,
    /// A person must agree first.
    ConsentNeeded {
        /// Imports beyond those of the one in use that let it do more.
        asks: Vec<String>,
        /// Both versions, old and new, if the new one is older.
        downgrade: Option<(String, String)>,
    },
    /// The release in use stays.
    Refused {
        /// Why the new release was refused, for people.
        reason: String,
    },
    /// The release that was accepted before runs again.
    RolledBack {
        /// Why the new release was rolled back, for people.
        reason: String,
    },
}

/// An event in the upgrade of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpgradeEvent {
    /// A file was offered.
    Offered {
        /// The digest of the file.
        digest: String,
        /// Who requested the upgrade.
        by: RequestedBy,
    },
    /// The file was read and examined, and nothing was run. The value is the asks beyond those of
    /// the release in use.
    Examined(Result<Vec<String>, String>),
    /// The new plugin said who it is. The value is its version; all else fits.
    Loaded(Result<String, String>),
    /// The dry run has ended.
    Tried(Result<(), String>),
    /// The new plugin is in its place, or cannot be.
    Switched(Result<(), String>),
    /// The new plugin has failed since it is in place.
    Struck {
        /// The number of strikes since then.
        strikes: u64,
        /// The reason of the last strike.
        last: String,
    },
    /// The new plugin cannot own a task that the old one started.
    Disowned(String),
    /// The time of the proof has passed.
    Passed,
}

/// An action that the machine demands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpgradeEffect {
    /// Read the file and examine its imports.
    Look,
    /// Compile the new plugin and ask it who it is.
    Load,
    /// Run it dry beside the old one.
    Try,
    /// Put it in its place.
    Switch,
    /// Watch it for this long.
    Prove(Duration),
    /// Put back the release that was accepted last.
    RollBack,
    /// Forget the release that was accepted before.
    DropPrevious,
    /// The upgrade has ended with this result.
    End(UpgradeOutcome),
}

/// How strictly a new release is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The number of strikes that bring the old release back.
    pub strikes: u64,
    /// How long the new release is watched.
    pub time: Duration,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum UpgradePhase {
    #[default]
    Idle,
    Looking,
    Loading,
    Trying,
    Switching,
    Proving {
        until: Timestamp,
    },
}

/// The upgrade state of one plugin. See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpgradeMachine {
    phase: UpgradePhase,
    /// The release that runs.
    running: Release,
    /// The release that a roll-back returns to; `None` if the running one is accepted.
    accepted: Option<Release>,
    /// Until when the running release proves itself, while another is offered.
    proving: Option<Timestamp>,
    offered: Release,
    by: RequestedBy,
    asks: Vec<String>,
    /// Digests of files that were rolled back, newest last.
    barred: VecDeque<String>,
}

impl UpgradeMachine {
    /// The state of a plugin as it was loaded.
    #[must_use]
    pub fn new(running: Release) -> Self {
        Self {
            phase: UpgradePhase::Idle,
            running,
            accepted: None,
            proving: None,
            offered: Release::default(),
            by: RequestedBy::Itself,
            asks: Vec::new(),
            barred: VecDeque::new(),
        }
    }

    /// The release that runs.
    #[must_use]
    pub const fn running_release(&self) -> &Release {
        &self.running
    }

    /// The release that a roll-back returns to; `None` if the running one is accepted.
    #[must_use]
    pub const fn accepted_release(&self) -> Option<&Release> {
        self.accepted.as_ref()
    }

    /// Whether an offer is being examined, loaded or tried.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        !matches!(self.phase, UpgradePhase::Idle | UpgradePhase::Proving { .. })
    }

    /// Until when the running release proves itself; `None` if it does not.
    #[must_use]
    pub const fn proving_until(&self) -> Option<Timestamp> {
        match self.phase {
            UpgradePhase::Proving { until } => Some(until),
            _ => self.proving,
        }
    }

    /// Apply an event. Returns the actions that follow.
    pub fn step(
        &mut self,
        proof: Proof,
        now: Timestamp,
        event: UpgradeEvent,
    ) -> Vec<UpgradeEffect> {
        match (self.phase.clone(), event) {
            (
                UpgradePhase::Idle | UpgradePhase::Proving { .. },
                UpgradeEvent::Offered { digest, by },
            ) => self.take_offer(digest, by),
            (_, UpgradeEvent::Offered { .. }) => {
                // The upgrade under way goes on.
                let reason = "another upgrade of the plugin is under way; try again".to_owned();
                vec![UpgradeEffect::End(UpgradeOutcome::Refused { reason })]
            }
            (UpgradePhase::Looking, UpgradeEvent::Examined(looked)) => match looked {
                Err(reason) => self.refuse(reason),
                Ok(asks) if !asks.is_empty() && !self.by.consents() => {
                    self.asks.clone_from(&asks);
                    self.end(UpgradeOutcome::ConsentNeeded { asks, downgrade: None })
                }
                Ok(asks) => {
                    self.asks = asks;
                    self.phase = UpgradePhase::Loading;
                    vec![UpgradeEffect::Load]
                }
            },
            (UpgradePhase::Loading, UpgradeEvent::Loaded(loaded)) => self.take_version(loaded),
            (UpgradePhase::Trying, UpgradeEvent::Tried(tried)) => match tried {
                Err(reason) => self.refuse(reason),
                Ok(()) => {
                    self.phase = UpgradePhase::Switching;
                    vec![UpgradeEffect::Switch]
                }
            },
            (UpgradePhase::Switching, UpgradeEvent::Switched(Err(reason))) => self.refuse(reason),
            (UpgradePhase::Switching, UpgradeEvent::Switched(Ok(()))) => {
                self.begin_proof(proof, now)
            }
            (UpgradePhase::Proving { .. }, UpgradeEvent::Struck { strikes, last })
                if strikes >= proof.strikes =>
            {
                let s = if strikes == 1 { "" } else { "s" };
                self.roll_back(format!("{strikes} strike{s} after the upgrade, the last: {last}"))
            }
            (UpgradePhase::Proving { .. }, UpgradeEvent::Disowned(reason)) => {
                self.roll_back(reason)
            }
            (UpgradePhase::Proving { until }, UpgradeEvent::Passed) if until <= now => {
                self.accepted = None;
                self.phase = UpgradePhase::Idle;
                vec![UpgradeEffect::DropPrevious, UpgradeEffect::End(UpgradeOutcome::Accepted)]
            }
            _ => Vec::new(),
        }
    }

    fn take_offer(&mut self, digest: String, by: RequestedBy) -> Vec<UpgradeEffect> {
        if digest == self.running.digest {
            return vec![UpgradeEffect::End(UpgradeOutcome::Same)];
        }
        if by == RequestedBy::Itself {
            let reason = if self.barred.contains(&digest) {
                "this file was rolled back; `ostler plugin upgrade` tries it again"
            } else if let UpgradePhase::Proving { .. } = self.phase {
                "the one before it is still proving itself; this one is looked at again after that"
            } else {
                ""
            };
            if !reason.is_empty() {
                let reason = reason.to_owned();
                return vec![UpgradeEffect::End(UpgradeOutcome::Refused { reason })];
            }
        }
        if let UpgradePhase::Proving { until } = self.phase {
            self.proving = Some(until);
        }
        self.offered = Release { version: None, digest };
        self.by = by;
        self.phase = UpgradePhase::Looking;
        vec![UpgradeEffect::Look]
    }

    fn take_version(&mut self, loaded: Result<String, String>) -> Vec<UpgradeEffect> {
        let version = match loaded {
            Err(reason) => return self.refuse(reason),
            Ok(version) => version,
        };
        let old = self.running.version.clone().unwrap_or_default();
        self.offered.version = Some(version.clone());
        if is_older(&version, &old) && !self.by.consents() {
            let asks = std::mem::take(&mut self.asks);
            let downgrade = Some((old, version));
            return self.end(UpgradeOutcome::ConsentNeeded { asks, downgrade });
        }
        self.phase = UpgradePhase::Trying;
        vec![UpgradeEffect::Try]
    }

    fn begin_proof(&mut self, proof: Proof, now: Timestamp) -> Vec<UpgradeEffect> {
        let before = std::mem::replace(&mut self.running, std::mem::take(&mut self.offered));
        // If the replaced release was not accepted yet, the one accepted before it is kept.
        self.accepted.get_or_insert(before);
        self.barred.retain(|barred| *barred != self.running.digest);
        let until = now.plus(proof.time);
        self.proving = None;
        self.phase = UpgradePhase::Proving { until };
        vec![UpgradeEffect::End(UpgradeOutcome::Switched), UpgradeEffect::Prove(proof.time)]
    }

    fn roll_back(&mut self, reason: String) -> Vec<UpgradeEffect> {
        let Some(accepted) = self.accepted.take() else { return Vec::new() };
        let failed = std::mem::replace(&mut self.running, accepted);
        if self.barred.len() >= UPGRADES_BARRED_MAX {
            self.barred.pop_front();
        }
        self.barred.push_back(failed.digest);
        self.phase = UpgradePhase::Idle;
        vec![UpgradeEffect::RollBack, UpgradeEffect::End(UpgradeOutcome::RolledBack { reason })]
    }

    fn refuse(&mut self, reason: String) -> Vec<UpgradeEffect> {
        self.end(UpgradeOutcome::Refused { reason })
    }

    /// End an offer that did not take a place. A proof that is under way goes on.
    fn end(&mut self, outcome: UpgradeOutcome) -> Vec<UpgradeEffect> {
        self.phase = match self.proving.take() {
            Some(until) => UpgradePhase::Proving { until },
            None => UpgradePhase::Idle,
        };
        vec![UpgradeEffect::End(outcome)]
    }
}

/// Whether `new` is older than `old`, or the two cannot be compared.
fn is_older(new: &str, old: &str) -> bool {
    match (semver::Version::parse(new), semver::Version::parse(old)) {
        (Ok(new), Ok(old)) => new < old,
        _ => new != old,
    }
}

/// The interfaces that `new` imports and `old` does not, whatever their versions, if they let a
/// plugin do more than every plugin may. `harmless` says of an import that it does not.
#[must_use]
pub fn added_interfaces<'a>(
    old: impl IntoIterator<Item = &'a str>,
    new: impl IntoIterator<Item = &'a str>,
    harmless: impl Fn(&str) -> bool,
) -> Vec<String> {
    let interface = |import: &'a str| import.split('@').next().unwrap_or(import);
    let known: BTreeSet<&str> = old.into_iter().map(interface).collect();
    let added = new.into_iter().map(interface).filter(|one| !known.contains(one));
    let added: BTreeSet<&str> = added.filter(|one| !harmless(one)).collect();
    added.into_iter().map(str::to_owned).collect()
}

#[cfg(test)]
#[path = "step_tests.rs"]
mod tests;

//! Upgrading one plugin: what follows from what. No I/O, no clock.
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
//! Nothing of a new plugin runs before its asks are known and consented to, and nothing but a dry run
//! before it takes the place of the old one. A file that was rolled back is not taken again by itself.
//! While one proves itself a person may offer another: it goes back to what was accepted last.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use ostler_model::limits::UPGRADES_BARRED_MAX;
use ostler_model::time::Timestamp;

/// A plugin file, for people and to tell it from others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Release {
    /// The version it gives itself; absent when it has not been asked.
    pub version: Option<String>,
    /// SHA-256 of the file, hex.
    pub digest: String,
}

/// Who wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestedBy {
    /// The file changed, and the configuration says `upgrade = "auto"`.
    Itself,
    /// A person, who may have consented to more asks or an older version.
    Person {
        /// `--yes`.
        consents: bool,
    },
}

impl RequestedBy {
    const fn consents(self) -> bool {
        matches!(self, Self::Person { consents: true })
    }
}

/// How one upgrade went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum Outcome {
    /// It is what runs already.
    Same,
    /// It is in place, and proves itself.
    Switched,
    /// It proved itself.
    Accepted,
    /// A person must agree.
    ConsentNeeded {
        /// Imports beyond those of the one in use that let it do more.
        asks: Vec<String>,
        /// It is older than the one in use: both versions.
        downgrade: Option<(String, String)>,
    },
    /// The one in use stays.
    Refused {
        /// Why.
        reason: String,
    },
    /// The one accepted before runs again.
    RolledBack {
        /// Why.
        reason: String,
    },
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A file is there for it.
    Offered {
        /// Which.
        digest: String,
        /// Who wants it.
        by: RequestedBy,
    },
    /// Its file was read and looked at, nothing run: the asks beyond those of the one in use.
    Looked(Result<Vec<String>, String>),
    /// It said who it is: its version, all else fits.
    Loaded(Result<String, String>),
    /// It was tried.
    Tried(Result<(), String>),
    /// It is in its place, or cannot be.
    Switched(Result<(), String>),
    /// It failed so often since it is in place.
    Struck {
        /// How often.
        strikes: u64,
        /// What last.
        last: String,
    },
    /// It cannot own a task that was started by the old one.
    Disowned(String),
    /// Time passed.
    Passed,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Read it and look at its imports.
    Look,
    /// Compile it and ask it who it is.
    Load,
    /// Run it dry beside the old one.
    Try,
    /// Put it in its place.
    Switch,
    /// See how it does for so long.
    Prove(Duration),
    /// Put back what was accepted last.
    RollBack,
    /// Forget what was accepted before.
    DropPrevious,
    /// It is over, and so it went.
    End(Outcome),
}

/// How strictly a new one is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// Strikes that bring the old one back.
    pub strikes: u64,
    /// For how long.
    pub time: Duration,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Phase {
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

/// The upgrades of one plugin. See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upgrading {
    phase: Phase,
    /// What runs.
    running: Release,
    /// What is gone back to; absent: what runs is accepted.
    accepted: Option<Release>,
    /// Until when what runs proves itself, while another is offered.
    proving: Option<Timestamp>,
    offered: Release,
    by: RequestedBy,
    asks: Vec<String>,
    /// Files that were rolled back, newest last.
    barred: VecDeque<String>,
}

impl Upgrading {
    /// A plugin as it was loaded.
    #[must_use]
    pub fn new(running: Release) -> Self {
        Self {
            phase: Phase::Idle,
            running,
            accepted: None,
            proving: None,
            offered: Release::default(),
            by: RequestedBy::Itself,
            asks: Vec::new(),
            barred: VecDeque::new(),
        }
    }

    /// What runs.
    #[must_use]
    pub const fn running(&self) -> &Release {
        &self.running
    }

    /// What is gone back to when what runs fails; absent: what runs is accepted.
    #[must_use]
    pub const fn accepted_before(&self) -> Option<&Release> {
        self.accepted.as_ref()
    }

    /// Is one being looked at, loaded or tried?
    #[must_use]
    pub const fn busy(&self) -> bool {
        !matches!(self.phase, Phase::Idle | Phase::Proving { .. })
    }

    /// Until when what runs proves itself.
    #[must_use]
    pub const fn proving(&self) -> Option<Timestamp> {
        match self.phase {
            Phase::Proving { until } => Some(until),
            _ => self.proving,
        }
    }

    /// Take in what happened.
    pub fn step(&mut self, proof: Proof, now: Timestamp, event: Event) -> Vec<Effect> {
        match (self.phase.clone(), event) {
            (Phase::Idle | Phase::Proving { .. }, Event::Offered { digest, by }) => {
                self.offered(digest, by)
            }
            (_, Event::Offered { .. }) => {
                // The upgrade under way goes on.
                let reason = "another upgrade of the plugin is under way; try again".to_owned();
                vec![Effect::End(Outcome::Refused { reason })]
            }
            (Phase::Looking, Event::Looked(looked)) => match looked {
                Err(reason) => self.refuse(reason),
                Ok(asks) if !asks.is_empty() && !self.by.consents() => {
                    self.asks.clone_from(&asks);
                    self.end(Outcome::ConsentNeeded { asks, downgrade: None })
                }
                Ok(asks) => {
                    self.asks = asks;
                    self.phase = Phase::Loading;
                    vec![Effect::Load]
                }
            },
            (Phase::Loading, Event::Loaded(loaded)) => self.loaded(loaded),
            (Phase::Trying, Event::Tried(tried)) => match tried {
                Err(reason) => self.refuse(reason),
                Ok(()) => {
                    self.phase = Phase::Switching;
                    vec![Effect::Switch]
                }
            },
            (Phase::Switching, Event::Switched(Err(reason))) => self.refuse(reason),
            (Phase::Switching, Event::Switched(Ok(()))) => self.switched(proof, now),
            (Phase::Proving { .. }, Event::Struck { strikes, last })
                if strikes >= proof.strikes =>
            {
                let s = if strikes == 1 { "" } else { "s" };
                self.roll_back(format!("{strikes} strike{s} after the upgrade, the last: {last}"))
            }
            (Phase::Proving { .. }, Event::Disowned(reason)) => self.roll_back(reason),
            (Phase::Proving { until }, Event::Passed) if until <= now => {
                self.accepted = None;
                self.phase = Phase::Idle;
                vec![Effect::DropPrevious, Effect::End(Outcome::Accepted)]
            }
            _ => Vec::new(),
        }
    }

    fn offered(&mut self, digest: String, by: RequestedBy) -> Vec<Effect> {
        if digest == self.running.digest {
            return vec![Effect::End(Outcome::Same)];
        }
        if by == RequestedBy::Itself {
            let reason = if self.barred.contains(&digest) {
                "this file was rolled back; `ostler plugin upgrade` tries it again"
            } else if let Phase::Proving { .. } = self.phase {
                "the one before it still proves itself; it is looked at again after that"
            } else {
                ""
            };
            if !reason.is_empty() {
                let reason = reason.to_owned();
                return vec![Effect::End(Outcome::Refused { reason })];
            }
        }
        if let Phase::Proving { until } = self.phase {
            self.proving = Some(until);
        }
        self.offered = Release { version: None, digest };
        self.by = by;
        self.phase = Phase::Looking;
        vec![Effect::Look]
    }

    fn loaded(&mut self, loaded: Result<String, String>) -> Vec<Effect> {
        let version = match loaded {
            Err(reason) => return self.refuse(reason),
            Ok(version) => version,
        };
        let old = self.running.version.clone().unwrap_or_default();
        self.offered.version = Some(version.clone());
        if older(&version, &old) && !self.by.consents() {
            let asks = std::mem::take(&mut self.asks);
            let downgrade = Some((old, version));
            return self.end(Outcome::ConsentNeeded { asks, downgrade });
        }
        self.phase = Phase::Trying;
        vec![Effect::Try]
    }

    fn switched(&mut self, proof: Proof, now: Timestamp) -> Vec<Effect> {
        let before = std::mem::replace(&mut self.running, std::mem::take(&mut self.offered));
        // Where the replaced one was not accepted yet, the one accepted before it is kept.
        self.accepted.get_or_insert(before);
        self.barred.retain(|barred| *barred != self.running.digest);
        let until = now.plus(proof.time);
        self.proving = None;
        self.phase = Phase::Proving { until };
        vec![Effect::End(Outcome::Switched), Effect::Prove(proof.time)]
    }

    fn roll_back(&mut self, reason: String) -> Vec<Effect> {
        let Some(accepted) = self.accepted.take() else { return Vec::new() };
        let failed = std::mem::replace(&mut self.running, accepted);
        if self.barred.len() >= UPGRADES_BARRED_MAX {
            self.barred.pop_front();
        }
        self.barred.push_back(failed.digest);
        self.phase = Phase::Idle;
        vec![Effect::RollBack, Effect::End(Outcome::RolledBack { reason })]
    }

    fn refuse(&mut self, reason: String) -> Vec<Effect> {
        self.end(Outcome::Refused { reason })
    }

    /// The offer is over before it took a place. What proved itself goes on doing so.
    fn end(&mut self, outcome: Outcome) -> Vec<Effect> {
        self.phase = match self.proving.take() {
            Some(until) => Phase::Proving { until },
            None => Phase::Idle,
        };
        vec![Effect::End(outcome)]
    }
}

/// Is `new` known to be older than `old`, or can it not be told?
fn older(new: &str, old: &str) -> bool {
    match (semver::Version::parse(new), semver::Version::parse(old)) {
        (Ok(new), Ok(old)) => new < old,
        _ => new != old,
    }
}

/// The imports of `new` that `old` does not have, by interface whatever the version, where they let a
/// plugin do more than every plugin may. `harmless` says of an import that they do not.
#[must_use]
pub fn grown<'a>(
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

//! Why a job, an allocation, a plugin or a device is as it is, in sentences. Pure.
//!
//! ```text
//! recorded: answers of the agent's API ─► alloc, job, plugin, device ─► Explanation ─► text
//!           (task events, places that wait,        │ fold: the same event, counted   └► JSON
//!            deployments, strikes, holders)        └ next: what would change it
//! ```
//! Nothing is asked and no clock is read: the same history gives the same sentences, which is how they
//! are tested (`tests/histories/`). A sentence is only said where the record says it; what is not known
//! is left out. Start with [`alloc::explain`].

pub mod alloc;
mod alloc_happened;
mod alloc_task;
mod blocked;
pub mod commands;
pub mod device;
mod exit;
pub mod fold;
pub mod job;
pub mod plugin;
mod waiting;
mod words;

use std::fmt::Write as _;

use ostler_model::time::Timestamp;
use serde::Serialize;

pub use blocked::{BlockedPlace, BlockedProblem};
pub use words::{ago, moment, span};

/// What somebody asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ExplainedKind {
    /// An instance of a task group.
    Allocation,
    /// A job.
    Job,
    /// A driver or device plugin.
    Plugin,
    /// One device.
    Device,
}

impl ExplainedKind {
    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allocation => "allocation",
            Self::Job => "job",
            Self::Plugin => "plugin",
            Self::Device => "device",
        }
    }
}

/// Something that happened and matters for how it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Happened {
    /// When it last happened, nanoseconds since 1970.
    pub at: Timestamp,
    /// How often it did, as far as that is kept.
    pub times: u64,
    /// A sentence without its full stop.
    pub text: String,
}

/// Why something is as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// What it is.
    pub kind: ExplainedKind,
    /// Its id, whole.
    pub id: String,
    /// What it is called and belongs to.
    pub name: String,
    /// What it is and why, in sentences; the first says most.
    pub because: Vec<String>,
    /// Since when it is so, nanoseconds since 1970; absent where that is not on record.
    pub since: Option<Timestamp>,
    /// What led to it, oldest first.
    pub happened: Vec<Happened>,
    /// What would change it, the best first; empty where nothing needs to.
    pub next: Vec<String>,
}

impl Explanation {
    pub(crate) fn new(kind: ExplainedKind, id: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            kind,
            id: id.into(),
            name: name.into(),
            because: Vec::new(),
            since: None,
            happened: Vec::new(),
            next: Vec::new(),
        }
    }

    /// Add what would change it, once: not where something says it and more.
    pub(crate) fn advise(&mut self, next: impl Into<String>) {
        let next = next.into();
        if !next.is_empty() && !self.next.iter().any(|known| known.starts_with(&next)) {
            self.next.push(next);
        }
    }

    /// Note something that happened.
    pub(crate) fn note(&mut self, at: Timestamp, text: impl Into<String>) {
        self.happened.push(Happened { at, times: 1, text: text.into() });
    }

    /// For people, in lines that are not wrapped.
    #[must_use]
    pub fn text(&self, now: Timestamp) -> String {
        let mut text = format!("{} {}", self.kind.as_str(), self.id);
        if !self.name.is_empty() {
            let _ = write!(text, " ({})", self.name);
        }
        text.push_str("\n\n");
        for sentence in &self.because {
            let _ = writeln!(text, "{sentence}");
        }
        if let Some(since) = self.since {
            let _ = writeln!(text, "Since {}, {}.", moment(since, now), ago(since, now));
        }
        if !self.happened.is_empty() {
            text.push_str("\nWhat happened\n");
            let width =
                self.happened.iter().map(|one| moment(one.at, now).len()).max().unwrap_or(0);
            for Happened { at, times, text: what } in &self.happened {
                let _ = write!(text, "  {:width$}  {what}", moment(*at, now));
                if *times > 1 {
                    let _ = write!(text, " (x{times}, last {})", ago(*at, now));
                }
                text.push('\n');
            }
        }
        if !self.next.is_empty() {
            text.push_str("\nWhat would change it\n");
            for next in &self.next {
                let _ = writeln!(text, "  - {next}");
            }
        }
        text
    }
}

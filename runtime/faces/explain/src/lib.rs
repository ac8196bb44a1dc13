//! Explains in sentences the state of a job, an allocation, a plugin or a device. Pure.
//!
//! ```text
//! recorded: answers of the agent's API ─► alloc, job, plugin, device ─► Explanation ─► text
//!           (task events, places that wait,        │ fold: the same event, counted   └► JSON
//!            deployments, strikes, holders)        └ next: what would change it
//! ```
//! The crate asks nothing and reads no clock: the same history gives the same sentences, which is
//! how they are tested (`tests/histories/`). A sentence is only written where the record says so;
//! what is not known is left out. Start with [`alloc::explain`].

pub mod alloc;
mod alloc_task;
mod alloc_timeline;
mod blocked;
pub mod commands;
pub mod device;
mod exit;
pub mod fold;
pub mod job;
pub mod plugin;
mod wait_reason;
mod words;

use std::fmt::Write as _;

use ostler_model::time::Timestamp;
use ostler_model::words::time_ago;
use serde::Serialize;

pub use blocked::{BlockedPlace, BlockedProblem};
pub use words::moment;

/// The kind of thing that is explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SubjectKind {
    /// An instance of a task group.
    Allocation,
    /// A registered job.
    Job,
    /// A driver or device plugin.
    Plugin,
    /// One device instance.
    Device,
}

impl SubjectKind {
    /// The word for the kind, as in JSON.
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

/// An event that matters for the present state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TimelineEntry {
    /// When it last happened, nanoseconds since 1970.
    pub at: Timestamp,
    /// Number of occurrences, as far as they are on record.
    pub times: u64,
    /// A sentence without its full stop.
    pub text: String,
}

/// The explanation of a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The kind of the thing explained.
    pub kind: SubjectKind,
    /// The whole id of the thing.
    pub id: String,
    /// Its name and what it belongs to.
    pub name: String,
    /// The state and its reasons, in sentences; the first says most.
    pub because: Vec<String>,
    /// Since when the state lasts, nanoseconds since 1970; absent where that is not on record.
    pub since: Option<Timestamp>,
    /// The events that led to the state, oldest first.
    pub happened: Vec<TimelineEntry>,
    /// Advice on what would change the state, the best first; empty where nothing needs to change.
    pub next: Vec<String>,
}

impl Explanation {
    pub(crate) fn new(kind: SubjectKind, id: impl Into<String>, name: impl Into<String>) -> Self {
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

    /// Add a piece of advice once. It is left out where a known one begins with it.
    pub(crate) fn advise(&mut self, next: impl Into<String>) {
        let next = next.into();
        if !next.is_empty() && !self.next.iter().any(|known| known.starts_with(&next)) {
            self.next.push(next);
        }
    }

    /// Note an event of the timeline.
    pub(crate) fn note(&mut self, at: Timestamp, text: impl Into<String>) {
        self.happened.push(TimelineEntry { at, times: 1, text: text.into() });
    }

    /// The explanation for people, in lines that are not wrapped.
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
            let _ = writeln!(text, "Since {}, {}.", moment(since, now), time_ago(since, now));
        }
        if !self.happened.is_empty() {
            text.push_str("\nWhat happened\n");
            let width =
                self.happened.iter().map(|one| moment(one.at, now).len()).max().unwrap_or(0);
            for TimelineEntry { at, times, text: what } in &self.happened {
                let _ = write!(text, "  {:width$}  {what}", moment(*at, now));
                if *times > 1 {
                    let _ = write!(text, " (x{times}, last {})", time_ago(*at, now));
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

//! Recordings: the last calls of a plugin, kept so that one that failed can be made again elsewhere.
//!
//! ```text
//! call ─ input, trace, outcome ─► Recorder: a ring in memory ── thrown away by the next calls
//!                                    │ a call failed, or somebody asks
//!                                    ▼
//!                redact ─► file (checksum) ─► RecordingStore: <data dir>/recordings/*.rec, mode 0600
//!                                                    ▼ on any machine
//!                                  replay: the same component, the recorded answers ─► same end?
//! ```
//! A call is a function of its arguments, the configuration and what the host answers, so these are all there
//! is to keep. What cannot be made again is time: a call that was given up because it waited is told from one
//! that computed too long. Plugins know nothing of this crate: see `ostler_plugin::observe`. Start with
//! `ring.rs`.

pub mod file;
mod input;
mod replay;
mod ring;
mod store;
pub mod trace;

use std::borrow::Borrow;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use ostler_model::limits::PluginLimits;
use ostler_model::plugin::PluginKind;
use ostler_plugin::Failure;
use ostler_plugin::observe::CallEnd;
use ostler_sandbox::CallError;

pub use replay::{ReplayError, ReplayVerdict, Replayed, replay};
pub use ring::Recorder;
pub use store::{RecordCalls, RecordingStore};
use trace::{Player, Trace};

/// Bytes as the trace of a recorded call, asked for by each function in turn. For fuzz targets.
#[doc(hidden)]
pub fn fuzz_trace(bytes: &[u8]) {
    let trace = Trace { bytes: bytes.to_vec(), calls: u32::MAX, cut: false, secrets: vec![] };
    Player::new(trace).exhaust();
}

/// Calls of one plugin, as a file holds them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    /// Version of the agent that wrote it.
    pub agent: String,
    /// Name of the plugin's block.
    pub plugin: String,
    /// Driver or device plugin.
    pub kind: Option<PluginKind>,
    /// Version of the plugin contract.
    pub interface_version: String,
    /// SHA-256 of the component, hex.
    pub digest: String,
    /// The plugin's configuration as JSON, redacted.
    pub config: String,
    /// What one call was allowed.
    pub limits: Bounds,
    /// Values that were taken out.
    pub redacted: u32,
    /// The calls, oldest first; the last one is what the file was written for.
    pub calls: Vec<RecordedCall>,
}

/// One call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordedCall {
    /// The function.
    pub function: String,
    /// When it began, nanoseconds since 1970.
    pub at: u64,
    /// How long it took, nanoseconds.
    pub took: u64,
    /// Its arguments, in their compact form; redacted.
    pub input: Vec<u8>,
    /// What the host answered; redacted.
    #[serde(rename = "reel")]
    pub trace: Vec<u8>,
    /// Host calls, also those that are not in `trace`.
    pub host_calls: u32,
    /// There were more answers than fit.
    pub cut: bool,
    /// How it ended.
    pub outcome: CallOutcome,
}

/// How a call ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallOutcome {
    /// In one word: `answered`, `refused` (the plugin's own error), `broken-answer`, or what stopped
    /// it: `trap`, `stack-overflow`, `deadline`, `memory-limit` …
    pub end: String,
    /// What was said of it.
    pub text: String,
    /// Function names where it was stopped, innermost first.
    pub frames: Vec<String>,
}

impl CallOutcome {
    /// It answered.
    #[must_use]
    pub fn answered() -> Self {
        Self { end: "answered".to_owned(), ..Self::default() }
    }

    /// It answered that it cannot.
    #[must_use]
    pub fn refused(text: String) -> Self {
        Self { end: "refused".to_owned(), text, frames: Vec::new() }
    }

    /// It answered against the rules.
    #[must_use]
    pub fn broken(text: String) -> Self {
        Self { end: "broken-answer".to_owned(), text, frames: Vec::new() }
    }

    /// Did the call fail, by its own or the plugin's fault?
    #[must_use]
    pub fn failed(&self) -> bool {
        !matches!(self.end.as_str(), "answered" | "refused")
    }

    /// Did the time of its machine have a part in it?
    #[must_use]
    pub fn by_the_clock(&self) -> bool {
        matches!(self.end.as_str(), "deadline" | "processor-time")
    }
}

impl<F: Borrow<Failure>> From<&CallEnd<F>> for CallOutcome {
    fn from(end: &CallEnd<F>) -> Self {
        match end {
            CallEnd::Answered => Self::answered(),
            CallEnd::Refused(text) => Self::refused(text.clone()),
            CallEnd::Broken(text) => Self::broken(text.clone()),
            CallEnd::Failed(failure) => Self::from(failure.borrow()),
        }
    }
}

impl From<&Failure> for CallOutcome {
    fn from(failure: &Failure) -> Self {
        let error = &failure.error;
        let frames = match error {
            CallError::Trap { frames, .. } | CallError::StackOverflow { frames, .. } => {
                frames.clone()
            }
            _ => Vec::new(),
        };
        let end = match error {
            CallError::Trap { .. } => "trap",
            CallError::StackOverflow { .. } => "stack-overflow",
            CallError::DeadlineExceeded { .. } => "deadline",
            CallError::CpuExceeded { .. } => "processor-time",
            CallError::MemoryLimit { .. } => "memory-limit",
            CallError::TableLimit { .. } => "table-limit",
            CallError::TooManyParts { .. } => "too-many-parts",
            CallError::AnswerTooLarge { .. } => "answer-too-large",
            CallError::TooManyHandles { .. } => "too-many-handles",
            CallError::HostcallBudget { .. } => "host-call-budget",
            CallError::PoolExhausted { .. } => "no-room",
            CallError::Cancelled => "cancelled",
            CallError::HostPanic { .. } => "host-panic",
            CallError::Exit { .. } => "exit",
            CallError::Host { .. } => "host-error",
        };
        Self { end: end.to_owned(), text: failure.to_string(), frames }
    }
}

/// How many times the default limits a replay may be given.
const LARGER: u32 = 16;

/// What one call was allowed: the part of [`PluginLimits`] that decides how a call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bounds {
    /// Milliseconds.
    pub call_wall_ms: u64,
    /// Milliseconds of processor time.
    pub call_cpu_ms: u64,
    /// Bytes of one crossing.
    pub host_call_bytes: u64,
    /// Core instances, memories and tables.
    pub parts: [u32; 3],
    /// Bytes.
    pub memory_bytes: u64,
    /// Over all tables.
    pub table_elements: u64,
    /// Bytes.
    pub transfer_bytes: u64,
    /// In one call.
    pub host_calls: u64,
    /// Bytes.
    pub answer_bytes: u64,
    /// At once.
    pub handles: u32,
    /// Bytes of one request.
    pub random_bytes: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self::from(&PluginLimits::default())
    }
}

impl From<&PluginLimits> for Bounds {
    fn from(limits: &PluginLimits) -> Self {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            call_wall_ms: millis(limits.call_wall_max),
            call_cpu_ms: millis(limits.call_cpu_max),
            host_call_bytes: limits.host_call_bytes_max,
            parts: [limits.instances_max, limits.memories_max, limits.tables_max],
            memory_bytes: limits.memory_bytes_max,
            table_elements: limits.table_elements_max,
            transfer_bytes: limits.transfer_bytes_max,
            host_calls: limits.host_calls_max,
            answer_bytes: limits.answer_bytes_max,
            handles: limits.handles_max,
            random_bytes: limits.random_bytes_max,
        }
    }
}

impl Bounds {
    /// The limits to replay with: never more than the defaults allow, since a recording comes from
    /// somebody else.
    #[must_use]
    pub fn limits(&self) -> PluginLimits {
        let default = PluginLimits::default();
        let most = |asked: u64, default: u64| asked.min(default.saturating_mul(LARGER.into()));
        let time = |given: u64, default: Duration| {
            Duration::from_millis(given).min(default.saturating_mul(LARGER))
        };
        let [instances, memories, tables] = self.parts;
        PluginLimits {
            call_wall_max: time(self.call_wall_ms, default.call_wall_max),
            call_cpu_max: time(self.call_cpu_ms, default.call_cpu_max),
            host_call_bytes_max: most(self.host_call_bytes, default.host_call_bytes_max),
            instances_max: instances.min(default.instances_max),
            memories_max: memories.min(default.memories_max),
            tables_max: tables.min(default.tables_max),
            memory_bytes_max: most(self.memory_bytes, default.memory_bytes_max),
            table_elements_max: self.table_elements.min(default.table_elements_max),
            transfer_bytes_max: most(self.transfer_bytes, default.transfer_bytes_max),
            host_calls_max: most(self.host_calls, default.host_calls_max),
            answer_bytes_max: most(self.answer_bytes, default.answer_bytes_max),
            handles_max: self.handles.min(default.handles_max.saturating_mul(LARGER)),
            random_bytes_max: most(self.random_bytes, default.random_bytes_max),
            recorded_calls_max: 0,
            ..default
        }
    }
}

//! Recordings: the last calls of a plugin, kept so that a failed call can be made again elsewhere.
//!
//! ```text
//! call ─ input, trace, outcome ─► Recorder: a ring in memory ── thrown away by the next calls
//!                                    │ a call failed, or somebody asks
//!                                    ▼
//!                redact ─► file (checksum) ─► RecordingStore: <data dir>/recordings/*.rec, mode 0600
//!                                                    ▼ on any machine
//!                                  replay: the same component, the recorded answers ─► same end?
//! ```
//! A call is a function of its arguments, the configuration and the answers of the host, so only
//! these need to be kept. Time cannot be repeated: a call that was given up because it waited must
//! be told apart from one that computed too long. Plugins know nothing of this crate: see
//! `ostler_plugin::observe`. Start reading with `ring.rs`.

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
use ostler_plugin::CallFailure;
use ostler_plugin::observe::CallEnd;
use ostler_sandbox::CallError;

pub use replay::{ReplayError, ReplayVerdict, ReplayedCall, replay};
pub use ring::Recorder;
pub use store::{RecordCalls, RecordingStore};
use trace::{Player, Trace};

/// Use bytes as the trace of a recorded call, which each function reads in turn. For fuzz targets.
#[doc(hidden)]
pub fn fuzz_trace(bytes: &[u8]) {
    let trace = Trace { bytes: bytes.to_vec(), calls: u32::MAX, cut: false, secrets: vec![] };
    Player::new(trace).read_all();
}

/// The calls of one plugin, as a file holds them.
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
    /// The limits of one call.
    pub limits: CallLimits,
    /// The number of secret values that were taken out.
    pub redacted: u32,
    /// The calls, oldest first. The file was written because of the last one.
    pub calls: Vec<RecordedCall>,
}

/// One recorded call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordedCall {
    /// The name of the called function.
    pub function: String,
    /// When it began, in nanoseconds since 1970.
    pub at: u64,
    /// How long it took, in nanoseconds.
    pub took: u64,
    /// The arguments in their compact form, redacted.
    pub input: Vec<u8>,
    /// The answers of the host, redacted.
    #[serde(rename = "reel")]
    pub trace: Vec<u8>,
    /// The number of host calls, including those that are not in `trace`.
    pub host_calls: u32,
    /// Whether there were more answers than fit.
    pub cut: bool,
    /// How the call ended.
    pub outcome: CallOutcome,
}

/// How a call ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallOutcome {
    /// The end in one word: `answered`, `refused` (the plugin's own error), `broken-answer`, or
    /// what stopped the call: `trap`, `stack-overflow`, `deadline`, `memory-limit` …
    pub end: String,
    /// The text of the error, if there is one.
    pub text: String,
    /// The function names where the call was stopped, innermost first.
    pub frames: Vec<String>,
}

impl CallOutcome {
    /// The outcome of a call that was answered.
    #[must_use]
    pub fn new_answered() -> Self {
        Self { end: "answered".to_owned(), ..Self::default() }
    }

    /// The outcome of a call that the plugin refused.
    #[must_use]
    pub fn new_refused(text: String) -> Self {
        Self { end: "refused".to_owned(), text, frames: Vec::new() }
    }

    /// The outcome of a call whose answer is against the rules.
    #[must_use]
    pub fn new_broken(text: String) -> Self {
        Self { end: "broken-answer".to_owned(), text, frames: Vec::new() }
    }

    /// Whether the call failed, by its own or the plugin's fault.
    #[must_use]
    pub fn is_failed(&self) -> bool {
        !matches!(self.end.as_str(), "answered" | "refused")
    }

    /// Whether the speed of the machine had a part in the end of the call.
    #[must_use]
    pub fn is_by_clock(&self) -> bool {
        matches!(self.end.as_str(), "deadline" | "processor-time")
    }
}

impl<F: Borrow<CallFailure>> From<&CallEnd<F>> for CallOutcome {
    fn from(end: &CallEnd<F>) -> Self {
        match end {
            CallEnd::Answered => Self::new_answered(),
            CallEnd::Refused(text) => Self::new_refused(text.clone()),
            CallEnd::Broken(text) => Self::new_broken(text.clone()),
            CallEnd::Failed(failure) => Self::from(failure.borrow()),
        }
    }
}

impl From<&CallFailure> for CallOutcome {
    fn from(failure: &CallFailure) -> Self {
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

/// The limits of one call: the part of [`PluginLimits`] that decides how a call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallLimits {
    /// The longest wall time of the call, in milliseconds.
    pub call_wall_ms: u64,
    /// The longest processor time of the call, in milliseconds.
    pub call_cpu_ms: u64,
    /// The most bytes that the guest may hand over in one host call.
    pub host_call_bytes: u64,
    /// The largest numbers of core instances, memories and tables.
    pub parts: [u32; 3],
    /// The most linear memory, in bytes.
    pub memory_bytes: u64,
    /// The most elements of all tables together.
    pub table_elements: u64,
    /// The most bytes copied between guest and host in one call, both ways together.
    pub transfer_bytes: u64,
    /// The most host calls in one call.
    pub host_calls: u64,
    /// The most bytes of the plugin's answer.
    pub answer_bytes: u64,
    /// The most handles that may be alive at once.
    pub handles: u32,
    /// The most random bytes of one request.
    pub random_bytes: u64,
}

impl Default for CallLimits {
    fn default() -> Self {
        Self::from(&PluginLimits::default())
    }
}

impl From<&PluginLimits> for CallLimits {
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

impl CallLimits {
    /// The limits for a replay. They are capped at the default limits, or at a fixed multiple of
    /// these, because a recording comes from somebody else.
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

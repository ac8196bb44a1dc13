//! The answers of the host during one call, as bytes, and the player that gives the same
//! answers again.
//!
//! An entry is the number of the host's function, a hash of its arguments, and the answer. An entry
//! without an answer is a host call that was under way when the call was given up.

use std::sync::{Arc, Mutex, PoisonError};

use ostler_model::limits::PLUGIN_TRACE_BYTES_MAX;
use ostler_plugin::host::trace::{
    HostCall, HostCallLog, HostStandIn, NoAnswer, ReadAnswer, WireReader, function_name,
};

/// The size of a [`HostCall`] in a trace, in bytes.
const HOST_CALL_BYTES: usize = 5;

/// The answers of one call, in the order in which they were given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Entries, one after the other.
    pub bytes: Vec<u8>,
    /// The number of host calls so far, including those that did not fit.
    pub calls: u32,
    /// Whether there were more answers than fit.
    pub cut: bool,
    /// Secret texts that are not in `bytes` and must not be anywhere else.
    pub secrets: Vec<String>,
}

/// A trace that is being written. It outlives the store of a call that is given up.
#[derive(Clone, Debug, Default)]
pub struct SharedTrace(Arc<Mutex<Trace>>);

impl SharedTrace {
    /// Take what was written so far. What is written later is lost.
    #[must_use]
    pub fn take(&self) -> Trace {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl HostCallLog for SharedTrace {
    fn begin_call(&self, call: HostCall) {
        let mut trace = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        trace.calls = trace.calls.saturating_add(1);
        if trace.cut {
            return;
        }
        if trace.bytes.len() + HOST_CALL_BYTES > PLUGIN_TRACE_BYTES_MAX {
            trace.cut = true;
            return;
        }
        trace.bytes.push(call.function);
        trace.bytes.extend_from_slice(&call.arguments.to_le_bytes());
    }

    fn end_call(&self, put: &dyn Fn(&mut Vec<u8>)) {
        let mut trace = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if trace.cut {
            return;
        }
        let before = trace.bytes.len();
        put(&mut trace.bytes);
        if trace.bytes.len() > PLUGIN_TRACE_BYTES_MAX {
            // The mark is removed too: without an answer it would be a host call that never ended.
            trace.bytes.truncate(before.saturating_sub(HOST_CALL_BYTES));
            trace.cut = true;
        }
    }

    fn learn(&self, texts: &mut dyn Iterator<Item = &str>) {
        let mut trace = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if trace.secrets.is_empty() {
            trace.secrets.extend(texts.map(str::to_owned));
        }
    }
}

/// Why a replayed call did not go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Divergence {
    /// The call asked the host for something else.
    #[error("host call {at}: asked for {asked}, where the recorded call asked for {recorded}")]
    OtherFunction {
        /// The number of the host call, from 1.
        at: u32,
        /// The function that was asked for now.
        asked: &'static str,
        /// The function in the recording.
        recorded: &'static str,
    },
    /// The call asked the host once more after the recorded call had ended.
    #[error("host call {at}: asked for {asked}, where the recorded call asked for nothing more")]
    Longer {
        /// The number of the host call, from 1.
        at: u32,
        /// The function that was asked for now.
        asked: &'static str,
    },
    /// The call came to the host call in which the recorded call was given up.
    #[error("host call {at}: the recorded call was given up while it waited for {asked}")]
    GivenUp {
        /// The number of the host call, from 1.
        at: u32,
        /// The function that the call waits for.
        asked: &'static str,
    },
    /// The call asked for something whose answers are never recorded.
    #[error("after host call {at}: asked for {asked}, which is not recorded")]
    NotRecorded {
        /// The number of the last host call before it.
        at: u32,
        /// The function that was asked for.
        asked: &'static str,
    },
    /// The recording holds no more answers.
    #[error("host call {at}: the recording was cut here, its limit of bytes was reached")]
    Cut {
        /// The number of the host call, from 1.
        at: u32,
    },
    /// The recording is damaged.
    #[error("host call {at}: the recorded answer of {asked} cannot be read")]
    Damaged {
        /// The number of the host call, from 1.
        at: u32,
        /// The function that was asked for.
        asked: &'static str,
    },
}

/// A trace that is replayed, with the result so far.
#[derive(Debug, Default)]
pub struct Player {
    trace: Trace,
    at: usize,
    calls: u32,
    /// The first host call with other arguments than the recorded ones.
    pub other_arguments: Option<(u32, &'static str)>,
    /// Where the call departed from the recording.
    pub divergence: Option<Divergence>,
}

impl Player {
    /// A player of this trace.
    #[must_use]
    pub fn new(trace: Trace) -> Self {
        Self { trace, ..Self::default() }
    }

    /// The number of host calls so far.
    #[must_use]
    pub const fn calls(&self) -> u32 {
        self.calls
    }

    /// The number of recorded host calls that were not asked for.
    #[must_use]
    pub fn calls_left(&self) -> u32 {
        self.trace.calls.saturating_sub(self.calls)
    }

    /// Read whatever comes next, as every type of answer, until nothing can be read.
    pub(crate) fn read_all(&mut self) {
        let mut ask = |read: &mut ReadAnswer<'_>| {
            let function = self.trace.bytes.get(self.at).copied().unwrap_or_default();
            self.find(HostCall { function, arguments: 0 }, read).is_ok()
        };
        while ostler_plugin::fuzz::read_any(&mut ask) {}
    }

    fn next(&mut self, call: HostCall, read: &mut ReadAnswer<'_>) -> Result<(), Divergence> {
        self.calls = self.calls.saturating_add(1);
        self.find(call, read).inspect_err(|divergence| {
            self.divergence.get_or_insert_with(|| divergence.clone());
        })
    }

    fn find(&mut self, call: HostCall, read: &mut ReadAnswer<'_>) -> Result<(), Divergence> {
        let (at, asked) = (self.calls, function_name(call.function));
        let rest = self.trace.bytes.get(self.at..).unwrap_or_default();
        if rest.is_empty() {
            return Err(if self.trace.cut {
                Divergence::Cut { at }
            } else {
                Divergence::Longer { at, asked }
            });
        }
        let mut reader = WireReader::new(rest);
        let damaged = Divergence::Damaged { at, asked };
        let function = reader.u8().ok_or_else(|| damaged.clone())?;
        if function != call.function {
            return Err(Divergence::OtherFunction { at, asked, recorded: function_name(function) });
        }
        let arguments = reader.u32().ok_or_else(|| damaged.clone())?;
        if arguments != call.arguments && self.other_arguments.is_none() {
            self.other_arguments = Some((at, asked));
        }
        if reader.is_empty() {
            return Err(Divergence::GivenUp { at, asked });
        }
        if !read(&mut reader) {
            return Err(damaged);
        }
        self.at = self.trace.bytes.len() - reader.remaining();
        Ok(())
    }
}

/// Plays a trace to a call. The rest of it can be examined when the call has ended.
#[derive(Clone, Debug)]
pub struct SharedPlayer(pub Arc<Mutex<Player>>);

impl HostStandIn for SharedPlayer {
    fn answer(&self, call: HostCall, read: &mut ReadAnswer<'_>) -> Result<(), NoAnswer> {
        let mut player = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        player.next(call, read).map_err(NoAnswer::from)
    }

    fn refuse_unrecorded(&self, asked: &'static str) -> NoAnswer {
        let mut player = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let divergence = Divergence::NotRecorded { at: player.calls, asked };
        player.divergence.get_or_insert(divergence).clone().into()
    }
}

#[cfg(test)]
#[path = "trace_tests.rs"]
mod tests;

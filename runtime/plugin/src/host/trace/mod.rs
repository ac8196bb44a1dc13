//! What the host answered during one call of a plugin, and the same answers given again.
//!
//! ```text
//! guest ─ import ─► Traced ─► the host's own function ─► answer ─► Trace (bytes, bounded)
//!                     │ recording                           └────────────► guest
//!                     └ playing: the next answer of the trace ────────────► guest
//! ```
//! A call is a function of its arguments and of what the host answers. So the arguments and this
//! trace are the whole call: played to the same component it goes the same way, to the same trap.
//! Everything that could differ passes here: our interfaces and, of WASI, files, streams, polls,
//! clocks and random numbers. Arguments, environment and exit of WASI are constant, and a plugin's
//! configuration is kept beside the trace.
//!
//! An entry is the function's number, a hash of its arguments, a tag and the answer. An entry without
//! an answer is a host call that was under way when the call was given up.

/// Functions of an interface: played from the trace, or answered by `$trait` on `self.$real()` and
/// recorded. Of the arguments in brackets the hash is kept.
macro_rules! traced {
    ($real:ident $trait:ident;
     $($number:ident $name:ident($($arg:ident: $type:ty),*) [$($hashed:ident),*] -> $out:ty;)*) => {
        $(fn $name(&mut self, $($arg: $type),*) -> $out {
            let mark = || $crate::host::trace::HostCall::of(number::$number, [$($hashed.digest()),*]);
            if let Some(answer) = self.0.tracer.play(mark) {
                return answer;
            }
            self.0.tracer.begin(mark);
            let answer = $trait::$name(&mut self.$real(), $($arg),*);
            self.0.tracer.end(&answer);
            answer
        })*
    };
}

/// The same for functions that wait.
macro_rules! traced_async {
    ($real:ident $trait:ident;
     $($number:ident $name:ident($($arg:ident: $type:ty),*) [$($hashed:ident),*] -> $out:ty;)*) => {
        $(async fn $name(&mut self, $($arg: $type),*) -> $out {
            let mark = || $crate::host::trace::HostCall::of(number::$number, [$($hashed.digest()),*]);
            if let Some(answer) = self.0.tracer.play(mark) {
                return answer;
            }
            self.0.tracer.begin(mark);
            let answer = $trait::$name(&mut self.$real(), $($arg),*).await;
            self.0.tracer.end(&answer);
            answer
        })*
    };
}

mod answer;
mod files;
mod io;
mod link;
mod own;
mod wire;

use std::sync::{Arc, Mutex, PoisonError};

pub(in crate::host) use answer::Answer;
pub(in crate::host) use link::Traced;
pub use link::link;

use wasmtime_wasi::p2::bindings::filesystem::types::{
    DescriptorFlags, DescriptorStat, DirectoryEntry,
};
use wasmtime_wasi::p2::{FsResult, StreamResult};

use ostler_model::limits::PLUGIN_TRACE_BYTES_MAX;
use wire::Reader;

/// What a host call is recorded by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCall {
    /// Its number among [`FUNCTIONS`].
    pub function: u8,
    /// Hash of its texts, numbers and bytes.
    pub arguments: u32,
}

impl HostCall {
    fn of<const N: usize>(function: u8, digests: [u64; N]) -> Self {
        let hash = digests.into_iter().fold(0, wire::mixed);
        Self { function, arguments: (hash >> 32) as u32 ^ (hash & 0xffff_ffff) as u32 }
    }
}

/// The answers of one call, as they were given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Entries, one after the other.
    pub bytes: Vec<u8>,
    /// Host calls so far, also those that found no place.
    pub calls: u32,
    /// There were more than fit.
    pub cut: bool,
    /// Texts that are not in `bytes` and must not be anywhere else.
    pub secrets: Vec<String>,
}

/// A trace that is being written. It outlives the store of a call that is given up.
pub type SharedTrace = Arc<Mutex<Trace>>;

/// Why a played call did not go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Departure {
    /// It asked the host for something else.
    #[error("host call {at}: asked for {asked}, where the recorded call asked for {recorded}")]
    OtherFunction {
        /// Number of the host call, from 1.
        at: u32,
        /// Asked for now.
        asked: &'static str,
        /// Asked for then.
        recorded: &'static str,
    },
    /// It asked the host once more after the recorded call had ended.
    #[error("host call {at}: asked for {asked}, where the recorded call asked for nothing more")]
    Longer {
        /// Number of the host call, from 1.
        at: u32,
        /// Asked for now.
        asked: &'static str,
    },
    /// It came to the host call in which the recorded call was given up.
    #[error("host call {at}: the recorded call was given up while it waited for {asked}")]
    GivenUp {
        /// Number of the host call, from 1.
        at: u32,
        /// What it waits for.
        asked: &'static str,
    },
    /// It asked for something whose answers are never recorded.
    #[error("after host call {at}: asked for {asked}, which is not recorded")]
    NotRecorded {
        /// Number of the last host call before it.
        at: u32,
        /// Asked for.
        asked: &'static str,
    },
    /// The recording holds no more.
    #[error("host call {at}: the recording was cut here, its limit of bytes was reached")]
    Cut {
        /// Number of the host call, from 1.
        at: u32,
    },
    /// The recording is damaged.
    #[error("host call {at}: the recorded answer of {asked} cannot be read")]
    Damaged {
        /// Number of the host call, from 1.
        at: u32,
        /// Asked for.
        asked: &'static str,
    },
}

/// A trace that is played, and how that went.
#[derive(Debug, Default)]
pub struct Player {
    trace: Trace,
    at: usize,
    calls: u32,
    /// Host calls with other arguments than the recorded ones; the first of them.
    pub other_arguments: Option<(u32, &'static str)>,
    /// Where it left the recording.
    pub departure: Option<Departure>,
}

impl Player {
    /// To play this.
    #[must_use]
    pub fn new(trace: Trace) -> Self {
        Self { trace, ..Self::default() }
    }

    /// Host calls so far.
    #[must_use]
    pub const fn calls(&self) -> u32 {
        self.calls
    }

    /// Recorded host calls that were not asked for.
    #[must_use]
    pub fn left_over(&self) -> u32 {
        self.trace.calls.saturating_sub(self.calls)
    }

    /// Ask for whatever comes next, as every type of answer, until nothing can be read.
    #[doc(hidden)]
    pub fn exhaust(&mut self) {
        let types = [
            Self::any::<wasmtime::Result<u64>>,
            Self::any::<wasmtime::Result<Vec<u8>>>,
            Self::any::<wasmtime::Result<Vec<u32>>>,
            Self::any::<wasmtime::Result<String>>,
            Self::any::<wasmtime::Result<(u64, u64)>>,
            Self::any::<wasmtime::Result<wire::Packed<String>>>,
            Self::any::<FsResult<(Vec<u8>, bool)>>,
            Self::any::<FsResult<DescriptorStat>>,
            Self::any::<FsResult<Option<DirectoryEntry>>>,
            Self::any::<FsResult<DescriptorFlags>>,
            Self::any::<StreamResult<Vec<u8>>>,
            Self::any::<StreamResult<u64>>,
        ];
        while types.iter().any(|read| read(self)) {}
    }

    fn any<A: Answer>(&mut self) -> bool {
        let function = self.trace.bytes.get(self.at).copied().unwrap_or_default();
        self.find::<A>(HostCall { function, arguments: 0 }).is_ok()
    }

    fn next<A: Answer>(&mut self, mark: HostCall) -> A {
        self.calls = self.calls.saturating_add(1);
        match self.find(mark) {
            Ok(answer) => answer,
            Err(departure) => {
                self.departure.get_or_insert_with(|| departure.clone());
                A::trap(departure.into())
            }
        }
    }

    fn find<A: Answer>(&mut self, mark: HostCall) -> Result<A, Departure> {
        let (at, asked) = (self.calls, name_of(mark.function));
        let rest = self.trace.bytes.get(self.at..).unwrap_or_default();
        if rest.is_empty() {
            return Err(match self.trace.cut {
                true => Departure::Cut { at },
                false => Departure::Longer { at, asked },
            });
        }
        let mut reader = Reader::new(rest);
        let damaged = Departure::Damaged { at, asked };
        let function = reader.u8().ok_or_else(|| damaged.clone())?;
        if function != mark.function {
            return Err(Departure::OtherFunction { at, asked, recorded: name_of(function) });
        }
        let arguments = reader.u32().ok_or_else(|| damaged.clone())?;
        if arguments != mark.arguments && self.other_arguments.is_none() {
            self.other_arguments = Some((at, asked));
        }
        if reader.is_empty() {
            return Err(Departure::GivenUp { at, asked });
        }
        let answer = A::get(&mut reader).ok_or(damaged)?;
        self.at = self.trace.bytes.len() - reader.left();
        Ok(answer)
    }
}

/// What happens to the answers of a call.
#[derive(Clone, Debug, Default)]
pub enum Tracer {
    /// Nothing.
    #[default]
    Off,
    /// They are kept.
    Recording(SharedTrace),
    /// They come from a recording.
    Playing(Arc<Mutex<Player>>),
}

impl Tracer {
    /// Records, and the trace it records.
    #[must_use]
    pub fn recording() -> (Self, SharedTrace) {
        let trace = SharedTrace::default();
        (Self::Recording(Arc::clone(&trace)), trace)
    }

    /// Are recorded answers given? Then nothing stands behind a handle.
    pub(in crate::host) const fn plays(&self) -> bool {
        matches!(self, Self::Playing(_))
    }

    /// Is a trace being written?
    pub(in crate::host) const fn records(&self) -> bool {
        matches!(self, Self::Recording(_))
    }

    /// These texts are secret.
    pub(in crate::host) fn learn<'a>(&self, texts: impl Iterator<Item = &'a str>) {
        if let Self::Recording(trace) = self {
            let mut trace = trace.lock().unwrap_or_else(PoisonError::into_inner);
            if trace.secrets.is_empty() {
                trace.secrets.extend(texts.map(str::to_owned));
            }
        }
    }

    /// Something was asked for that is not recorded: the end of a played call.
    pub(in crate::host) fn unrecorded(&self, asked: &'static str) -> Option<Departure> {
        let Self::Playing(player) = self else { return None };
        let mut player = player.lock().unwrap_or_else(PoisonError::into_inner);
        let departure = Departure::NotRecorded { at: player.calls, asked };
        Some(player.departure.get_or_insert(departure).clone())
    }

    /// The recorded answer, when one is played.
    pub(in crate::host) fn play<A: Answer>(&self, mark: impl FnOnce() -> HostCall) -> Option<A> {
        match self {
            Self::Playing(player) => {
                let mut player = player.lock().unwrap_or_else(PoisonError::into_inner);
                Some(player.next(mark()))
            }
            Self::Off | Self::Recording(_) => None,
        }
    }

    /// A host call begins. Its mark is there before its answer: it may be given up.
    pub(in crate::host) fn begin(&self, mark: impl FnOnce() -> HostCall) {
        let Self::Recording(trace) = self else { return };
        let mark = mark();
        let mut trace = trace.lock().unwrap_or_else(PoisonError::into_inner);
        trace.calls = trace.calls.saturating_add(1);
        if trace.cut {
            return;
        }
        if trace.bytes.len() + HOST_CALL_BYTES > PLUGIN_TRACE_BYTES_MAX {
            trace.cut = true;
            return;
        }
        trace.bytes.push(mark.function);
        trace.bytes.extend_from_slice(&mark.arguments.to_le_bytes());
    }

    /// It ended.
    pub(in crate::host) fn end<A: Answer>(&self, answer: &A) {
        let Self::Recording(trace) = self else { return };
        let mut trace = trace.lock().unwrap_or_else(PoisonError::into_inner);
        if trace.cut {
            return;
        }
        let before = trace.bytes.len();
        answer.put(&mut trace.bytes);
        if trace.bytes.len() > PLUGIN_TRACE_BYTES_MAX {
            // The mark goes too: without an answer it would be a host call that never ended.
            trace.bytes.truncate(before.saturating_sub(HOST_CALL_BYTES));
            trace.cut = true;
        }
    }
}

/// Bytes of a [`HostCall`] on a trace.
const HOST_CALL_BYTES: usize = 5;

/// Name of a function by its number.
fn name_of(function: u8) -> &'static str {
    FUNCTIONS.get(usize::from(function)).copied().unwrap_or("an unknown function")
}

macro_rules! functions {
    ($($constant:ident = $name:literal;)*) => {
        /// Names of the functions that are recorded, by number. Append only: recordings hold numbers.
        pub const FUNCTIONS: &[&str] = &[$($name),*];
        pub(in crate::host) mod number {
            #![allow(missing_docs, reason = "their names say what they are")]
            #[repr(u8)]
            #[expect(clippy::upper_case_acronyms, non_camel_case_types, reason = "as constants")]
            #[allow(dead_code, reason = "numbers stay when a function goes")]
            enum Numbers { $($constant),* }
            $(pub const $constant: u8 = Numbers::$constant as u8;)*
        }
    };
}

functions! {
    LOG = "log.log";
    EVENT = "events.emit";
    NOW = "clock.now";
    MONOTONIC = "clock.monotonic";
    RANDOM = "random.bytes";
    COMMAND = "command.run";
    PROCESS_SPAWN = "process.spawn";
    PROCESS_SIGNAL = "process.signal";
    PROCESS_KILL = "process.kill";
    PROCESS_STATE = "process.state";
    WASM_SPAWN = "wasm-task.spawn";
    WASM_SPAWN_LIMITED = "wasm-task.spawn-limited";
    WASM_KILL = "wasm-task.kill";
    WASM_STATE = "wasm-task.state";
    WALL_NOW = "wall-clock.now";
    WALL_RESOLUTION = "wall-clock.resolution";
    MONO_NOW = "monotonic-clock.now";
    MONO_RESOLUTION = "monotonic-clock.resolution";
    MONO_INSTANT = "monotonic-clock.subscribe-instant";
    MONO_DURATION = "monotonic-clock.subscribe-duration";
    RANDOM_BYTES = "random.get-random-bytes";
    RANDOM_U64 = "random.get-random-u64";
    INSECURE_BYTES = "insecure.get-insecure-random-bytes";
    INSECURE_U64 = "insecure.get-insecure-random-u64";
    INSECURE_SEED = "insecure-seed.insecure-seed";
    POLL = "poll.poll";
    POLL_BLOCK = "pollable.block";
    POLL_READY = "pollable.ready";
    ERROR_TEXT = "error.to-debug-string";
    IN_READ = "input-stream.read";
    IN_BLOCKING_READ = "input-stream.blocking-read";
    IN_SKIP = "input-stream.skip";
    IN_BLOCKING_SKIP = "input-stream.blocking-skip";
    IN_SUBSCRIBE = "input-stream.subscribe";
    OUT_CHECK = "output-stream.check-write";
    OUT_WRITE = "output-stream.write";
    OUT_BLOCKING_WRITE = "output-stream.blocking-write-and-flush";
    OUT_ZEROES = "output-stream.write-zeroes";
    OUT_BLOCKING_ZEROES = "output-stream.blocking-write-zeroes-and-flush";
    OUT_FLUSH = "output-stream.flush";
    OUT_BLOCKING_FLUSH = "output-stream.blocking-flush";
    OUT_SPLICE = "output-stream.splice";
    OUT_BLOCKING_SPLICE = "output-stream.blocking-splice";
    OUT_SUBSCRIBE = "output-stream.subscribe";
    FS_PREOPENS = "preopens.get-directories";
    FS_ERROR = "filesystem-error-code";
    FS_ADVISE = "descriptor.advise";
    FS_SYNC_DATA = "descriptor.sync-data";
    FS_FLAGS = "descriptor.get-flags";
    FS_TYPE = "descriptor.get-type";
    FS_SET_SIZE = "descriptor.set-size";
    FS_SET_TIMES = "descriptor.set-times";
    FS_READ = "descriptor.read";
    FS_WRITE = "descriptor.write";
    FS_READ_DIRECTORY = "descriptor.read-directory";
    FS_SYNC = "descriptor.sync";
    FS_CREATE_DIRECTORY = "descriptor.create-directory-at";
    FS_STAT = "descriptor.stat";
    FS_STAT_AT = "descriptor.stat-at";
    FS_SET_TIMES_AT = "descriptor.set-times-at";
    FS_LINK = "descriptor.link-at";
    FS_OPEN = "descriptor.open-at";
    FS_READLINK = "descriptor.readlink-at";
    FS_REMOVE_DIRECTORY = "descriptor.remove-directory-at";
    FS_RENAME = "descriptor.rename-at";
    FS_SYMLINK = "descriptor.symlink-at";
    FS_UNLINK = "descriptor.unlink-file-at";
    FS_READ_STREAM = "descriptor.read-via-stream";
    FS_WRITE_STREAM = "descriptor.write-via-stream";
    FS_APPEND_STREAM = "descriptor.append-via-stream";
    FS_SAME = "descriptor.is-same-object";
    FS_HASH = "descriptor.metadata-hash";
    FS_HASH_AT = "descriptor.metadata-hash-at";
    FS_ENTRY = "directory-entry-stream.read-directory-entry";
    ENVIRONMENT = "environment.get-environment";
    WASM_SPAWN_READING = "wasm-task.spawn-reading";
    PROCESS_SPAWN_ISOLATED = "process.spawn-isolated";
    PROCESS_ISOLATION_PARTS = "process.isolation-parts";
}

#[cfg(test)]
mod tests;

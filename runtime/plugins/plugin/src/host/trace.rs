//! The trace of a call: here host calls of a plugin can be recorded, and answered in
//! the host's place.
//!
//! ```text
//! guest ─ import ─► Traced ─► the host's own function ─► answer ─► HostCallLog (as bytes)
//!                     │ recording                           └────────────► guest
//!                     └ playing: HostStandIn reads an answer ─────────────► guest
//! ```
//! A call is a function of its arguments and of what the host answers. So the arguments and these
//! answers are the whole call: played to the same component it goes the same way, to the same trap.
//! Everything that could differ passes here: our own interfaces, and files, streams, polls, clocks
//! and random numbers of WASI. Arguments, environment and exit of WASI are constant, and the
//! observer knows the plugin's configuration.

/// Functions of an interface. They are played from the trace, or answered by `$trait` on
/// `self.$real()` and recorded. The hash of the arguments in brackets is recorded.
macro_rules! traced {
    ($real:ident $trait:ident;
     $($number:ident $name:ident($($arg:ident: $type:ty),*) [$($hashed:ident),*] -> $out:ty;)*) => {
        $(fn $name(&mut self, $($arg: $type),*) -> $out {
            let mark = || $crate::host::trace::HostCall::new(number::$number, [$($hashed.digest()),*]);
            if let Some(answer) = self.0.tracer.play(mark) {
                return answer;
            }
            self.0.tracer.record_begin(mark);
            let answer = $trait::$name(&mut self.$real(), $($arg),*);
            self.0.tracer.record_end(&answer);
            answer
        })*
    };
}

/// As `traced`, for asynchronous functions.
macro_rules! traced_async {
    ($real:ident $trait:ident;
     $($number:ident $name:ident($($arg:ident: $type:ty),*) [$($hashed:ident),*] -> $out:ty;)*) => {
        $(async fn $name(&mut self, $($arg: $type),*) -> $out {
            let mark = || $crate::host::trace::HostCall::new(number::$number, [$($hashed.digest()),*]);
            if let Some(answer) = self.0.tracer.play(mark) {
                return answer;
            }
            self.0.tracer.record_begin(mark);
            let answer = $trait::$name(&mut self.$real(), $($arg),*).await;
            self.0.tracer.record_end(&answer);
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

use std::sync::Arc;

pub(in crate::host) use answer::TraceAnswer;
pub(in crate::host) use link::TracedState;
pub use link::link;

use wasmtime_wasi::p2::bindings::filesystem::types::{
    DescriptorFlags, DescriptorStat, DirectoryEntry,
};
use wasmtime_wasi::p2::{FsResult, StreamResult};

pub use wire::WireReader;

/// What identifies a host call in a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostCall {
    /// Number of the function, its place in [`FUNCTIONS`].
    pub function: u8,
    /// Hash of the texts, numbers and bytes among the arguments.
    pub arguments: u32,
}

impl HostCall {
    fn new<const N: usize>(function: u8, digests: [u64; N]) -> Self {
        let hash = digests.into_iter().fold(0, wire::mix_digests);
        Self { function, arguments: (hash >> 32) as u32 ^ (hash & 0xffff_ffff) as u32 }
    }
}

/// Why there is no answer in the host's place. This error ends the call.
pub type NoAnswer = Box<dyn std::error::Error + Send + Sync>;

/// Receives each host call of one call of a plugin.
pub trait HostCallLog: Send + Sync {
    /// A host call begins. The call may be given up before it ends.
    fn begin_call(&self, call: HostCall);

    /// A host call ended. `put` appends its answer.
    fn end_call(&self, put: &dyn Fn(&mut Vec<u8>));

    /// Learn that these texts are secret.
    fn learn(&self, texts: &mut dyn Iterator<Item = &str>);
}

/// Takes an answer from the front of some bytes. `false`: there is none.
pub type ReadAnswer<'a> = dyn FnMut(&mut WireReader<'_>) -> bool + 'a;

/// Answers host calls in the host's place.
pub trait HostStandIn: Send + Sync {
    /// Let `read` take the answer of this host call from where the answer is.
    ///
    /// # Errors
    /// Why there is no answer.
    fn answer(&self, call: HostCall, read: &mut ReadAnswer<'_>) -> Result<(), NoAnswer>;

    /// Why there is no answer of the function `asked`, whose answers are not recorded.
    fn refuse_unrecorded(&self, asked: &'static str) -> NoAnswer;
}

/// Whether the host's answers in a call are recorded, or given by a stand-in.
#[derive(Clone, Default)]
pub enum Tracer {
    /// The host answers, and nothing is recorded.
    #[default]
    Off,
    /// The host answers, and a log receives the answers.
    Recording(Arc<dyn HostCallLog>),
    /// A stand-in answers in the host's place.
    Playing(Arc<dyn HostStandIn>),
}

impl Tracer {
    /// Does a stand-in answer? Then no resource belongs to a handle.
    pub(in crate::host) const fn is_playing(&self) -> bool {
        matches!(self, Self::Playing(_))
    }

    /// Are the answers recorded?
    pub(in crate::host) const fn is_recording(&self) -> bool {
        matches!(self, Self::Recording(_))
    }

    /// Tell the log that these texts are secret.
    pub(in crate::host) fn learn<'a>(&self, mut texts: impl Iterator<Item = &'a str>) {
        if let Self::Recording(log) = self {
            log.learn(&mut texts);
        }
    }

    /// The error that ends a played call which asks for something that is not recorded. `None`:
    /// the host answers.
    pub(in crate::host) fn check_recorded(&self, asked: &'static str) -> Option<wasmtime::Error> {
        let Self::Playing(host) = self else { return None };
        Some(wasmtime::Error::from_boxed(host.refuse_unrecorded(asked)))
    }

    /// The answer of the stand-in, if there is one.
    pub(in crate::host) fn play<A: TraceAnswer>(
        &self,
        mark: impl FnOnce() -> HostCall,
    ) -> Option<A> {
        let Self::Playing(host) = self else { return None };
        let mut answer = None;
        let read = &mut |reader: &mut WireReader<'_>| {
            answer = A::get(reader);
            answer.is_some()
        };
        let found = host.answer(mark(), read);
        Some(match (found, answer) {
            (Ok(()), Some(answer)) => answer,
            (Ok(()), None) => A::trap(wasmtime::Error::msg("the host's stand-in gave no answer")),
            (Err(error), _) => A::trap(wasmtime::Error::from_boxed(error)),
        })
    }

    /// Record that a host call begins. This is recorded before the answer, because the call may
    /// be given up.
    pub(in crate::host) fn record_begin(&self, mark: impl FnOnce() -> HostCall) {
        if let Self::Recording(log) = self {
            log.begin_call(mark());
        }
    }

    /// Record that a host call ended with this answer.
    pub(in crate::host) fn record_end<A: TraceAnswer>(&self, answer: &A) {
        if let Self::Recording(log) = self {
            log.end_call(&|out| answer.put(out));
        }
    }
}

/// Read the next answer as the first type that fits the bytes. For fuzz targets.
pub fn read_any(ask: &mut dyn FnMut(&mut ReadAnswer<'_>) -> bool) -> bool {
    fn reads<A: TraceAnswer>(reader: &mut WireReader<'_>) -> bool {
        A::get(reader).is_some()
    }
    let types: [fn(&mut WireReader<'_>) -> bool; 12] = [
        reads::<wasmtime::Result<u64>>,
        reads::<wasmtime::Result<Vec<u8>>>,
        reads::<wasmtime::Result<Vec<u32>>>,
        reads::<wasmtime::Result<String>>,
        reads::<wasmtime::Result<(u64, u64)>>,
        reads::<wasmtime::Result<wire::PackedValue<String>>>,
        reads::<FsResult<(Vec<u8>, bool)>>,
        reads::<FsResult<DescriptorStat>>,
        reads::<FsResult<Option<DirectoryEntry>>>,
        reads::<FsResult<DescriptorFlags>>,
        reads::<StreamResult<Vec<u8>>>,
        reads::<StreamResult<u64>>,
    ];
    types.into_iter().any(|mut read| ask(&mut read))
}

/// The name of a function by its number.
#[must_use]
pub fn function_name(function: u8) -> &'static str {
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

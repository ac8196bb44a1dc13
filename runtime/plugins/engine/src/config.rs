//! Configuration of the wasmtime engines, for the agent and for everything that compiles code for
//! it.
//!
//! Code that was compiled under one configuration loads only under an equal one, so all sides call
//! [`base_config`]. They differ only in the memory allocator, on which compiled code does not
//! depend.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::num::NonZeroUsize;

use sha2::{Digest as _, Sha256};
use wasmtime::{Config, Engine, WasmBacktraceDetails, WasmFeatures};

use ostler_model::limits;

/// The kind of an engine. Each has a pool and file limits of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// Driver and device plugins: many short calls, small memories.
    Plugin,
    /// WASM tasks: long-lived, memories as large as the job asks.
    Task,
    /// WASM tasks in the dense profile. Their code is compiled differently; where a task is run
    /// they count as [`EngineKind::Task`].
    Dense,
}

impl EngineKind {
    /// Name on the command line of the compile child and in cache file names.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Plugin => "plugin",
            Self::Task => "task",
            Self::Dense => "dense",
        }
    }

    /// The inverse of [`EngineKind::as_str`].
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Plugin, Self::Task, Self::Dense].into_iter().find(|kind| kind.as_str() == text)
    }

    /// Largest wasm file accepted, bytes.
    #[must_use]
    pub const fn file_bytes_max(self) -> u64 {
        match self {
            Self::Plugin => limits::PLUGIN_FILE_BYTES_MAX,
            Self::Task | Self::Dense => limits::TASK_FILE_BYTES_MAX,
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The two binary formats of WebAssembly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WasmFormat {
    /// A component.
    Component,
    /// A core module (WASI preview 1 tasks).
    Module,
}

impl WasmFormat {
    /// Name on the command line of the compile child and in cache file names.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Component => "component",
            Self::Module => "module",
        }
    }

    /// The inverse of [`WasmFormat::as_str`].
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Component, Self::Module].into_iter().find(|format| format.as_str() == text)
    }
}

impl fmt::Display for WasmFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Component => "component",
            Self::Module => "core module",
        })
    }
}

/// The WebAssembly features that no guest may use.
///
/// The proposals that need garbage collection must be off: this build has no collector, and without
/// this mask a module of 60 bytes (a subtype and a `ref.test`) aborts the whole process. The others
/// are off because no toolchain we accept needs them and each is more compiler to trust.
#[must_use]
pub fn forbidden_features() -> WasmFeatures {
    WasmFeatures::GC
        | WasmFeatures::GC_TYPES
        | WasmFeatures::FUNCTION_REFERENCES
        | WasmFeatures::EXCEPTIONS
        | WasmFeatures::LEGACY_EXCEPTIONS
        | WasmFeatures::THREADS
        | WasmFeatures::SHARED_EVERYTHING_THREADS
        | WasmFeatures::MEMORY64
        | WasmFeatures::TAIL_CALL
        | WasmFeatures::RELAXED_SIMD
        | WasmFeatures::STACK_SWITCHING
        | WasmFeatures::CUSTOM_PAGE_SIZES
        | WasmFeatures::WIDE_ARITHMETIC
        | WasmFeatures::MEMORY_CONTROL
        | WasmFeatures::CM_ASYNC
        | WasmFeatures::CM_ASYNC_STACKFUL
        | WasmFeatures::CM_MORE_ASYNC_BUILTINS
        | WasmFeatures::CM_THREADING
        | WasmFeatures::CM_ERROR_CONTEXT
        | WasmFeatures::CM_GC
        | WasmFeatures::CM_MAP
        | WasmFeatures::CM64
        | WasmFeatures::CM_FIXED_LENGTH_LISTS
        | WasmFeatures::CM_IMPLEMENTS
}

/// Set what compiled code of the dense profile depends on: no memory is reserved or guarded.
fn disable_mappings(config: &mut Config) {
    config
        .memory_reservation(0)
        .memory_reservation_for_growth(0)
        .memory_guard_size(0)
        .guard_before_linear_memory(false)
        .memory_may_move(true)
        // An image would be a mapping, so the initial memory of a guest is copied.
        .memory_init_cow(false);
}

/// Everything about an engine except its allocator (on-demand unless the caller sets the pool).
#[must_use]
pub fn base_config(kind: EngineKind) -> Config {
    let mut config = Config::new();
    config
        .wasm_features(forbidden_features(), false)
        // Spinning guests yield at every tick. Fuel would count exactly but costs 76 % on calls
        // where epochs cost 7 %.
        .epoch_interruption(true)
        // It is off because compiled-in concurrency alone makes a plain call 4.4 times as
        // expensive.
        .concurrency_support(false)
        // The guest overflows its own stack (a typed trap) before the fiber ends under a host
        // function (an abort of the process).
        .max_wasm_stack(limits::GUEST_STACK_BYTES_MAX)
        .async_stack_size(limits::GUEST_FIBER_BYTES)
        // Without a bound a deep recursion would be collected as a whole. Names suffice; for lines
        // the debug sections would have to be parsed at the moment of the trap.
        .wasm_backtrace_max_frames(NonZeroUsize::new(limits::GUEST_BACKTRACE_FRAMES_MAX))
        .wasm_backtrace_details(WasmBacktraceDetails::Disable)
        // Data images are mapped from the code file and copied page by page when written.
        .memory_init_cow(true);
    if kind == EngineKind::Dense {
        disable_mappings(&mut config);
    }
    config
}

/// An engine that only compiles, for this processor: it reserves no address space for instances.
///
/// # Errors
/// When wasmtime does not know this machine.
pub fn compiler_engine(kind: EngineKind) -> wasmtime::Result<Engine> {
    Engine::new(&base_config(kind))
}

/// Compile `wasm` in this process. The bytes must be trusted, or the process must be allowed to
/// die.
///
/// # Errors
/// Wasmtime's.
pub fn precompile(engine: &Engine, wasm: &[u8], format: WasmFormat) -> wasmtime::Result<Vec<u8>> {
    match format {
        WasmFormat::Component => engine.precompile_component(wasm),
        WasmFormat::Module => engine.precompile_module(wasm),
    }
}

/// Identifies compatible compiled code: 16 hexadecimal digits, part of cache file names.
#[must_use]
pub fn compatibility(engine: &Engine) -> String {
    let mut hasher = StableHasher(Sha256::new());
    engine.precompile_compatibility_hash().hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// A hasher with stable results. The standard hasher may change between releases of the standard
/// library, but names on disk must not.
struct StableHasher(Sha256);

impl Hasher for StableHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        let digest = self.0.clone().finalize();
        digest.iter().take(8).fold(0, |value, byte| (value << 8) | u64::from(*byte))
    }
}

//! How a guest's call can fail, and which failure a Wasmtime error stands for.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use wasmtime::component::ResourceTableError;
use wasmtime::{PoolConcurrencyLimitError, Trap, WasmBacktrace};
use wasmtime_wasi::I32Exit;

use super::limiter::GuestUsage;
use super::store::StoreLimits;
use ostler_engine::EngineKind;
use ostler_model::limits;
use ostler_model::printable::printable_line;

/// Why the sandbox itself could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// Wasmtime refused the configuration.
    #[error("cannot build the engine for {kind} guests: {message}")]
    Engine {
        /// The engine that cannot be built.
        kind: EngineKind,
        /// The error of Wasmtime.
        message: String,
    },
    /// A thread could not be started.
    #[error("cannot start the {what}: {source}; check the limits on processes and memory")]
    Thread {
        /// The thread or runtime that was to be started.
        what: &'static str,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The cache directory cannot be created, read or changed.
    #[error("cannot use the code cache {}: {source}", path.display())]
    CacheDir {
        /// Path of the cache directory.
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// Another user could have put code into the cache directory.
    #[error(
        "the code cache {} is not safe: {reason}; remove it (it is rebuilt) or give another data \
         directory",
        path.display()
    )]
    UnsafeCacheDir {
        /// Path of the cache directory.
        path: PathBuf,
        /// Why the directory is not safe.
        reason: &'static str,
    },
    /// Another user could replace the whole cache.
    #[error(
        "{} holds the code cache, and users other than its owner may write there; make it yours \
         alone with `chmod go-w {}` (and `chown`), or give another data directory",
        path.display(), path.display()
    )]
    SharedDataDir {
        /// Path of the directory above the cache.
        path: PathBuf,
    },
    /// The secret that seals the entries cannot be read or made.
    #[error("cannot use the secret of the code cache, {}; remove it (it is made anew)", path.display())]
    CacheSecret {
        /// Path of the file with the secret.
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The dense profile is not possible on this machine.
    #[error(
        "WASM tasks cannot be held densely: {source}; it needs Linux 6.13 or later and 20 TiB of \
         address space (ulimit -v, vm.overcommit_memory other than 2); or leave wasm {{ dense }} out \
         of the agent's configuration"
    )]
    Dense {
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The path of this program is unknown, so no compile child can be started.
    #[error("cannot find the path of this program to start its compile child: {source}")]
    NoCompiler {
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
}

/// Groups of WASM traps, as far as they matter to a reader of the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrapKind {
    /// The guest gave up itself: a panic or an abort.
    Unreachable,
    /// Access outside memory or tables, null or mistyped indirect call.
    OutOfBounds,
    /// Division by zero, integer overflow, bad conversion.
    Arithmetic,
    /// A violation of the component model's rules (handles, strings, re-entry).
    ComponentModel,
    /// Any other trap.
    Other,
}

/// Why one call of a guest failed. Its store is dead.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The guest trapped.
    #[error("the guest trapped: {message}{}", in_frames(frames))]
    Trap {
        /// The group that the trap belongs to.
        kind: TrapKind,
        /// Wasmtime's text for the trap.
        message: String,
        /// Names of the functions, innermost first; a bounded number.
        frames: Vec<String>,
    },
    /// The guest's native stack is exhausted.
    #[error("the guest's stack of {} KiB overflowed{}", limit / 1024, in_frames(frames))]
    StackOverflow {
        /// Size of the stack, bytes.
        limit: usize,
        /// Names of the functions, innermost first; a bounded number.
        frames: Vec<String>,
    },
    /// The call took longer than it may.
    #[error("the guest did not answer within {limit:?}")]
    DeadlineExceeded {
        /// Most time that the call may take.
        limit: Duration,
    },
    /// The guest computed longer than it may.
    #[error("the guest used more than {limit:?} of processor time")]
    CpuExceeded {
        /// Most processor time that the guest may use.
        limit: Duration,
    },
    /// The guest failed after memory was refused to it.
    #[error("memory limit of {} MiB reached: {message}", limit / limits::MIB)]
    MemoryLimit {
        /// The limit over all memories and tables together, bytes.
        limit: u64,
        /// How the guest ended, for people.
        message: String,
    },
    /// The guest failed after table elements were refused to it.
    #[error("limit of {limit} table elements reached: {message}")]
    TableLimit {
        /// The limit over all tables together.
        limit: u64,
        /// How the guest ended, for people.
        message: String,
    },
    /// More instances, memories or tables than a guest may have.
    #[error("the guest has too many parts: {message}")]
    TooManyParts {
        /// Which part, and how many, in Wasmtime's words.
        message: String,
    },
    /// An answer, or the arguments of one host call, were too large.
    #[error("the guest handed over more than {limit} bytes at once; split the answer")]
    AnswerTooLarge {
        /// Most bytes that may be handed over at once.
        limit: u64,
    },
    /// Too many handles alive at once.
    #[error("the guest holds more than {limit} handles at once")]
    TooManyHandles {
        /// Most handles alive at once.
        limit: u32,
    },
    /// A budget of the host functions is spent.
    #[error("the guest used more than {limit} {what} in one call")]
    HostcallBudget {
        /// What the guest used too much of, in plural.
        what: &'static str,
        /// How much of it one call may use.
        limit: u64,
    },
    /// As many guests are alive as the pool holds. Nothing ran; try again later.
    #[error("no room for another guest: {message}")]
    PoolExhausted {
        /// Which pool is full, for people.
        message: String,
    },
    /// The caller cancelled the call, or the sandbox is shutting down.
    #[error("the call was cancelled")]
    Cancelled,
    /// A host function panicked. A defect of the agent, not of the guest.
    #[error("a host function panicked: {message}; this is a defect of the agent, please report it")]
    HostPanic {
        /// Message of the panic.
        message: String,
    },
    /// The guest asked to end. For a task this is a result, for a plugin a failure.
    #[error("the guest exited with code {code}")]
    Exit {
        /// Exit code that the guest gave.
        code: i32,
    },
    /// The guest does not fit what it was linked or called with, or a host function failed.
    #[error("{message}")]
    Host {
        /// The error and all its causes.
        message: String,
    },
}

impl CallError {
    /// The part of the error's text that may have words of a guest, or be made of what
    /// a guest gave.
    #[must_use]
    pub const fn words(&mut self) -> Option<&mut String> {
        match self {
            Self::Trap { message, .. }
            | Self::MemoryLimit { message, .. }
            | Self::TableLimit { message, .. }
            | Self::TooManyParts { message }
            | Self::PoolExhausted { message }
            | Self::HostPanic { message }
            | Self::Host { message } => Some(message),
            Self::StackOverflow { .. }
            | Self::DeadlineExceeded { .. }
            | Self::CpuExceeded { .. }
            | Self::AnswerTooLarge { .. }
            | Self::TooManyHandles { .. }
            | Self::HostcallBudget { .. }
            | Self::Cancelled
            | Self::Exit { .. } => None,
        }
    }
}

/// The functions that a guest was in, innermost first, as a text to append to an error; empty when
/// they are not known.
#[must_use]
pub fn in_frames(frames: &[String]) -> String {
    match frames.first() {
        None => String::new(),
        Some(_) => format!(" (in {})", frames.join(" < ")),
    }
}

/// A host function refuses to go on, because a budget is spent. It is returned as the error of
/// the host function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("more than {limit} {what} in one call")]
pub struct HostcallBudgetExceeded {
    /// What the guest used too much of, in plural.
    pub what: &'static str,
    /// How much of it one call may use.
    pub limit: u64,
}

/// The failure that `error` stands for, given the limits of the guest and what it used.
#[must_use]
pub fn classify(error: wasmtime::Error, limits: &StoreLimits, usage: &GuestUsage) -> CallError {
    if let Some(I32Exit(code)) = error.downcast_ref::<I32Exit>() {
        return CallError::Exit { code: *code };
    }
    if let Some(HostcallBudgetExceeded { what, limit }) = error.downcast_ref() {
        return CallError::HostcallBudget { what, limit: *limit };
    }
    if error.is::<PoolConcurrencyLimitError>() {
        return CallError::PoolExhausted { message: bounded_text(&error) };
    }
    if matches!(error.downcast_ref(), Some(ResourceTableError::Full)) {
        return CallError::TooManyHandles { limit: limits.handles };
    }
    match error.downcast_ref::<Trap>() {
        Some(trap) => classify_trap(*trap, &error, limits, usage),
        None => classify_text(&error, limits, usage),
    }
}

fn classify_trap(
    trap: Trap,
    error: &wasmtime::Error,
    limits: &StoreLimits,
    usage: &GuestUsage,
) -> CallError {
    let kind = match trap {
        Trap::StackOverflow => {
            return CallError::StackOverflow {
                limit: limits::GUEST_STACK_BYTES_MAX,
                frames: frames(error),
            };
        }
        Trap::UnreachableCodeReached => TrapKind::Unreachable,
        Trap::MemoryOutOfBounds
        | Trap::TableOutOfBounds
        | Trap::IndirectCallToNull
        | Trap::BadSignature
        | Trap::NullReference => TrapKind::OutOfBounds,
        Trap::IntegerOverflow | Trap::IntegerDivisionByZero | Trap::BadConversionToInteger => {
            TrapKind::Arithmetic
        }
        Trap::CannotEnterComponent
        | Trap::CannotLeaveComponent
        | Trap::InvalidChar
        | Trap::StringOutOfBounds
        | Trap::ListOutOfBounds
        | Trap::InvalidDiscriminant
        | Trap::UnalignedPointer => TrapKind::ComponentModel,
        _ => TrapKind::Other,
    };
    // A guest reacts to a refused allocation by aborting, or by using the memory that it did not
    // get.
    if matches!(kind, TrapKind::Unreachable | TrapKind::OutOfBounds) {
        if usage.memory_refused() {
            return CallError::MemoryLimit {
                limit: limits.memory_bytes,
                message: trap.to_string(),
            };
        }
        if usage.table_refused() {
            return CallError::TableLimit {
                limit: limits.table_elements,
                message: trap.to_string(),
            };
        }
    }
    CallError::Trap { kind, message: trap.to_string(), frames: frames(error) }
}

/// Classify failures for which Wasmtime has no public type. They are recognised by their text, and
/// a test of this module checks that the Wasmtime in use still has these texts.
fn classify_text(error: &wasmtime::Error, limits: &StoreLimits, usage: &GuestUsage) -> CallError {
    let message = bounded_text(error);
    if message.contains("fuel allocated for hostcalls has been exhausted") {
        // A host call has the guest's frames below it, an answer has none.
        let of_host_call = error.is::<WasmBacktrace>();
        let limit = if of_host_call { limits.hostcall_bytes } else { limits.answer_bytes };
        return CallError::AnswerTooLarge { limit };
    }
    if message.contains("store handle limit exceeded") {
        return CallError::TooManyHandles { limit: limits.handles };
    }
    if message.contains("resource limit exceeded") {
        return CallError::TooManyParts { message };
    }
    // Tables count for the limit of memory.
    if usage.memory_refused() && (message.contains("memory") || message.contains("table")) {
        return CallError::MemoryLimit { limit: limits.memory_bytes, message };
    }
    if usage.table_refused() && message.contains("table") {
        return CallError::TableLimit { limit: limits.table_elements, message };
    }
    CallError::Host { message }
}

/// The text of an error and its causes, without backtrace, cut to the limit. It may contain names
/// that guests chose for what they export and import.
pub(super) fn bounded_text(error: &wasmtime::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        // The backtrace is a separate cause, and the frames are reported separately.
        if cause.starts_with("error while executing at wasm backtrace") {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause);
    }
    printable_line(text, limits::GUEST_ERROR_BYTES_MAX)
}

fn frames(error: &wasmtime::Error) -> Vec<String> {
    const FRAME_BYTES_MAX: usize = 256;
    let Some(backtrace) = error.downcast_ref::<WasmBacktrace>() else {
        return Vec::new();
    };
    let named = backtrace.frames().iter().map(|frame| match frame.symbols().first() {
        Some(symbol) if symbol.name().is_some() => symbol.name().unwrap_or_default().to_owned(),
        _ => frame
            .func_name()
            .map_or_else(|| format!("function {}", frame.func_index()), str::to_owned),
    });
    named
        .take(limits::GUEST_BACKTRACE_FRAMES_MAX)
        .map(|name| printable_line(name, FRAME_BYTES_MAX))
        .collect()
}

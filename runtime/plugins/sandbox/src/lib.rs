//! Guests: engines, the threads they run on, limits, compiled code. Nothing
//! else configures Wasmtime.
//!
//! ```text
//!  untrusted bytes ── cache ── pre-scan ── compile child (limits of its own) ──► finished code on disk
//!                       │                                                           │ mapped
//!                       └──────────────────────────► LoadedCode ◄───────────────────┘
//!                                                        │ instantiate
//!  caller (control runtime)                              ▼
//!    run_with_deadline ── spawn ──► call threads, then busy ones (niced): Meter( guest: Store )
//!        │ deadline, cancellation                   │ yields at every epoch tick
//!        └── abort: drops the store                 └── GuestLimiter: memory and tables in total
//! ```
//! This crate knows neither plugins nor tasks. Start with [`Sandbox`] and its
//! rule, then `running.rs`.

mod cache;
mod compile;
mod dense;
mod descriptors;
mod error;
mod inline;
mod limiter;
mod meter;
mod output;
mod places;
mod pooling;
mod prescan;
mod running;
mod share;
mod store;
mod tail;
pub mod threads;
mod worker;

#[cfg(test)]
mod tests;

pub use cache::{CacheStats, CodeAsk, CodeCache, CodeFile, Digest, LoadError, LoadedCode};
pub use compile::{CompileError, Compiler, compile_child_main};
pub use descriptors::{DescriptorPermit, Descriptors, GivenDescriptors};
pub use error::{CallError, HostcallBudgetExceeded, SandboxError, TrapKind, classify, in_frames};
pub use inline::{CallPace, leave_caller};
pub use limiter::{GuestLimiter, GuestUsage, HostBytes};
pub use meter::CpuMeter;
pub use ostler_engine::{EngineKind, WasmFormat};
pub use output::{GuestOutput, GuestSink};
pub use places::GuestPlace;
pub use pooling::{PoolLowered, PoolReport, PoolUse};
pub use prescan::{detect_format, missing_entry, prescan, what_else};
pub use running::{GuestAbort, GuestTask, HostBlocking, yield_once};
pub use store::{
    HostCalls, HostcallBudget, StoreLimits, StoreState, meter_host_calls, new_resource_table,
    new_store, new_wasi_builder,
};
pub use tail::{LastWords, StderrTail, without_last_words};
pub use worker::{GuestRun, Sandbox, SandboxConfig};

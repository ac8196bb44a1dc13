//! What the benches share.
//!
//! * [`agent`]: an agent in a temporary directory, and one-task jobs.
//! * [`live`]: an agent that serves and whose tasks outlive it.
//! * [`fixture`]: allocations and their task records, as an agent writes them.
//! * [`cost`]: what a piece of work cost: time, processor time, allocations, disk, syncs; from
//!   [`counting`] (the allocator), [`proc_io`] (the kernel's counts) and [`syncs`] (fdatasync).
//! * [`memory`]: of processes, as the kernel counts it.
//! * [`percentiles`]: samples and their order.
//! * [`plugins`]: plugins without an agent around them.
//! * [`sign`]: the instant at which a program's own code runs.
//! * [`raw_disk`], [`bare_redb`]: the baselines.
//! * [`machine`]: facts of the machine, where to write, quick runs.
//! * [`promise`]: the last lines of a bench.
#![allow(clippy::expect_used, clippy::panic, reason = "a bench that cannot set up has to end")]

pub mod agent;
pub mod bare_redb;
pub mod cost;
pub mod counting;
pub mod fixture;
pub mod live;
pub mod machine;
pub mod memory;
pub mod percentiles;
pub mod plugins;
pub mod proc_io;
pub mod promise;
pub mod raw_disk;
pub mod raw_log;
pub mod sign;
pub mod syncs;

pub use agent::{Bench, compile_child, one_task};

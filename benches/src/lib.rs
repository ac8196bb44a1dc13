//! What the benches share.
//!
//! * [`report`]: the frame of a bench: its tables, curves and pictures.
//! * [`live`]: an agent that serves and whose tasks outlive it.
//! * [`fixture`]: allocations and their task records, as an agent writes them.
//! * [`cost`]: what a piece of work cost: time, processor time, allocations, disk, syncs; from
//!   [`counting`] (the allocator), [`proc_io`] (the kernel's counts) and [`syncs`] (fdatasync).
//! * [`guard`]: ends what a bench started, however the bench ends.
//! * [`memory`]: of processes, as the kernel counts it.
//! * [`node`]: whole agents in processes of their own, asked over HTTP: Ostler, and stock Nomad.
//! * [`percentiles`]: samples and their order.
//! * [`plugins`]: plugins without an agent around them.
//! * [`sign`]: the instant at which a program's own code runs.
//! * [`raw_disk`], [`bare_redb`], [`bare_wasm`]: the baselines.
//! * [`load`]: many clients of an API at a time.
//! * [`machine`]: facts of the machine, where to write, quick runs.
//! * [`promise`]: what was promised and what was measured.
#![allow(clippy::expect_used, clippy::panic, reason = "a bench that cannot set up has to end")]

pub mod bare_redb;
pub mod bare_wasm;
pub mod cost;
pub mod counting;
pub mod fixture;
pub mod forks;
pub mod guard;
pub mod live;
pub mod load;
pub mod machine;
pub mod memory;
pub mod node;
pub mod percentiles;
pub mod plugins;
pub mod proc_io;
pub mod promise;
pub mod raw_disk;
pub mod raw_log;
pub mod report;
pub mod sign;
pub mod steps;
pub mod syncs;

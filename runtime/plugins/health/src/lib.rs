//! The health of plugins: counts of their calls, strikes and quarantine, and the loops that ask
//! them for their fingerprints.
//!
//! This crate must not call a plugin. Whoever calls one reports the result to the meter.
//!
//! Start reading at `policy.rs` (whom a failure counts against; pure), then `meter.rs`.

pub mod meter;
pub mod metrics;
pub mod policy;
pub mod refresh;
pub mod strikes;

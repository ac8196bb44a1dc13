//! How plugins do: what is counted of their calls, strikes and quarantine, and the loops that ask them
//! for their fingerprints again and again.
//!
//! May not: call a plugin. Whoever does tells the meter how it went.
//!
//! Start reading at `policy.rs` (whom a failure counts against; pure), then `meter.rs`.

pub mod meter;
pub mod metrics;
pub mod policy;
pub mod refresh;
pub mod strikes;

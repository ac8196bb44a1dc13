//! Drivers as the node sees them.
//!
//! What task runners know of drivers is in [`ostler_model::ports`]. [`proxy`] implements it with
//! calls into a plugin. [`manager`] holds all drivers, asks each for its fingerprint again and
//! again, and publishes the answers to the node.

pub mod manager;
pub mod proxy;
mod usual_env;

//! Drivers as the node sees them.
//!
//! [`api`] is what task runners know; [`proxy`] answers it with calls into a plugin; [`manager`]
//! holds all drivers, asks each for its fingerprint again and again, and publishes to the node.

pub mod api;
pub mod manager;
pub mod proxy;

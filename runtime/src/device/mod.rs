//! Devices as the node sees them.
//!
//! [`manager`] holds the device plugins, asks each for its fingerprint and merges the groups into
//! the node; [`ledger`] (pure) knows who holds which instance; [`matching`] (pure) chooses
//! instances for a request and explains when it cannot.

pub mod ledger;
pub mod manager;
pub mod matching;

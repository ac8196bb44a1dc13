//! Devices as the node sees them.
//!
//! ```text
//! plugins ([`source`]) ─ fingerprint ─► [`inventory`] ─► NodePublisher ─► [`matching`]
//!           ◄─ reserve, release ── [`reservation`] ◄── tasks                  │ who holds what
//!           ─ statistics ─► [`stats`] ─► API, CLI                             └─► [`ledger`]
//! ```
//! [`manager`] drives the others: it asks the plugins, retries, and contains those that fail. All
//! modules but [`manager`] and [`source`] are pure. Start with [`manager`]; [`ledger`] decides who
//! holds what.

pub mod inventory;
pub mod ledger;
pub mod manager;
pub mod matching;
pub mod reservation;
pub mod source;
pub mod stats;

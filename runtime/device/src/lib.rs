//! Devices as the node sees them.
//!
//! ```text
//!  plugins ([`source`]) ─ fingerprint ─► [`inventory`] ─► Node ─► [`matching`] ─► [`ledger`]
//!                       ◄─ reserve, release ── [`reservation`] ◄── tasks            who holds what
//!                       ─ statistics ─► [`stats`] ─► API, CLI
//! ```
//! [`manager`] drives it: it asks the plugins, retries, and contains those that fail. All the others
//! but [`source`] are pure. Start with [`manager`]; who holds what is decided in [`ledger`].

pub mod inventory;
pub mod ledger;
pub mod manager;
pub mod matching;
pub mod reservation;
pub mod source;
pub mod stats;

//! Tools for authors of plugins.
//!
//! ```text
//! recording    the last calls of a plugin, on disk when one failed ─► made again anywhere
//! conformance  a component ─► is it a plugin that an agent can rely on?
//! ```
//! Plugins know nothing of this crate: it uses what the plugin crate offers to anybody. Start with
//! `recording/ring.rs`, or with `conformance/rules.rs`.

pub mod conformance;
pub mod recording;

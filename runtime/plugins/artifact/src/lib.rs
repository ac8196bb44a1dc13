//! Gets the bytes of plugins, and decides whether they are trusted.
//!
//! ```text
//! oci://… ─► registry::RegistryClient ─► registry::Store: pinned by digest ─► bytes
//! bytes, signature, trust file ─► trust::verdict ─► Voucher or Refusal
//! ```
//! This crate handles bytes without reading their content: other crates read what a component asks
//! for. Start reading with [`trust`], then [`registry`].

pub mod registry;
pub mod trust;

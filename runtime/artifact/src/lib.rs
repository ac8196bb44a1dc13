//! Where the bytes of plugins come from, and whether they are trusted.
//!
//! ```text
//! oci://… ─► registry::Client ─► registry::Store: pinned by digest ─► bytes
//! bytes, signature ─► trust::verdict ◄─ trust file                └──► Voucher or Refusal
//! ```
//! Looks at bytes and never into them: what a component asks for is read elsewhere. Start with
//! [`trust`], then [`registry`].

pub mod registry;
pub mod trust;

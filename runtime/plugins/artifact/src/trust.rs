//! Decides whether a plugin's bytes are trusted, by signatures and digests against the operator's
//! trust file.
//!
//! ```text
//! plugin bytes ─► digest ───────────────────────────────────────┐
//!      │                                                        ▼
//! FILE.minisig ─► signature::check ─► SignatureCheck ─► verdict ─► Voucher: who says so
//!                       ▲                                 ▲   └──► Refusal: why not, and what would mend it
//! trust file ─► jobspec ┴─► Policy ───────────────────────┘
//! ```
//! The bytes that were checked are the ones that are compiled later: nothing is read twice.
//! `signature` and `verdict` are pure; `read` is the only part that opens files.

mod read;
mod signature;
mod verdict;

pub use read::{ReadError, UnverifiedComponent, read_component, read_policy, signature_path};
pub use signature::{Signature, SignatureCheck, SignatureError, check};
pub use verdict::{Demand, PluginOrigin, Policy, TrustRefusal, verdict};

#[cfg(test)]
mod tests;

//! Whether a plugin's bytes are trusted: signatures and digests against the operator's trust file.
//!
//! ```text
//! plugin bytes ─► digest ───────────────────────────────┐
//!      │                                                ▼
//! FILE.minisig ─► signature::check ─► Signed ─► verdict ─► Voucher: who says so
//!                       ▲                         ▲   └──► Refusal: why not, and what would mend it
//! trust file ─► jobspec ┴─► Policy ───────────────┘
//! ```
//! The same bytes that were checked are compiled later: nothing is read twice. `signature` and
//! `verdict` are pure; `read` is the only part that opens files.

mod read;
mod signature;
mod verdict;

pub use read::{ReadError, Unverified, component, policy, signature_path};
pub use signature::{Signature, SignatureError, Signed, check};
pub use verdict::{Demand, PluginOrigin, Policy, TrustRefusal, verdict};

#[cfg(test)]
mod tests;

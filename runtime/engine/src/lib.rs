//! How the engines of guests are configured, and code that was made for them before.
//!
//! ```text
//!  build script ── precompile ──► ahead: code for any processor of this architecture, sealed
//!                      ▲                          │ embedded; checked before it is used
//!  compile child ──────┘                          ▼
//!  agent ───── the same configuration ───► sandbox: its cache ─► mapped
//! ```
//! Apart from the sandbox because the build needs it, and nothing else of the agent. Start with
//! [`base_config`]; then `ahead`.

pub mod ahead;
mod config;
mod seal;

pub use config::{
    EngineKind, Format, base_config, compatibility, compiler_engine, forbidden_features, precompile,
};
pub use seal::{Meant, SEAL_BYTES, Sealer};

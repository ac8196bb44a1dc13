//! Configuration of the engines of guests, and code that is compiled for them in advance.
//!
//! ```text
//!  build script ── precompile ──► ahead: code for any processor of this architecture, sealed
//!                      ▲                          │ embedded; checked before it is used
//!  compile child ──────┘                          ▼
//!  agent ───── the same configuration ───► sandbox: its cache ─► mapped
//! ```
//! The crate is apart from the sandbox because the build needs it, and nothing else of the agent.
//! Start with [`base_config`]; then `ahead`.

pub mod ahead;
mod config;
mod seal;

pub use config::{
    EngineKind, WasmFormat, base_config, compatibility, compiler_engine, forbidden_features,
    precompile,
};
pub use seal::{CodeIdentity, SEAL_BYTES, Sealer};

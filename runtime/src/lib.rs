//! Ostler: a node agent whose drivers and device plugins are sandboxed WebAssembly components.
//!
//! What is here stands on all the other crates: [`agent`] is the process and its one handle; it places
//! jobs and gives each allocation an owner. [`api`] is the agent over HTTP, [`cli`] the face of the
//! binary. Start with [`agent`]; ARCHITECTURE.md has the picture, the crates and the invariants.

pub mod agent;
pub mod api;
pub mod cli;
#[doc(hidden)]
pub mod fuzz;

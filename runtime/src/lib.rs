//! Ostler: a node agent whose drivers and device plugins are sandboxed WebAssembly components.
//!
//! The modules, in reading order: [`ostler_model`] is plain data, [`ostler_jobspec`] reads job files into it.
//! [`agent`] is the process and its one handle; it places jobs ([`ostler_node`], [`device`]) and gives each
//! allocation an owner ([`ostler_lifecycle::alloc`]), which gives each task an owner ([`ostler_lifecycle::task`]). Tasks are started
//! through drivers ([`driver`]), which are plugins ([`plugin`]) in a sandbox ([`sandbox`]); what
//! they may ask of the machine is in [`host`]; whether their bytes are believed [`ostler_artifact::trust`]
//! says. Output goes to [`ostler_logs`], what must survive to
//! [`ostler_state`]. [`api`] is the agent over HTTP, [`cli`] the face of the binary. Time, randomness and
//! limits each have one door: [`ostler_model::clock`], [`ostler_model::rng`],
//! [`ostler_model::limits`].
//!
//! ARCHITECTURE.md has the picture, the data flow and the invariants.

pub mod agent;
pub mod api;
pub mod cli;
pub mod device;
pub mod driver;
#[doc(hidden)]
pub mod fuzz;
pub mod host;
pub mod plugin;
pub mod sandbox;
pub mod threads;

//! Ostler: a node agent whose drivers and device plugins are sandboxed WebAssembly components.
//!
//! The modules, in reading order: [`model`] is plain data, [`jobspec`] reads job files into it.
//! [`agent`] is the process and its one handle; it places jobs ([`node`], [`device`]) and gives each
//! allocation an owner ([`alloc`]), which gives each task an owner ([`task`]). Tasks are started
//! through drivers ([`driver`]), which are plugins ([`plugin`]) in a sandbox ([`sandbox`]); what
//! they may ask of the machine is in [`host`]; whether their bytes are believed [`trust`] says. Output goes to [`logs`], what must survive to
//! [`state`]. [`api`] is the agent over HTTP, [`cli`] the face of the binary. Time, randomness and
//! limits each have one door: [`clock`], [`rng`], [`limits`].
//!
//! ARCHITECTURE.md has the picture, the data flow and the invariants.

pub mod agent;
pub mod alloc;
pub mod api;
pub mod cli;
pub mod clock;
pub mod device;
pub mod driver;
pub mod durable;
pub mod host;
pub mod jobspec;
pub mod limits;
pub mod logs;
pub mod model;
pub mod node;
pub mod plugin;
pub mod registry;
pub mod rng;
pub mod sandbox;
pub mod state;
pub mod task;
pub mod testing;
pub mod threads;
pub mod trust;

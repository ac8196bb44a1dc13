//! Plain data: what a job asks for, what an allocation is, what a task does; the limits of the agent;
//! the traits by which task runners know drivers and devices ([`ports`]); and the one door each to
//! time ([`clock`]) and randomness ([`rng`]).
//!
//! No I/O, no state, no plugins. Data is cheap to clone or behind an `Arc`, is written to the state
//! file with postcard (so: no untagged or flattened fields) and shown to people as JSON.
//!
//! Start with [`job::Job`], then [`alloc`]: [`alloc::Allocation`] is what is to run (static),
//! [`alloc::AllocState`] is its present state (dynamic). They are never merged.

pub mod access;
pub mod alloc;
pub mod artifact;
pub mod attribute;
pub mod calls;
pub mod cancellation;
pub mod causes;
pub mod clock;
pub mod config;
pub mod cores;
pub mod cow_arc;
pub mod device;
pub mod digest;
pub mod disk_work;
pub mod endpoint;
pub mod event;
pub mod grants;
pub mod ids;
pub mod isolation;
pub mod job;
mod job_id;
pub mod json;
pub mod limits;
pub mod links;
pub mod log_config;
pub mod network;
pub mod oci;
pub mod other_nodes;
pub mod owners;
pub mod placement;
pub mod planted;
pub mod plugin;
pub mod ports;
pub mod printable;
pub mod redact;
pub mod resources;
pub mod rng;
pub mod rollout;
pub mod saved;
pub mod scheduling;
pub mod server_address;
pub mod service;
pub mod session;
pub mod signal;
pub mod stats;
pub mod task;
pub mod task_path;
pub mod telemetry;
pub mod template;
pub mod time;
pub mod trust;
pub mod variables;
pub mod vars;
pub mod volume;
pub mod words;

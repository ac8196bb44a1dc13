//! Plain data: what a job asks for, what an allocation is, what a task does.
//!
//! No I/O, no async, no plugins. Everything here is cheap to clone or behind an `Arc`, is written
//! to the state file with postcard (so: no self-describing tricks such as untagged or flattened
//! fields) and shown to people as JSON.
//!
//! [`alloc::Allocation`] is what was asked (static); [`alloc::AllocState`] is what is (dynamic).
//! They are never merged: names, job and resources come from the first, anything that changes on
//! the node from the second.

pub mod alloc;
pub mod attribute;
pub mod causes;
pub mod config;
pub mod device;
pub mod digest;
pub mod endpoint;
pub mod event;
pub mod ids;
pub mod isolation;
pub mod job;
pub mod json;
pub mod oci;
pub mod plugin;
pub mod resources;
pub mod saved;
pub mod shown;
pub mod signal;
pub mod stats;
pub mod task;
pub mod time;
pub mod trust;
pub mod variables;
pub mod words;

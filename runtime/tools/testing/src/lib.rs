//! Stand-ins for the node around the runners: for tests and simulation, never for an agent.
//!
//! [`fake_driver::FakeNode`] is drivers, workloads and devices in one, scripted per task and per
//! run, living on tokio's (virtual) time, with a journal of every call. Start there.
//! [`recorded`] is what stock Nomad said on the wire, [`shapes`] what such messages consist
//! of. [`programs`] writes scripts that can be run at once. [`golden`] compares texts with files.
//! [`system_calls`] reads what strace counted.
//! `servers` is a double of Nomad's servers, with the feature of that name.

pub mod fake_driver;
pub mod fake_variables;
pub mod files;
pub mod fixtures;
pub mod golden;
pub mod programs;
pub mod recorded;
#[cfg(feature = "servers")]
pub mod servers;
pub mod shapes;
pub mod system_calls;

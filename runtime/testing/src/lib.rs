//! Stand-ins for the node around the runners: for tests and simulation, never for an agent.
//!
//! [`fake_driver::FakeNode`] is drivers, workloads and devices in one, scripted per task and per
//! run, living on tokio's (virtual) time, with a journal of every call. Start there.

pub mod fake_driver;
pub mod fixtures;

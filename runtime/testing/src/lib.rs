//! Stand-ins for the node around the runners, for tests, simulation and plugin authors.
//!
//! [`fake_driver::FakeNode`] is drivers, workloads and devices in one, scripted per task and per
//! run, living on tokio's (virtual) time, with a journal of every call.

pub mod fake_driver;
pub mod fixtures;

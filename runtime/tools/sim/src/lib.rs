//! A whole node from a seed: control, owners of allocations and tasks, device manager and store as they
//! are shipped, over a world of scripted drivers, devices, processes and disks, on virtual time.
//!
//! ```text
//! seed ─► Plan ─► Play: agents one after the other over one World ─► Failure, or how it went
//!                   └─ each door of the world is a place where the agent may be killed, or its machine
//!                      lose power; the records are in memory, or in a state file on a disk with faults
//! ```
//! May not: stand in for a decision of the node. What it plays is scripted, what it checks is in
//! `checks`, `play/rest.rs` and `play/stops.rs`.
//!
//! `joined` has such a node with servers, `scale` many of them: see there.
//!
//! Start reading at `play.rs` (one history), then `world.rs` (what outlives an agent).

pub mod checks;
mod devices;
mod drivers;
pub mod files;
pub mod history;
pub mod joined;
mod places;
pub mod plan;
pub mod planted;
pub mod play;
pub mod scale;
pub mod shrink;
pub mod world;

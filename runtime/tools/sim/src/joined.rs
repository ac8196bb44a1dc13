//! A node that Nomad's servers have, from a seed: the node as `play` has it, joined by the client as it is
//! shipped to a double of the servers, over connections on virtual time that do whatever connections do.
//!
//! ```text
//! agent ─ SimNode ─► the loops of ostler_cluster ─ SimDoor ─► Net: latency, faults, cuts ─► Double ◄─ Servers
//! ```
//! May not: stand in for a decision of the client. What must be so is in `joined/checks.rs`.
//!
//! Start reading at `joined/play.rs`.

pub(crate) mod checks;
pub mod net;
pub(crate) mod node;
pub mod plan;
pub mod play;
pub(crate) mod servers;

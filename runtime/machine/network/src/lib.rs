//! The networks of allocations that do not use the node's.
//!
//! ```text
//!            record, before anything is made
//! alloc ─► set_up ─► namespace held by a file ─► plugins, one after the other (ADD) ─► record with what came of it
//!          tear_down ─► plugins in reverse (DEL) ─► namespace let go ─► record removed
//!          sweep ─► the same for every record whose allocation is over: what an agent that was killed left
//! ```
//! [`conflist`] (the input of plugins) and [`answer`] (their output) are pure; `run` runs a plugin,
//! [`keep`] is the record, [`found`] says what this node can do, and [`make`] puts it all together.
//! Start reading with [`make`].

pub mod answer;
pub mod conflist;
pub mod detect;
pub mod keep;
pub mod make;
mod run;

pub use detect::{NetworkAbilities, facts};
pub use make::AllocNetworks;

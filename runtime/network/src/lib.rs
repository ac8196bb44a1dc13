//! Networks that allocations have of their own.
//!
//! ```text
//!            record, before anything is made
//! alloc ─► set_up ─► namespace held by a file ─► plugins, one after the other (ADD) ─► record with what came of it
//!          tear_down ─► plugins in reverse (DEL) ─► namespace let go ─► record removed
//!          sweep ─► the same for every record whose allocation is over: what an agent that was killed left
//! ```
//! [`conflist`] (what plugins are told) and [`answer`] (what they say) are pure; `run` runs one, [`keep`]
//! is the record, [`found`] says what this node can do, [`make`] puts it together. Start with [`make`].

pub mod answer;
pub mod conflist;
pub mod found;
pub mod keep;
pub mod make;
mod run;

pub use found::{CanMake, facts};
pub use make::AllocNetworks;

//! Garbage collection. Allocations that are over keep their directory, for their logs, until room
//! or numbers require that some go. [`choice`] decides which go next, [`crate::machine`] when that
//! is checked, and [`gauge`] measures how full the file system is.
//!
//! Of the ledger (reference §1.14, §2.11):
//! - H45 (#25123), collection blocked the client's loop: removals and measuring are effects, which the
//!   owner carries out beside everything else.
//! - L13, a second look before anything is freed: it is measured again when a removal is complete.
//! - #3421, one cannot be collected alone: [`crate::ControlHandle::collect`] takes one or all.

pub mod choice;
pub mod gauge;

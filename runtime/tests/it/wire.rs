//! What nodes and servers say on the wire: recorded of stock ones, and ours held against that.
//!
//! ```text
//! node ─► proxy ─► server      said ─► messages ─┬─► the richest of each kind ─► files (recording)
//!                                                └─► held against the files (requests, answers)
//! ```

mod answers;
mod choice;
mod held;
mod messages;
mod node;
mod outside;
mod proxy;
mod recording;
mod requests;
mod scene;
mod stock;

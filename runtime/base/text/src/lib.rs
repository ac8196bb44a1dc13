//! Texts of strangers, as more than one reader meets them: job files, templates, constraints.
//!
//! ```text
//! patterns: regular expressions, with a price     yaml: events ─► values of the caller, not recursive
//! duration: `1h30m` ◄─► a time                    number, layout: how `printf` writes a value
//! suggest: the valid name nearest to a slip
//! ```
//! It knows nothing of jobs and of nodes, so that the languages that use it do not either. All of it
//! is pure. Start with [`yaml::read`], then [`patterns::Patterns`].

pub mod duration;
pub mod layout;
pub mod number;
pub mod patterns;
pub mod suggest;
pub mod yaml;

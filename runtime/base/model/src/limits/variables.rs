//! Variables that the agent keeps.

use std::time::Duration;

use super::{KIB, MIB};

/// Longest path of a variable, characters: as in Nomad.
pub const VAR_PATH_CHARS_MAX: usize = 128;
/// Most items of one variable. Those of a job have up to ten.
pub const VAR_ITEMS_MAX: usize = 1_024;
/// Largest variable, bytes of names and values together: as in Nomad.
pub const VAR_BYTES_MAX: usize = 64 * KIB as usize;
/// Most variables of a node: each task of the largest job has one of its own a few times over.
pub const VARS_MAX: usize = 10_000;
/// Bytes of all variables of a node together: they are held in memory.
pub const VARS_BYTES_MAX: usize = 32 * MIB as usize;
/// Longest wait for the write of a variable: a disk that hangs fails the request, visibly.
pub const VAR_WRITE_WALL_MAX: Duration = Duration::from_secs(20);
/// Changes of variables that wait for the disk at once: a disk that hangs holds up no more memory than that.
pub const VAR_CHANGES_MAX: usize = 64;

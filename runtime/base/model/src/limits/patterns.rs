//! What a job may compare, and what the regular expressions in that may cost.

use super::{KIB, MIB};

/// Most memory of the kept expressions of constraints, bytes: of eight jobs that use all they may, or of some
/// thousand as people write them.
pub const CONSTRAINT_PATTERNS_BYTES_MAX: usize = 16 * MIB as usize;
/// Longest side of a constraint or an affinity as written in a job, bytes: sets and patterns are searched for
/// many devices.
pub const CONSTRAINT_SIDE_BYTES_MAX: usize = 4 * KIB as usize;
/// Most constraints and affinities of one job with its groups, tasks and devices: all of them are checked
/// whenever an allocation of the job is placed. Jobs have up to ten.
pub const JOB_RULES_MAX: usize = 1_000;
/// Most that compiling the expressions of these rules may cost together, bytes as they are counted
/// (a large one as a mebibyte): some ten milliseconds, whenever they are not kept any more.
pub const JOB_PATTERNS_BYTES_MAX: usize = 2 * MIB as usize;

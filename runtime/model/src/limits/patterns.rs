//! What regular expressions of strangers may cost, and what a job may compare.

use super::{KIB, MIB};

/// Longest regular expression, bytes; as long as a side of a constraint may be.
pub const PATTERN_BYTES_MAX: usize = CONSTRAINT_SIDE_BYTES_MAX;
/// Most memory of a compiled expression, bytes: some milliseconds of work. `\w{10}` fits.
pub const PATTERN_MEMORY_BYTES_MAX: usize = MIB as usize;
/// Deepest nesting of groups in an expression: each takes a part of the stack.
pub const PATTERN_NESTING_MAX: u32 = 100;
/// Most compiled expressions that are kept in one place, including those that could not be compiled.
pub const PATTERNS_KEPT_MAX: usize = 1_024;
/// Most memory of the kept expressions of constraints, bytes: of eight jobs that use all they may, or of some
/// thousand as people write them.
pub const CONSTRAINT_PATTERNS_BYTES_MAX: usize = 16 * MIB as usize;
/// Most memory of the expressions that one job file or template keeps while it is read, bytes.
pub const PATTERNS_OF_ONE_BYTES_MAX: usize = 4 * MIB as usize;
/// Longest side of a constraint or an affinity as written in a job, bytes: sets and patterns are searched for
/// many devices.
pub const CONSTRAINT_SIDE_BYTES_MAX: usize = 4 * KIB as usize;
/// Most constraints and affinities of one job with its groups, tasks and devices: all of them are checked
/// whenever an allocation of the job is placed. Jobs have up to ten.
pub const JOB_RULES_MAX: usize = 1_000;
/// Most that compiling the expressions of these rules may cost together, bytes as they are counted
/// ([`PATTERN_MEMORY_BYTES_MAX`]): some ten milliseconds, whenever they are not kept any more.
pub const JOB_PATTERNS_BYTES_MAX: usize = 2 * MIB as usize;

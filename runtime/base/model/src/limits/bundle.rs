//! Limits of the archive that people send when something is wrong.

use std::time::Duration;

use super::MIB;

/// Most bytes of one part; a longer part is cut, and the list of parts says so.
pub const BUNDLE_PART_BYTES_MAX: usize = 8 * MIB as usize;
/// How long one part may take. A part that takes longer is replaced by a file that says so.
pub const BUNDLE_PART_WALL_MAX: Duration = Duration::from_secs(10);
/// How long all parts together may take. Parts that are left then are not collected.
pub const BUNDLE_WALL_MAX: Duration = Duration::from_secs(120);
/// Jobs that are in it one by one; of all there is the list.
pub const BUNDLE_JOBS_MAX: usize = 100;

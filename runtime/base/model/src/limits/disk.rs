//! What allocations have on disk that no directory shows.

use super::MIB;

/// Descriptors and mappings of an allocation's processes that are looked at for files without a name when it is
/// measured: about a second of one core. Beyond it the result is a lower bound.
pub const HELD_FILES_LOOKED_AT_MAX: u64 = 200_000;
/// Bytes of the list of one process's mappings: some 60,000 of them, which is as many as the kernel allows.
pub const HELD_MAPS_BYTES_MAX: u64 = 8 * MIB;

//! Limits of a plugin that a stock Nomad client runs.

use std::time::Duration;

use super::MIB;

/// Largest configuration of a task or of the plugin, bytes: it comes in one message of gRPC, which holds
/// 4 MiB.
pub const NOMAD_CONFIG_BYTES_MAX: usize = 4 * MIB as usize;
/// How long answers that are under way may hold up the end of the process: Nomad kills it after 2 s.
pub const NOMAD_PLUGIN_LEAVE_WALL: Duration = Duration::from_millis(500);

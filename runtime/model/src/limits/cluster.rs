//! Limits of a connection to Nomad's servers.

use std::time::Duration;

use super::MIB;

/// Streams of a server that wait to be taken up: each is somebody who reads logs or files or asks for
/// figures. One too many is reset, and the server asks again.
pub const CLUSTER_ARRIVALS_MAX: usize = 64;
/// Streams of ours that wait to be opened: a few loops and what they call.
pub const CLUSTER_OPENINGS_MAX: usize = 64;
/// Streams open at once on one connection, of both ends. Each may hold a window of 256 KiB.
pub const CLUSTER_STREAMS_MAX: usize = 512;
/// Requests of one stream that wait to be written: who calls then waits, with its own deadline.
pub const CLUSTER_REQUESTS_MAX: usize = 64;
/// Longest wait for a stream: the server acknowledges one in a round trip.
pub const CLUSTER_OPEN_WALL_MAX: Duration = Duration::from_secs(10);
/// Longest answer of a server, bytes: ten thousand allocations with their job are below 64 MiB.
pub const CLUSTER_ANSWER_BYTES_MAX: usize = 64 * MIB as usize;
/// Longest wait for one step towards a server (a name, a connection, TLS, one call) where nothing else
/// is said. A server that has lost its leader holds a call for up to five seconds.
pub const CLUSTER_STEP_WALL_DEFAULT: Duration = Duration::from_secs(10);
/// Most servers that are asked for at once: clusters have three to seven.
pub const CLUSTER_SERVERS_MAX: usize = 32;
/// Largest file with certificates or a key, bytes.
pub const CLUSTER_PEM_BYTES_MAX: u64 = MIB;
/// Allocations that one call tells the servers of: each is some kilobytes, and a server puts a call into one
/// entry of its log.
pub const CLUSTER_UPDATES_PER_CALL: usize = 500;

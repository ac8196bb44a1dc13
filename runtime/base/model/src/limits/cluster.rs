//! Limits of a connection to Nomad's servers.

use std::time::Duration;

use super::MIB;

/// Streams of a server that wait to be accepted: each is for a person who reads logs or files or asks for
/// figures. Further streams are reset, and the server asks again.
pub const CLUSTER_ARRIVALS_MAX: usize = 64;
/// Streams of the agent's own that wait to be opened: those of a few loops and of their calls.
pub const CLUSTER_OPENINGS_MAX: usize = 64;
/// Streams open at once on one connection, of both ends. Each may hold a window of 256 KiB.
pub const CLUSTER_STREAMS_MAX: usize = 512;
/// Requests of one stream that wait to be written. Further callers wait, each with its own deadline.
pub const CLUSTER_REQUESTS_MAX: usize = 64;
/// Longest wait for a stream: the server acknowledges one in a round trip.
pub const CLUSTER_OPEN_WALL_MAX: Duration = Duration::from_secs(10);
/// Longest answer of a server, bytes: ten thousand allocations with their job are below 64 MiB.
pub const CLUSTER_ANSWER_BYTES_MAX: usize = 64 * MIB as usize;
/// Default of the longest wait for one step towards a server: a name, a connection, TLS, one call. A server
/// that has lost its leader holds a call for up to five seconds.
pub const CLUSTER_STEP_WALL_DEFAULT: Duration = Duration::from_secs(10);
/// Most servers that are contacted at once: clusters have three to seven.
pub const CLUSTER_SERVERS_MAX: usize = 32;
/// Largest file with certificates or a key, bytes.
pub const CLUSTER_PEM_BYTES_MAX: u64 = MIB;
/// Allocations that one call tells the servers of: each is some kilobytes, and a server puts a call into one
/// entry of its log.
pub const CLUSTER_UPDATES_PER_CALL: usize = 500;
/// How long a server may hold a question for news.
pub const CLUSTER_BLOCK_WALL: Duration = Duration::from_secs(300);
/// How much longer than that an answer may take: servers add up to a sixteenth of the time.
pub const CLUSTER_BLOCK_GRACE: Duration = Duration::from_secs(40);
/// Most of one text of a server that is kept to be shown, bytes: a reason with a few names in it.
pub const CLUSTER_TEXT_BYTES_MAX: usize = 2_048;
/// What a job may be dispatched with, bytes: as much as servers take.
pub const DISPATCH_PAYLOAD_BYTES_MAX: usize = 16 * 1024;
/// First pause after a call that failed; it doubles.
pub const CLUSTER_RETRY_FIRST: Duration = Duration::from_millis(500);
/// Longest such pause: a server that comes back must be found soon, but a thousand nodes must not ask it all
/// the time.
pub const CLUSTER_RETRY_MAX: Duration = Duration::from_secs(30);
/// How long changes of the node are gathered before they are sent to the servers: plugins come one by one.
pub const CLUSTER_NODE_CHANGES_WALL: Duration = Duration::from_secs(5);
/// How often the agent checks whether there is news of allocations for the servers.
pub const CLUSTER_TELL_TICK: Duration = Duration::from_millis(200);
/// Longest wait until servers have taken an update: they put it into their log first. A call that is given up
/// earlier may still be carried out, after a newer one.
pub const CLUSTER_TELL_WALL: Duration = Duration::from_secs(60);
/// How long after a call without an answer its updates may still be carried out: servers wait 30 s for room
/// in their log, after 5 s for a leader. Updates that are sent meanwhile are sent again after that.
pub const CLUSTER_DOUBT_WALL: Duration = Duration::from_secs(60);
/// Longest wait for the answer of the servers what a token allows: a client waits for it.
pub const CLUSTER_ACCESS_WALL: Duration = Duration::from_secs(20);
/// Longest request of a server, bytes: ids and names.
pub const CLUSTER_ASKED_BYTES_MAX: usize = 64 * 1_024;
/// Longest wait for a request of a server to be carried out, and for its first byte.
pub const CLUSTER_ASKED_WALL: Duration = Duration::from_secs(60);
/// Longest list or figures in one answer to a server, bytes: a directory of some ten thousand files.
pub const CLUSTER_READ_BYTES_MAX: usize = 4 * MIB as usize;
/// Shortest time between two heartbeats, whatever a server asks for: at least 10 s are usual.
pub const CLUSTER_BEAT_MIN: Duration = Duration::from_millis(250);
/// Longest time between two heartbeats, whatever a server asks for.
pub const CLUSTER_BEAT_MAX: Duration = Duration::from_secs(600);
/// Most events of a node that wait to be sent to the servers, which keep as many of each node.
pub const CLUSTER_EVENTS_MAX: usize = 10;
/// How long such an event waits for others.
pub const CLUSTER_EVENTS_WALL: Duration = Duration::from_secs(2);
/// Longest token that introduces a node, and longest identity that servers sign, bytes: some kilobytes are usual.
pub const CLUSTER_TOKEN_BYTES_MAX: u64 = 64 * 1_024;

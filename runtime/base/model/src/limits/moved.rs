//! Bounds of moving the disk of an allocation between two nodes of a cluster.

use std::time::Duration;

use super::KIB;

/// Files, directories and links of one disk that is moved: as many names as take some 100 MB of a file system.
pub const MOVED_ENTRIES_MAX: u64 = 1_000_000;
/// Directories within each other of a disk that is moved: each is open while what is in it is sent.
pub const MOVED_DEPTH_MAX: usize = 128;
/// Longest path or target of a link in it, bytes: the longest that the kernel takes.
pub const MOVED_PATH_BYTES_MAX: usize = 4_095;
/// Longest description of one entry beyond its header, bytes: two paths, and fields that are not read.
pub const MOVED_EXTENSION_BYTES_MAX: u64 = 64 * KIB;
/// Descriptions in a row before what they describe: a long name, a long target, one of a newer kind, and one
/// for all.
pub const MOVED_EXTENSIONS_MAX: u32 = 4;
/// Longest reason of the sending node that is shown, bytes.
pub const MOVED_REASON_BYTES_MAX: usize = 512;
/// Links that were left behind, named to people; the others are counted.
pub const MOVED_LEFT_NAMED_MAX: usize = 5;
/// Bytes behind the end of an archive that are read: archives are padded to 10 KiB as a rule.
pub const MOVED_PADDING_BYTES_MAX: u64 = 64 * KIB;
/// Bytes of a piece on its way from the disk to the network, or the other way.
pub const MOVED_PIECE_BYTES: usize = 64 * 1_024;
/// Pieces that wait between the two: half a megabyte, so that neither waits for each single one.
pub const MOVED_PIECES_WAITING_MAX: usize = 8;

/// Disks that a node fetches at once: more only share its network and its disk.
pub const DISK_FETCHES_AT_ONCE_MAX: usize = 4;
/// Tries to fetch a disk: with the pauses between them a node that starts again is there in time.
pub const DISK_FETCH_TRIES_MAX: u32 = 6;
/// First pause between two tries; it doubles.
pub const DISK_FETCH_PAUSE_FIRST: Duration = Duration::from_secs(2);
/// Longest such pause.
pub const DISK_FETCH_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Longest time for fetching one disk, all tries together: 300 GB over a network of 1 Gbit/s take 40 minutes.
pub const DISK_FETCH_WALL_MAX: Duration = Duration::from_secs(2 * 3_600);
/// Longest silence of the other node while it sends.
pub const DISK_FETCH_SILENCE_MAX: Duration = Duration::from_secs(60);
/// Time between two reports of how much was fetched.
pub const DISK_FETCH_TOLD_EVERY: Duration = Duration::from_secs(3);

/// Questions to servers for previous allocations on other nodes that are open at once: each has a stream.
pub const PREVIOUS_ASKED_AT_ONCE_MAX: usize = 16;
/// How long a server may hold such a question before another one takes its turn.
pub const PREVIOUS_HOLD: Duration = Duration::from_secs(30);
/// How long a fetch waits for this node to have joined its cluster: as long as an agent may take to be ready.
pub const DISK_FETCH_JOINED_WALL: Duration = Duration::from_secs(120);

/// Port on which disks are served where none is given; Nomad's.
pub const DISK_SERVED_PORT: u16 = 4646;
/// Most connections of nodes that fetch a disk at once.
pub const DISK_SERVED_CONNECTIONS_MAX: usize = 64;
/// Most of these connections from one address, so that nobody takes all places.
pub const DISK_SERVED_CONNECTIONS_OF_ONE_MAX: usize = 32;
/// Shortest time between two log lines that say that a connection found no place.
pub const DISK_SERVED_FULL_SAID: Duration = Duration::from_secs(60);
/// Disks that are sent at once: more only share the network and the disk.
pub const DISK_SERVED_AT_ONCE_MAX: usize = 8;
/// How long agreeing on TLS and the head of a request may take.
pub const DISK_SERVED_HEAD_WALL: Duration = Duration::from_secs(10);
/// Longest head of a request, bytes: a path and a token. What reads it has no less.
pub const DISK_SERVED_HEAD_BYTES_MAX: usize = 8 * 1_024;
/// Most headers of a request.
pub const DISK_SERVED_HEADERS_MAX: usize = 32;
/// How long a node that fetches a disk may take no bytes of it.
pub const DISK_SERVED_WRITE_WALL: Duration = Duration::from_secs(60);
/// How long an allocation that is about to end is waited for: servers know that it is over before its last
/// process has gone.
pub const DISK_SERVED_END_WALL: Duration = Duration::from_secs(30);
/// Shortest and longest pause before the port is tried again, where it cannot be opened.
pub const DISK_SERVED_RETRY: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(60);
/// Longest head of an answer of a node that sends a disk, bytes.
pub const DISK_ANSWER_HEAD_BYTES_MAX: usize = 16 * 1_024;

/// Deepest directory whose files are given to another user, directories: each level holds one open file.
pub const OWNED_DEPTH_MAX: usize = 256;
/// Most files and directories of a task's directory that are shown in a root of its own beside those that each
/// task has: each directory is a mount, each file a link.
pub const TASK_ROOT_ENTRIES_MAX: usize = 256;

//! What tasks bring along: artifacts, and modules from elsewhere.

use std::time::Duration;

use super::{KIB, MIB};

/// Most artifacts of one task. Jobs have a handful.
pub const ARTIFACTS_OF_TASK_MAX: usize = 64;
/// Longest text of an artifact (source, header, option), bytes: signed addresses have some KiB.
pub const ARTIFACT_TEXT_BYTES_MAX: usize = 16 * KIB as usize;
/// Longest that one download may take, unless configured; as in Nomad.
pub const ARTIFACT_HTTP_READ_WALL_DEFAULT: Duration = Duration::from_secs(30 * 60);
/// Largest download, bytes, unless configured; as in Nomad.
pub const ARTIFACT_HTTP_BYTES_DEFAULT: u64 = 100 * 1_000_000_000;
/// Most bytes that an archive may become, unless configured; as in Nomad.
pub const ARTIFACT_UNPACKED_BYTES_DEFAULT: u64 = 100 * 1_000_000_000;
/// Most files, directories and links in an archive, unless configured; as in Nomad.
pub const ARTIFACT_UNPACKED_ENTRIES_DEFAULT: u64 = 4_096;
/// Bytes of downloads that are kept for later tasks, unless configured.
pub const ARTIFACT_CACHE_BYTES_DEFAULT: u64 = 4 * 1_024 * MIB;
/// Most downloads that are kept; the directory is searched when one is added.
pub const ARTIFACT_CACHE_ENTRIES_MAX: usize = 10_000;
/// Names by which one kept module is shown to its tasks.
pub const ARTIFACT_CACHE_NAMES_MAX: usize = 16;
/// Downloads at once: beyond that a node's link is busy anyway. A start of fifty tasks has fifty.
pub const ARTIFACT_FETCHES_MAX: usize = 16;
/// Archives unpacked at once, each on a core.
pub const ARTIFACT_UNPACKS_MAX: usize = 4;
/// Wall time for one archive. 100 GB at 50 MB a second take half an hour.
pub const ARTIFACT_UNPACK_WALL: Duration = Duration::from_secs(60 * 60);
/// Wall time for all artifacts of one start of a task: a last resort, each download and each archive has
/// a bound of its own.
pub const ARTIFACTS_WALL_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Wall time for a connection, and again for TLS.
pub const ARTIFACT_CONNECT_WALL: Duration = Duration::from_secs(30);
/// Wall time for the head of an answer.
pub const ARTIFACT_HEAD_WALL: Duration = Duration::from_secs(60);
/// Longest silence within an answer.
pub const ARTIFACT_SILENCE_WALL: Duration = Duration::from_secs(60);
/// Redirects of one download; as in Go's client.
pub const ARTIFACT_REDIRECTS_MAX: usize = 10;
/// Head of an answer, bytes. Signed addresses in redirects have some KiB.
pub const ARTIFACT_HEAD_BYTES_MAX: usize = 64 * 1_024;
/// Most headers of an answer.
pub const ARTIFACT_ANSWER_HEADERS_MAX: usize = 100;
/// Deepest entry of an archive, directories.
pub const ARTIFACT_DEPTH_MAX: usize = 64;
/// Address space of the process that downloads and unpacks, bytes. The program itself takes a quarter; the
/// dictionaries of xz and zstd are refused before they could take the rest.
pub const ARTIFACT_CHILD_ADDRESS_SPACE_BYTES_MAX: u64 = 1_024 * MIB;
/// Memory that one decompressor may use, bytes: xz -9 needs 65 MiB, zstd --ultra -22 128 MiB.
pub const ARTIFACT_DECOMPRESSOR_BYTES_MAX: u64 = 192 * MIB;
/// Processor time of that process, seconds: xz unpacks some 50 MB a second.
pub const ARTIFACT_CHILD_CPU_SECONDS_MAX: u64 = 60 * 60;
/// Files that process may have open: its streams, connections, and a directory for each level.
pub const ARTIFACT_CHILD_OPEN_FILES_MAX: u64 = 256;
/// How often that process gives a sign of life.
pub const ARTIFACT_SIGN_INTERVAL: Duration = Duration::from_secs(10);
/// Longest silence of that process, some of these intervals, before it is killed because it hangs.
pub const ARTIFACT_CHILD_SILENCE_WALL_MAX: Duration = Duration::from_secs(60);
/// How many such processes are tried for the same work, where they hang.
pub const ARTIFACT_CHILD_TRIES_MAX: u32 = 2;
/// Longest line between that process and the agent, bytes.
pub const ARTIFACT_LINE_BYTES_MAX: usize = 2 * MIB as usize;
/// Longest reason that process may give, bytes.
pub const ARTIFACT_REASON_BYTES_MAX: usize = 1_024;
/// From one word of that process on how far it is to the next.
pub const ARTIFACT_PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// From one event on how far a download is to the next: events of a task are few.
pub const ARTIFACT_EVENT_INTERVAL: Duration = Duration::from_secs(30);
/// Longest address shown in an event or a message, bytes.
pub const URL_SHOWN_BYTES_MAX: usize = 512;

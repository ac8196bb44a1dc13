//! Limits of the API and of its clients.

use std::time::Duration;

use super::{KIB, MIB};

/// How often the agent checks that the file of its socket exists, without which no client reaches it.
pub const API_SOCKET_LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Largest body of a request, bytes: a job of [`super::JOB_FILE_BYTES_MAX`] inside JSON, escapes included.
pub const API_BODY_BYTES_MAX: usize = 4 * MIB as usize;
/// Bodies up to this length are read whatever other callers send, bytes. Those of most jobs are shorter.
pub const API_BODY_SMALL_BYTES_MAX: u64 = 64 * KIB;
/// Larger bodies over the socket that are read at once: each is in memory until it is answered.
pub const API_BODIES_MAX: usize = 16;
/// Larger bodies that are read at once of callers with tokens and over TCP. One caller may have half of them.
pub const API_TCP_BODIES_MAX: usize = 32;
/// Request line and headers of one request together, bytes. Nomad's command line sends below 1 KiB.
pub const API_HEADER_BYTES_MAX: usize = 16 * KIB as usize;
/// Longest that a client may take for the head of a request, or leave a connection idle.
pub const API_HEADER_WALL_MAX: Duration = Duration::from_secs(30);
/// Bytes of a request's body that are read and thrown away after it was answered, so that a client
/// which writes it whole before it reads gets the answer: a body some times as large as is taken.
pub const API_DRAIN_BYTES_MAX: usize = 8 * API_BODY_BYTES_MAX;
/// How long that may take; the answer waits for it. Local clients write without a pause.
pub const API_DRAIN_WALL_MAX: Duration = Duration::from_secs(1);
/// Most connections of the socket at once; each may have one request under way. There is room for five
/// hundred waiting queries beside all streams. A connection without a request makes room for another.
pub const API_CONNECTIONS_MAX: usize = 768;
/// Most threads that answer requests; no more than there are cores.
pub const API_THREADS_MAX: usize = 4;
/// Further connections that are refused with status 503 at the same time; all beyond are dropped.
pub const API_REFUSALS_MAX: usize = 16;
/// How long such a refusal may take.
pub const API_REFUSAL_WALL_MAX: Duration = Duration::from_secs(2);
/// Streams (followed logs, files, events) over the socket at once: fewer than connections, so that followers
/// alone cannot lock everybody else out.
pub const API_STREAMS_MAX: usize = 192;
/// Streams of callers with tokens and over TCP at once. One caller may have half of them: a hundred followed
/// logs beside fifty streams of events.
pub const API_TCP_STREAMS_MAX: usize = 320;
/// Queries of callers with tokens and over TCP that wait for a change at once. One caller may have half of
/// them, five hundred.
pub const API_TCP_WAITS_MAX: usize = 1_024;
/// Longest that a request may take which neither waits for a change nor streams. Above
/// [`super::KILL_TIMEOUT_MAX`] and [`super::KILL_GRACE`], which bound a restart.
pub const API_REQUEST_WALL_MAX: Duration = Duration::from_secs(60);
/// Threads that compute for requests (read jobs, plan, compare): few, behind all others.
pub const API_COMPUTING_THREADS: usize = 4;
/// Threads of these that compute at once for all callers but the agent's user over the socket.
pub const API_COMPUTING_OTHERS_MAX: usize = 3;
/// Threads of these that compute at once for one of those callers.
pub const API_COMPUTING_OF_ONE_MAX: usize = 2;
/// Requests of one caller that wait until they are computed; further ones are refused.
pub const API_COMPUTING_WAITING_MAX: usize = 64;
/// Longest that a request waits for what is computed for it. A job of a thousand tasks takes a tenth of a second.
pub const API_COMPUTING_WALL_MAX: Duration = Duration::from_secs(20);
/// How long a request waits for what a starting agent does not have yet, before it gets an answer that says
/// so. Most starts are shorter, and a caller that repeats the request learns in between how far the start is.
pub const API_START_WAIT: Duration = Duration::from_secs(3);
/// How long a query with `index` waits for a change unless it names a time; Nomad's default.
pub const API_WAIT_DEFAULT: Duration = Duration::from_secs(5 * 60);
/// Longest wait a query may ask for; Nomad's bound.
pub const API_WAIT_MAX: Duration = Duration::from_secs(10 * 60);
/// Shortest pause between two looks of a waiting query, so that a hundred of them do not make every change of
/// a busy node a hundred times as expensive.
pub const API_LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Longest such pause. It is how late an answer may be when hundreds of queries wait for something that is
/// expensive to look at.
pub const API_LOOK_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// All looks of waiting queries together take at most one part in this many of a core.
pub const API_LOOKS_SHARE: u32 = 4;
/// Silence in a stream of frames after which an empty one is sent; Nomad's interval.
pub const API_HEARTBEAT: Duration = Duration::from_secs(1);
/// Events that are kept as JSON because several streams send them at about the same time, bytes.
pub const API_EVENTS_RENDERED_BYTES_MAX: usize = 4 * MIB as usize;
/// Room for the short form of an allocation in a list, bytes: what one of a task with some events takes.
pub const API_STUB_BYTES: usize = 3 * KIB as usize;
/// Fewest short forms that a thread of their own makes: it costs less than they do.
pub const API_STUBS_PART_MIN: usize = 256;
/// Allocations that are kept as JSON because lists name them again and again, bytes: about twelve thousand.
pub const API_STUBS_KEPT_BYTES_MAX: usize = 32 * MIB as usize;
/// How long those allocations are kept as JSON when no list is asked for.
pub const API_STUBS_KEPT_UNUSED_MAX: Duration = Duration::from_secs(60);
/// Size of the pieces in which a list is copied on its way to a client, bytes.
pub const API_LIST_PIECE_BYTES: usize = 128 * KIB as usize;
/// Topics of one stream of events.
pub const API_TOPICS_MAX: usize = 64;
/// Time between two looks at the node for clients that follow its state: as often as people can read.
pub const API_LIVE_PACE: Duration = Duration::from_secs(1);
/// Silence in that stream after which a sign of life is sent: a reader knows from it that it is not cut off.
pub const API_LIVE_SIGN_PERIOD: Duration = Duration::from_secs(10);
/// Collected allocations that one line of that stream names; when there are more, the client has to read the
/// list again.
pub const API_LIVE_GONE_MAX: usize = 256;
/// Visible changes that are kept for clients that follow each of them; a few hundred bytes each at most.
pub const CHANGES_KEPT_MAX: usize = 8_192;
/// Time between two looks at a file that is followed; Nomad's interval.
pub const API_FILE_PACE: Duration = Duration::from_millis(250);
/// Longest that a write to a client may make no progress: a reader that does not read gives up its
/// connection, and a stream its place and its open files.
pub const API_WRITE_WALL_MAX: Duration = Duration::from_secs(30);
/// How long requests under way may take when the agent leaves; waiting ones and streams end at once.
pub const API_STOP_WALL_MAX: Duration = Duration::from_secs(5);
/// Pause after a failed accept (no file descriptors left), so that it does not spin.
pub const API_ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Requests to scale that are kept of one group; Nomad keeps as many.
pub const SCALING_EVENTS_MAX: usize = 20;
/// Largest message and meta of one such request together, bytes: they are kept in memory.
pub const SCALING_EVENT_BYTES_MAX: usize = 4 * 1024;
/// Entries of one directory listed; more are left out.
pub const API_DIR_ENTRIES_MAX: usize = 10_000;
/// Tokens of the API, those of the configuration included: one or two for each of some hundred people and
/// programs. A request is compared with each.
pub const TOKENS_MAX: usize = 1_000;
/// Policies of one token.
pub const TOKEN_POLICIES_MAX: usize = 32;
/// Longest name of a token, and longest secret that is compared, bytes.
pub const TOKEN_TEXT_BYTES_MAX: usize = 256;
/// Shortest secret in a file of the configuration, bytes: below it one can be guessed.
pub const TOKEN_SECRET_BYTES_MIN: usize = 16;
/// Changes of tokens that wait for one another.
pub const TOKEN_CHANGES_MAX: usize = 16;
/// Sessions whose clients have not sent their token yet.
pub const EXEC_HANDSHAKES_MAX: usize = 16;
/// How long such a client may take to send it.
pub const EXEC_HANDSHAKE_WALL_MAX: Duration = Duration::from_secs(5);
/// Longest that a change of tokens waits for the disk.
pub const TOKEN_WRITE_WALL_MAX: Duration = Duration::from_secs(10);
/// Most names in the configuration under which clients may address the API.
pub const HTTP_HOSTS_MAX: usize = 64;
/// Connections over TCP at once, beside those of the socket, which these cannot displace. Some are left when
/// all streams and all waiting queries are there.
pub const API_TCP_CONNECTIONS_MAX: usize = 1_536;
/// Connections over TCP of one address that is not this machine's; Nomad's default.
pub const API_TCP_PER_CLIENT_MAX: usize = 100;
/// Longest that the beginning of a TLS connection may take.
pub const API_TLS_WALL_MAX: Duration = Duration::from_secs(5);
/// Answers from this length on are compressed for clients that accept it, bytes: shorter ones fit
/// one packet anyway.
pub const API_GZIP_BYTES_MIN: u64 = 1_400;
/// Answers up to this length are compressed on the thread that answers, bytes: it takes a millisecond or two.
/// Longer ones are compressed where requests are computed, or are sent as they are.
pub const API_GZIP_INLINE_BYTES_MAX: usize = 64 * KIB as usize;
/// Beginning of a file of the machine that a bundle contains, bytes; Nomad's bound.
pub const HOST_FILE_BYTES_MAX: u64 = 4 * MIB;

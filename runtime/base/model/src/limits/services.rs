//! Limits of services, of the checks that ask them and of verdicts on health.

use std::time::Duration;

/// Most services of one group, those of its tasks included: each is kept in the list of the node.
pub const GROUP_SERVICES_MAX: usize = 64;
/// Most tags of one service, or pairs of its meta; Consul takes 64 pairs.
pub const SERVICE_WORDS_MAX: usize = 64;
/// Longest tag, name or value of a pair of a service's meta, bytes: what Consul takes as a value.
pub const SERVICE_WORD_BYTES_MAX: usize = 512;
/// Longest address that a service gives itself, bytes: that of a domain name.
pub const SERVICE_ADDRESS_BYTES_MAX: usize = 253;
/// Most values of headers that a check sends. With [`CHECK_PATH_BYTES_MAX`] a request stays
/// below what servers take as its head (8 KiB).
pub const CHECK_SENT_HEADERS_MAX: usize = 32;
/// Most bytes of all headers that a check sends, names and values together.
pub const CHECK_SENT_HEADER_BYTES_MAX: usize = 4 * 1024;
/// Largest body that a check sends, bytes.
pub const CHECK_BODY_BYTES_MAX: usize = 16 * 1024;
/// Most arguments of a script check.
pub const CHECK_ARGS_MAX: usize = 256;
/// Most bytes of a script check's command and arguments together: they are kept in the state file.
pub const CHECK_ARGS_BYTES_MAX: usize = 32 * 1024;
/// Longest name that a check asks a gRPC server for, bytes.
pub const CHECK_GRPC_SERVICE_BYTES_MAX: usize = 256;
/// Largest answer of a gRPC server's health service, bytes: a status is four.
pub const CHECK_GRPC_BYTES_MAX: usize = 4 * 1024;
/// Most checks under way at one time on the whole node: each has a connection or runs a program.
/// Further checks wait.
pub const CHECKS_ASKED_MAX: usize = 64;
/// Longest time over which the first requests of checks are spread; the interval where that is
/// shorter. So the checks of a hundred allocations that start together come one after the other.
pub const CHECK_SPREAD_MAX: Duration = Duration::from_secs(1);
/// `check_restart.grace` unless given; Nomad's.
pub const CHECK_GRACE_DEFAULT: Duration = Duration::from_secs(1);
/// Longest wait until the owner of a task takes a script that is to run in it. It comes on top of
/// the time that the check gives.
pub const CHECK_SCRIPT_START_MAX: Duration = Duration::from_secs(10);
/// How long a new agent waits for the services of allocations that it restores before it renders templates of
/// running tasks again: an allocation whose disk is in trouble lists its services late.
pub const SERVICES_RESTORED_WALL_MAX: Duration = Duration::from_secs(30);
/// Most checks of one group: each costs a timer and, now and then, a connection.
pub const GROUP_CHECKS_MAX: usize = 64;
/// Shortest time from one question of a check to the next; as in Nomad.
pub const CHECK_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Longest time from one question of a check to the next.
pub const CHECK_INTERVAL_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Shortest time a check may give for its answer.
pub const CHECK_TIMEOUT_MIN: Duration = Duration::from_millis(1);
/// Longest time a check may give for its answer.
pub const CHECK_TIMEOUT_MAX: Duration = Duration::from_secs(60 * 60);
/// Longest path of an HTTP check, bytes.
pub const CHECK_PATH_BYTES_MAX: usize = 2 * 1024;
/// Output of a check that is kept, bytes: enough for a line that says what is wrong.
pub const CHECK_OUTPUT_BYTES_MAX: usize = 1024;
/// Longest head of an answer that a check reads (status and headers), bytes. It is twice the least
/// that the HTTP client needs.
pub const CHECK_HEAD_BYTES_MAX: usize = 16 * 1024;
/// Headers of an answer a check reads.
pub const CHECK_HEADERS_MAX: usize = 64;
/// Longest text of one reason in a verdict on health, bytes. It becomes part of a task's events.
pub const HEALTH_REASON_BYTES_MAX: usize = 512;
/// Longest text of a whole verdict on health, bytes.
pub const HEALTH_TEXT_BYTES_MAX: usize = 2 * 1024;
/// Longest name of a service: that of a label in a domain name.
pub const SERVICE_NAME_BYTES_MAX: usize = 63;

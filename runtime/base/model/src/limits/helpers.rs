//! How long processes of the agent's own may be silent before they are taken for hung, and what waits for them.

use std::time::Duration;

/// How long the process that starts native tasks may leave an order without an answer, before it is asked
/// whether it answers at all.
pub const ZYGOTE_DOUBT_AFTER: Duration = Duration::from_secs(3);
/// How long it may take to answer that question. It answers at once, but a busy machine may let it wait.
pub const ZYGOTE_ANSWER_WALL_MAX: Duration = Duration::from_secs(5);
/// How many such processes are tried for the same start, where they end or hang.
pub const ZYGOTE_TRIES_MAX: u32 = 3;
/// How long supervisors that held their tasks when their agent was killed may take to end, before the records
/// that they left are removed.
pub const UNRELEASED_RECORDS_AFTER: Duration = Duration::from_secs(10);
/// How long a compile child may use no processor time at all before it is killed because it hangs: on a busy
/// node a niced child still gets some in each second.
pub const COMPILE_STILL_WALL_MAX: Duration = Duration::from_secs(30);
/// How often the processor time of a compile child is checked.
pub const COMPILE_LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Compile children that are tried for one file, where they hang.
pub const COMPILE_TRIES_MAX: u32 = 2;
/// How long a command waits for a task of an earlier agent to be taken over: what that needs is done in a second,
/// plugins that were compiled before included.
pub const EXEC_TAKEOVER_WALL_MAX: Duration = Duration::from_secs(10);
/// How often the agent checks whether a run that is held back has ended.
pub const HELD_RUN_POLL: Duration = Duration::from_millis(250);

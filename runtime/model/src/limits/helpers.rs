//! How long processes of the agent's own may be silent before they are taken for hung, and what waits for them.

use std::time::Duration;

/// How long the process that starts native tasks may leave what is wanted of it without an answer, before it is
/// asked whether it answers at all.
pub const ZYGOTE_DOUBT_AFTER: Duration = Duration::from_secs(3);
/// How long it may take to answer that. It answers at once; a busy machine may let it wait.
pub const ZYGOTE_ANSWER_WALL_MAX: Duration = Duration::from_secs(5);
/// How often one that is gone or hangs is replaced for the same start.
pub const ZYGOTE_TRIES_MAX: u32 = 3;
/// How long supervisors of an agent that was killed while they held their tasks may take to end: then what they left
/// is removed.
pub const UNRELEASED_RECORDS_AFTER: Duration = Duration::from_secs(10);
/// How long a compile child may use no processor time at all before it is killed as one that hangs: on a busy
/// node, niced, one still gets some in each second.
pub const COMPILE_STILL_WALL_MAX: Duration = Duration::from_secs(30);
/// How often that is looked at.
pub const COMPILE_LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Compile children that are tried for one file, where they hang.
pub const COMPILE_TRIES_MAX: u32 = 2;
/// How long a command waits for a task of an earlier agent to be taken over: what that needs is done in a second,
/// plugins that were compiled before included.
pub const EXEC_TAKEOVER_WALL_MAX: Duration = Duration::from_secs(10);
/// How often it is looked whether a run that is held back has ended.
pub const HELD_RUN_POLL: Duration = Duration::from_millis(250);

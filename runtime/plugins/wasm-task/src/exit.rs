//! Turns the end of a guest into the exit of its task. Pure.

use super::PreopenedDir;
use ostler_model::clock::Timestamp;
use ostler_model::limits::{ANSWER_TEXT_BYTES_MAX, NAMES_TOLD_MAX};
use ostler_model::printable;
use ostler_model::task::{EXIT_TRAPPED, RawExit, out_of_memory};
use ostler_sandbox::{CallError, LastWords, in_frames};

/// Signal number that is reported for a WASM task that was killed. WASM itself has no signals.
const KILLED: u32 = 9;

/// The exit of a task. Where its own code did something wrong, or was refused something, it has the
/// code of a trap. A failure of the agent around it has no code.
pub(super) fn raw_exit(
    result: Result<i32, CallError>,
    said: &LastWords,
    killed: bool,
    finished_at: Timestamp,
) -> RawExit {
    let mut exit = RawExit { finished_at, ..RawExit::default() };
    let error = match result {
        Ok(code) | Err(CallError::Exit { code }) => {
            exit.exit_code = Some(code);
            return exit;
        }
        Err(CallError::Cancelled) if killed => {
            exit.signal = Some(KILLED);
            return exit;
        }
        Err(error) => error,
    };
    let of_the_agent = matches!(
        error,
        CallError::Cancelled | CallError::PoolExhausted { .. } | CallError::HostPanic { .. }
    );
    exit.oom_killed = matches!(error, CallError::MemoryLimit { .. });
    exit.exit_code = (!of_the_agent && !exit.oom_killed).then_some(EXIT_TRAPPED);
    let mut text = printable::truncate_text(end_text(&error), ANSWER_TEXT_BYTES_MAX / 4);
    if !of_the_agent {
        // The driver gets this text and may pass it on, so it is no longer than an answer may be.
        text.push_str(&said.short_text(ANSWER_TEXT_BYTES_MAX - ANSWER_TEXT_BYTES_MAX / 4 - LEAST));
    }
    exit.error = Some(text);
    exit
}

/// The paths that a task sees, as a text for people.
pub(super) fn join_guest_paths(dirs: &[PreopenedDir]) -> String {
    printable::join_some(dirs.iter().map(|dir| dir.guest_path.as_str()), NAMES_TOLD_MAX)
}

/// Say in the exit of a failed program which paths it sees, if it `missed` a file: it may have
/// looked where a native program would find it.
pub(super) fn explain_missing_file(mut exit: RawExit, missed: bool, seen: &str) -> RawExit {
    if missed && exit.error.is_none() && exit.exit_code.is_some_and(|code| code != 0) {
        let text =
            format!("a file was not found; of the node the task sees {seen} and nothing else");
        exit.error = Some(text);
    }
    exit
}
/// Bytes that are left for what a driver puts before the text.
const LEAST: usize = 256;

/// What ended a task, in a few words.
fn end_text(error: &CallError) -> String {
    match error {
        CallError::Trap { message, frames, .. } => {
            format!("trapped: {}{}", trap_words(message), in_frames(&named_frames(frames)))
        }
        CallError::StackOverflow { limit, frames } => {
            let (kib, frames) = (limit / 1024, in_frames(&named_frames(frames)));
            format!("trapped: the stack of {kib} KiB overflowed{frames}")
        }
        CallError::MemoryLimit { limit, message } => {
            format!("{} ({})", out_of_memory(*limit), trap_words(message))
        }
        other => other.to_string(),
    }
}

/// The innermost frames that have a name. The number of a function tells nobody anything.
fn named_frames(frames: &[String]) -> Vec<String> {
    const SHOWN: usize = 5;
    frames.iter().filter(|name| !name.starts_with("function ")).take(SHOWN).cloned().collect()
}

/// The text of a trap without the words that the text of every trap begins with.
fn trap_words(message: &str) -> &str {
    let words = message.strip_prefix("wasm trap: ").unwrap_or(message);
    if words == "wasm `unreachable` instruction executed" { "unreachable" } else { words }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostler_sandbox::TrapKind;

    fn exit_parts(error: CallError, killed: bool) -> (Option<i32>, Option<u32>, bool, String) {
        let exit = raw_exit(Err(error), &LastWords::default(), killed, Timestamp::from_nanos(1));
        (exit.exit_code, exit.signal, exit.oom_killed, exit.error.unwrap_or_default())
    }

    #[test]
    fn what_ends_a_task_is_told_by_what_its_code_did_and_not_by_what_the_agent_did() {
        let trap = |message: &str, frames: &[&str]| CallError::Trap {
            kind: TrapKind::Other,
            message: message.to_owned(),
            frames: frames.iter().map(|&name| name.to_owned()).collect(),
        };
        let unreachable = "wasm trap: wasm `unreachable` instruction executed";
        let memory = CallError::MemoryLimit { limit: 32 << 20, message: unreachable.to_owned() };
        let deep = CallError::StackOverflow { limit: 512 << 10, frames: vec![] };
        let bounds = trap("wasm trap: out of bounds memory access", &["function 7"]);
        for (error, code, oom, text) in [
            (
                trap(unreachable, &["abort", "function 3", "main"]),
                Some(134),
                false,
                "trapped: unreachable (in abort < main)",
            ),
            (bounds, Some(134), false, "trapped: out of bounds memory access"),
            (deep, Some(134), false, "trapped: the stack of 512 KiB overflowed"),
            (memory, None, true, "out of memory at 32 MiB (unreachable)"),
            (CallError::Cancelled, None, false, "the call was cancelled"),
        ] {
            assert_eq!(exit_parts(error, false), (code, None, oom, text.to_owned()));
        }
        assert_eq!(exit_parts(CallError::Exit { code: 3 }, false).0, Some(3));
        assert_eq!(exit_parts(CallError::Cancelled, true).1, Some(KILLED));
    }
}

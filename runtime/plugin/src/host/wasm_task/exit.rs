//! What the end of a guest says of its task. Pure.

use super::PreopenedDir;
use ostler_model::clock::Timestamp;
use ostler_model::limits::{ANSWER_TEXT_BYTES_MAX, NAMES_TOLD_MAX};
use ostler_model::shown;
use ostler_model::task::{EXIT_TRAPPED, RawExit, out_of_memory};
use ostler_sandbox::{CallError, Said, in_frames};

/// Signal number reported for a WASM task that was killed: WASM has no signals of its own.
const KILLED: u32 = 9;

/// How a task ended. What its own code did wrong, or was refused, has the code of a trap; a failure
/// of the agent around it has none.
pub(super) fn raw(
    result: Result<i32, CallError>,
    said: &Said,
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
    let mut text = shown::cut(end_text(&error), ANSWER_TEXT_BYTES_MAX / 4);
    if !of_the_agent {
        // Its driver is told of it, and may pass it on: no longer than it may answer.
        text.push_str(&said.within(ANSWER_TEXT_BYTES_MAX - ANSWER_TEXT_BYTES_MAX / 4 - LEAST));
    }
    exit.error = Some(text);
    exit
}

/// The places a task sees, for people.
pub(super) fn seen(dirs: &[PreopenedDir]) -> String {
    shown::some_of(dirs.iter().map(|dir| dir.guest_path.as_str()), NAMES_TOLD_MAX)
}

/// A program that failed and `missed` a file may have looked where a native one would find it.
pub(super) fn told(mut exit: RawExit, missed: bool, seen: &str) -> RawExit {
    if missed && exit.error.is_none() && exit.exit_code.is_some_and(|code| code != 0) {
        let text =
            format!("a file was not found; of the node the task sees {seen} and nothing else");
        exit.error = Some(text);
    }
    exit
}
/// Room left for what a driver puts before it.
const LEAST: usize = 256;

/// What ended a task, in few words.
fn end_text(error: &CallError) -> String {
    match error {
        CallError::Trap { message, frames, .. } => {
            format!("trapped: {}{}", trap_words(message), in_frames(&named(frames)))
        }
        CallError::StackOverflow { limit, frames } => {
            let (kib, frames) = (limit / 1024, in_frames(&named(frames)));
            format!("trapped: the stack of {kib} KiB overflowed{frames}")
        }
        CallError::MemoryLimit { limit, message } => {
            format!("{} ({})", out_of_memory(*limit), trap_words(message))
        }
        other => other.to_string(),
    }
}

/// The innermost frames that have a name: numbers of functions tell nobody anything.
fn named(frames: &[String]) -> Vec<String> {
    const SHOWN: usize = 5;
    frames.iter().filter(|name| !name.starts_with("function ")).take(SHOWN).cloned().collect()
}

/// Without what every trap's text begins with.
fn trap_words(message: &str) -> &str {
    let words = message.strip_prefix("wasm trap: ").unwrap_or(message);
    if words == "wasm `unreachable` instruction executed" { "unreachable" } else { words }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostler_sandbox::TrapKind;

    fn seen(error: CallError, killed: bool) -> (Option<i32>, Option<u32>, bool, String) {
        let exit = raw(Err(error), &Said::default(), killed, Timestamp::from_nanos(1));
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
            assert_eq!(seen(error, false), (code, None, oom, text.to_owned()));
        }
        assert_eq!(seen(CallError::Exit { code: 3 }, false).0, Some(3));
        assert_eq!(seen(CallError::Cancelled, true).1, Some(KILLED));
    }
}

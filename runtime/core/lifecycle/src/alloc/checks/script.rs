//! A check that is a program inside a task: its exit code says how the service is.

use std::sync::Weak;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::by_task::ByTask;
use crate::task::TaskHandle;
use ostler_model::clock;
use ostler_model::ids::TaskName;
use ostler_model::job::CheckStatus;
use ostler_model::limits::{CHECK_OUTPUT_BYTES_MAX, CHECK_SCRIPT_START_MAX};
use ostler_model::session::{ExecCommand, ExecSession};
use ostler_probe::CheckAnswer;

/// Run the program to its end, or until the timeout. What the program started in its session ends
/// with it. Processes that left the session belong to the task and end with the task.
pub(super) async fn run(
    tasks: Weak<ByTask<TaskHandle>>,
    task: &TaskName,
    argv: &[String],
    timeout: Duration,
) -> CheckAnswer {
    let handle = tasks.upgrade().and_then(|tasks| tasks.get(task).cloned());
    let Some(handle) = handle else {
        return CheckAnswer::new_critical(&format!("task {task} has ended"));
    };
    // Whoever may give a task its program may also run programs beside it.
    let command = ExecCommand { argv: argv.to_vec(), terminal: None, on_node: Ok(()) };
    let session = match clock::timeout(CHECK_SCRIPT_START_MAX, handle.exec(command)).await {
        None => {
            return CheckAnswer::new_critical(
                "the script could not be started in the task in time",
            );
        }
        Some(Err(error)) => {
            return CheckAnswer::new_critical(&format!("the script could not be run: {error}"));
        }
        Some(Ok(session)) => session,
    };
    match clock::timeout(timeout, await_answer(session)).await {
        Some(answer) => answer,
        None => {
            let timeout = humantime::format_duration(timeout);
            CheckAnswer::new_critical(&format!(
                "the script did not end within the timeout of {timeout}"
            ))
        }
    }
}

async fn await_answer(session: ExecSession) -> CheckAnswer {
    let ExecSession { stdin, stdout, stderr, resize: _, end } = session;
    // The program reads nothing.
    drop(stdin);
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let (end, (), ()) =
        tokio::join!(end, read_output(Some(stdout), &mut out), read_output(stderr, &mut err));
    out.extend_from_slice(&err);
    let said = String::from_utf8_lossy(&out);
    let (status, fallback) = match end {
        Ok(0) => (CheckStatus::Passing, "exit code 0".to_owned()),
        Ok(1) => (CheckStatus::Warning, "exit code 1".to_owned()),
        Ok(code) => (CheckStatus::Critical, format!("exit code {code}")),
        Err(why) => (CheckStatus::Critical, why),
    };
    match said.trim() {
        "" => CheckAnswer::new(status, &fallback),
        said if status == CheckStatus::Passing => CheckAnswer::new(status, said),
        said => CheckAnswer::new(status, &format!("{fallback}: {said}")),
    }
}

/// Read the output of the program and store its beginning. The rest is read too, so that the
/// program does not wait for a reader.
async fn read_output(from: Option<Box<dyn AsyncRead + Send + Unpin>>, into: &mut Vec<u8>) {
    let Some(mut from) = from else { return };
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let room = CHECK_OUTPUT_BYTES_MAX.saturating_sub(into.len());
        into.extend(buffer.iter().take(count.min(room)));
    }
}

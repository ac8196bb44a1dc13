//! A program inside a task, as a check: how it ends says how the service is.

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

/// Run it to its end, or until the time is over; what it started in its session ends with it. What left its
/// session is the task's, and ends with that.
pub(super) async fn run(
    tasks: Weak<ByTask<TaskHandle>>,
    task: &TaskName,
    argv: &[String],
    timeout: Duration,
) -> CheckAnswer {
    let handle = tasks.upgrade().and_then(|tasks| tasks.get(task).cloned());
    let Some(handle) = handle else {
        return CheckAnswer::critical(&format!("task {task} has ended"));
    };
    // Whoever may give a task its program may have programs run beside it.
    let command = ExecCommand { argv: argv.to_vec(), terminal: None, on_node: Ok(()) };
    let session = match clock::timeout(CHECK_SCRIPT_START_MAX, handle.exec(command)).await {
        None => return CheckAnswer::critical("the task did not take the script in time"),
        Some(Err(error)) => {
            return CheckAnswer::critical(&format!("the script does not run: {error}"));
        }
        Some(Ok(session)) => session,
    };
    match clock::timeout(timeout, ended(session)).await {
        Some(answer) => answer,
        None => {
            let timeout = humantime::format_duration(timeout);
            CheckAnswer::critical(&format!(
                "the script did not end within the timeout of {timeout}"
            ))
        }
    }
}

async fn ended(session: ExecSession) -> CheckAnswer {
    let ExecSession { stdin, stdout, stderr, resize: _, end } = session;
    // It reads nothing.
    drop(stdin);
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let (end, (), ()) = tokio::join!(end, heard(Some(stdout), &mut out), heard(stderr, &mut err));
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

/// The beginning of what it says; the rest is read too, so that it does not wait for a reader.
async fn heard(from: Option<Box<dyn AsyncRead + Send + Unpin>>, into: &mut Vec<u8>) {
    let Some(mut from) = from else { return };
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let room = CHECK_OUTPUT_BYTES_MAX.saturating_sub(into.len());
        into.extend(buffer.iter().take(count.min(room)));
    }
}

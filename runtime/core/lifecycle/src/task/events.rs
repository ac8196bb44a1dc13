//! Makes task events with their texts. Pure.
//!
//! Kinds, texts and detail keys are Nomad's, so that its tools show them as their users know them.

use std::time::Duration;

use super::interpolate::UnknownReference;
use ostler_model::event::{EventKind, NO_SIGNALS, TaskEvent};
use ostler_model::task::{ExitResult, TaskState, TaskStatus};
use ostler_model::time::Timestamp;
use ostler_text::duration::short_duration;

/// Whether the driver of a task sends signals to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Signals {
    /// The driver sends signals, or is not known yet.
    #[default]
    Sent,
    /// The driver sends no signals: a task that is to stop is ended.
    None,
}

/// The runner was made for the first time.
#[must_use]
pub fn received_event(now: Timestamp) -> TaskEvent {
    TaskEvent::new(EventKind::Received, now, "Task received by client")
}

/// The first preparation begins.
#[must_use]
pub fn task_setup(now: Timestamp) -> TaskEvent {
    TaskEvent::new(EventKind::TaskSetup, now, "Building Task Directory")
}

/// The driver is not ready; the task waits.
#[must_use]
pub fn waiting_for_driver(now: Timestamp, reason: &str) -> TaskEvent {
    TaskEvent::new(EventKind::Driver, now, format!("Waiting for driver: {reason}"))
        .detail("driver_message", reason)
}

/// The driver of a task of an earlier agent is not ready; the task runs on and waits to be owned again.
#[must_use]
pub fn waiting_for_recovery(now: Timestamp, reason: &str) -> TaskEvent {
    waiting_for_driver(now, reason).detail(TaskEvent::RESTORED, "true")
}

/// The node is short of something that the task needs before it starts, or its disk fails; the task waits.
#[must_use]
pub fn waiting_for_node(now: Timestamp, reason: &str) -> TaskEvent {
    let text = format!("{reason}; it is tried again, and no restart is counted");
    TaskEvent::new(EventKind::HookMessage, now, text).detail("message", reason)
}

/// The artifacts of the task are being fetched.
#[must_use]
pub fn downloading_artifacts(now: Timestamp) -> TaskEvent {
    TaskEvent::new(EventKind::DownloadingArtifacts, now, "Client is downloading artifacts")
}

/// How far a download is.
#[must_use]
pub fn artifact_progress(now: Timestamp, shown: &str, bytes: u64, of: Option<u64>) -> TaskEvent {
    let mib = |bytes: u64| bytes / ostler_model::limits::MIB;
    let text = match of {
        Some(of) => format!("{shown}: {} of {} MiB", mib(bytes), mib(of)),
        None => format!("{shown}: {} MiB", mib(bytes)),
    };
    TaskEvent::new(EventKind::DownloadingArtifacts, now, text)
}

/// An artifact could not be fetched.
#[must_use]
pub fn artifact_failed(now: Timestamp, error: &str) -> TaskEvent {
    TaskEvent::new(EventKind::ArtifactDownloadFailed, now, error).detail("download_error", error)
}

/// The task cannot be set up.
#[must_use]
pub fn setup_failure(now: Timestamp, error: &str) -> TaskEvent {
    TaskEvent::new(EventKind::SetupFailure, now, error).detail("setup_error", error)
}

/// The task's configuration is wrong.
#[must_use]
pub fn failed_validation(now: Timestamp, error: &str) -> TaskEvent {
    TaskEvent::new(EventKind::FailedValidation, now, error).detail("validation_error", error)
}

/// A hook failed.
#[must_use]
pub fn hook_failed(now: Timestamp, hook: &str, error: &str) -> TaskEvent {
    TaskEvent::new(EventKind::HookFailed, now, format!("{hook}: {error}"))
        .detail("hook", hook)
        .detail("message", error)
}

/// A hook that took long has ended well. The event tells people why a start was slow.
#[must_use]
pub fn hook_took(now: Timestamp, hook: &str, took: Duration) -> TaskEvent {
    let wait = short_duration(Duration::from_secs(took.as_secs()));
    TaskEvent::new(EventKind::HookMessage, now, format!("hook {hook} took {wait}"))
        .detail("hook", hook)
        .detail("hook_took", format!("{hook} {wait}"))
}

/// A hook of the allocation failed while the task goes on.
#[must_use]
pub fn preparing_again(now: Timestamp, error: &str) -> TaskEvent {
    let text = format!("{error}; what runs is left alone, and this is tried again");
    TaskEvent::new(EventKind::HookMessage, now, text).detail("message", error)
}

/// A driver call failed.
#[must_use]
pub fn driver_failure(now: Timestamp, error: &str) -> TaskEvent {
    TaskEvent::new(EventKind::DriverFailure, now, error).detail("driver_error", error)
}

/// The task runs.
#[must_use]
pub fn started_event(now: Timestamp) -> TaskEvent {
    TaskEvent::new(EventKind::Started, now, "Task started by client")
}

/// The task ended. Parts that say nothing are left out.
#[must_use]
pub fn terminated_event(now: Timestamp, exit: &ExitResult) -> TaskEvent {
    let mut text = format!("Exit Code: {}", exit.exit_code);
    if exit.signal != 0 {
        text.push_str(&format!(", Signal: {}", exit.signal));
    }
    let cause = exit.cause();
    if let Some(cause) = &cause {
        text.push_str(&format!(", Exit Message: \"{cause}\""));
    }
    let event = TaskEvent::new(EventKind::Terminated, now, text)
        .detail("exit_code", exit.exit_code)
        .detail("signal", exit.signal)
        .detail("oom_killed", exit.oom_killed);
    match cause {
        Some(cause) => event.detail("exit_message", cause),
        None => event,
    }
}

/// The task will be started again after `delay`.
#[must_use]
pub fn restarting_event(now: Timestamp, reason: &str, delay: Duration) -> TaskEvent {
    let wait = short_duration(delay);
    let text = if reason.is_empty() {
        format!("Task restarting in {wait}")
    } else {
        format!("{reason} - Task restarting in {wait}")
    };
    TaskEvent::new(EventKind::Restarting, now, text)
        .detail("restart_reason", reason)
        .detail("start_delay", delay.as_nanos())
}

/// The task will not be started again and counts as failed.
#[must_use]
pub fn not_restarting_event(now: Timestamp, reason: &str) -> TaskEvent {
    TaskEvent::new(EventKind::NotRestarting, now, reason)
        .detail("restart_reason", reason)
        .with_task_failure()
}

/// Somebody asked for a restart.
#[must_use]
pub fn restart_signaled_event(
    now: Timestamp,
    reason: &str,
    kill_timeout: Duration,
    signals: Signals,
) -> TaskEvent {
    let event = TaskEvent::new(EventKind::RestartSignaled, now, reason);
    let event = event.detail("restart_reason", reason);
    note_missing_signals(event.detail("kill_timeout", short_duration(kill_timeout)), signals)
}

/// How the reason of a restart begins that a check demands.
const OF_A_CHECK: &str = "healthcheck: ";

/// The reason of a restart that a check demands.
#[must_use]
pub fn unhealthy_reason(check: &str) -> String {
    format!("{OF_A_CHECK}check {check:?} unhealthy")
}

/// Whether a restart is under way: the last run was asked to end for a restart and has not ended
/// yet. `Some(true)` when that restart counts as a failure.
#[must_use]
pub fn restart_under_way(state: &TaskState) -> Option<bool> {
    let of_run = |event: &&TaskEvent| {
        matches!(
            event.kind,
            EventKind::RestartSignaled
                | EventKind::Started
                | EventKind::Killing
                | EventKind::Terminated
                | EventKind::Restarting
                | EventKind::FailedRestoring
        )
    };
    let last = state.events.iter().rev().find(of_run)?;
    let asked = state.status == TaskStatus::Running && last.kind == EventKind::RestartSignaled;
    asked.then(|| last.message.starts_with(OF_A_CHECK))
}

/// A service of the task is not in the list of the node.
#[must_use]
pub fn service_not_listed(now: Timestamp, service: &str, why: &str) -> TaskEvent {
    let text = format!("service {service} is not listed: {why}");
    TaskEvent::new(EventKind::HookMessage, now, text).detail("message", why)
}

/// Texts of the job have unknown references, which stay as they are.
#[must_use]
pub fn unknown_references(now: Timestamp, unknown: &[UnknownReference]) -> TaskEvent {
    let named: Vec<String> = unknown.iter().map(ToString::to_string).collect();
    let text = format!("nothing is known for {}: the text stays as it is", named.join(", "));
    TaskEvent::new(EventKind::HookMessage, now, text.clone()).detail("message", text)
}

/// A signal is sent to the task.
#[must_use]
pub fn signaling_event(now: Timestamp, signal: &str) -> TaskEvent {
    TaskEvent::new(EventKind::Signaling, now, format!("Task being sent signal {signal}"))
        .detail("task_signal", signal)
}

/// The content of a template has changed, and the task is told by a signal.
#[must_use]
pub fn template_signal(now: Timestamp, signal: &str) -> TaskEvent {
    TaskEvent::new(EventKind::Signaling, now, "Template re-rendered").detail("task_signal", signal)
}

/// Something about a template that changes nothing for the task.
#[must_use]
pub fn template_trouble(now: Timestamp, text: &str) -> TaskEvent {
    TaskEvent::new(EventKind::Template, now, text).detail("message", text)
}

/// A template cannot do what it asks for, so the task fails.
#[must_use]
pub fn template_failed(now: Timestamp, text: &str) -> TaskEvent {
    template_trouble(now, text).with_task_failure()
}

/// The task is being stopped. `signals` says whether the driver can send it a signal.
#[must_use]
pub fn killing_event(
    now: Timestamp,
    reason: &str,
    kill_timeout: Duration,
    signals: Signals,
) -> TaskEvent {
    let wait = short_duration(kill_timeout);
    let told = match signals {
        Signals::Sent => "Sent interrupt",
        Signals::None => "Asked the driver, which sends no signals, to end it",
    };
    let text = format!("{told}. Waiting {wait} before force killing");
    let event = TaskEvent::new(EventKind::Killing, now, text).detail("kill_reason", reason);
    note_missing_signals(event.detail("kill_timeout", wait), signals)
}

/// Add to an order to stop a task that the task gets no signal, where the driver sends none.
fn note_missing_signals(order: TaskEvent, signals: Signals) -> TaskEvent {
    match signals {
        Signals::Sent => order,
        Signals::None => order.detail(NO_SIGNALS, "true"),
    }
}

/// The task is ended while nothing of it runs.
#[must_use]
pub fn killing_idle_event(now: Timestamp, reason: &str) -> TaskEvent {
    TaskEvent::new(EventKind::Killing, now, "Task was not running").detail("kill_reason", reason)
}

/// A restarted agent owns the task again.
#[must_use]
pub fn recovered_event(now: Timestamp) -> TaskEvent {
    TaskEvent::new(EventKind::Recovered, now, "Task owned again by a restarted agent")
}

/// A run of an earlier agent could not be owned again.
#[must_use]
pub fn failed_restoring(now: Timestamp, reason: &str) -> TaskEvent {
    TaskEvent::new(EventKind::FailedRestoring, now, format!("Task not owned again: {reason}"))
        .detail("message", reason)
}

/// The stop signal does not wait for `shutdown_delay`.
#[must_use]
pub fn skipping_shutdown_delay(now: Timestamp) -> TaskEvent {
    TaskEvent::new(EventKind::SkippingShutdownDelay, now, "Skipping shutdown_delay")
}

/// The task was stopped.
#[must_use]
pub fn killed_event(now: Timestamp) -> TaskEvent {
    TaskEvent::new(EventKind::Killed, now, "Task successfully killed")
}

/// The task was to be stopped, and nobody saw it end.
#[must_use]
pub fn not_killed_event(now: Timestamp, error: &str) -> TaskEvent {
    TaskEvent::new(EventKind::Killed, now, error).detail("kill_error", error)
}

/// The task was killed, and `what` of it does not end.
#[must_use]
pub fn undead_event(now: Timestamp, what: &str) -> TaskEvent {
    let text = format!(
        "{what} did not end when it was killed; waiting for it, nothing is started in its place"
    );
    TaskEvent::new(EventKind::Killing, now, text.clone()).detail("kill_error", text)
}

/// Was the task killed, and has it not ended?
#[must_use]
pub fn is_undead(state: &TaskState) -> bool {
    let killing = state.events.iter().rev().find(|event| event.kind == EventKind::Killing);
    state.status == TaskStatus::Running
        && killing.is_some_and(|event| event.details.contains_key("kill_error"))
}

/// The stop signal waits.
#[must_use]
pub fn waiting_shutdown_delay(now: Timestamp, delay: Duration) -> TaskEvent {
    let wait = short_duration(delay);
    TaskEvent::new(
        EventKind::WaitingShutdownDelay,
        now,
        format!("Waiting for shutdown_delay of {wait} before killing the task."),
    )
}

/// Something a driver says about a task.
#[must_use]
pub fn driver_note(now: Timestamp, message: &str, details: Vec<(String, String)>) -> TaskEvent {
    let mut event = TaskEvent::new(EventKind::Driver, now, message);
    event.details = details.into_iter().collect();
    event.detail("driver_message", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_notes_keep_their_details() {
        let details = vec![("done".to_owned(), "40%".to_owned())];
        let note = driver_note(Timestamp::from_nanos(1), "pulling", details);
        assert_eq!(note.details.get("done").map(String::as_str), Some("40%"));
        assert_eq!(note.details.get("driver_message").map(String::as_str), Some("pulling"));
    }

    #[test]
    fn an_exit_says_only_what_there_is_to_say() {
        let now = Timestamp::from_nanos(1);
        let plain = ExitResult { exit_code: 3, ..ExitResult::default() };
        assert_eq!(terminated_event(now, &plain).message, "Exit Code: 3");
        let signalled = ExitResult { exit_code: 143, signal: 15, ..ExitResult::default() };
        let told = terminated_event(now, &signalled);
        assert_eq!(
            told.message,
            "Exit Code: 143, Signal: 15, Exit Message: \"killed by signal 15\""
        );
        let message = told.details.get("exit_message");
        assert_eq!(message.map(String::as_str), Some("killed by signal 15"));
        let full = ExitResult {
            exit_code: 137,
            signal: 9,
            oom_killed: true,
            error: Some("OOM Killed".to_owned()),
        };
        assert_eq!(
            terminated_event(now, &full).message,
            "Exit Code: 137, Signal: 9, Exit Message: \"OOM Killed\""
        );
        assert_eq!(
            terminated_event(now, &full).details.get("oom_killed").map(String::as_str),
            Some("true")
        );
    }
}

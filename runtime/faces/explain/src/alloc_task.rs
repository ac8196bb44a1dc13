//! Turns the events of one task into sentences.

use ostler_model::event::EventKind;
use ostler_model::time::Timestamp;
use ostler_wire::{WireTaskEvent, WireTaskState};

use crate::exit::{self, RunEnd, StopOrder, TaskFacts};
use crate::words::{stop_reason, wire_span};

/// Kinds of events that report a failed start.
const NOT_STARTED: [EventKind; 5] = [
    EventKind::ArtifactDownloadFailed,
    EventKind::FailedValidation,
    EventKind::SetupFailure,
    EventKind::HookFailed,
    EventKind::DriverFailure,
];

/// A task: the facts beside its events, and its state with the events.
#[derive(Clone, Copy)]
pub(crate) struct TaskHistory<'a> {
    pub told: TaskFacts<'a>,
    pub state: &'a WireTaskState<'a>,
}

/// The delay before a task is sent the signal to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShutdownDelay<'a> {
    /// Length of the delay as the event gives it: `20s`.
    pub length: &'a str,
    /// When the task is, or was, told to stop.
    pub told_at: Timestamp,
}

/// Is the event of this kind?
pub(crate) fn is_kind(event: &WireTaskEvent, kind: EventKind) -> bool {
    event.kind == kind.as_str()
}

fn detail<'e>(event: &'e WireTaskEvent<'_>, key: &str) -> &'e str {
    event.details.get(key).map_or("", String::as_str)
}

impl<'a> TaskHistory<'a> {
    pub fn events(&self) -> &'a [WireTaskEvent<'a>] {
        &self.state.events
    }

    /// The last event of a kind.
    pub fn last_event(&self, kind: EventKind) -> Option<&'a WireTaskEvent<'a>> {
        self.events().iter().rev().find(|event| is_kind(event, kind))
    }

    /// The last event that says where a task is that does not run.
    pub fn newest_event(&self) -> Option<&'a WireTaskEvent<'a>> {
        // A verdict is about the allocation; a signal changes nothing.
        let passes = [EventKind::AllocUnhealthy, EventKind::Signaling, EventKind::Received];
        self.events().iter().rev().find(|event| !passes.iter().any(|kind| is_kind(event, *kind)))
    }

    /// How the run of an event `Terminated` ended.
    pub fn end_at(&self, at: usize) -> RunEnd {
        let events = self.events();
        let Some(event) = events.get(at) else { return RunEnd::default() };
        let before = events.get(..at).unwrap_or_default();
        let run = before.iter().rev().take_while(|event| !is_kind(event, EventKind::Started));
        let orders = [EventKind::Killing, EventKind::RestartSignaled];
        let mut run = run.enumerate();
        let stop = run.find(|(_, event)| orders.iter().any(|kind| is_kind(event, *kind)));
        let order = stop.map(|(back, order)| {
            let delay = at.checked_sub(back + 1).and_then(|order| self.delay_of(order));
            StopOrder { event: order, told_at: delay.map_or(order.time, |delay| delay.told_at) }
        });
        // An end before the delay is over is its own: it was not told to stop yet.
        exit::describe_end(self.told, event, order.filter(|order| event.time >= order.told_at))
    }

    /// The `shutdown_delay` of the order to stop at an index.
    pub fn delay_of(&self, order: usize) -> Option<ShutdownDelay<'a>> {
        self.events().get(order).filter(|event| is_kind(event, EventKind::Killing))?;
        let over = [EventKind::Started, EventKind::Terminated];
        let after = self.events().get(order.checked_add(1)?..)?.iter();
        let mut of_run = after.take_while(|event| !over.iter().any(|kind| is_kind(event, *kind)));
        let waits = of_run.find(|event| is_kind(event, EventKind::WaitingShutdownDelay))?;
        let length = waits.display_message.trim().strip_prefix("Waiting for shutdown_delay of ")?;
        let length = length.split_whitespace().next()?;
        let told_at = match of_run.find(|event| is_kind(event, EventKind::SkippingShutdownDelay)) {
            Some(skipped) => skipped.time,
            None => waits.time.plus(wire_span(length)?),
        };
        Some(ShutdownDelay { length, told_at })
    }

    /// The `shutdown_delay` of the last order to stop.
    pub fn last_delay(&self) -> Option<ShutdownDelay<'a>> {
        self.delay_of(self.events().iter().rposition(|event| is_kind(event, EventKind::Killing))?)
    }

    /// How its last run ended, and when.
    pub fn last_end(&self) -> Option<(Timestamp, RunEnd)> {
        let at = self.events().iter().rposition(|event| is_kind(event, EventKind::Terminated))?;
        let event = self.events().get(at)?;
        Some((event.time, self.end_at(at)))
    }

    /// The check that had the run restarted whose end is the event `Terminated` at an index; `None`
    /// where no check did.
    fn check_before(&self, at: usize) -> Option<&'a str> {
        let run = self.events().get(..at)?.iter().rev();
        let mut run = run.take_while(|event| !is_kind(event, EventKind::Started));
        let order = run.find(|event| is_kind(event, EventKind::RestartSignaled))?;
        let named = order.display_message.trim().strip_prefix("healthcheck: check ")?;
        Some(named.strip_suffix(" unhealthy")?.trim_matches('"'))
    }

    /// The end of the last run where a check restarted it, and the name of the check.
    pub fn last_end_by_check(&self) -> Option<(&'a str, RunEnd)> {
        let at = self.events().iter().rposition(|event| is_kind(event, EventKind::Terminated))?;
        Some((self.check_before(at)?, self.end_of_check(at)?))
    }

    /// The end of a run that a check restarted. However the run ended then, the reason is that the
    /// check failed too often.
    fn end_of_check(&self, at: usize) -> Option<RunEnd> {
        let check = self.check_before(at)?;
        // A run that ended of something else meanwhile has that reason.
        let own = self.end_at(at);
        if own.trouble {
            return None;
        }
        let TaskFacts { alloc, task, .. } = self.told;
        let next = vec![
            format!(
                "find out why it does not answer as the check expects: {}",
                crate::commands::task_errors(alloc, task)
            ),
            format!(
                "if it needs longer to be well, raise grace or limit in check_restart of check {check}"
            ),
        ];
        let text = format!("was told to restart, because {}", check_failed_phrase(check));
        Some(RunEnd { text, next, trouble: true })
    }

    /// The failure of the task: its time and its end.
    pub fn failure(&self) -> Option<(Timestamp, RunEnd)> {
        let kinds: Vec<_> =
            self.events().iter().map(|event| (&*event.kind, event.fails_task)).collect();
        let at = ostler_model::event::index_of_reason(&kinds)?;
        let event = self.events().get(at)?;
        let end = if is_kind(event, EventKind::Terminated) {
            self.end_of_check(at).unwrap_or_else(|| self.end_at(at))
        } else if NOT_STARTED.iter().any(|kind| is_kind(event, *kind)) {
            exit::describe_failed_start(self.told, event)
        } else {
            let text = self.phrase(at)?;
            let name = self.told.task;
            let rest = text.strip_prefix(&format!("task {name} "));
            let rest = rest.map(str::to_owned).or_else(|| {
                Some(format!("was stopped: {}", text.strip_prefix(&format!("task {name}: "))?))
            });
            RunEnd { text: rest.unwrap_or(text), next: self.next_of(event), trouble: true }
        };
        Some((event.time, end))
    }

    /// The failed start before an event that says what follows.
    pub fn failure_before(&self, event: &WireTaskEvent) -> Option<(Timestamp, RunEnd)> {
        let before = self.events().iter().rev().skip_while(|one| *one != event).skip(1);
        let failed = before.into_iter().next()?;
        let known = NOT_STARTED.iter().any(|kind| is_kind(failed, *kind));
        known.then(|| (failed.time, exit::describe_failed_start(self.told, failed)))
    }

    fn next_of(&self, event: &WireTaskEvent) -> Vec<String> {
        let task = self.told.task;
        if is_kind(event, EventKind::DiskExceeded) {
            let text =
                "raise ephemeral_disk.size of the group, or let its tasks write less".to_owned();
            return vec![text];
        }
        if is_kind(event, EventKind::FailedRestoring) {
            let again = self.told.run_again();
            return vec![format!("{again}; task {task} then starts anew")];
        }
        Vec::new()
    }

    /// The sentence for an event, without its full stop. `None` where the event says nothing new.
    pub fn phrase(&self, at: usize) -> Option<String> {
        let event = self.events().get(at)?;
        let name = self.told.task;
        let message = event.display_message.trim();
        let of = |text: String| Some(format!("task {name} {text}"));
        let plain = is_kind(event, EventKind::Killed) && !event.details.contains_key("kill_error");
        if plain
            || [EventKind::Received, EventKind::TaskSetup].iter().any(|kind| is_kind(event, *kind))
        {
            return None;
        }
        if is_kind(event, EventKind::Terminated) {
            return of(self.end_at(at).text);
        }
        if is_kind(event, EventKind::ArtifactDownloadFailed) {
            return Some(format!("task {name}: {message}"));
        }
        if NOT_STARTED.iter().any(|kind| is_kind(event, *kind)) {
            return of(format!("could not be started: {message}"));
        }
        if self.is_said_by_order(at) {
            return None;
        }
        let delayed = self.phrase_of_delay(at);
        delayed.or_else(|| self.phrase_of_order(event)).or_else(|| self.phrase_of_state(event))
    }

    /// Is this the event of a wait that the order to stop names already?
    fn is_said_by_order(&self, at: usize) -> bool {
        let events = self.events().get(..=at).unwrap_or_default();
        let waits =
            events.last().is_some_and(|event| is_kind(event, EventKind::WaitingShutdownDelay));
        let order = events.iter().rposition(|event| is_kind(event, EventKind::Killing));
        waits && order.is_some_and(|order| self.delay_of(order).is_some())
    }

    /// The sentence for an order to stop that the task hears of later.
    fn phrase_of_delay(&self, at: usize) -> Option<String> {
        let (name, length) = (self.told.task, self.delay_of(at)?.length);
        let event = self.events().get(at)?;
        let timeout = Some(detail(event, "kill_timeout")).filter(|timeout| !timeout.is_empty())?;
        let text = format!(
            "task {name} is to stop after its shutdown_delay of {length}, and is given {timeout} to end then"
        );
        Some(with_reason(&text, stop_reason(detail(event, "kill_reason"))))
    }

    /// The sentence for something that is done to a task.
    fn phrase_of_order(&self, event: &WireTaskEvent) -> Option<String> {
        let name = self.told.task;
        let message = event.display_message.trim();
        let of = |text: String| Some(format!("task {name} {text}"));
        if is_kind(event, EventKind::Restarting) {
            return of(restart_phrase(detail(event, "restart_reason")));
        }
        if is_kind(event, EventKind::NotRestarting) {
            return of(format!("is not started again: {}", no_restart_phrase(message)));
        }
        if is_kind(event, EventKind::RestartSignaled) {
            return of(with_reason("was told to restart", message));
        }
        if is_kind(event, EventKind::Signaling) {
            return of(format!("was sent {}", detail(event, "task_signal")));
        }
        if is_kind(event, EventKind::Killing) {
            let error = detail(event, "kill_error");
            if !error.is_empty() {
                return Some(format!("task {name}: {error}"));
            }
            let timeout = detail(event, "kill_timeout");
            let text = match timeout {
                "" => "was to stop, and did not run".to_owned(),
                timeout => format!("was told to stop and given {timeout} to end"),
            };
            return of(with_reason(&text, stop_reason(detail(event, "kill_reason"))));
        }
        if is_kind(event, EventKind::Killed) {
            let error = detail(event, "kill_error");
            return of(format!("was to stop: {error}"));
        }
        if is_kind(event, EventKind::SiblingFailed) {
            let sibling = detail(event, "failed_sibling");
            return of(format!("is stopped because task {sibling} of its group failed"));
        }
        if is_kind(event, EventKind::LeaderDead) {
            return of("is stopped because the leader of its group ended".to_owned());
        }
        if is_kind(event, EventKind::MainTasksDead) {
            return of("is stopped because the main tasks of its group ended".to_owned());
        }
        None
    }

    /// The sentence for the state that a task is in.
    fn phrase_of_state(&self, event: &WireTaskEvent) -> Option<String> {
        let name = self.told.task;
        let message = event.display_message.trim();
        let of = |text: &str| Some(format!("task {name} {text}"));
        if is_kind(event, EventKind::Started) {
            return of("started");
        }
        if let Some(previous) = message.strip_prefix("waiting for previous allocation ") {
            let short = previous.get(..8).unwrap_or(previous);
            return Some(format!("waits for the end of allocation {short}, whose place it takes"));
        }
        if let Some(reason) = message.strip_prefix("Waiting for driver: ") {
            return of(&format!("waits for its driver: {reason}"));
        }
        if is_kind(event, EventKind::Recovered) {
            return of("was taken over by a restarted agent; it kept running meanwhile");
        }
        if is_kind(event, EventKind::FailedRestoring) {
            let why = detail(event, "message");
            return of(&format!("could not be taken over by a restarted agent: {why}"));
        }
        if is_kind(event, EventKind::DownloadingArtifacts) {
            return match message {
                "Client is downloading artifacts" => of("fetches its artifacts"),
                message => Some(format!("task {name} fetches {message}")),
            };
        }
        if is_kind(event, EventKind::AllocUnhealthy) {
            return Some(format!("judged unhealthy: {message}"));
        }
        if is_kind(event, EventKind::WaitingShutdownDelay) {
            return of("waits for its shutdown_delay before it is told to stop");
        }
        if is_kind(event, EventKind::SkippingShutdownDelay) {
            return of("does not wait for its shutdown_delay");
        }
        Some(format!("task {name}: {}", if message.is_empty() { &event.kind } else { message }))
    }
}

/// The sentence why a check restarts its task.
pub(crate) fn check_failed_phrase(check: &str) -> String {
    format!("check {check} failed as often in a row as limit in its check_restart allows")
}

fn with_reason(text: &str, why: &str) -> String {
    match why {
        "" => text.to_owned(),
        why => format!("{text}: {why}"),
    }
}

/// The words for a restart, by the recorded reason.
fn restart_phrase(reason: &str) -> String {
    match reason {
        "" => "is started again".to_owned(),
        "Restart within policy" => "is started again, as its restart policy allows".to_owned(),
        "Exceeded allowed attempts, applying a delay" => {
            "used up the restarts of this interval and waits for the next one".to_owned()
        }
        other => format!("is started again: {other}"),
    }
}

/// The words for the end of all restarts, by the recorded message.
fn no_restart_phrase(message: &str) -> String {
    match message {
        "Policy allows no restarts" => "its restart policy allows none".to_owned(),
        "Error was unrecoverable" => "this does not go away by itself".to_owned(),
        other => match other.strip_prefix("Exceeded allowed attempts ") {
            Some(rest) => {
                let mut words = rest.split_whitespace();
                let (attempts, interval) =
                    (words.next().unwrap_or("?"), words.nth(2).unwrap_or("?"));
                let restarts = if attempts == "1" { "restart" } else { "restarts" };
                format!(
                    "it used up its {attempts} {restarts} in {interval} (restart.mode is \"fail\")"
                )
            }
            None => other.to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_of_the_restart_policy_are_said_in_words() {
        let used_up = r#"Exceeded allowed attempts 2 in interval 30m0s and mode is "fail""#;
        assert_eq!(
            no_restart_phrase(used_up),
            r#"it used up its 2 restarts in 30m0s (restart.mode is "fail")"#
        );
        assert_eq!(no_restart_phrase("because"), "because");
        assert_eq!(restart_phrase(""), "is started again");
        assert_eq!(
            restart_phrase("Template with change_mode restart re-rendered"),
            "is started again: Template with change_mode restart re-rendered"
        );
    }
}

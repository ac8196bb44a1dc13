//! The events of one task as sentences.

use ostler_model::event::EventKind;
use ostler_model::time::Timestamp;
use ostler_wire::{TaskEvent, TaskState};

use crate::exit::{self, End, Order, Told};
use crate::words::{stop_reason, wire_span};

/// Kinds that say that a start failed.
const NOT_STARTED: [EventKind; 5] = [
    EventKind::ArtifactDownloadFailed,
    EventKind::FailedValidation,
    EventKind::SetupFailure,
    EventKind::HookFailed,
    EventKind::DriverFailure,
];

/// A task, what is known of it beside its state, and its state.
#[derive(Clone, Copy)]
pub(crate) struct Task<'a> {
    pub told: Told<'a>,
    pub state: &'a TaskState<'a>,
}

/// How long the signal to stop waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShutdownDelay<'a> {
    /// As the event says it: `20s`.
    pub length: &'a str,
    /// When the task is told to stop, or was.
    pub told_at: Timestamp,
}

/// Is an event of a kind?
pub(crate) fn is(event: &TaskEvent, kind: EventKind) -> bool {
    event.kind == kind.as_str()
}

fn detail<'e>(event: &'e TaskEvent<'_>, key: &str) -> &'e str {
    event.details.get(key).map_or("", String::as_str)
}

impl<'a> Task<'a> {
    pub fn events(&self) -> &'a [TaskEvent<'a>] {
        &self.state.events
    }

    /// The last event of a kind.
    pub fn last(&self, kind: EventKind) -> Option<&'a TaskEvent<'a>> {
        self.events().iter().rev().find(|event| is(event, kind))
    }

    /// The last event that says where a task that does not run is.
    pub fn newest(&self) -> Option<&'a TaskEvent<'a>> {
        // A verdict is about the allocation; a signal changes nothing.
        let passes = [EventKind::AllocUnhealthy, EventKind::Signaling, EventKind::Received];
        self.events().iter().rev().find(|event| !passes.iter().any(|kind| is(event, *kind)))
    }

    /// How the run of an event `Terminated` ended.
    pub fn end_at(&self, at: usize) -> End {
        let events = self.events();
        let Some(event) = events.get(at) else { return End::default() };
        let before = events.get(..at).unwrap_or_default();
        let run = before.iter().rev().take_while(|event| !is(event, EventKind::Started));
        let orders = [EventKind::Killing, EventKind::RestartSignaled];
        let mut run = run.enumerate();
        let stop = run.find(|(_, event)| orders.iter().any(|kind| is(event, *kind)));
        let order = stop.map(|(back, order)| {
            let delay = at.checked_sub(back + 1).and_then(|order| self.delay_of(order));
            Order { event: order, told_at: delay.map_or(order.time, |delay| delay.told_at) }
        });
        // An end before the delay is over is its own: it was not told to stop yet.
        exit::ended(self.told, event, order.filter(|order| event.time >= order.told_at))
    }

    /// The `shutdown_delay` that the order to stop at an index waits for, or waited.
    pub fn delay_of(&self, order: usize) -> Option<ShutdownDelay<'a>> {
        self.events().get(order).filter(|event| is(event, EventKind::Killing))?;
        let over = [EventKind::Started, EventKind::Terminated];
        let after = self.events().get(order.checked_add(1)?..)?.iter();
        let mut of_run = after.take_while(|event| !over.iter().any(|kind| is(event, *kind)));
        let waits = of_run.find(|event| is(event, EventKind::WaitingShutdownDelay))?;
        let length = waits.display_message.trim().strip_prefix("Waiting for shutdown_delay of ")?;
        let length = length.split_whitespace().next()?;
        let told_at = match of_run.find(|event| is(event, EventKind::SkippingShutdownDelay)) {
            Some(skipped) => skipped.time,
            None => waits.time.plus(wire_span(length)?),
        };
        Some(ShutdownDelay { length, told_at })
    }

    /// That of the last order to stop.
    pub fn last_delay(&self) -> Option<ShutdownDelay<'a>> {
        self.delay_of(self.events().iter().rposition(|event| is(event, EventKind::Killing))?)
    }

    /// How its last run ended, and when.
    pub fn last_end(&self) -> Option<(Timestamp, End)> {
        let at = self.events().iter().rposition(|event| is(event, EventKind::Terminated))?;
        let event = self.events().get(at)?;
        Some((event.time, self.end_at(at)))
    }

    /// The check that had the run of an event `Terminated` restarted, where one had.
    fn check_before(&self, at: usize) -> Option<&'a str> {
        let run = self.events().get(..at)?.iter().rev();
        let mut run = run.take_while(|event| !is(event, EventKind::Started));
        let order = run.find(|event| is(event, EventKind::RestartSignaled))?;
        let named = order.display_message.trim().strip_prefix("healthcheck: check ")?;
        Some(named.strip_suffix(" unhealthy")?.trim_matches('"'))
    }

    /// How its last run ended, where a check had it restarted, and which.
    pub fn last_end_by_check(&self) -> Option<(&'a str, End)> {
        let at = self.events().iter().rposition(|event| is(event, EventKind::Terminated))?;
        Some((self.check_before(at)?, self.end_of_check(at)?))
    }

    /// That it was told to restart is what a run ended of, however it ended then: a check failed too often.
    fn end_of_check(&self, at: usize) -> Option<End> {
        let check = self.check_before(at)?;
        // One that ended of something else in the meantime says of what.
        let own = self.end_at(at);
        if own.trouble {
            return None;
        }
        let Told { alloc, task, .. } = self.told;
        let next = vec![
            format!(
                "look why it does not answer as the check wants: {}",
                crate::commands::task_errors(alloc, task)
            ),
            format!(
                "if it needs longer to be well, raise grace or limit in check_restart of check {check}"
            ),
        ];
        let text = format!("was told to restart, because {}", often_failed(check));
        Some(End { text, next, trouble: true })
    }

    /// What it failed of: when, and how.
    pub fn failure(&self) -> Option<(Timestamp, End)> {
        let kinds: Vec<_> =
            self.events().iter().map(|event| (&*event.kind, event.fails_task)).collect();
        let at = ostler_model::event::says_why(&kinds)?;
        let event = self.events().get(at)?;
        let end = if is(event, EventKind::Terminated) {
            self.end_of_check(at).unwrap_or_else(|| self.end_at(at))
        } else if NOT_STARTED.iter().any(|kind| is(event, *kind)) {
            exit::not_started(self.told, event)
        } else {
            let text = self.phrase(at)?;
            let name = self.told.task;
            let rest = text.strip_prefix(&format!("task {name} "));
            let rest = rest.map(str::to_owned).or_else(|| {
                Some(format!("was stopped: {}", text.strip_prefix(&format!("task {name}: "))?))
            });
            End { text: rest.unwrap_or(text), next: self.next_of(event), trouble: true }
        };
        Some((event.time, end))
    }

    /// What a start failed of before an event that says what follows.
    pub fn failure_before(&self, event: &TaskEvent) -> Option<(Timestamp, End)> {
        let before = self.events().iter().rev().skip_while(|one| *one != event).skip(1);
        let failed = before.into_iter().next()?;
        let known = NOT_STARTED.iter().any(|kind| is(failed, *kind));
        known.then(|| (failed.time, exit::not_started(self.told, failed)))
    }

    fn next_of(&self, event: &TaskEvent) -> Vec<String> {
        let task = self.told.task;
        if is(event, EventKind::DiskExceeded) {
            let text =
                "raise ephemeral_disk.size of the group, or let its tasks write less".to_owned();
            return vec![text];
        }
        if is(event, EventKind::FailedRestoring) {
            let again = self.told.run_again();
            return vec![format!("{again}; task {task} then starts anew")];
        }
        Vec::new()
    }

    /// What an event says, as a sentence without its full stop; none where it says nothing new.
    pub fn phrase(&self, at: usize) -> Option<String> {
        let event = self.events().get(at)?;
        let name = self.told.task;
        let message = event.display_message.trim();
        let of = |text: String| Some(format!("task {name} {text}"));
        let plain = is(event, EventKind::Killed) && !event.details.contains_key("kill_error");
        if plain || [EventKind::Received, EventKind::TaskSetup].iter().any(|kind| is(event, *kind))
        {
            return None;
        }
        if is(event, EventKind::Terminated) {
            return of(self.end_at(at).text);
        }
        if is(event, EventKind::ArtifactDownloadFailed) {
            return Some(format!("task {name}: {message}"));
        }
        if NOT_STARTED.iter().any(|kind| is(event, *kind)) {
            return of(format!("could not be started: {message}"));
        }
        if self.is_said_by_order(at) {
            return None;
        }
        let delayed = self.phrase_of_delay(at);
        delayed.or_else(|| self.phrase_of_order(event)).or_else(|| self.phrase_of_state(event))
    }

    /// Is it the wait of an order to stop that names it?
    fn is_said_by_order(&self, at: usize) -> bool {
        let events = self.events().get(..=at).unwrap_or_default();
        let waits = events.last().is_some_and(|event| is(event, EventKind::WaitingShutdownDelay));
        let order = events.iter().rposition(|event| is(event, EventKind::Killing));
        waits && order.is_some_and(|order| self.delay_of(order).is_some())
    }

    /// Of an order to stop of which the task hears later.
    fn phrase_of_delay(&self, at: usize) -> Option<String> {
        let (name, length) = (self.told.task, self.delay_of(at)?.length);
        let event = self.events().get(at)?;
        let timeout = Some(detail(event, "kill_timeout")).filter(|timeout| !timeout.is_empty())?;
        let text = format!(
            "task {name} is to stop after its shutdown_delay of {length}, and is given {timeout} to end then"
        );
        Some(because(&text, stop_reason(detail(event, "kill_reason"))))
    }

    /// Of what is done to a task.
    fn phrase_of_order(&self, event: &TaskEvent) -> Option<String> {
        let name = self.told.task;
        let message = event.display_message.trim();
        let of = |text: String| Some(format!("task {name} {text}"));
        if is(event, EventKind::Restarting) {
            return of(restarts(detail(event, "restart_reason")));
        }
        if is(event, EventKind::NotRestarting) {
            return of(format!("is not started again: {}", not_restarting(message)));
        }
        if is(event, EventKind::RestartSignaled) {
            return of(because("was told to restart", message));
        }
        if is(event, EventKind::Signaling) {
            return of(format!("was sent {}", detail(event, "task_signal")));
        }
        if is(event, EventKind::Killing) {
            let error = detail(event, "kill_error");
            if !error.is_empty() {
                return Some(format!("task {name}: {error}"));
            }
            let timeout = detail(event, "kill_timeout");
            let text = match timeout {
                "" => "was to stop, and did not run".to_owned(),
                timeout => format!("was told to stop and given {timeout} to end"),
            };
            return of(because(&text, stop_reason(detail(event, "kill_reason"))));
        }
        if is(event, EventKind::Killed) {
            let error = detail(event, "kill_error");
            return of(format!("was to stop: {error}"));
        }
        if is(event, EventKind::SiblingFailed) {
            let sibling = detail(event, "failed_sibling");
            return of(format!("is stopped because task {sibling} of its group failed"));
        }
        if is(event, EventKind::LeaderDead) {
            return of("is stopped because the leader of its group ended".to_owned());
        }
        if is(event, EventKind::MainTasksDead) {
            return of("is stopped because the main tasks of its group ended".to_owned());
        }
        None
    }

    /// Of where a task is.
    fn phrase_of_state(&self, event: &TaskEvent) -> Option<String> {
        let name = self.told.task;
        let message = event.display_message.trim();
        let of = |text: &str| Some(format!("task {name} {text}"));
        if is(event, EventKind::Started) {
            return of("started");
        }
        if let Some(previous) = message.strip_prefix("waiting for previous allocation ") {
            let short = previous.get(..8).unwrap_or(previous);
            return Some(format!("waits for the end of allocation {short}, whose place it takes"));
        }
        if let Some(reason) = message.strip_prefix("Waiting for driver: ") {
            return of(&format!("waits for its driver: {reason}"));
        }
        if is(event, EventKind::Recovered) {
            return of("was taken over by a restarted agent; it ran on meanwhile");
        }
        if is(event, EventKind::FailedRestoring) {
            let why = detail(event, "message");
            return of(&format!("could not be taken over by a restarted agent: {why}"));
        }
        if is(event, EventKind::DownloadingArtifacts) {
            return match message {
                "Client is downloading artifacts" => of("fetches its artifacts"),
                message => Some(format!("task {name} fetches {message}")),
            };
        }
        if is(event, EventKind::AllocUnhealthy) {
            return Some(format!("judged unhealthy: {message}"));
        }
        if is(event, EventKind::WaitingShutdownDelay) {
            return of("waits for its shutdown_delay before it is told to stop");
        }
        if is(event, EventKind::SkippingShutdownDelay) {
            return of("does not wait for its shutdown_delay");
        }
        Some(format!("task {name}: {}", if message.is_empty() { &event.kind } else { message }))
    }
}

/// Why a check restarts what it asks.
pub(crate) fn often_failed(check: &str) -> String {
    format!("check {check} failed as often in a row as limit in its check_restart allows")
}

fn because(text: &str, why: &str) -> String {
    match why {
        "" => text.to_owned(),
        why => format!("{text}: {why}"),
    }
}

/// Why a task is started again.
fn restarts(reason: &str) -> String {
    match reason {
        "" => "is started again".to_owned(),
        "Restart within policy" => "is started again, as its restart policy allows".to_owned(),
        "Exceeded allowed attempts, applying a delay" => {
            "used up the restarts of this interval and waits for the next one".to_owned()
        }
        other => format!("is started again: {other}"),
    }
}

/// Why a task is not started again.
fn not_restarting(message: &str) -> String {
    match message {
        "Policy allows no restarts" => "its restart policy allows none".to_owned(),
        "Error was unrecoverable" => "this does not pass by itself".to_owned(),
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
            not_restarting(used_up),
            r#"it used up its 2 restarts in 30m0s (restart.mode is "fail")"#
        );
        assert_eq!(not_restarting("because"), "because");
        assert_eq!(restarts(""), "is started again");
        assert_eq!(
            restarts("Template with change_mode restart re-rendered"),
            "is started again: Template with change_mode restart re-rendered"
        );
    }
}

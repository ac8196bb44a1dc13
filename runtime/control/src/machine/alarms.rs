//! What is to be looked at when its time comes.

use std::collections::BTreeMap;
use std::time::Duration;

use super::RequestId;
use ostler_model::ids::JobId;

/// A thing with a time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Alarm {
    /// Fill places that wait.
    Fill,
    /// The job has something to do at this time: a successor, a deadline, the next step.
    Due(JobId),
    /// It is time to see whether allocations are to be collected.
    Collect,
    /// What somebody wants collected has had its time to end.
    CollectNow(RequestId),
    /// A change of the job, or one that waits for its turn, had its time.
    Overdue(JobId),
    /// Write a stop again that could not be written.
    Rewrite(JobId),
    /// Remove records again that the disk did not let go.
    Forget,
    /// The next step of emptying the node, or its deadline.
    NodeDrain,
    /// The time to drain is over.
    Drained,
    /// The time for changes under way is over.
    Left,
}

/// At most one time for each.
#[derive(Clone, Debug, Default)]
pub(super) struct Alarms(BTreeMap<Alarm, Duration>);

impl Alarms {
    /// At this time; one that was set before for another time is gone.
    pub(super) fn set(&mut self, alarm: Alarm, at: Duration) {
        self.0.insert(alarm, at);
    }

    /// At this time, or sooner where it was set so.
    pub(super) fn set_by(&mut self, alarm: Alarm, at: Duration) {
        let known = self.0.entry(alarm).or_insert(at);
        *known = at.min(*known);
    }

    /// Not any more.
    pub(super) fn clear(&mut self, alarm: &Alarm) {
        self.0.remove(alarm);
    }

    /// The time of the first.
    pub(super) fn next(&self) -> Option<Duration> {
        self.0.values().min().copied()
    }

    /// Those whose time has come; they are gone then.
    pub(super) fn due(&mut self, now: Duration) -> Vec<Alarm> {
        let due = self.0.iter().filter(|(_, at)| **at <= now);
        let due: Vec<Alarm> = due.map(|(alarm, _)| alarm.clone()).collect();
        for alarm in &due {
            self.0.remove(alarm);
        }
        due
    }
}

//! The alarms of the machine: what is to be done at a certain uptime.

use std::collections::BTreeMap;
use std::time::Duration;

use super::RequestId;
use ostler_model::ids::JobId;

/// Something to be done at a time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Alarm {
    /// Fill places that wait.
    Fill,
    /// Look at a job again: a successor, a deadline or the next step is due.
    Due(JobId),
    /// Check whether allocations are to be collected.
    Collect,
    /// Begin a requested collection: what is about to end has had its time.
    CollectNow(RequestId),
    /// Answer requests for a change of the job whose time is over.
    Overdue(JobId),
    /// Write a stop again that could not be written.
    Rewrite(JobId),
    /// Remove records again that the disk did not remove.
    Forget,
    /// Take the next step of a drain of the node, or pass its deadline.
    NodeDrain,
    /// End the drain of a leaving agent: its deadline has passed.
    Drained,
    /// End the wait for changes under way.
    Left,
}

/// The time of each alarm; an alarm has at most one time.
#[derive(Clone, Debug, Default)]
pub(super) struct Alarms(BTreeMap<Alarm, Duration>);

impl Alarms {
    /// Set an alarm. An earlier setting of it is replaced.
    pub(super) fn set(&mut self, alarm: Alarm, at: Duration) {
        self.0.insert(alarm, at);
    }

    /// Set an alarm for this time, unless it is set for an earlier one.
    pub(super) fn set_by(&mut self, alarm: Alarm, at: Duration) {
        let known = self.0.entry(alarm).or_insert(at);
        *known = at.min(*known);
    }

    /// Remove an alarm.
    pub(super) fn clear(&mut self, alarm: &Alarm) {
        self.0.remove(alarm);
    }

    /// The time of the first alarm.
    pub(super) fn next(&self) -> Option<Duration> {
        self.0.values().min().copied()
    }

    /// Remove the alarms that are due, and return them.
    pub(super) fn due(&mut self, now: Duration) -> Vec<Alarm> {
        let due = self.0.iter().filter(|(_, at)| **at <= now);
        let due: Vec<Alarm> = due.map(|(alarm, _)| alarm.clone()).collect();
        for alarm in &due {
            self.0.remove(alarm);
        }
        due
    }
}

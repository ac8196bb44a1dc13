//! Measurements of processor time. Two of them make a percentage.

use std::collections::BTreeMap;
use std::time::Duration;

use ostler_model::ids::{AllocId, TaskName};
use ostler_model::task::Usage;
use ostler_model::time::Timestamp;
use ostler_node::usage::{CoreShare, CoreTime};

/// The last measurement of processor time, by task. Two measurements make a percentage.
#[derive(Debug, Default)]
pub(super) struct CpuSamples(BTreeMap<(AllocId, TaskName), CpuSample>);

/// The most tasks that are remembered. Beyond that all are forgotten, and the next percentage
/// counts from the start of the task.
const SAMPLES_MAX: usize = 4_096;
/// The shortest time between two measurements for a percentage. With less, the steps of the clock
/// would show.
const SPAN_MIN: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug)]
struct CpuSample {
    at: Timestamp,
    cpu_time: Duration,
    /// The last percentage, for requests that come again at once.
    percent: f64,
}

impl CpuSamples {
    /// Per cent of one core since the last request, or since the start of the task for the first one.
    pub(super) fn percent(
        &mut self,
        task: (AllocId, TaskName),
        usage: &Usage,
        started: Option<Timestamp>,
    ) -> Option<f64> {
        let (at, cpu_time) = (usage.taken_at, usage.cpu_time?);
        // Less than before means another run of the task.
        let last = self.0.get(&task).copied().filter(|last| cpu_time >= last.cpu_time);
        let (since, before) = match last {
            Some(last) if at.since(last.at) < SPAN_MIN => return Some(last.percent),
            Some(last) => (last.at, last.cpu_time),
            None => (started?, Duration::ZERO),
        };
        let span = at.since(since).max(Duration::from_millis(1));
        let percent = (cpu_time - before).as_secs_f64() / span.as_secs_f64() * 100.0;
        if self.0.len() >= SAMPLES_MAX {
            self.0.clear();
        }
        self.0.insert(task, CpuSample { at, cpu_time, percent });
        Some(percent)
    }
}

/// The last measurement of the cores. Two measurements make a percentage.
#[derive(Debug, Default)]
pub(super) struct CoreSamples {
    last: Option<(Timestamp, Vec<CoreTime>)>,
    /// The last shares, for requests that come again at once.
    told: Vec<CoreShare>,
}

impl CoreSamples {
    /// The share of each core since the last request, or since the machine started for the first one.
    pub(super) fn shares(&mut self, cores: &[CoreTime], now: Timestamp) -> Vec<CoreShare> {
        let before = match &self.last {
            Some((at, _)) if now.since(*at) < SPAN_MIN && self.told.len() == cores.len() => {
                return self.told.clone();
            }
            Some((_, before)) => before.as_slice(),
            None => &[],
        };
        let of = |core: &CoreTime| before.iter().find(|before| before.name == core.name);
        self.told = cores.iter().map(|core| core.share_since(of(core))).collect();
        self.last = Some((now, cores.to_vec()));
        self.told.clone()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn the_percentage_is_of_the_time_since_the_last_question() {
        let mut processor = CpuSamples::default();
        let task = || (AllocId::new(uuid::Uuid::nil()), TaskName::new("t").unwrap());
        let usage = |cpu_ms, at_ms: u64| Usage {
            cpu_time: Some(Duration::from_millis(cpu_ms)),
            memory_bytes: None,
            taken_at: Timestamp::from_nanos(at_ms * 1_000_000),
        };
        let started = Some(Timestamp::from_nanos(0));
        assert_eq!(processor.percent(task(), &usage(500, 1_000), started), Some(50.0), "first");
        assert_eq!(processor.percent(task(), &usage(1_500, 2_000), started), Some(100.0));
        assert_eq!(processor.percent(task(), &usage(1_500, 2_001), started), Some(100.0), "again");
        let restarted = Some(Timestamp::from_nanos(3_000_000_000));
        assert_eq!(processor.percent(task(), &usage(10, 4_000), restarted), Some(1.0));
        let unknown = Usage { cpu_time: None, ..usage(0, 5_000) };
        assert_eq!(processor.percent(task(), &unknown, started), None, "unset is not zero");
    }

    #[test]
    fn the_share_of_a_core_is_of_the_time_since_the_last_question() {
        let core = |idle, total| {
            vec![CoreTime { name: "cpu0".to_owned(), idle, total, ..CoreTime::default() }]
        };
        let at = |millis: u64| Timestamp::from_nanos(millis * 1_000_000);
        let mut cores = CoreSamples::default();
        let mut busy = |idle, total, millis| {
            let shares = cores.shares(&core(idle, total), at(millis));
            shares.first().map(|share| share.busy)
        };
        assert_eq!(busy(50, 100, 1_000), Some(50.0), "since the start");
        assert_eq!(busy(50, 200, 2_000), Some(100.0));
        assert_eq!(busy(55, 205, 2_001), Some(100.0), "asked again at once");
        assert_eq!(busy(150, 300, 3_000), Some(0.0));
    }
}

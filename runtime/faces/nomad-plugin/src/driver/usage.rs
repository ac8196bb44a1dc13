//! What tasks use, measured at each interval for Nomad.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, stream};

use super::task::{NomadTask, wire_time};
use super::tasks::DriverTasks;
use crate::proto::driver as wire;
use crate::proto::driver::cpu_usage::Fields as Cpu;
use crate::proto::driver::memory_usage::Fields as Memory;
use ostler_model::clock;
use ostler_model::task::Usage;

/// Measure until the task ends. The first measurement has no processor time, which is the
/// difference of two measurements.
pub(crate) fn stream(
    tasks: &Arc<DriverTasks>,
    task: Arc<NomadTask>,
    interval: Duration,
) -> impl Stream<Item = wire::TaskStatsResponse> + Send + use<> {
    let workloads = Arc::clone(tasks.workloads());
    stream::unfold((task, None, true), move |(task, before, first)| {
        let workloads = Arc::clone(&workloads);
        async move {
            if !first {
                tokio::select! {
                    () = clock::sleep(interval) => {}
                    _end = task.wait_end() => return None,
                }
            }
            if task.known_end().is_some() {
                return None;
            }
            let used = workloads.usage(&task.kept.run, &task.kept.workload).await;
            let said = task_stats(&task.id, before, used.unwrap_or_default());
            Some((said, (task, used.or(before), false)))
        }
    })
}

fn task_stats(id: &str, before: Option<Usage>, now: Usage) -> wire::TaskStatsResponse {
    let percent = before.and_then(|before| percent(&before, &now));
    let cpu = percent.map(|percent| wire::CpuUsage {
        percent,
        measured_fields: vec![Cpu::Percent.into()],
        ..Default::default()
    });
    let memory = now.memory_bytes.map(|bytes| wire::MemoryUsage {
        rss: bytes,
        usage: bytes,
        measured_fields: vec![Memory::Rss.into(), Memory::Usage.into()],
        ..Default::default()
    });
    let usage = wire::TaskResourceUsage {
        cpu: Some(cpu.unwrap_or_default()),
        memory: Some(memory.unwrap_or_default()),
    };
    let stats = wire::TaskStats {
        id: id.to_owned(),
        timestamp: Some(wire_time(now.taken_at)),
        agg_resource_usage: Some(usage),
        ..Default::default()
    };
    wire::TaskStatsResponse { stats: Some(stats) }
}

/// Percent of one core that was used between two measurements. `None` where nothing was measured,
/// or no time passed.
fn percent(before: &Usage, now: &Usage) -> Option<f64> {
    let used = now.cpu_time?.saturating_sub(before.cpu_time?);
    let wall = now.taken_at.since(before.taken_at);
    (!wall.is_zero()).then(|| used.as_secs_f64() / wall.as_secs_f64() * 100.0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use ostler_model::time::Timestamp;

    fn usage_at(seconds: u64, cpu: u64) -> Usage {
        Usage {
            cpu_time: Some(Duration::from_millis(cpu)),
            memory_bytes: Some(7),
            taken_at: Timestamp::from_nanos(seconds * 1_000_000_000),
        }
    }

    #[test]
    fn the_processor_is_measured_from_the_second_look_on() {
        let usage = |before, now| {
            let said = task_stats("t", before, now).stats.unwrap().agg_resource_usage.unwrap();
            (said.cpu.unwrap(), said.memory.unwrap())
        };
        let (cpu, memory) = usage(None, usage_at(1, 100));
        assert_eq!((cpu.measured_fields.len(), memory.rss), (0, 7));
        let (cpu, _) = usage(Some(usage_at(1, 100)), usage_at(3, 600));
        assert!((cpu.percent - 25.0).abs() < 1e-9);
        let (cpu, memory) = usage(Some(usage_at(1, 100)), Usage::default());
        assert!(cpu.measured_fields.is_empty() && memory.measured_fields.is_empty());
    }
}

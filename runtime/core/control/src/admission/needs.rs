//! Computes what a task group needs of the node at its busiest moment.

use ostler_model::job::{LifecycleHook, Task, TaskGroup};
use ostler_node::NodeTotals;

/// The phase of its group in which a task runs. Tasks of one phase run beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LifecyclePhase {
    /// A sidecar: it runs beside all others.
    Always,
    /// The task runs before the main tasks and has ended when they start.
    Before,
    /// The task is a main task, or starts after them and runs beside them.
    Main,
    /// The task runs after the main tasks.
    After,
}

impl LifecyclePhase {
    pub(super) fn from_task(task: &Task) -> Self {
        match task.lifecycle.map(|lifecycle| (lifecycle.hook, lifecycle.sidecar)) {
            Some((LifecycleHook::Prestart, false)) => Self::Before,
            Some((LifecycleHook::Prestart, true)) => Self::Always,
            Some((LifecycleHook::Poststart, _)) | None => Self::Main,
            Some((LifecycleHook::Poststop, _)) => Self::After,
        }
    }
}

/// Sum of two totals, bounded by the largest number.
pub(super) fn add(a: NodeTotals, b: NodeTotals) -> NodeTotals {
    NodeTotals {
        cpu_mhz: a.cpu_mhz.saturating_add(b.cpu_mhz),
        memory_mb: a.memory_mb.saturating_add(b.memory_mb),
    }
}

/// A sum of totals without one of its parts.
pub(super) fn sub(a: NodeTotals, b: NodeTotals) -> NodeTotals {
    NodeTotals {
        cpu_mhz: a.cpu_mhz.saturating_sub(b.cpu_mhz),
        memory_mb: a.memory_mb.saturating_sub(b.memory_mb),
    }
}

/// The needs of a group. Prestart tasks that end, the main tasks and the poststop tasks run one
/// after the other, so the largest of the three counts; sidecars run all the time. `mhz` gives the
/// processor time of a task.
pub(super) fn group_needs(group: &TaskGroup, mhz: &dyn Fn(&Task) -> u64) -> NodeTotals {
    let mut phases = [NodeTotals::default(); 3];
    let mut always = NodeTotals::default();
    let [before, main, after] = &mut phases;
    for task in &group.tasks {
        let phase = match LifecyclePhase::from_task(task) {
            LifecyclePhase::Always => &mut always,
            LifecyclePhase::Before => &mut *before,
            LifecyclePhase::Main => &mut *main,
            LifecyclePhase::After => &mut *after,
        };
        let memory_mb = u64::from(task.resources.memory_mb);
        *phase = add(*phase, NodeTotals { cpu_mhz: mhz(task), memory_mb });
    }
    let largest = phases.into_iter().fold(NodeTotals::default(), |most, one| NodeTotals {
        cpu_mhz: most.cpu_mhz.max(one.cpu_mhz),
        memory_mb: most.memory_mb.max(one.memory_mb),
    });
    add(always, largest)
}

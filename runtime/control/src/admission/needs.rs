//! What a task group needs of the node at its busiest moment.

use ostler_model::job::{LifecycleHook, Task, TaskGroup};
use ostler_node::NodeResources;

/// When a task of a group runs. Those of one phase run beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// A sidecar: beside all others.
    Always,
    /// Before the main tasks, and over then.
    Before,
    /// The main tasks and those that start after them.
    Main,
    /// After the main tasks.
    After,
}

impl Phase {
    pub(super) fn of(task: &Task) -> Self {
        match task.lifecycle.map(|lifecycle| (lifecycle.hook, lifecycle.sidecar)) {
            Some((LifecycleHook::Prestart, false)) => Self::Before,
            Some((LifecycleHook::Prestart, true)) => Self::Always,
            Some((LifecycleHook::Poststart, _)) | None => Self::Main,
            Some((LifecycleHook::Poststop, _)) => Self::After,
        }
    }
}

/// Sum of two, stopping at the largest number.
pub(super) fn add(a: NodeResources, b: NodeResources) -> NodeResources {
    NodeResources {
        cpu_mhz: a.cpu_mhz.saturating_add(b.cpu_mhz),
        memory_mb: a.memory_mb.saturating_add(b.memory_mb),
    }
}

/// What is left of a sum without one of its parts.
pub(super) fn sub(a: NodeResources, b: NodeResources) -> NodeResources {
    NodeResources {
        cpu_mhz: a.cpu_mhz.saturating_sub(b.cpu_mhz),
        memory_mb: a.memory_mb.saturating_sub(b.memory_mb),
    }
}

/// Prestart tasks that end, the main tasks and the poststop tasks run one after the other, so the
/// largest of the three counts; sidecars run all the time. `mhz`: processor time of a task.
pub(super) fn of_group(group: &TaskGroup, mhz: &dyn Fn(&Task) -> u64) -> NodeResources {
    let mut phases = [NodeResources::default(); 3];
    let mut always = NodeResources::default();
    let [before, main, after] = &mut phases;
    for task in &group.tasks {
        let phase = match Phase::of(task) {
            Phase::Always => &mut always,
            Phase::Before => &mut *before,
            Phase::Main => &mut *main,
            Phase::After => &mut *after,
        };
        let memory_mb = u64::from(task.resources.memory_mb);
        *phase = add(*phase, NodeResources { cpu_mhz: mhz(task), memory_mb });
    }
    let largest = phases.into_iter().fold(NodeResources::default(), |most, one| NodeResources {
        cpu_mhz: most.cpu_mhz.max(one.cpu_mhz),
        memory_mb: most.memory_mb.max(one.memory_mb),
    });
    add(always, largest)
}

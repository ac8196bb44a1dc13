//! What a task group needs of the node at its busiest moment.

use ostler_model::job::{LifecycleHook, Task, TaskGroup};
use ostler_node::NodeResources;

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
/// largest of the three counts; sidecars run all the time.
pub(super) fn of_group(group: &TaskGroup) -> NodeResources {
    let mut phases = [NodeResources::default(); 3];
    let mut always = NodeResources::default();
    let [before, main, after] = &mut phases;
    for task in &group.tasks {
        let phase = match task.lifecycle {
            Some(lifecycle) => match (lifecycle.hook, lifecycle.sidecar) {
                (LifecycleHook::Prestart, false) => &mut *before,
                (LifecycleHook::Prestart, true) => &mut always,
                (LifecycleHook::Poststart, _) => &mut *main,
                (LifecycleHook::Poststop, _) => &mut *after,
            },
            None => &mut *main,
        };
        *phase = add(*phase, of_task(task));
    }
    let largest = phases.into_iter().fold(NodeResources::default(), |most, one| NodeResources {
        cpu_mhz: most.cpu_mhz.max(one.cpu_mhz),
        memory_mb: most.memory_mb.max(one.memory_mb),
    });
    add(always, largest)
}

fn of_task(task: &Task) -> NodeResources {
    NodeResources {
        cpu_mhz: u64::from(task.resources.cpu_mhz),
        memory_mb: u64::from(task.resources.memory_mb),
    }
}

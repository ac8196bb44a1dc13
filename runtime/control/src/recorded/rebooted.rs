//! Allocations whose machine was restarted: their prestart tasks run again before the main ones do.
//!
//! ```text
//! NodeBoot on record, and another boot now:
//!   every allocation that goes on ─► prestart tasks that succeeded or ran: pending again ─┐ queued
//!                                                                                      ▼
//!                                                    NodeBoot of now, durable after them
//! ```
//! What such a task prepared may have been in memory, on a mount or in the network, so a main task
//! that is started again must find it prepared again. A crash before the boot is on record does it once
//! more. A run of which only the intent is on record may have been let go in the earlier boot, and
//! the note that would say so is not synced: where no restart is allowed, its task is over.
//! Poststart tasks are not run again: they follow a start of the allocation, not of its machine.

use super::{Recorded, Tasks, readable};
use ostler_lifecycle::task::events;
use ostler_model::alloc::{Allocation, DesiredStatus};
use ostler_model::ids::TaskName;
use ostler_model::job::{Lifecycle, LifecycleHook};
use ostler_model::planted::planted;
use ostler_model::saved::NodeBoot;
use ostler_model::task::{TaskState, TaskStatus};
use ostler_model::time::Timestamp;
use ostler_state::{Key, StateError, StateStore};

/// For the tasks' events.
const REASON: &str = "the machine was restarted";

impl Recorded {
    /// Compare the boot with the one on record, and prepare what goes on for the new one.
    ///
    /// # Errors
    /// When the state cannot be read or written.
    pub async fn prepare_boot(
        &mut self,
        state: &StateStore,
        boot_id: &str,
        now: Timestamp,
    ) -> Result<(), StateError> {
        let known = readable(state.get::<NodeBoot>(&Key::NodeBoot))?;
        if known.is_some_and(|known| known.boot_id != boot_id) {
            for (alloc, tasks) in self.going_on() {
                let mut again = begin_again(alloc, tasks, now);
                again.extend(lose_unfinished(alloc, tasks, now));
                tracing::info!(alloc = %alloc.id, tasks = again.len(), "{REASON}: prestart tasks run again, and runs that may have begun are over");
                for name in again {
                    let Some(task) = tasks.get(&name) else { continue };
                    if let Some(public) = &task.state {
                        state.put_later(&Key::TaskState(alloc.id, name.clone()), public).await?;
                    }
                    if let Some(local) = &task.local {
                        state.put_later(&Key::TaskLocal(alloc.id, name), local).await?;
                    }
                }
            }
        }
        state.put(&Key::NodeBoot, &NodeBoot { boot_id: boot_id.to_owned() }).await?;
        Ok(())
    }
}

/// Tasks that must not be started twice, with a run that may have been: their names.
fn lose_unfinished(alloc: &Allocation, tasks: &mut Tasks, now: Timestamp) -> Vec<TaskName> {
    let specs = alloc.task_group().map(|group| group.tasks.as_slice()).unwrap_or_default();
    let once = specs.iter().filter(|task| task.restart.attempts == 0);
    let mut lost = Vec::new();
    for name in once.map(|task| &task.name) {
        let Some(task) = tasks.get_mut(name) else { continue };
        // Of a run whose restart was decided, the decision counts.
        let local = task.local.as_ref().filter(|local| local.delayed_until.is_none());
        let run = local.and_then(|local| local.run.as_ref());
        let unfinished = run.is_some_and(|run| run.started.is_none());
        let dead = task.state.as_ref().is_some_and(|state| state.status == TaskStatus::Dead);
        if !unfinished || dead {
            continue;
        }
        let public = task.state.get_or_insert_default();
        public.push_event(events::failed_restoring(now, REASON));
        public.push_event(events::not_restarting(now, "Policy allows no restarts"));
        public.status = TaskStatus::Dead;
        public.finished_at = Some(now);
        lost.push(name.clone());
    }
    lost
}

/// Make the prestart tasks pending that had succeeded, or may have, if a main task is to run. Their
/// names.
fn begin_again(alloc: &Allocation, tasks: &mut Tasks, now: Timestamp) -> Vec<TaskName> {
    let runs = alloc.desired == DesiredStatus::Run && !planted("not-prepared-after-reboot");
    let Some(group) = alloc.task_group().filter(|_| runs) else {
        return Vec::new();
    };
    let over = |name: &TaskName| {
        let state = tasks.get(name).and_then(|task| task.state.as_ref());
        state.is_some_and(|state| state.status == TaskStatus::Dead)
    };
    let mut mains = group.tasks.iter().filter(|task| task.lifecycle.is_none());
    if mains.all(|task| over(&task.name)) {
        return Vec::new();
    }
    let once = Some(Lifecycle { hook: LifecycleHook::Prestart, sidecar: false });
    let once = group.tasks.iter().filter(|task| task.lifecycle == once);
    let mut again = Vec::new();
    for spec in once {
        let (name, attempts) = (&spec.name, &spec.restart.attempts);
        let Some(task) = tasks.get_mut(name) else { continue };
        let local = task.local.as_ref();
        let has_run = local.is_some_and(|local| local.run.is_some());
        let decided = local.is_some_and(|local| local.delayed_until.is_some());
        // It may have ended well before the machine did, and nobody has read that. Where another run may
        // be forbidden, that is left to its owner.
        let open = has_run && !decided && *attempts > 0;
        let succeeded = task.state.as_ref().is_some_and(TaskState::successful);
        let dead = task.state.as_ref().is_some_and(|state| state.status == TaskStatus::Dead);
        if !(succeeded || open && !dead) {
            continue;
        }
        let public = task.state.get_or_insert_default();
        public.status = TaskStatus::Pending;
        public.finished_at = None;
        public.restarts = public.restarts.saturating_add(1);
        public.last_restart = Some(now);
        public.push_event(events::restarting(now, REASON, std::time::Duration::ZERO));
        if let Some(local) = &mut task.local {
            // What a run left is ended and forgotten first, as of one whose restart was decided.
            (local.run_complete, local.delayed_until) = (false, has_run.then_some(now));
        }
        again.push(name.clone());
    }
    again
}

#[cfg(test)]
#[path = "rebooted_tests.rs"]
mod tests;

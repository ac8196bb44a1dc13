//! After a restart of the machine, prestart tasks run again before the main tasks do.
//!
//! ```text
//! NodeBoot on record, and another boot now:
//!   every allocation that goes on ─► prestart tasks that succeeded or ran: pending again ─┐ queued
//!                                                                                         ▼
//!                                                      NodeBoot of now, durable after them
//! ```
//! What such a task prepared may have been in memory, on a mount or in the network. So a main task
//! that is started again must find it prepared again. A crash before the boot is on record repeats
//! this once more. A run of which only the intent is on record may have been started in the earlier
//! boot, and the note that would say so is not synced. Where no restart is allowed, its task is
//! over. Poststart tasks are not run again: they follow a start of the allocation, not of its
//! machine.

use super::{NodeRecords, Tasks, skip_unreadable};
use ostler_lifecycle::task::events;
use ostler_model::alloc::{Allocation, DesiredStatus};
use ostler_model::ids::TaskName;
use ostler_model::job::{Lifecycle, LifecycleHook};
use ostler_model::planted::planted;
use ostler_model::saved::NodeBoot;
use ostler_model::task::{TaskState, TaskStatus};
use ostler_model::time::Timestamp;
use ostler_state::records::{NodeBootKey, TaskLocalKey, TaskStateKey};
use ostler_state::{StateError, StateStore};

/// The reason in the events of tasks.
const REASON: &str = "the machine was restarted";

impl NodeRecords {
    /// Compare the boot with the one on record, and prepare for a new one what goes on.
    ///
    /// # Errors
    /// When the state cannot be read or written.
    pub async fn prepare_boot(
        &mut self,
        state: &StateStore,
        boot_id: &str,
        now: Timestamp,
    ) -> Result<(), StateError> {
        let known = skip_unreadable(state.get::<NodeBoot>(&NodeBootKey::of()))?;
        if known.is_some_and(|known| known.boot_id != boot_id) {
            for (alloc, tasks) in self.continuing_allocs() {
                let mut again = begin_again(alloc, tasks, now);
                again.extend(lose_unfinished(alloc, tasks, now));
                tracing::info!(alloc = %alloc.id, tasks = again.len(), "{REASON}: prestart tasks run again, and runs that may have begun are over");
                for name in again {
                    let Some(task) = tasks.get(&name) else { continue };
                    if let Some(public) = &task.state {
                        state.put_later(&TaskStateKey::of(alloc.id, name.clone()), public).await?;
                    }
                    if let Some(local) = &task.local {
                        state.put_later(&TaskLocalKey::of(alloc.id, name), local).await?;
                    }
                }
            }
        }
        state.put(&NodeBootKey::of(), &NodeBoot { boot_id: boot_id.to_owned() }).await?;
        Ok(())
    }
}

/// End the tasks that must not be started twice and may have had a run. Returns their names.
fn lose_unfinished(alloc: &Allocation, tasks: &mut Tasks, now: Timestamp) -> Vec<TaskName> {
    let specs = alloc.task_group().map(|group| group.tasks.as_slice()).unwrap_or_default();
    let once = specs.iter().filter(|task| task.restart.attempts == 0);
    let mut lost = Vec::new();
    for name in once.map(|task| &task.name) {
        let Some(task) = tasks.get_mut(name) else { continue };
        // Where the restart of a run was decided, that decision counts.
        let local = task.local.as_ref().filter(|local| local.delayed_until.is_none());
        let run = local.and_then(|local| local.run.as_ref());
        let unfinished = run.is_some_and(|run| run.started.is_none());
        let dead = task.state.as_ref().is_some_and(|state| state.status == TaskStatus::Dead);
        if !unfinished || dead {
            continue;
        }
        let public = task.state.get_or_insert_default();
        public.push_event(events::failed_restoring(now, REASON));
        public.push_event(events::not_restarting_event(now, "Policy allows no restarts"));
        public.status = TaskStatus::Dead;
        public.finished_at = Some(now);
        lost.push(name.clone());
    }
    lost
}

/// Make prestart tasks pending that succeeded, or may have succeeded, if a main task is to run.
/// Returns their names.
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
        // The run may have ended well before the machine did, unnoticed. Where another run may be
        // forbidden, the decision is left to its owner.
        let open = has_run && !decided && *attempts > 0;
        let succeeded = task.state.as_ref().is_some_and(TaskState::is_successful);
        let dead = task.state.as_ref().is_some_and(|state| state.status == TaskStatus::Dead);
        if !(succeeded || open && !dead) {
            continue;
        }
        let public = task.state.get_or_insert_default();
        public.status = TaskStatus::Pending;
        public.finished_at = None;
        public.restarts = public.restarts.saturating_add(1);
        public.last_restart = Some(now);
        public.push_event(events::restarting_event(now, REASON, std::time::Duration::ZERO));
        if let Some(local) = &mut task.local {
            // The remains of the run are ended and forgotten first, as for a run whose restart was
            // decided.
            (local.run_complete, local.delayed_until) = (false, has_run.then_some(now));
        }
        again.push(name.clone());
    }
    again
}

#[cfg(test)]
#[path = "reboot_tests.rs"]
mod tests;

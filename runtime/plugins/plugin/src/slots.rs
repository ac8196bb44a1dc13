//! Limits how many calls of one plugin are under way at once.
//!
//! ```text
//! start ─► turn of its job ─► turn of a start ─┐
//! any call ────────────────────────────────────┴─► place of the plugin ─► instance of the pool ─► guest
//! ```
//! A call keeps its place until its guest is gone, also when nobody waits for it any more. So a
//! guest in a read that never returns holds a place of its own plugin, and of no other. Starts may
//! wait long in the host (a module is compiled). So they never take every place, and tasks can be
//! stopped meanwhile; and one job never takes every start. Waiting here costs a guest nothing,
//! because its deadline begins when it runs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use ostler_model::clock::{Stopwatch, timeout};
use ostler_model::ids::JobId;
use ostler_model::limits::{PLUGIN_CALLS_MAX, PLUGIN_STARTS_MAX, PLUGIN_STARTS_OF_JOB_MAX};
use ostler_sandbox::CallError;

/// The places for calls of one plugin.
pub(super) struct CallSlots {
    /// The places of all plugins together: instances in the pool.
    all: Arc<Semaphore>,
    own: Arc<Semaphore>,
    starts: Arc<Semaphore>,
    jobs: Mutex<HashMap<JobId, Weak<Semaphore>>>,
}

/// A place for one call. Dropping it gives it back.
pub(super) struct CallSlot {
    _own: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

/// The turn of a start. Dropping it gives it back.
pub(super) struct StartTurn {
    _start: Option<OwnedSemaphorePermit>,
    _of_job: Option<OwnedSemaphorePermit>,
    /// The turns of the job. Other starts of the job find them as long as one start holds this.
    _job: Arc<Semaphore>,
}

impl CallSlots {
    /// The places of a plugin among `all`.
    pub(super) fn new(all: Arc<Semaphore>) -> Self {
        let (own, starts) = (Semaphore::new(PLUGIN_CALLS_MAX), Semaphore::new(PLUGIN_STARTS_MAX));
        Self { all, own: Arc::new(own), starts: Arc::new(starts), jobs: Mutex::default() }
    }

    /// Take a place for a call, and wait for it no longer than `longest` in all. Nearly always
    /// there is one, and then no timer is needed.
    pub(super) async fn take(&self, longest: Duration) -> Result<CallSlot, CallError> {
        let watch = Stopwatch::start();
        let own = take_place(&self.own, longest).await.ok_or_else(|| CallError::PoolExhausted {
            message: format!(
                "{PLUGIN_CALLS_MAX} calls of this plugin are under way and none ended within \
                 {longest:?}"
            ),
        })?;
        let left = longest.saturating_sub(watch.elapsed());
        let of_all = take_place(&self.all, left).await.ok_or_else(|| CallError::PoolExhausted {
            message: format!("no call of a plugin ended within {longest:?}"),
        })?;
        Ok(CallSlot { _own: own, _of_all: of_all })
    }

    /// Wait for the turn of a start. The caller has a time limit for the whole start.
    pub(super) async fn start(&self, job: &JobId) -> StartTurn {
        let of_job = self.job_turns(job);
        StartTurn {
            // The semaphores are never closed.
            _of_job: Arc::clone(&of_job).acquire_owned().await.ok(),
            _start: Arc::clone(&self.starts).acquire_owned().await.ok(),
            _job: of_job,
        }
    }

    fn job_turns(&self, job: &JobId) -> Arc<Semaphore> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.retain(|_, turns| turns.strong_count() > 0);
        if let Some(turns) = jobs.get(job).and_then(Weak::upgrade) {
            return turns;
        }
        let turns = Arc::new(Semaphore::new(PLUGIN_STARTS_OF_JOB_MAX));
        jobs.insert(job.clone(), Arc::downgrade(&turns));
        turns
    }
}

async fn take_place(places: &Arc<Semaphore>, longest: Duration) -> Option<OwnedSemaphorePermit> {
    match Arc::clone(places).try_acquire_owned() {
        Ok(place) => Some(place),
        Err(_full) => timeout(longest, Arc::clone(places).acquire_owned()).await?.ok(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    const SHORT: Duration = Duration::from_millis(10);

    fn slots(all: &Arc<Semaphore>) -> CallSlots {
        CallSlots::new(Arc::clone(all))
    }

    #[tokio::test(start_paused = true)]
    async fn calls_of_one_plugin_that_never_end_leave_places_to_the_others() {
        let all = Arc::new(Semaphore::new(PLUGIN_CALLS_MAX + 1));
        let (hanging, other) = (slots(&all), slots(&all));
        let mut held = Vec::new();
        for _ in 0..PLUGIN_CALLS_MAX {
            held.push(hanging.take(SHORT).await.unwrap());
        }
        let refused = hanging.take(SHORT).await.err().unwrap();
        assert!(refused.to_string().contains("of this plugin are under way"), "{refused}");
        drop(other.take(SHORT).await.unwrap());
        held.pop();
        hanging.take(SHORT).await.unwrap();
    }

    #[tokio::test]
    async fn starts_of_one_job_wait_for_each_other_and_not_for_those_of_another() {
        let slots = slots(&Arc::new(Semaphore::new(1)));
        let (busy, other) = (JobId::new("busy").unwrap(), JobId::new("other").unwrap());
        let mut held = Vec::new();
        for _ in 0..PLUGIN_STARTS_OF_JOB_MAX {
            held.push(slots.start(&busy).await);
        }
        assert!(slots.start(&busy).now_or_never().is_none());
        assert!(slots.start(&other).now_or_never().is_some());
        held.pop();
        assert!(slots.start(&busy).now_or_never().is_some());
    }

    #[tokio::test]
    async fn however_many_starts_wait_there_are_places_to_stop_tasks() {
        let slots = slots(&Arc::new(Semaphore::new(PLUGIN_CALLS_MAX)));
        let mut held = Vec::new();
        for number in 0.. {
            let job = JobId::new(format!("j{number}")).unwrap();
            let Some(turn) = slots.start(&job).now_or_never() else { break };
            held.push((turn, slots.take(SHORT).await.unwrap()));
        }
        assert_eq!(held.len(), PLUGIN_STARTS_MAX);
        assert!(slots.take(SHORT).now_or_never().unwrap().is_ok());
    }
}

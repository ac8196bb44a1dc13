//! Changes of one job come one after the other, each as a whole.
//!
//! A change is decided, written and done. What came of the one before is known when the next one is
//! decided: it is durable and its owners were told, or all of it was taken back. Changes of other jobs
//! are not held up.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::OwnedMutexGuard;

use ostler_model::ids::JobId;

/// Whose turn it is, by job. Empty when nothing is being changed.
#[derive(Default)]
pub(super) struct Turns(Mutex<BTreeMap<JobId, Weak<tokio::sync::Mutex<()>>>>);

/// A job's turn; over when it is dropped.
pub(super) struct Turn(#[expect(dead_code, reason = "held")] OwnedMutexGuard<()>);

impl Turns {
    /// Wait for the turn of a job.
    pub(super) async fn take(&self, job: &JobId) -> Turn {
        let turn = self.of(job);
        Turn(turn.lock_owned().await)
    }

    /// The turn of a job, unless somebody has it.
    pub(super) fn try_take(&self, job: &JobId) -> Option<Turn> {
        self.of(job).try_lock_owned().ok().map(Turn)
    }

    fn of(&self, job: &JobId) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = turns.get(job).and_then(Weak::upgrade) {
            return turn;
        }
        // Those nobody waits for any more: at most as many stay as changes are under way.
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::new(tokio::sync::Mutex::new(()));
        turns.insert(job.clone(), Arc::downgrade(&turn));
        turn
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[tokio::test]
    async fn a_job_has_one_turn_at_a_time_and_others_have_their_own() {
        let turns = Turns::default();
        let (web, db) = (JobId::new("web").unwrap(), JobId::new("db").unwrap());
        let turn = turns.take(&web).await;
        assert!(turns.try_take(&web).is_none());
        assert!(turns.try_take(&db).is_some());
        drop(turn);
        assert!(turns.try_take(&web).is_some());
    }

    #[tokio::test]
    async fn nothing_is_kept_of_jobs_that_are_not_being_changed() {
        let turns = Turns::default();
        for n in 0..100 {
            drop(turns.take(&JobId::new(format!("j{n}")).unwrap()).await);
        }
        assert!(turns.0.lock().unwrap().len() <= 1);
    }
}

//! Stops that the disk refuses to record.
//!
//! ```text
//!  owners told ─► records durable? ─ yes ─► acknowledged
//!                    │ refused: what was placed is taken back     no answer in time: left in the queue
//!                    ▼
//!     acknowledged with a warning ─► written again and again until it is durable
//! ```
//! Ending a task needs no record first: whoever cannot free a full disk otherwise must be able to end
//! what fills it. A purge that is not on record is a stop.

use super::change::{Asked, Change};
use super::{AgentHandle, SubmitError};
use ostler_model::causes::chain;
use ostler_model::clock;
use ostler_model::ids::{AllocId, JobId};
use ostler_model::limits::{STATE_LATER_RETRY_WALL_MAX, STATE_WRITE_WALL_MAX};
use ostler_state::{Key, Mark, StateError};

/// What is to be written of a stop: the newest there is of it.
struct Stopped {
    job: JobId,
    of_job: bool,
    allocs: Vec<AllocId>,
}

impl AgentHandle {
    /// Wait until a change that ends tasks is on record; its owners know of it already. `false`: it
    /// cannot be written now, which is said in the change.
    pub(super) async fn stop_recorded(
        &self,
        change: &mut Change,
        begun: Result<Mark, SubmitError>,
    ) -> Result<bool, SubmitError> {
        let written = match begun {
            Ok(mark) => clock::timeout(STATE_WRITE_WALL_MAX, self.durable(change, mark)).await,
            Err(error) => Some(Err(error)),
        };
        let why = match written {
            Some(Ok(())) => return Ok(true),
            Some(Err(SubmitError::State(error @ StateError::Closed { .. }))) => {
                return Err(SubmitError::State(error));
            }
            Some(Err(error)) => {
                // It cannot be without a record.
                for alloc in &change.placed {
                    self.unplace(alloc.id).await;
                }
                self.write_again(change);
                match error {
                    SubmitError::State(error) => chain(&error),
                    error => chain(&error),
                }
            }
            // It waits in the queue of the store, and so does what was placed.
            None => format!("the disk did not answer within {STATE_WRITE_WALL_MAX:?}"),
        };
        tracing::error!(error = why, "a stop is not on record; what it ends is ended all the same");
        change.unwritten = Some(format!(
            "the stop is not on record ({why}); the tasks are ended all the same, but an agent that \
             starts before it can be written runs them again; it is tried again until then"
        ));
        Ok(false)
    }

    /// Write a stop until it is durable.
    fn write_again(&self, change: &Change) {
        let Some(job) = change.job.clone() else { return };
        let allocs = change.copies.iter().map(|(new, _)| new.id).collect();
        let stopped = Stopped { job, of_job: change.of_job(), allocs };
        let (agent, ended) = (self.clone(), self.0.ended.clone());
        self.beside(async move {
            loop {
                tokio::select! {
                    () = ended.cancelled() => return,
                    () = clock::sleep(STATE_LATER_RETRY_WALL_MAX) => {}
                }
                match agent.write_stopped(&stopped).await {
                    Ok(()) => {
                        tracing::info!(job = %stopped.job, "the stop is on record now");
                        return;
                    }
                    Err(SubmitError::Leaving) => return,
                    Err(error) => {
                        tracing::warn!(job = %stopped.job, %error, "the stop is not on record yet");
                    }
                }
            }
        });
    }

    /// Write what is known now of a stop, and do what is left to do for its job.
    async fn write_stopped(&self, stopped: &Stopped) -> Result<(), SubmitError> {
        // Nobody changes the job meanwhile: what is read is what is written last.
        let _turn = self.0.turns.take(&stopped.job).await;
        let state = &self.0.state;
        let job = self.registry().jobs.get(&stopped.job).map(|entry| entry.record.clone());
        if let Some(record) = job.filter(|_| stopped.of_job) {
            let key = Key::Job(stopped.job.clone());
            state.put(&key, &*record).await.map_err(SubmitError::State)?;
        }
        for id in &stopped.allocs {
            let alloc = self.registry().alloc(*id).map(|entry| entry.allocation.clone());
            if let Some(alloc) = alloc {
                state.put(&Key::Alloc(*id), &*alloc).await.map_err(SubmitError::State)?;
            }
        }
        self.change_in_turn(&stopped.job, Asked::Fill, false).await.map(drop)
    }
}

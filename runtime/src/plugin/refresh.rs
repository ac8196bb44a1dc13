//! Asking plugins for their fingerprints again and again.
//!
//! ```text
//! add ─► first answer, waited for with a bound ─► loop: wait what the plugin asked ─► ask ─┐
//!                                                   ▲                                      │
//!                                                   └── after a failure: back-off ◄────────┘
//! ```

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::{sleep, timeout};
use crate::limits::{FINGERPRINT_RETRY_FIRST, FINGERPRINT_RETRY_MAX, FIRST_FINGERPRINT_WAIT};

/// How a fingerprint went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The plugin answered; ask again after this time, or never.
    Answered(Option<Duration>),
    /// It did not, or wrongly.
    Failed,
}

/// The loops of one manager.
#[derive(Debug, Default)]
pub struct Refresher {
    stop: CancellationToken,
    loops: TaskTracker,
}

impl Refresher {
    /// Ask once and wait for it (bounded), then keep asking in the background. `ask` publishes what
    /// it found.
    pub async fn add<F, Answer>(&self, ask: F)
    where
        F: Fn() -> Answer + Send + 'static,
        Answer: Future<Output = Asked> + Send,
    {
        let mut failures = 0;
        let first = timeout(FIRST_FINGERPRINT_WAIT, ask()).await;
        let mut wait = next_wait(first.unwrap_or(Asked::Failed), &mut failures);
        let stop = self.stop.clone();
        self.loops.spawn(async move {
            while let Some(duration) = wait {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = sleep(duration) => {}
                }
                wait = next_wait(ask().await, &mut failures);
            }
        });
    }

    /// Stop asking. A call in flight is waited for: it has the plugin's deadline.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        self.loops.close();
        self.loops.wait().await;
    }
}

/// How long to wait: what the plugin asked, or a back-off that doubles with each failure in a row.
fn next_wait(asked: Asked, failures: &mut u32) -> Option<Duration> {
    match asked {
        Asked::Answered(wait) => {
            *failures = 0;
            wait
        }
        Asked::Failed => {
            let doublings = (*failures).min(16);
            *failures = failures.saturating_add(1);
            let wait = FINGERPRINT_RETRY_FIRST.saturating_mul(1 << doublings);
            Some(wait.min(FINGERPRINT_RETRY_MAX))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_with_each_failure_in_a_row_up_to_its_bound() {
        let mut failures = 0;
        let mut waits = |asked| next_wait(asked, &mut failures).map(|wait| wait.as_secs());
        let row: Vec<_> = (0..9).map(|_| waits(Asked::Failed)).collect();
        let expected = [1, 2, 4, 8, 16, 32, 64, 120, 120].map(Some);
        assert_eq!(row, expected);
        assert_eq!(waits(Asked::Answered(Some(Duration::from_secs(30)))), Some(30));
        assert_eq!(waits(Asked::Failed), Some(1), "an answer ends the row");
        assert_eq!(waits(Asked::Answered(None)), None);
    }
}

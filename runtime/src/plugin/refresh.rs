//! Asking plugins for their fingerprints again and again.
//!
//! ```text
//! add ─► first answer, waited for with a bound ─► loop: wait what the plugin asked ─► ask ─┐
//!                                                   ▲                                      │
//!                                                   └── after a failure: back-off ◄────────┘
//! ```

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::call::CallCounters;
use crate::clock::{sleep, timeout};
use crate::limits::{FINGERPRINT_RETRY_FIRST, FINGERPRINT_RETRY_MAX, FIRST_FINGERPRINT_WAIT};

/// The loops of one manager.
#[derive(Debug, Default)]
pub struct Refresher {
    stop: CancellationToken,
    loops: TaskTracker,
}

impl Refresher {
    /// Ask once and wait for it (bounded), then keep asking in the background. `ask` publishes what
    /// it found and answers how long to wait; `None` means never again.
    pub async fn add<F, Asked>(&self, ask: F)
    where
        F: Fn() -> Asked + Send + 'static,
        Asked: Future<Output = Option<Duration>> + Send,
    {
        let first = timeout(FIRST_FINGERPRINT_WAIT, ask()).await;
        let mut wait = first.unwrap_or(Some(FINGERPRINT_RETRY_FIRST));
        let stop = self.stop.clone();
        self.loops.spawn(async move {
            while let Some(duration) = wait {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = sleep(duration) => {}
                }
                wait = ask().await;
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

/// Wait after a failed fingerprint: doubles with each failed call of the plugin.
#[must_use]
pub fn backoff(counters: &CallCounters) -> Duration {
    let failed = counters.failed.load(Ordering::Relaxed);
    let doublings = u32::try_from(failed.saturating_sub(1)).unwrap_or(u32::MAX).min(16);
    FINGERPRINT_RETRY_FIRST.saturating_mul(1 << doublings).min(FINGERPRINT_RETRY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_after_failures_doubles_up_to_its_bound() {
        let counters = CallCounters::default();
        let mut waits = Vec::new();
        for failed in [1, 2, 3, 30, u64::MAX] {
            counters.failed.store(failed, Ordering::Relaxed);
            waits.push(backoff(&counters).as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 120, 120]);
    }
}

//! The only source of time.
//!
//! Code that needs the time takes a [`Clock`] (or a [`Timestamp`] argument when it is pure). The
//! real clock reads the system; tests run on tokio's paused time or on a [`Clock::fixed`] one.
//! Waiting goes through [`sleep`] and [`timeout`], which follow tokio's (virtual) time.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use crate::time::Timestamp;

/// A source of the time of day and of monotonic time.
#[derive(Clone, Debug, Default)]
pub struct Clock(Source);

#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    System,
    Fixed(Arc<AtomicU64>),
}

impl Clock {
    /// The machine's clock.
    #[must_use]
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that stands still until [`Clock::advance`] moves it.
    #[must_use]
    pub fn fixed(at: Timestamp) -> Self {
        Self(Source::Fixed(Arc::new(AtomicU64::new(at.nanos()))))
    }

    /// The time of day.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System => system_now(),
            Source::Fixed(at) => Timestamp::from_nanos(at.load(Ordering::SeqCst)),
        }
    }

    /// Move a fixed clock forward; no effect on the system clock.
    pub fn advance(&self, by: Duration) {
        if let Source::Fixed(at) = &self.0 {
            let nanos = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
            at.fetch_add(nanos, Ordering::SeqCst);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads the time of day")]
fn system_now() -> Timestamp {
    let since = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    Timestamp::from_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// A point of monotonic time, for measuring how long something took.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(std::time::Instant);

impl Stopwatch {
    /// Start measuring.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one place that reads monotonic time")]
    pub fn start() -> Self {
        Self(std::time::Instant::now())
    }

    /// Time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Wait for `duration`.
#[expect(clippy::disallowed_methods, reason = "the one door to timers")]
pub async fn sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// Wait for `future` at most `duration`; `None` when the time is over first.
#[expect(clippy::disallowed_methods, reason = "the one door to timers")]
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Option<F::Output> {
    tokio::time::timeout(duration, future).await.ok()
}

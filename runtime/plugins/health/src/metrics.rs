//! Counts the costs of a plugin's calls: their number, their time and their bytes, without a lock.
//!
//! ```text
//! call ─► answered ─┐
//!      └► failed ───┴─► FunctionMeter of its name: a few atomic additions
//!                          └─ histogram: a bucket for each eighth of a doubling, 1 µs to 137 s
//! ```
//! A time that is read back is the middle of its bucket, so it is wrong by a sixteenth at most.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use ostler_model::calls::{DEVICE_FUNCTIONS, DRIVER_FUNCTIONS};

/// The number of buckets in each doubling, as a power of two.
const STEPS_LOG2: u32 = 3;
const STEPS: usize = 1 << STEPS_LOG2;
/// Times below 2^10 ns share the first bucket, and those from 2^37 ns on (137 s) the last.
const LEAST_LOG2: u32 = 10;
const MOST_LOG2: u32 = 37;
const BUCKETS: usize = (MOST_LOG2 - LEAST_LOG2) as usize * STEPS + 2;

/// A histogram of durations.
#[derive(Debug)]
pub struct Histogram([AtomicU64; BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; BUCKETS])
    }
}

impl Histogram {
    /// Count one duration.
    pub fn record(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        if let Some(bucket) = self.0.get(bucket_index(nanos)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The quantiles of the counted durations, in nanoseconds, for each of `shares` (of 1,000). The
    /// value for 500 is the time that half of all durations do not exceed. It is zero if nothing
    /// was counted.
    #[must_use]
    pub fn quantiles<const N: usize>(&self, shares: [u64; N]) -> [u64; N] {
        let counts: Vec<u64> = self.0.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let total: u64 = counts.iter().sum();
        shares.map(|share| quantile(&counts, total, share))
    }
}

fn quantile(counts: &[u64], total: u64, share: u64) -> u64 {
    let rank = u128::from(total) * u128::from(share);
    let rank = u64::try_from(rank.div_ceil(1_000)).unwrap_or(u64::MAX).max(1);
    let mut seen = 0u64;
    for (index, count) in counts.iter().enumerate() {
        seen = seen.saturating_add(*count);
        if seen >= rank {
            return bucket_middle(index);
        }
    }
    0
}

/// The index of the bucket of a time.
fn bucket_index(nanos: u64) -> usize {
    let Some(log2) = nanos.checked_ilog2().filter(|log2| *log2 >= LEAST_LOG2) else { return 0 };
    if log2 >= MOST_LOG2 {
        return BUCKETS - 1;
    }
    let step = (nanos >> (log2 - STEPS_LOG2)) as usize & (STEPS - 1);
    1 + (log2 - LEAST_LOG2) as usize * STEPS + step
}

/// The shortest time of a bucket.
fn bucket_start(index: usize) -> u64 {
    let Some(above) = index.checked_sub(1) else { return 0 };
    let (doublings, step) = (above / STEPS, above % STEPS);
    ((STEPS + step) as u64) << (doublings as u32 + LEAST_LOG2 - STEPS_LOG2)
}

/// The time that a bucket stands for.
fn bucket_middle(index: usize) -> u64 {
    let from = bucket_start(index);
    if index + 1 >= BUCKETS { from } else { from + (bucket_start(index + 1) - from) / 2 }
}

/// The counters of the calls of one function.
#[derive(Debug, Default)]
pub struct FunctionMeter {
    failed: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    calls: AtomicU64,
    times: Histogram,
}

/// The costs of the calls of one function, for display.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionStats {
    /// The number of calls that ended, with or without success.
    pub calls: u64,
    /// The number of calls that trapped, hung, broke a limit or answered against the rules.
    pub failed: u64,
    /// The time that half of the calls did not exceed, in nanoseconds of wall time. The wait for a
    /// free instance is included.
    pub p50_nanos: u64,
    /// The time that 99 of 100 calls did not exceed, in nanoseconds.
    pub p99_nanos: u64,
    /// The bytes given to the plugin: arguments in their compact form, and what its calls of the host returned.
    pub bytes_in: u64,
    /// The bytes taken from it: answers in their compact form, and what it passed to the host.
    pub bytes_out: u64,
}

/// The bytes of one call, in both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BytesMoved {
    /// The number of bytes to the plugin.
    pub bytes_in: u64,
    /// The number of bytes from the plugin.
    pub bytes_out: u64,
}

impl FunctionMeter {
    fn stats(&self) -> FunctionStats {
        let [p50_nanos, p99_nanos] = self.times.quantiles([500, 990]);
        FunctionStats {
            calls: self.calls.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            p50_nanos,
            p99_nanos,
            bytes_in: self.bytes_in.load(Ordering::Relaxed),
            bytes_out: self.bytes_out.load(Ordering::Relaxed),
        }
    }
}

/// Functions that are in no table of calls, and the name of all that this agent does not know.
const MORE_FUNCTIONS: &[&str] = &["describe", "other"];

/// How many functions have a meter.
const FUNCTIONS: usize = DEVICE_FUNCTIONS.len() + DRIVER_FUNCTIONS.len() + MORE_FUNCTIONS.len();

/// The functions of both worlds. The `fingerprint` of drivers is counted under the name of that of devices.
fn function_names() -> impl Iterator<Item = &'static str> {
    [DEVICE_FUNCTIONS, DRIVER_FUNCTIONS, MORE_FUNCTIONS].into_iter().flatten().copied()
}

/// The meters of all functions of a plugin. Functions that were never called take no memory.
#[derive(Debug, Default)]
pub struct FunctionMeters([OnceLock<Box<FunctionMeter>>; FUNCTIONS]);

impl FunctionMeters {
    fn function_meter(&self, function: &str) -> Option<&FunctionMeter> {
        let index = function_names().position(|name| name == function);
        let meter = self.0.get(index.unwrap_or(FUNCTIONS - 1))?;
        Some(meter.get_or_init(Box::default))
    }

    /// Record that a call ended.
    pub fn record_end(&self, function: &str, took: Duration, moved: BytesMoved) {
        if let Some(meter) = self.function_meter(function) {
            meter.calls.fetch_add(1, Ordering::Relaxed);
            meter.times.record(took);
            meter.bytes_in.fetch_add(moved.bytes_in, Ordering::Relaxed);
            meter.bytes_out.fetch_add(moved.bytes_out, Ordering::Relaxed);
        }
    }

    /// Record that a call that ended counts as failed.
    pub fn record_failure(&self, function: &str) {
        if let Some(meter) = self.function_meter(function) {
            meter.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The costs of every function that was called.
    #[must_use]
    pub fn function_stats(&self) -> std::collections::BTreeMap<String, FunctionStats> {
        let called = function_names().zip(&self.0);
        let stats = |(name, meter): (&str, &OnceLock<Box<FunctionMeter>>)| {
            Some((name.to_owned(), meter.get()?.stats()))
        };
        called.filter_map(stats).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_time_has_a_bucket_and_buckets_are_in_order() {
        assert_eq!(bucket_index(0), 0);
        assert_eq!(bucket_index(1_023), 0);
        assert_eq!(bucket_index(1_024), 1);
        assert_eq!(bucket_index((1 << MOST_LOG2) - 1), BUCKETS - 2);
        assert_eq!(bucket_index(1 << MOST_LOG2), BUCKETS - 1);
        assert_eq!(bucket_index(u64::MAX), BUCKETS - 1);
        for index in 1..BUCKETS {
            assert_eq!(bucket_index(bucket_start(index)), index);
            assert_eq!(bucket_index(bucket_start(index) - 1), index - 1);
        }
    }

    #[test]
    fn what_was_called_is_told_by_function_and_what_was_not_is_absent() {
        let metrics = FunctionMeters::default();
        let moved = BytesMoved { bytes_in: 3, bytes_out: 500 };
        metrics.record_end("fingerprint", Duration::from_micros(40), moved);
        metrics.record_end("fingerprint", Duration::from_micros(40), moved);
        metrics.record_end("reserve", Duration::from_secs(5), BytesMoved::default());
        metrics.record_failure("reserve");
        metrics.record_end("to come", Duration::ZERO, BytesMoved::default());
        let all = metrics.function_stats();
        assert_eq!(all.keys().collect::<Vec<_>>(), ["fingerprint", "other", "reserve"]);
        let stats = all["fingerprint"];
        assert_eq!((stats.calls, stats.failed), (2, 0));
        assert_eq!((stats.bytes_in, stats.bytes_out), (6, 1_000));
        assert!(stats.p50_nanos.abs_diff(40_000) < 2_500, "{stats:?}");
        assert_eq!((all["reserve"].calls, all["reserve"].failed), (1, 1));
    }

    proptest! {
        #[test]
        fn quantiles_are_those_of_the_sorted_times_within_a_sixteenth(
            times in prop::collection::vec(1_024u64..100_000_000_000, 1..200), share in 1u64..=1_000
        ) {
            let histogram = Histogram::default();
            for time in &times {
                histogram.record(Duration::from_nanos(*time));
            }
            let mut sorted = times;
            sorted.sort_unstable();
            let rank = (sorted.len() as u64 * share).div_ceil(1_000) as usize;
            let exact = sorted[rank - 1];
            let [told] = histogram.quantiles([share]);
            prop_assert!(told.abs_diff(exact) <= exact / 16 + 1, "{told} for {exact}");
        }
    }
}

//! Samples and their order.

use std::time::Duration;

/// The value at `fraction` (0 to 1) of the samples, by nearest rank; sorts them. 0 when there are
/// none.
#[must_use]
pub fn quantile(samples: &mut [f64], fraction: f64) -> f64 {
    samples.sort_unstable_by(f64::total_cmp);
    let last = samples.len().saturating_sub(1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a position in a list of samples"
    )]
    let at = (last as f64 * fraction).round() as usize;
    samples.get(at).copied().unwrap_or(0.0)
}

/// The value in the middle of the samples.
#[must_use]
pub fn median(samples: &[f64]) -> f64 {
    quantile(&mut samples.to_vec(), 0.5)
}

/// Times in microseconds.
#[must_use]
pub fn micros(times: &[Duration]) -> Vec<f64> {
    times.iter().map(|time| time.as_secs_f64() * 1e6).collect()
}

/// A count as a number to reckon with.
#[expect(clippy::cast_precision_loss, reason = "counts here are far below 2^52")]
#[must_use]
pub fn number(count: u64) -> f64 {
    count as f64
}

/// As [`number`].
#[must_use]
pub fn size(count: usize) -> f64 {
    number(u64::try_from(count).unwrap_or(u64::MAX))
}

/// `amount` per one of `count`.
#[must_use]
pub fn per(amount: u64, count: u64) -> f64 {
    number(amount) / number(count.max(1))
}

//! Measures a state file and reports what its stores did.

use std::ops::ControlFlow;
use std::path::PathBuf;

use serde::Serialize;

use super::{InspectError, KindCount, KindCounts, Target, open, values};
use ostler_state::keys::KeyPrefix;
use ostler_state::{EngineStats, RecordKey, Stats};

/// Sizes and counts of a state file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StatsReport {
    /// The path of the state file.
    pub path: PathBuf,
    /// The schema of the file's content.
    pub schema: Option<u16>,
    /// Size of the file, bytes.
    pub file_bytes: u64,
    /// Bytes of all keys and records.
    pub live_bytes: u64,
    /// How many times larger the file is than its content; `None` if it is empty.
    pub file_to_live: Option<f64>,
    /// Records and bytes by kind, unreadable ones included.
    pub kinds: Vec<KindCount>,
    /// The records in quarantine.
    pub quarantined: QuarantineCount,
    /// The figures of the storage engine.
    pub engine: EngineStats,
    /// The counts since the file was made; `None` if nothing was counted yet.
    pub counted: Option<StoreCounts>,
}

/// The number and size of the records in quarantine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QuarantineCount {
    /// The number of records.
    pub records: u64,
    /// Bytes of their keys and contents.
    pub bytes: u64,
}

/// The counts since the file was made, up to the last time that they were saved.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StoreCounts {
    /// The number of values given to the store.
    pub puts: u64,
    /// The number of those values that were durable already and needed no write.
    pub unchanged: u64,
    /// The share of unchanged values, from 0 to 1.
    pub duplicate_ratio: Option<f64>,
    /// The number of values that were dropped because their allocation was destroyed.
    pub destroyed: u64,
    /// The number of values whose write might lag.
    pub later: u64,
    /// The number of lagging values that were replaced by a newer one before they were written.
    pub replaced: u64,
    /// The number of lagging writes that were given up after a failed commit.
    pub later_lost: u64,
    /// The number of changes that were committed.
    pub writes: u64,
    /// The number of bytes in those changes.
    pub bytes: u64,
    /// The number of transactions that were committed.
    pub commits: u64,
    /// The number of transactions that failed.
    pub commits_failed: u64,
    /// The average number of changes per transaction.
    pub writes_per_commit: Option<f64>,
    /// The largest number of changes in one transaction.
    pub batch_largest: u64,
    /// The numbers of transactions, by size.
    pub batch_sizes: Vec<BatchClass>,
}

/// The number of transactions of one class of size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BatchClass {
    /// The largest number of changes of a transaction in this class. It is larger than in the
    /// class before.
    pub up_to: u64,
    /// The number of transactions in this class.
    pub commits: u64,
}

impl StoreCounts {
    /// The counts that a store has saved.
    #[must_use]
    pub fn from_stats(stats: &Stats) -> Self {
        let classes = stats.batch_sizes.iter().zip(0u32..);
        Self {
            puts: stats.puts,
            unchanged: stats.unchanged,
            duplicate_ratio: stats.duplicate_ratio().map(round_ratio),
            destroyed: stats.destroyed,
            later: stats.later,
            replaced: stats.replaced,
            later_lost: stats.later_lost,
            writes: stats.writes,
            bytes: stats.bytes,
            commits: stats.commits,
            commits_failed: stats.commits_failed,
            writes_per_commit: ratio(stats.writes, stats.commits),
            batch_largest: stats.batch_largest,
            batch_sizes: classes
                .map(|(commits, class)| BatchClass { up_to: 1 << class, commits: *commits })
                .collect(),
        }
    }
}

/// Measure a state file without changing it.
///
/// # Errors
/// When there is no such file, an agent runs, or the file is damaged or cannot be read.
pub fn stats(target: &Target) -> Result<StatsReport, InspectError> {
    let opened = open(target)?;
    let file = &opened.inspection;
    let (mut kinds, mut quarantined, mut counted) =
        (KindCounts::default(), QuarantineCount::default(), None);
    file.scan(&KeyPrefix::All, &mut |entry| {
        kinds.count(values::name_of(entry), entry.bytes());
        if entry.key() == Some(&RecordKey::Counters) {
            counted = entry.decode::<Stats>().ok();
        }
        ControlFlow::Continue(())
    })
    .map_err(InspectError::from_state_error)?;
    file.quarantine(&mut |entry| {
        quarantined.records = quarantined.records.saturating_add(1);
        quarantined.bytes = quarantined.bytes.saturating_add(entry.bytes());
        ControlFlow::Continue(())
    })
    .map_err(InspectError::from_state_error)?;
    let live_bytes = kinds.0.iter().fold(0, |sum: u64, kind| sum.saturating_add(kind.bytes));
    Ok(StatsReport {
        path: file.path().to_owned(),
        schema: file.schema(),
        file_bytes: file.file_bytes(),
        live_bytes,
        file_to_live: ratio(file.file_bytes(), live_bytes),
        kinds: kinds.0,
        quarantined,
        engine: file.engine_stats().map_err(InspectError::from_state_error)?,
        counted: counted.as_ref().map(StoreCounts::from_stats),
    })
}

#[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
fn ratio(of: u64, to: u64) -> Option<f64> {
    (to > 0).then(|| round_ratio(of as f64 / to as f64))
}

/// Round to three digits after the point; more digits would only look exact.
fn round_ratio(ratio: f64) -> f64 {
    (ratio * 1_000.0).round() / 1_000.0
}

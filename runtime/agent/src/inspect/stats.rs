//! How large a state file is and what its stores did.

use std::ops::ControlFlow;
use std::path::PathBuf;

use serde::Serialize;

use super::{InspectError, KindCount, Kinds, Target, open, values};
use ostler_state::keys::{MetaItem, Prefix};
use ostler_state::{EngineStats, Key, Stats};

/// Sizes and counts of a state file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StatsReport {
    /// The file.
    pub path: PathBuf,
    /// Schema of its content.
    pub schema: Option<u16>,
    /// Size of the file, bytes.
    pub file_bytes: u64,
    /// Bytes of all keys and records.
    pub live_bytes: u64,
    /// How many times larger the file is than what it holds; absent when it holds nothing.
    pub file_to_live: Option<f64>,
    /// Records and bytes by kind, unreadable ones included.
    pub kinds: Vec<KindCount>,
    /// Records put aside.
    pub quarantined: InQuarantine,
    /// What the storage engine says.
    pub engine: EngineStats,
    /// What was done since the file was made; absent when nothing was counted yet.
    pub counted: Option<Counted>,
}

/// Records put aside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InQuarantine {
    /// How many.
    pub records: u64,
    /// Bytes of their keys and contents.
    pub bytes: u64,
}

/// What was done since the file was made, up to the last time that the counts were saved.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Counted {
    /// Values given to the store.
    pub puts: u64,
    /// Of those, values that were durable already: no write.
    pub unchanged: u64,
    /// Their share, 0 to 1.
    pub duplicate_ratio: Option<f64>,
    /// Of those, values dropped because their allocation was destroyed.
    pub destroyed: u64,
    /// Of those, values that might lag.
    pub later: u64,
    /// Of those that might lag, values replaced by a newer one before they were written.
    pub replaced: u64,
    /// Writes that might lag and were given up after a failed commit.
    pub later_lost: u64,
    /// Changes committed.
    pub writes: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Transactions committed.
    pub commits: u64,
    /// Transactions failed.
    pub commits_failed: u64,
    /// Changes per transaction.
    pub writes_per_commit: Option<f64>,
    /// Most changes in one transaction.
    pub batch_largest: u64,
    /// Transactions by size.
    pub batch_sizes: Vec<BatchClass>,
}

/// Transactions of one class of size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BatchClass {
    /// Most changes of a transaction in this class; more than in the class before.
    pub up_to: u64,
    /// Transactions.
    pub commits: u64,
}

impl Counted {
    /// What a store counted.
    #[must_use]
    pub fn of(stats: &Stats) -> Self {
        let classes = stats.batch_sizes.iter().zip(0u32..);
        Self {
            puts: stats.puts,
            unchanged: stats.unchanged,
            duplicate_ratio: stats.duplicate_ratio().map(rounded),
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
        (Kinds::default(), InQuarantine::default(), None);
    file.scan(&Prefix::All, &mut |entry| {
        kinds.count(values::name_of(entry), entry.bytes());
        if entry.key() == Some(&Key::Meta(MetaItem::Counters)) {
            counted = entry.decode::<Stats>().ok();
        }
        ControlFlow::Continue(())
    })
    .map_err(InspectError::state)?;
    file.quarantine(&mut |entry| {
        quarantined.records = quarantined.records.saturating_add(1);
        quarantined.bytes = quarantined.bytes.saturating_add(entry.bytes());
        ControlFlow::Continue(())
    })
    .map_err(InspectError::state)?;
    let live_bytes = kinds.0.iter().fold(0, |sum: u64, kind| sum.saturating_add(kind.bytes));
    Ok(StatsReport {
        path: file.path().to_owned(),
        schema: file.schema(),
        file_bytes: file.file_bytes(),
        live_bytes,
        file_to_live: ratio(file.file_bytes(), live_bytes),
        kinds: kinds.0,
        quarantined,
        engine: file.engine_stats().map_err(InspectError::state)?,
        counted: counted.as_ref().map(Counted::of),
    })
}

#[expect(clippy::cast_precision_loss, reason = "a ratio for people")]
fn ratio(of: u64, to: u64) -> Option<f64> {
    (to > 0).then(|| rounded(of as f64 / to as f64))
}

/// To three digits after the point: more would only look exact.
fn rounded(ratio: f64) -> f64 {
    (ratio * 1_000.0).round() / 1_000.0
}

//! When a fetch of an allocation's disk is tried again, and when it is given up. Pure.

use std::time::Duration;

use super::snapshot::{ArchiveError, DiskUnpackError};
use ostler_model::limits::{DISK_FETCH_PAUSE_FIRST, DISK_FETCH_PAUSE_MAX, DISK_FETCH_TRIES_MAX};
use ostler_model::other_nodes::NoDisk;

/// What follows from a try that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AfterTry {
    /// Try again after this time.
    Again(Duration),
    /// Do not try again.
    GiveUp,
}

/// The tries so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct FetchTries {
    failed: u32,
}

impl FetchTries {
    /// Count a try that failed. Returns what follows from it.
    pub fn count_failure(&mut self, why: &NoDisk) -> AfterTry {
        self.failed = self.failed.saturating_add(1);
        if matches!(why, NoDisk::Ever(_)) || self.failed >= DISK_FETCH_TRIES_MAX {
            return AfterTry::GiveUp;
        }
        let doubled = 1_u32.checked_shl(self.failed.saturating_sub(1)).unwrap_or(u32::MAX);
        AfterTry::Again(DISK_FETCH_PAUSE_FIRST.saturating_mul(doubled).min(DISK_FETCH_PAUSE_MAX))
    }
}

/// Whether another try may unpack what this one could not: [`NoDisk::Now`] when it may.
#[must_use]
pub fn unpack_failure(error: &DiskUnpackError) -> NoDisk {
    let text = error.to_string();
    match error {
        // The data was cut off on its way.
        DiskUnpackError::Archive(ArchiveError::Cut | ArchiveError::Read(_)) => NoDisk::Now(text),
        _ => NoDisk::Ever(text),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, reason = "tests")]

    use proptest::prelude::{any, prop, prop_assert, proptest};

    use super::*;

    #[test]
    fn tries_are_further_and_further_apart_and_come_to_an_end() {
        let mut tries = FetchTries::default();
        let mut all = Duration::ZERO;
        let mut last = Duration::ZERO;
        for number in 1.. {
            match tries.count_failure(&NoDisk::Now("away".to_owned())) {
                AfterTry::Again(pause) => {
                    assert!(pause >= last, "{number}");
                    (all, last) = (all + pause, pause);
                }
                AfterTry::GiveUp => {
                    assert_eq!(number, DISK_FETCH_TRIES_MAX);
                    break;
                }
            }
        }
        // A node that starts again is there by then.
        assert!(all >= Duration::from_secs(60), "{all:?}");
    }

    #[test]
    fn what_broke_off_is_fetched_again_and_what_is_refused_is_not() {
        let cut = unpack_failure(&DiskUnpackError::Archive(ArchiveError::Cut));
        assert!(matches!(cut, NoDisk::Now(_)));
        for error in [
            DiskUnpackError::Sender("x".to_owned()),
            DiskUnpackError::TooLarge { bytes: 1 },
            DiskUnpackError::Archive(ArchiveError::TooLong),
        ] {
            assert!(matches!(unpack_failure(&error), NoDisk::Ever(_)), "{error}");
        }
    }

    proptest! {
        #[test]
        fn there_are_never_more_tries_than_that(again in prop::collection::vec(any::<bool>(), 50)) {
            let mut tries = FetchTries::default();
            let mut made = 0;
            for now in again {
                let why = "x".to_owned();
                made += 1;
                let why = if now { NoDisk::Now(why) } else { NoDisk::Ever(why) };
                match tries.count_failure(&why) {
                    AfterTry::Again(pause) => prop_assert!(now && pause <= DISK_FETCH_PAUSE_MAX),
                    AfterTry::GiveUp => break,
                }
            }
            prop_assert!(made <= DISK_FETCH_TRIES_MAX);
        }
    }
}

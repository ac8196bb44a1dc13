//! Limits how often a follower is woken: at once for an occasional line, but not for each of
//! thousands, because waking costs the printing task more than printing does.

use std::time::Duration;

use ostler_model::clock::Stopwatch;

/// This many wakes in a row are not delayed.
const WAKES: u32 = 4;
/// The age at which a row of wakes ends.
const ROW: Duration = Duration::from_millis(10);
/// How long more output may collect before the next wake.
pub(super) const PAUSE: Duration = Duration::from_millis(2);

/// The recent wakes of one follower.
#[derive(Debug)]
pub(super) struct WakePace {
    row: Stopwatch,
    wakes: u32,
}

impl WakePace {
    pub(super) fn new() -> Self {
        Self { row: Stopwatch::start(), wakes: 0 }
    }

    /// Call this when everything was read, before waiting for more. Returns for how long the
    /// follower must not be woken.
    pub(super) fn pause(&mut self) -> Option<Duration> {
        if self.row.elapsed() >= ROW {
            *self = Self::new();
        }
        self.wakes = self.wakes.saturating_add(1);
        (self.wakes > WAKES).then_some(PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_wakes_is_held_back_and_a_later_one_is_not() {
        let mut pace = WakePace::new();
        let pauses: Vec<_> = (0..WAKES + 2).map(|_| pace.pause().is_some()).collect();
        assert_eq!(pauses, [false, false, false, false, true, true]);
        while pace.row.elapsed() < ROW {
            std::hint::spin_loop();
        }
        assert_eq!(pace.pause(), None);
    }
}

//! How often who follows is woken: at once for a line now and then, not for each of thousands, since
//! waking costs the task that prints more than printing does.

use std::time::Duration;

use ostler_model::clock::Stopwatch;

/// So many wakes in a row are not held back.
const WAKES: u32 = 4;
/// A row ends when it is this old.
const ROW: Duration = Duration::from_millis(10);
/// How long more may come before the next wake.
pub(super) const PAUSE: Duration = Duration::from_millis(2);

/// The wakes of one who follows.
#[derive(Debug)]
pub(super) struct Pace {
    row: Stopwatch,
    wakes: u32,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { row: Stopwatch::start(), wakes: 0 }
    }

    /// To be called when what there was is read, before more is waited for: how long not to be woken.
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
        let mut pace = Pace::new();
        let pauses: Vec<_> = (0..WAKES + 2).map(|_| pace.pause().is_some()).collect();
        assert_eq!(pauses, [false, false, false, false, true, true]);
        while pace.row.elapsed() < ROW {
            std::hint::spin_loop();
        }
        assert_eq!(pace.pause(), None);
    }
}

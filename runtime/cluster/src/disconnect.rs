//! Allocations that end because no server was heard: `stop_after_client_disconnect`. Pure.
//!
//! ```text
//! heard ─► silence begins ─ as long as a group allows ─► its allocations are due
//! ```
//! A server that is as silent as its node gives them up after the same time, and starts others: so at most one
//! of both runs.

use std::time::Duration;

use ostler_model::ids::AllocId;

/// What is to be done after a silence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AfterSilence {
    /// To be stopped.
    pub due: Vec<AllocId>,
    /// How long until others are; none where no silence ends any.
    pub next: Option<Duration>,
}

/// What a `silence` of the servers ends. `allowed`: how long a silence each allocation stands.
pub(crate) fn after_silence(
    silence: Duration,
    allowed: impl IntoIterator<Item = (AllocId, Duration)>,
) -> AfterSilence {
    let mut after = AfterSilence::default();
    for (id, allowed) in allowed {
        match allowed.checked_sub(silence).filter(|left| !left.is_zero()) {
            None => after.due.push(id),
            Some(left) => after.next = Some(after.next.map_or(left, |next| next.min(left))),
        }
    }
    after
}

#[cfg(test)]
mod tests {
    use ostler_model::rng::Rng;
    use proptest::prelude::{prop, prop_assert, prop_assert_eq, proptest};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn id(seed: u64) -> AllocId {
        AllocId::new(Rng::seeded(seed).uuid())
    }

    #[test]
    fn an_allocation_is_due_after_the_silence_it_stands_and_no_sooner() {
        let allowed = [(id(1), 5 * SECOND), (id(2), 9 * SECOND)];
        let at = |silence| after_silence(silence, allowed);
        assert_eq!(at(SECOND), AfterSilence { due: vec![], next: Some(4 * SECOND) });
        assert_eq!(at(5 * SECOND), AfterSilence { due: vec![id(1)], next: Some(4 * SECOND) });
        assert_eq!(at(20 * SECOND), AfterSilence { due: vec![id(1), id(2)], next: None });
        assert_eq!(after_silence(20 * SECOND, []), AfterSilence::default());
    }

    proptest! {
        #[test]
        fn whoever_waits_for_the_next_finds_it_due(silence in 0_u32..100, allowed in prop::collection::vec(1_u32..100, 0..9)) {
            let allowed: Vec<_> = (0_u64..).zip(allowed).map(|(n, allowed)| (id(n), SECOND * allowed)).collect();
            let before = after_silence(SECOND * silence, allowed.clone());
            prop_assert_eq!(before.next.is_none(), before.due.len() == allowed.len());
            let Some(next) = before.next else { return Ok(()) };
            let later = after_silence(SECOND * silence + next, allowed);
            prop_assert!(later.due.len() > before.due.len());
        }
    }
}

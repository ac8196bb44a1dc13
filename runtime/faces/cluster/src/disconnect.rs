//! Decides which allocations must stop because no server has answered:
//! `stop_after_client_disconnect`. Pure.
//!
//! ```text
//! heard ─► silence begins ─ as long as a group allows ─► its allocations are due
//! ```
//! Servers that do not hear the node give its allocations up after the same time and start others,
//! so that at most one of the two runs.

use std::time::Duration;

use ostler_model::ids::AllocId;

/// What must be done after a silence of the servers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SilenceActions {
    /// The allocations that must be stopped.
    pub due: Vec<AllocId>,
    /// The time until the next allocation must be stopped; none if there is no other one.
    pub next: Option<Duration>,
}

/// What must be done after a `silence` of the servers. `allowed` has the silence that each
/// allocation may outlast.
pub(crate) fn after_silence(
    silence: Duration,
    allowed: impl IntoIterator<Item = (AllocId, Duration)>,
) -> SilenceActions {
    let mut after = SilenceActions::default();
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
        AllocId::new(Rng::from_seed(seed).uuid())
    }

    #[test]
    fn an_allocation_is_due_after_the_silence_it_stands_and_no_sooner() {
        let allowed = [(id(1), 5 * SECOND), (id(2), 9 * SECOND)];
        let at = |silence| after_silence(silence, allowed);
        assert_eq!(at(SECOND), SilenceActions { due: vec![], next: Some(4 * SECOND) });
        assert_eq!(at(5 * SECOND), SilenceActions { due: vec![id(1)], next: Some(4 * SECOND) });
        assert_eq!(at(20 * SECOND), SilenceActions { due: vec![id(1), id(2)], next: None });
        assert_eq!(after_silence(20 * SECOND, []), SilenceActions::default());
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

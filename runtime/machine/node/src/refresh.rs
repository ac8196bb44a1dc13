//! Takes the fingerprint of the machine again and again.
//!
//! ```text
//! every REFRESH ─► fingerprint (on a thread for slow work) ─► dampen ─► NodePublisher
//!       ▲                      │ failed: logged, and tried again at the next turn    │
//!       └──────────────────────┴─────────────────────────────────────────────────────┘
//! ```
//! It finds changes of free space, addresses, the host name, memory and processors. Only what
//! changed is published. A failure does not end it.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::fingerprint::{Facts, dampen};
use super::publish::NodePublisher;
use ostler_model::clock::sleep;

/// Time between two fingerprints: the disk and address facts are at most this old.
pub const REFRESH: Duration = Duration::from_secs(30);

/// The fingerprint failed. The known facts stay.
#[derive(Debug, thiserror::Error)]
#[error("the fingerprint of the node was given up; the next one is taken in its turn")]
pub struct NodeFingerprintError;

/// Keep the facts of `node` fresh until `stop`. `look` collects all facts, off
/// the runtime's threads.
pub async fn keep_fresh<Look, Found>(node: NodePublisher, stop: CancellationToken, look: Look)
where
    Look: Fn() -> Found,
    Found: Future<Output = Result<Facts, NodeFingerprintError>>,
{
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(REFRESH) => {}
        }
        let found = tokio::select! {
            () = stop.cancelled() => return,
            found = look() => found,
        };
        match found {
            Ok(facts) => {
                node.update(|view| {
                    let dampened = dampen(&view.attributes, facts);
                    view.apply_facts(dampened);
                });
            }
            Err(error) => tracing::warn!(%error, "node fingerprint failed"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};

    use tokio::time::pause;

    use super::*;
    use crate::{NodeChanges, NodeId, NodeView};
    use ostler_model::attribute::Attribute;
    use ostler_model::rng::Rng;

    fn facts(pairs: &[(&str, i64)]) -> Facts {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), Attribute::from(*value))).collect()
    }

    /// A node whose fingerprints are these, one after the other, and then the last for ever.
    fn refreshed(turns: Vec<Option<Facts>>) -> (NodePublisher, CancellationToken) {
        let node = NodePublisher::new(NodeView::new(NodeId::new(Rng::from_seed(1).uuid()), "box"));
        let stop = CancellationToken::new();
        let turns = Arc::new(Mutex::new(VecDeque::from(turns)));
        let look = move || {
            let mut turns = turns.lock().unwrap();
            let next = if turns.len() > 1 { turns.pop_front() } else { turns.front().cloned() };
            async move { next.flatten().ok_or(NodeFingerprintError) }
        };
        tokio::spawn(keep_fresh(node.clone(), stop.clone(), look));
        (node, stop)
    }

    /// The next change; a node that never changes again fails the test.
    async fn told(changes: &mut NodeChanges) -> Arc<NodeView> {
        ostler_model::clock::timeout(REFRESH * 100, changes.next()).await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn what_changed_is_published_what_is_gone_goes_and_the_rest_tells_nobody() {
        pause();
        let first = facts(&[("memory.totalbytes", 3 << 30), ("cpu.totalcompute", 5)]);
        let second = facts(&[("memory.totalbytes", 4 << 30)]);
        let (node, _stop) = refreshed(vec![Some(first.clone()), Some(second.clone())]);
        let mut changes = node.changes();
        let view = told(&mut changes).await;
        assert_eq!((&view.attributes, view.resources.memory_mb), (&first, 3_072));
        let view = told(&mut changes).await;
        assert_eq!((&view.attributes, view.resources.memory_mb), (&second, 4_096));
        let more = ostler_model::clock::timeout(REFRESH * 10, changes.next()).await;
        assert!(more.is_none(), "equal values publish nothing");
    }

    #[tokio::test]
    async fn a_failure_changes_nothing_and_does_not_end_it() {
        pause();
        let (once, again) = (facts(&[("a", 1)]), facts(&[("a", 2)]));
        let (node, _stop) =
            refreshed(vec![Some(once.clone()), None, None, None, Some(again.clone())]);
        let mut changes = node.changes();
        assert_eq!(told(&mut changes).await.attributes, once);
        sleep(REFRESH * 2).await;
        assert_eq!(node.current().attributes, once);
        assert_eq!(told(&mut changes).await.attributes, again);
    }

    #[tokio::test]
    async fn free_space_that_hardly_moves_is_not_told() {
        pause();
        let disk = |free: i64| {
            let (free, total) = (free * 1_048_576, 100_000 * 1_048_576);
            facts(&[("unique.storage.bytesfree", free), ("unique.storage.bytestotal", total)])
        };
        let turns = (0..50).map(|turn| Some(disk(50_000 + turn % 7)));
        let (node, _stop) = refreshed(turns.chain([Some(disk(48_000))]).collect());
        let mut changes = node.changes();
        assert_eq!(told(&mut changes).await.attributes, disk(50_000));
        assert_eq!(told(&mut changes).await.attributes, disk(48_000));
    }

    #[tokio::test]
    async fn it_ends_when_it_is_told_to() {
        pause();
        let (node, stop) = refreshed(vec![Some(facts(&[("a", 1)]))]);
        stop.cancel();
        sleep(REFRESH * 2).await;
        assert!(node.current().attributes.is_empty());
    }
}

//! The current view of the node, published.
//!
//! ```text
//! update ─► equal? ─ yes ─► nothing
//!             │ no
//!             ▼
//!          current() ─► at once: placement, API, CLI
//!             └──────► changes(): once it has been quiet for QUIET, or BURST_MAX after the first
//! ```
//! A new plugin changes groups, attributes and its health in several steps, and at the start of the
//! agent all plugins appear at once. Whoever acts on changes is told of such a burst once. A burst
//! that ends where it began is not told at all.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::view::NodeView;
use ostler_model::clock::timeout;

/// A burst of changes is over when nothing has changed for this long.
pub const QUIET: Duration = Duration::from_millis(100);

/// Longest time from the first change of a burst until followers are told. A view that changes
/// without a pause is told this often.
pub const BURST_MAX: Duration = Duration::from_secs(1);

/// The one place where the view of the node changes. Clones share it.
#[derive(Clone, Debug)]
pub struct NodePublisher(Arc<watch::Sender<Arc<NodeView>>>);

impl NodePublisher {
    /// Start with this view.
    #[must_use]
    pub fn new(view: NodeView) -> Self {
        Self(Arc::new(watch::Sender::new(Arc::new(view))))
    }

    /// The view as it is now.
    #[must_use]
    pub fn current(&self) -> Arc<NodeView> {
        self.0.borrow().clone()
    }

    /// Follow every change of the view as it comes. The view of this moment counts as seen.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<NodeView>> {
        self.0.subscribe()
    }

    /// Follow the view, burst by burst. The view of this moment counts as told.
    #[must_use]
    pub fn changes(&self) -> NodeChanges {
        let views = self.0.subscribe();
        let told = views.borrow().clone();
        NodeChanges { views, told }
    }

    /// Change the view. `false` when `change` left it equal: then nobody is woken. Devices that are
    /// only reported in another order are no change.
    ///
    /// `change` runs under the lock of the channel: it must be short and must not call back.
    pub fn update(&self, change: impl FnOnce(&mut NodeView)) -> bool {
        self.0.send_if_modified(|current| {
            let mut next = NodeView::clone(current);
            change(&mut next);
            next.sort_devices();
            if next == **current {
                return false;
            }
            *current = Arc::new(next);
            true
        })
    }
}

/// The node is closed: nobody changes its view any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the view of the node is closed; its agent has ended")]
pub struct NodeClosedError;

/// Follows the view of the node, burst by burst. See [`NodePublisher::changes`].
#[derive(Debug)]
pub struct NodeChanges {
    views: watch::Receiver<Arc<NodeView>>,
    told: Arc<NodeView>,
}

impl NodeChanges {
    /// Wait until a burst of changes is over, and take the view after it. It is never equal to the
    /// view that was taken last. A change is told at most `BURST_MAX` after it happened. The future
    /// may be dropped while it waits: nothing is lost, and the wait begins anew.
    ///
    /// # Errors
    /// [`NodeClosedError`] when the node is gone and every change was told.
    pub async fn next(&mut self) -> Result<Arc<NodeView>, NodeClosedError> {
        loop {
            if self.has_pending_change() {
                let _still_changing = timeout(BURST_MAX, self.wait_until_quiet()).await;
                if self.has_pending_change() {
                    return Ok(self.take());
                }
                // The changes cancelled each other out.
                continue;
            }
            self.views.changed().await.map_err(|_| NodeClosedError)?;
        }
    }

    /// The view as it is now; it counts as told.
    pub fn take(&mut self) -> Arc<NodeView> {
        let view = self.views.borrow_and_update().clone();
        self.told = Arc::clone(&view);
        view
    }

    fn has_pending_change(&self) -> bool {
        let now = self.views.borrow();
        !Arc::ptr_eq(&now, &self.told) && **now != *self.told
    }

    /// Wait until nothing has changed for [`QUIET`].
    async fn wait_until_quiet(&mut self) {
        self.views.mark_unchanged();
        while let Some(Ok(())) = timeout(QUIET, self.views.changed()).await {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::{advance, pause};

    use super::*;
    use crate::NodeId;
    use ostler_model::clock::sleep;
    use ostler_model::device::{DeviceGroup, DeviceInstance, GroupKey, Health};
    use ostler_model::ids::PluginName;
    use ostler_model::rng::Rng;

    fn node() -> NodePublisher {
        NodePublisher::new(NodeView::new(NodeId::new(Rng::from_seed(1).uuid()), "box"))
    }

    /// Counts what it is told.
    fn follower(node: &NodePublisher) -> Arc<AtomicUsize> {
        let (count, mut changes) = (Arc::new(AtomicUsize::new(0)), node.changes());
        let counted = Arc::clone(&count);
        tokio::spawn(async move {
            while changes.next().await.is_ok() {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        });
        count
    }

    fn rename(node: &NodePublisher, name: impl Into<String>) -> bool {
        let name = name.into();
        node.update(|view| view.name = name)
    }

    #[tokio::test]
    async fn an_equal_view_tells_nobody_and_a_changed_one_is_there_at_once() {
        pause();
        let node = node();
        let told = follower(&node);
        assert!(!rename(&node, "box"));
        sleep(BURST_MAX * 3).await;
        assert_eq!(told.load(Ordering::SeqCst), 0);
        assert!(rename(&node, "other"));
        assert_eq!(node.current().name, "other");
        sleep(QUIET * 2).await;
        assert_eq!(told.load(Ordering::SeqCst), 1);
        sleep(BURST_MAX * 3).await;
        assert_eq!(told.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_burst_of_changes_is_told_once_and_the_next_one_again() {
        pause();
        let node = node();
        let told = follower(&node);
        for burst in 1..=3 {
            for step in 0..20 {
                rename(&node, format!("{burst}.{step}"));
                sleep(QUIET / 4).await;
            }
            assert_eq!(told.load(Ordering::SeqCst), burst - 1, "in the burst");
            sleep(QUIET * 2).await;
            assert_eq!(told.load(Ordering::SeqCst), burst);
        }
    }

    #[tokio::test]
    async fn a_change_without_end_is_told_in_time_and_not_at_every_step() {
        pause();
        let node = node();
        let told = follower(&node);
        for step in 0..1_000 {
            rename(&node, step.to_string());
            sleep(QUIET / 10).await;
        }
        // Ten seconds of changes.
        let told = told.load(Ordering::SeqCst);
        assert!((8..=10).contains(&told), "{told}");
    }

    #[tokio::test]
    async fn a_change_that_is_taken_back_tells_nobody() {
        pause();
        let node = node();
        let told = follower(&node);
        rename(&node, "other");
        sleep(QUIET / 2).await;
        rename(&node, "box");
        sleep(BURST_MAX * 2).await;
        assert_eq!(told.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn a_wait_that_is_given_up_loses_nothing() {
        pause();
        let node = node();
        let mut changes = node.changes();
        rename(&node, "other");
        for _ in 0..5 {
            assert!(timeout(QUIET / 2, changes.next()).await.is_none());
        }
        let view = timeout(QUIET * 2, changes.next()).await.unwrap().unwrap();
        assert_eq!(view.name, "other");
        advance(BURST_MAX).await;
        assert!(timeout(BURST_MAX, changes.next()).await.is_none(), "told once");
    }

    #[tokio::test]
    async fn the_last_change_is_told_before_the_end() {
        pause();
        let node = node();
        let mut changes = node.changes();
        rename(&node, "other");
        drop(node);
        assert_eq!(changes.next().await.unwrap().name, "other");
        assert_eq!(changes.next().await, Err(NodeClosedError));
    }

    #[test]
    fn the_order_of_devices_and_instances_is_no_difference() {
        let instance =
            |id: &str| DeviceInstance { id: id.into(), health: Health::default(), locality: None };
        let group = |name: &str, ids: &[&str]| DeviceGroup {
            key: GroupKey { vendor: "acme".into(), kind: "gpu".into(), name: name.into() },
            plugin: PluginName::new("files").unwrap(),
            instances: ids.iter().map(|id| instance(id)).collect(),
            attributes: vec![],
        };
        let node = node();
        assert!(node.update(|view| view.devices = vec![group("a", &["0", "1"]), group("b", &[])]));
        let other = vec![group("b", &[]), group("a", &["1", "0"])];
        assert!(!node.update(|view| view.devices = other));
    }
}

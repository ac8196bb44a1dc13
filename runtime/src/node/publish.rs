//! The current view of the node, published.

use std::sync::Arc;

use tokio::sync::watch;

use super::view::NodeView;

/// The one place where the view of the node changes. Clones share it.
#[derive(Clone, Debug)]
pub struct Node(Arc<watch::Sender<Arc<NodeView>>>);

impl Node {
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

    /// Follow the view. What is current at this moment counts as seen.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<NodeView>> {
        self.0.subscribe()
    }

    /// Change the view. `false` when `change` left it equal: then nobody is woken.
    ///
    /// `change` runs under the lock of the channel: it must be short and must not call back.
    pub fn update(&self, change: impl FnOnce(&mut NodeView)) -> bool {
        self.0.send_if_modified(|current| {
            let mut next = NodeView::clone(current);
            change(&mut next);
            if next == **current {
                return false;
            }
            *current = Arc::new(next);
            true
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::node::NodeId;
    use crate::rng::Rng;

    #[test]
    fn an_equal_view_publishes_nothing_and_a_changed_one_does() {
        let node = Node::new(NodeView::new(NodeId::new(Rng::seeded(1).uuid()), "box"));
        let mut seen = node.subscribe();
        assert!(!node.update(|view| view.name = "box".into()));
        assert!(!seen.has_changed().unwrap());
        assert!(node.update(|view| view.name = "other".into()));
        assert!(seen.has_changed().unwrap());
        assert_eq!(seen.borrow_and_update().name, "other");
        assert_eq!(node.current().name, "other");
    }
}

//! Records since when a state file belongs to this node.
//!
//! The id itself is kept in a file of its own (`ostler_node::id`), so that the node stays the same
//! when its state file is put aside.

use ostler_model::ids::NodeId;
use ostler_model::saved::NodeRegistration;
use ostler_model::time::Timestamp;
use ostler_state::records::NodeRegistrationKey;
use ostler_state::{StateError, StateStore};

use super::skip_unreadable;

/// Record the node in its state file; it is durable when this returns. Returns a sentence when the
/// file belonged to another node. A file that `lacks` something counts as this node's file only
/// from now on.
///
/// # Errors
/// When the state cannot be read or written.
pub async fn register_node(
    state: &StateStore,
    id: NodeId,
    name: &str,
    lacks: bool,
    now: Timestamp,
) -> Result<Option<String>, StateError> {
    let known = skip_unreadable(state.get::<NodeRegistration>(&NodeRegistrationKey::of()))?;
    let same = known.as_ref().filter(|known| known.id == id && !lacks);
    let registered_at = same.map_or(now, |known| known.registered_at);
    let name = name.to_owned();
    state.put(&NodeRegistrationKey::of(), &NodeRegistration { id, name, registered_at }).await?;
    let other = known.filter(|known| known.id != id);
    Ok(other.map(|other| {
        format!("the state file is that of node {}; this is node {id} from now on", other.id)
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use ostler_model::rng::Rng;

    fn id(n: u64) -> NodeId {
        NodeId::new(Rng::from_seed(n).uuid())
    }

    #[tokio::test]
    async fn a_node_is_registered_once_and_a_renamed_one_keeps_its_date() {
        let state = StateStore::in_memory().unwrap();
        let mut node = (id(1), "box".to_owned());
        assert_eq!(
            register_node(&state, node.0, &node.1, false, Timestamp::from_nanos(1)).await.unwrap(),
            None
        );
        node.1 = "renamed".into();
        assert_eq!(
            register_node(&state, node.0, &node.1, false, Timestamp::from_nanos(2)).await.unwrap(),
            None
        );
        let stored: NodeRegistration = state.get(&NodeRegistrationKey::of()).unwrap().unwrap();
        assert_eq!(
            stored,
            NodeRegistration {
                id: node.0,
                name: "renamed".into(),
                registered_at: Timestamp::from_nanos(1)
            }
        );
    }

    #[tokio::test]
    async fn another_node_on_the_same_state_file_is_registered_anew_and_told() {
        let state = StateStore::in_memory().unwrap();
        let (old, new) = (id(1), id(2));
        register_node(&state, old, "box", false, Timestamp::from_nanos(1)).await.unwrap();
        let said = register_node(&state, new, "box", false, Timestamp::from_nanos(2))
            .await
            .unwrap()
            .unwrap();
        assert!(said.contains(&old.to_string()) && said.contains(&new.to_string()), "{said}");
        let stored: NodeRegistration = state.get(&NodeRegistrationKey::of()).unwrap().unwrap();
        assert_eq!((stored.id, stored.registered_at), (new, Timestamp::from_nanos(2)));
    }

    #[tokio::test]
    async fn a_state_file_that_lacks_something_belongs_to_the_node_from_now_on() {
        let state = StateStore::in_memory().unwrap();
        let node = (id(1), "box".to_owned());
        register_node(&state, node.0, &node.1, false, Timestamp::from_nanos(1)).await.unwrap();
        assert_eq!(
            register_node(&state, node.0, &node.1, true, Timestamp::from_nanos(2)).await.unwrap(),
            None
        );
        let stored: NodeRegistration = state.get(&NodeRegistrationKey::of()).unwrap().unwrap();
        assert_eq!(stored.registered_at, Timestamp::from_nanos(2));
    }
}

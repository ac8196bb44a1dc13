//! Reads what servers say about the previous allocation on another node: whether it has ended, and
//! where its disk is. Pure.
//!
//! ```text
//! Alloc.GetAlloc ─► PreviousAnswer ─┬─ lives: asked again, past its index
//!                                   ├─ gone
//!                                   └─ over, on a node ─ Node.GetNode ─► DiskSource
//! ```

use ostler_model::ids::{AllocId, NodeId};
use ostler_model::limits::MOVED_REASON_BYTES_MAX;
use ostler_model::other_nodes::NoDisk;
use ostler_model::printable::printable_line;
use ostler_model::server_address::ServerAddress;

use super::assigned_allocs;
use super::msgpack::Value;
use super::rpc::{field, text};

/// What servers say about a previous allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreviousAnswer {
    /// The servers do not know it any more.
    Gone,
    /// It has not ended. Servers report its next change past this index.
    Lives {
        /// The index to wait for a change after.
        index: u64,
    },
    /// It has ended, or its node is gone.
    Over {
        /// The id of the node that it was on.
        node: NodeId,
    },
}

/// Where to fetch a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskSource {
    /// The allocation whose disk it is.
    pub alloc: AllocId,
    /// The name of the node, for people.
    pub node: String,
    /// The address at which the node serves disks.
    pub address: ServerAddress,
    /// Whether the node has TLS there.
    pub tls: bool,
    /// The token that allows this node to fetch the disk.
    pub token: String,
}

/// Parse the answer to `Alloc.GetAlloc`. `None` if it cannot be read.
#[must_use]
pub fn parse_previous(answer: &Value) -> Option<PreviousAnswer> {
    let alloc = match field(answer, "Alloc") {
        None | Some(Value::Nil) => return Some(PreviousAnswer::Gone),
        Some(alloc) => alloc,
    };
    let status = field(alloc, "ClientStatus").and_then(text)?;
    // Newer servers report an allocation as unknown if its node does not answer. It is not waited
    // for.
    if assigned_allocs::is_terminal(status) || status == "unknown" {
        let node = field(alloc, "NodeID").and_then(text)?.parse().ok()?;
        return Some(PreviousAnswer::Over { node });
    }
    let index = field(answer, "Index").and_then(Value::as_u64)?;
    Some(PreviousAnswer::Lives { index })
}

/// Whether a refusal of the servers is final.
#[must_use]
pub fn is_final(refusal: &str) -> bool {
    let refusal = refusal.to_lowercase();
    ["permission denied", "token not found"].iter().any(|word| refusal.contains(word))
}

/// The node that has the disk, if there is a disk to fetch.
///
/// # Errors
/// Why there is none.
pub fn disk_holder(answer: PreviousAnswer, own: NodeId) -> Result<NodeId, NoDisk> {
    match answer {
        PreviousAnswer::Gone => Err(no_disk_ever("the servers no longer know that allocation")),
        PreviousAnswer::Lives { .. } => {
            Err(NoDisk::Now("that allocation has not ended".to_owned()))
        }
        PreviousAnswer::Over { node } if node == own => {
            Err(no_disk_ever("it was on this node, and is removed"))
        }
        PreviousAnswer::Over { node } => Ok(node),
    }
}

/// The source of the disk, from the answer to `Node.GetNode`.
///
/// # Errors
/// Why the disk cannot be fetched there.
pub fn disk_source(
    alloc: AllocId,
    answer: &Value,
    token: Option<&str>,
) -> Result<DiskSource, NoDisk> {
    let node = match field(answer, "Node") {
        None | Some(Value::Nil) => {
            return Err(no_disk_ever("the servers no longer know its node"));
        }
        Some(node) => node,
    };
    let said = |name| field(node, name).and_then(text).unwrap_or_default();
    let name = printable_line(said("Name"), MOVED_REASON_BYTES_MAX);
    // The new allocation was placed because the node is down, so it does not wait.
    if said("Status") == "down" {
        return Err(no_disk_ever(&format!("node {name} is down")));
    }
    let address = match said("HTTPAddr") {
        "" => return Err(no_disk_ever(&format!("node {name} does not serve disks"))),
        address => address
            .parse::<ServerAddress>()
            .map_err(|error| no_disk_ever(&format!("node {name} cannot be reached: {error}")))?,
    };
    let tls = field(node, "TLSEnabled").and_then(Value::as_bool).unwrap_or(false);
    // A node without access control asks for none.
    let token = token.unwrap_or_default().to_owned();
    Ok(DiskSource { alloc, node: name, address, tls, token })
}

/// The error for an answer of another node that sends no disk.
#[must_use]
pub fn no_disk_of_status(status: u16, said: &str) -> NoDisk {
    let said = printable_line(said.trim(), MOVED_REASON_BYTES_MAX);
    let text = match said.as_str() {
        "" => format!("it answered with status {status}"),
        said => format!("it answered with status {status}: {said}"),
    };
    match status {
        408 | 409 | 429 | 502..=504 => NoDisk::Now(text),
        _ => NoDisk::Ever(text),
    }
}

fn no_disk_ever(why: &str) -> NoDisk {
    NoDisk::Ever(why.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use ostler_model::rng::Rng;
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::*;
    use crate::rpc::map;

    const NODE: &str = "00000000-0000-4000-8000-000000000007";

    fn alloc(status: &str) -> Value {
        let alloc = map([("ClientStatus", status.into()), ("NodeID", NODE.into())]);
        map([("Alloc", alloc), ("Index", 9.into())])
    }

    fn node(fields: &[(&'static str, Value)]) -> Value {
        let all = [
            ("Name", "one".into()),
            ("Status", "ready".into()),
            ("HTTPAddr", "10.0.0.1:4646".into()),
            ("TLSEnabled", true.into()),
        ];
        let given = |name: &str| fields.iter().any(|(field, _)| *field == name);
        let node = map(all.into_iter().filter(|(name, _)| !given(name)).chain(fields.to_vec()));
        map([("Node", node)])
    }

    #[test]
    fn one_that_runs_is_asked_for_again_and_one_that_ended_or_is_lost_is_over() {
        for status in ["pending", "running"] {
            assert_eq!(parse_previous(&alloc(status)), Some(PreviousAnswer::Lives { index: 9 }));
        }
        let over = PreviousAnswer::Over { node: NODE.parse().unwrap() };
        for status in ["complete", "failed", "lost", "unknown"] {
            assert_eq!(parse_previous(&alloc(status)), Some(over));
        }
        let gone = map([("Alloc", Value::Nil), ("Index", 9.into())]);
        assert_eq!(parse_previous(&gone), Some(PreviousAnswer::Gone));
        assert_eq!(parse_previous(&map([("Alloc", map([]))])), None);
    }

    #[test]
    fn a_disk_is_fetched_from_another_node_alone_and_only_when_it_is_over() {
        let (own, other) = (NodeId::new(Rng::from_seed(1).uuid()), NODE.parse().unwrap());
        assert_eq!(disk_holder(PreviousAnswer::Over { node: other }, own), Ok(other));
        for (answer, again) in [
            (PreviousAnswer::Gone, false),
            (PreviousAnswer::Over { node: own }, false),
            (PreviousAnswer::Lives { index: 1 }, true),
        ] {
            let none = disk_holder(answer, own).unwrap_err();
            assert_eq!(matches!(none, NoDisk::Now(_)), again, "{none}");
        }
    }

    #[test]
    fn the_node_says_where_and_whether_with_tls() {
        let id = AllocId::new(Rng::from_seed(2).uuid());
        let found = disk_source(id, &node(&[]), Some("secret")).unwrap();
        assert_eq!((found.address.to_string(), found.tls), ("10.0.0.1:4646".to_owned(), true));
        assert_eq!((found.node.as_str(), found.token.as_str()), ("one", "secret"));
        let plain = disk_source(id, &node(&[("TLSEnabled", false.into())]), None).unwrap();
        assert_eq!((plain.tls, plain.token.as_str()), (false, ""));
        for (answer, why) in [
            (map([("Node", Value::Nil)]), "no longer know its node"),
            (node(&[("HTTPAddr", "".into())]), "does not serve disks"),
            (node(&[("HTTPAddr", "x y".into())]), "cannot be reached"),
            (node(&[("Status", "down".into())]), "is down"),
        ] {
            let none = disk_source(id, &answer, None).unwrap_err();
            assert!(matches!(&none, NoDisk::Ever(text) if text.contains(why)), "{none}");
        }
    }

    #[test]
    fn a_node_that_is_busy_is_asked_again_and_one_that_refuses_is_not() {
        assert!(
            matches!(no_disk_of_status(503, "busy"), NoDisk::Now(text) if text.contains("503: busy"))
        );
        assert!(matches!(no_disk_of_status(403, "Permission denied"), NoDisk::Ever(_)));
        assert!(matches!(no_disk_of_status(500, "Alloc not found"), NoDisk::Ever(_)));
        assert!(is_final("rpc error: Permission denied") && !is_final("No cluster leader"));
    }

    proptest! {
        #[test]
        fn a_text_of_another_node_is_short_and_shows_all_of_itself(status in any::<u16>(), said in ".{0,2000}") {
            let text = no_disk_of_status(status, &said).to_string();
            prop_assert!(text.len() < MOVED_REASON_BYTES_MAX + 100);
            prop_assert!(!text.chars().any(char::is_control));
        }

        #[test]
        fn only_what_is_over_has_a_holder(status in "[a-z]{0,9}", index in any::<u64>()) {
            let alloc = map([("ClientStatus", status.as_str().into()), ("NodeID", NODE.into())]);
            let answer = map([("Alloc", alloc), ("Index", index.into())]);
            let over = ["complete", "failed", "lost", "unknown"].contains(&status.as_str());
            let found = disk_holder(parse_previous(&answer).unwrap(), NodeId::new(Rng::from_seed(1).uuid()));
            prop_assert_eq!(found.is_ok(), over);
        }
    }
}

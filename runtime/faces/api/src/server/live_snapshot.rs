//! The state of the node at one moment, and what differs between two of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use tokio::sync::Mutex;

use ostler_agent::{DeviceGroupReport, PluginStatusReport};
use ostler_model::clock::Stopwatch;
use ostler_model::ids::AllocId;
use ostler_model::limits::API_LIVE_GONE_MAX;

/// The last snapshot, shared by all listeners.
#[derive(Default)]
pub(super) struct LiveSnapshotCache(pub Mutex<Option<(Stopwatch, Arc<LiveSnapshot>)>>);

/// The state of the node at one moment.
#[derive(Debug, Default)]
pub(super) struct LiveSnapshot {
    /// The node as in lists.
    pub node: Value,
    /// What the machine uses.
    pub used: Value,
    pub devices: BTreeMap<String, DeviceGroupReport>,
    pub plugins: BTreeMap<String, PluginStatusReport>,
    pub allocs: BTreeSet<AllocId>,
}

/// Allocations that are in no snapshot because they came and went between two of them. Their events
/// were sent already.
#[derive(Default)]
pub(super) struct ShortLivedAllocs {
    pub gone: BTreeSet<AllocId>,
    /// Whether changes were missed, so that there may be others.
    pub missed: bool,
}

/// One line of the stream. An absent member did not change.
#[derive(Serialize)]
pub(super) struct LiveLine<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a Value>,
    #[serde(rename = "use", skip_serializing_if = "Option::is_none")]
    used: Option<&'a Value>,
    /// The device groups that changed, by name; null for one that is gone.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    devices: BTreeMap<&'a str, Option<&'a DeviceGroupReport>>,
    /// The plugins that changed, by block and source; null for one that is gone.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    plugins: BTreeMap<&'a str, Option<&'a PluginStatusReport>>,
    /// The ids of allocations that were collected.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    gone: Vec<AllocId>,
    /// Whether more than [`API_LIVE_GONE_MAX`] allocations were collected, so that a client has to
    /// read its list again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    read_again: bool,
}

impl<'a> LiveLine<'a> {
    /// The line with what differs between the snapshot `told` and `now`; everything if there is no
    /// `told`. `short` has the allocations that came and went since.
    pub(super) fn from_snapshots(
        told: Option<&'a LiveSnapshot>,
        now: &'a LiveSnapshot,
        short: ShortLivedAllocs,
    ) -> Self {
        let other = |before: Option<&Value>, now: &'a Value| (before != Some(now)).then_some(now);
        let ShortLivedAllocs { mut gone, missed } = short;
        gone.extend(told.into_iter().flat_map(|told| told.allocs.difference(&now.allocs)));
        let read_again = missed || gone.len() > API_LIVE_GONE_MAX;
        let gone = gone.into_iter().take(API_LIVE_GONE_MAX).collect();
        Self {
            node: other(told.map(|told| &told.node), &now.node),
            used: other(told.map(|told| &told.used), &now.used),
            devices: changed_entries(told.map(|told| &told.devices), &now.devices),
            plugins: changed_entries(told.map(|told| &told.plugins), &now.plugins),
            gone,
            read_again,
        }
    }

    /// Whether nothing differs.
    pub(super) fn is_empty(&self) -> bool {
        let Self { node, used, devices, plugins, gone, read_again } = self;
        let lists = devices.is_empty() && plugins.is_empty() && gone.is_empty();
        node.is_none() && used.is_none() && lists && !read_again
    }
}

/// The entries that are new or changed, and none for each that is gone.
fn changed_entries<'a, T: PartialEq>(
    before: Option<&'a BTreeMap<String, T>>,
    now: &'a BTreeMap<String, T>,
) -> BTreeMap<&'a str, Option<&'a T>> {
    let was = |key: &String| before.and_then(|before| before.get(key));
    let other = now.iter().filter(|(key, value)| was(key) != Some(value));
    let gone = before.into_iter().flat_map(BTreeMap::keys).filter(|key| !now.contains_key(*key));
    let other = other.map(|(key, value)| (key.as_str(), Some(value)));
    other.chain(gone.map(|key| (key.as_str(), None))).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::super::reply;
    use super::*;

    fn seen(cpu: u32, allocs: &[u128]) -> LiveSnapshot {
        let allocs = allocs.iter().map(|id| AllocId::new(uuid::Uuid::from_u128(*id))).collect();
        LiveSnapshot {
            node: json!({ "Name": "edge" }),
            used: json!({ "cpu": cpu }),
            allocs,
            ..LiveSnapshot::default()
        }
    }

    fn said(told: Option<&LiveSnapshot>, now: &LiveSnapshot) -> Value {
        serde_json::from_slice(
            &reply::line(&LiveLine::from_snapshots(told, now, ShortLivedAllocs::default()))
                .unwrap(),
        )
        .unwrap()
    }

    #[test]
    fn the_first_line_has_everything_and_later_ones_what_changed() {
        let (first, second) = (seen(1, &[1, 2]), seen(2, &[2, 3]));
        let all = json!({ "node": { "Name": "edge" }, "use": { "cpu": 1 } });
        assert_eq!(said(None, &first), all);
        let more = seen(1, &[1, 2, 3]);
        let line = LiveLine::from_snapshots(Some(&first), &more, ShortLivedAllocs::default());
        assert!(line.is_empty(), "new ones have events");
        let gone = "00000000-0000-0000-0000-000000000001";
        assert_eq!(said(Some(&first), &second), json!({ "use": { "cpu": 2 }, "gone": [gone] }));
    }

    #[test]
    fn when_more_allocations_went_than_are_named_the_reader_is_told_to_read_again() {
        let many: Vec<u128> = (0..=u128::try_from(API_LIVE_GONE_MAX).unwrap()).collect();
        let line = said(Some(&seen(1, &many)), &seen(1, &[]));
        assert_eq!(line["gone"].as_array().unwrap().len(), API_LIVE_GONE_MAX);
        assert_eq!(line["read_again"], true);
    }

    #[test]
    fn an_allocation_that_came_and_went_between_two_looks_is_gone_too() {
        let (seen, id) = (seen(1, &[1]), AllocId::new(uuid::Uuid::from_u128(7)));
        let short = ShortLivedAllocs { gone: BTreeSet::from([id]), missed: false };
        assert_eq!(LiveLine::from_snapshots(Some(&seen), &seen, short).gone, [id]);
        let short = ShortLivedAllocs { missed: true, ..ShortLivedAllocs::default() };
        assert!(LiveLine::from_snapshots(Some(&seen), &seen, short).read_again);
    }

    #[test]
    fn an_entry_that_went_is_null_and_one_that_stayed_is_not_said() {
        let of = |pairs: &[(&str, u8)]| -> BTreeMap<String, u8> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect()
        };
        let (before, now) =
            (of(&[("a", 1), ("b", 1), ("c", 1)]), of(&[("a", 1), ("b", 2), ("d", 1)]));
        let wanted = [("b", Some(&2)), ("c", None), ("d", Some(&1))];
        assert_eq!(changed_entries(Some(&before), &now), BTreeMap::from(wanted));
        assert_eq!(changed_entries(None, &now).len(), 3);
    }
}

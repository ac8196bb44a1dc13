//! Keys: round trip, order, prefixes, refusals.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use super::*;
use proptest::prelude::*;

pub(crate) fn any_id() -> impl Strategy<Value = AllocId> {
    any::<u128>().prop_map(|n| AllocId::new(Uuid::from_u128(n)))
}

fn any_task() -> impl Strategy<Value = TaskName> {
    "[a-z0-9_.ü-]{1,20}"
        .prop_filter("names become directories", |n| n != "." && n != "..")
        .prop_map(|n| TaskName::new(n).unwrap())
}

fn any_key() -> impl Strategy<Value = Key> {
    prop_oneof![
        Just(Key::Meta(MetaItem::SchemaVersion)),
        any_id().prop_map(Key::Alloc),
        any_id().prop_map(Key::AllocState),
        (any_id(), any_task()).prop_map(|(id, task)| Key::TaskLocal(id, task)),
        (any_id(), any_task()).prop_map(|(id, task)| Key::TaskState(id, task)),
        Just(Key::DeviceLedger),
        any_task().prop_map(|n| Key::PluginState(PluginName::new(n.as_str()).unwrap())),
        Just(Key::NodeRegistration),
    ]
}

proptest! {
    #[test]
    fn every_key_parses_back_from_its_bytes(key in any_key()) {
        prop_assert_eq!(Key::parse(&key.encode()).unwrap(), key);
    }

    #[test]
    fn different_keys_have_different_bytes(a in any_key(), b in any_key()) {
        prop_assert_eq!(a == b, a.encode() == b.encode());
    }

    #[test]
    fn any_bytes_are_refused_or_are_the_bytes_of_the_key_they_parse_to(
        area in prop::sample::select(vec![0x01u8, 0x10, 0x20, 0x30, 0x40, 0x99]),
        rest in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut bytes = vec![area];
        bytes.extend(rest);
        if let Ok(key) = Key::parse(&bytes) {
            prop_assert_eq!(key.encode(), bytes);
        }
    }

    #[test]
    fn the_prefix_of_an_allocation_holds_its_keys_and_no_others(key in any_key(), id in any_id()) {
        let prefix = Prefix::Alloc(id).encode();
        prop_assert_eq!(key.encode().starts_with(&prefix), key.alloc() == Some(id));
        if let Some(own) = key.alloc() {
            prop_assert!(key.encode().starts_with(&Prefix::Alloc(own).encode()));
            prop_assert!(key.encode().starts_with(&Prefix::Allocs.encode()));
        }
    }

    #[test]
    fn tasks_sort_by_name_whatever_their_lengths(id in any_id(), a in any_task(), b in any_task()) {
        let (x, y) = (Key::TaskState(id, a.clone()), Key::TaskState(id, b.clone()));
        prop_assert_eq!(x.encode().cmp(&y.encode()), a.cmp(&b));
    }

    #[test]
    fn the_prefix_of_a_task_does_not_hold_one_with_a_longer_name(id in any_id(), a in any_task()) {
        let longer = TaskName::new(format!("{a}x")).unwrap();
        let prefix = Prefix::Task(id, a.clone()).encode();
        prop_assert!(Key::TaskLocal(id, a).encode().starts_with(&prefix));
        prop_assert!(!Key::TaskLocal(id, longer).encode().starts_with(&prefix));
    }
}

#[test]
fn bytes_on_disk_do_not_change_unnoticed() {
    let id = AllocId::new(Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff));
    let key = Key::TaskLocal(id, TaskName::new("web").unwrap());
    let mut expected = vec![0x10];
    expected.extend(0x0011_2233_4455_6677_8899_aabb_ccdd_eeffu128.to_be_bytes());
    expected.extend(b"\x80web\x00\x01");
    assert_eq!(key.encode(), expected);
}

#[test]
fn unknown_parts_and_short_keys_are_refused() {
    assert_eq!(Key::parse(&[]), Err(KeyError::Length));
    assert_eq!(Key::parse(&[0x99]), Err(KeyError::Unknown { tag: 0x99 }));
    assert_eq!(Key::parse(&[0x10, 1, 2]), Err(KeyError::Length));
    assert_eq!(Key::parse(&[0x40, 7]), Err(KeyError::Unknown { tag: 7 }));
    assert!(matches!(Key::parse(&[0x30]), Err(KeyError::Name(_))));
    assert_eq!(Key::parse(&[0x30, 0xff]), Err(KeyError::NotUtf8));
}

//! Tests of keys: round trip, order, prefixes, refusals.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use super::*;
use crate::records::any_of_each;
use ostler_model::ids::{Namespace, PluginName};
use ostler_model::vars::VarKey;
use proptest::prelude::*;
pub(crate) use proptest::strategy::{BoxedStrategy, Strategy};

pub(crate) fn any_id() -> impl Strategy<Value = AllocId> {
    any::<u128>().prop_map(|n| AllocId::new(Uuid::from_u128(n)))
}

fn any_task() -> impl Strategy<Value = TaskName> {
    "[a-z0-9_.ü-]{1,20}"
        .prop_filter("names become directories", |n| n != "." && n != "..")
        .prop_map(|n| TaskName::new(n).unwrap())
}

fn any_job() -> impl Strategy<Value = JobId> {
    "[a-z%/2F_.ü-]{1,20}"
        .prop_filter("no names", |n| n != "." && n != "..")
        .prop_map(|n| JobId::new(n).unwrap())
}

fn ended(job: &str, group: &str, block: u32) -> RecordKey {
    let (job, group) = (JobId::new(job).unwrap(), GroupName::new(group).unwrap());
    RecordKey::EndedPlaces(Box::new(EndedBlock { job, group, block }))
}

fn variable(namespace: &str, path: &str) -> RecordKey {
    RecordKey::Variable(Box::new(VarKey::new(namespace, path).unwrap()))
}

/// Any parts of a key.
pub(crate) trait AnyParts: Sized {
    fn any_parts() -> BoxedStrategy<Self>;
}

macro_rules! any_parts {
    ($($parts:ty = $any:expr;)+) => {
        $(impl AnyParts for $parts {
            fn any_parts() -> BoxedStrategy<Self> {
                $any.boxed()
            }
        })+
    };
}

any_parts! {
    () = Just(());
    (AllocId,) = any_id().prop_map(|id| (id,));
    (AllocId, TaskName) = (any_id(), any_task());
    (PluginName,) = any_task().prop_map(|name| (PluginName::new(name.as_str()).unwrap(),));
    (Namespace,) = "[a-zA-Z0-9-]{1,12}".prop_map(|name| (Namespace::new(&name).unwrap(),));
    (JobId,) = any_job().prop_map(|job| (job,));
    (Box<VarKey>,) = ("[a-z0-9-]{1,3}", "[a-z/_~-]{1,6}|nomad/jobs/[a-z]{1,2}")
        .prop_filter_map("reserved", |(namespace, path)| VarKey::new(&namespace, path).ok())
        .prop_map(|key| (Box::new(key),));
    (Box<EndedBlock>,) = (any_job(), any_task(), any::<u32>()).prop_map(|(job, group, block)| {
        (Box::new(EndedBlock { job, group: GroupName::new(group.as_str()).unwrap(), block }),)
    });
}

fn any_key() -> impl Strategy<Value = RecordKey> {
    proptest::strategy::Union::new(any_of_each())
}

/// Every kind of key, with two different ids and one task.
fn every_key() -> Vec<RecordKey> {
    let name = TaskName::new("web").unwrap();
    let mut keys = vec![
        RecordKey::Meta,
        RecordKey::Counters,
        RecordKey::DeviceLedger,
        RecordKey::PluginHandle(PluginName::new("web").unwrap()),
        RecordKey::NodeRegistration,
        RecordKey::NodeBoot,
        RecordKey::NodeScheduling,
        RecordKey::Namespace(Namespace::new("web").unwrap()),
        RecordKey::DriverManager,
        RecordKey::DeviceManager,
        RecordKey::Job(JobId::new("web").unwrap()),
        RecordKey::JobVersions(JobId::new("web").unwrap()),
        RecordKey::JobDeployments(JobId::new("web").unwrap()),
        variable("default", "web"),
        variable("default", "web/a"),
        variable("defaul", "t/web"),
        RecordKey::VariablesIndex,
        ended("web", "web", 0),
        ended("web", "web", 1),
        ended("web", "we", 0),
    ];
    for id in [0x10, 0x1080].map(|n| AllocId::new(Uuid::from_u128(n))) {
        keys.extend([
            RecordKey::Alloc(id),
            RecordKey::AllocState(id),
            RecordKey::DeploymentStatus(id),
            RecordKey::NetworkStatus(id),
            RecordKey::AcknowledgedState(id),
            RecordKey::TaskLocal(id, name.clone()),
            RecordKey::TaskState(id, name.clone()),
        ]);
    }
    keys
}

/// Whether the key belongs to the group by its meaning, not by its bytes.
fn belongs(prefix: &KeyPrefix, key: &RecordKey) -> bool {
    let task = match key {
        RecordKey::TaskLocal(id, task) | RecordKey::TaskState(id, task) => Some((id, task)),
        _ => None,
    };
    match prefix {
        KeyPrefix::All => true,
        KeyPrefix::Meta => matches!(key, RecordKey::Meta | RecordKey::Counters),
        KeyPrefix::Allocs => key.alloc().is_some(),
        KeyPrefix::Alloc(id) => key.alloc() == Some(*id),
        KeyPrefix::Tasks(id) => task.is_some_and(|(of, _)| of == id),
        KeyPrefix::Task(id, name) => task == Some((id, name)),
        KeyPrefix::Plugins => matches!(key, RecordKey::PluginHandle(_)),
        KeyPrefix::Node => {
            matches!(
                key,
                RecordKey::NodeRegistration
                    | RecordKey::NodeBoot
                    | RecordKey::NodeScheduling
                    | RecordKey::Tokens
            )
        }
        KeyPrefix::Managers => matches!(key, RecordKey::DriverManager | RecordKey::DeviceManager),
        KeyPrefix::Jobs => matches!(key, RecordKey::Job(_)) || beside(key).is_some(),
        KeyPrefix::BesideJob(job) => beside(key) == Some(job),
        KeyPrefix::Variables => matches!(key, RecordKey::Variable(_) | RecordKey::VariablesIndex),
        KeyPrefix::Namespaces => matches!(key, RecordKey::Namespace(_)),
    }
}

/// The job that the key is beside.
fn beside(key: &RecordKey) -> Option<&JobId> {
    match key {
        RecordKey::EndedPlaces(of) => Some(&of.job),
        RecordKey::JobVersions(job) | RecordKey::JobDeployments(job) => Some(job),
        _ => None,
    }
}

fn any_prefix() -> impl Strategy<Value = KeyPrefix> {
    prop_oneof![
        Just(KeyPrefix::All),
        Just(KeyPrefix::Meta),
        Just(KeyPrefix::Allocs),
        any_id().prop_map(KeyPrefix::Alloc),
        any_id().prop_map(KeyPrefix::Tasks),
        (any_id(), any_task()).prop_map(|(id, task)| KeyPrefix::Task(id, task)),
        Just(KeyPrefix::Plugins),
        Just(KeyPrefix::Node),
        Just(KeyPrefix::Managers),
        Just(KeyPrefix::Jobs),
        any_task().prop_map(|n| KeyPrefix::BesideJob(JobId::new(n.as_str()).unwrap())),
    ]
}

proptest! {
    #[test]
    fn every_key_parses_back_from_its_bytes(key in any_key()) {
        prop_assert_eq!(RecordKey::parse(&key.encode()).unwrap(), key);
    }

    #[test]
    fn different_keys_have_different_bytes(a in any_key(), b in any_key()) {
        prop_assert_eq!(a == b, a.encode() == b.encode());
    }

    #[test]
    fn every_key_parses_back_from_its_text(key in any_key()) {
        prop_assert_eq!(key.to_string().parse::<RecordKey>().unwrap(), key);
    }

    #[test]
    fn any_text_is_refused_or_names_one_key(text in "(meta|allocation|plugin|node|device|manager|job)?[a-z0-9/-]{0,50}") {
        if let Ok(key) = text.parse::<RecordKey>() {
            prop_assert_eq!(key.to_string().parse::<RecordKey>().unwrap(), key);
        }
    }

    #[test]
    fn a_prefix_holds_exactly_the_keys_of_its_group(
        prefix in any_prefix(), key in any_key(), id in any_id(), task in any_task(), own in any::<bool>(),
    ) {
        let bytes = prefix.encode();
        prop_assert_eq!(key.encode().starts_with(&bytes), belongs(&prefix, &key));
        // Random ids never meet, so this also tests the groups that this very key belongs to, and
        // their neighbours.
        let id = key.alloc().filter(|_| own).unwrap_or(id);
        let task = match &key {
            RecordKey::TaskLocal(_, name) | RecordKey::TaskState(_, name) if own => name.clone(),
            _ => task,
        };
        let job = match &key {
            RecordKey::JobVersions(job) | RecordKey::JobDeployments(job) if own => job.clone(),
            RecordKey::EndedPlaces(of) if own => of.job.clone(),
            RecordKey::Job(job) if own => job.clone(),
            _ => JobId::new(task.as_str()).unwrap(),
        };
        let ended = KeyPrefix::BesideJob(job);
        for prefix in [KeyPrefix::Alloc(id), KeyPrefix::Tasks(id), KeyPrefix::Task(id, task), ended] {
            prop_assert_eq!(
                key.encode().starts_with(&prefix.encode()), belongs(&prefix, &key), "{:?}", prefix
            );
        }
    }

    #[test]
    fn the_group_around_a_text_holds_every_key_whose_text_starts_so(
        key in any_key(), cut in any::<prop::sample::Index>(),
    ) {
        let text = key.to_string();
        let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let around = KeyPrefix::covering(&text[..*cut.get(&ends)]);
        prop_assert!(belongs(&around, &key), "{:?}", around);
    }

    #[test]
    fn any_bytes_are_refused_or_are_the_bytes_of_the_key_they_parse_to(
        area in prop::sample::select(vec![0x01u8, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x99]),
        rest in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut bytes = vec![area];
        bytes.extend(rest);
        if let Ok(key) = RecordKey::parse(&bytes) {
            prop_assert_eq!(key.encode(), bytes);
        }
    }

    #[test]
    fn tasks_sort_by_name_whatever_their_lengths(id in any_id(), a in any_task(), b in any_task()) {
        let (x, y) = (RecordKey::TaskState(id, a.clone()), RecordKey::TaskState(id, b.clone()));
        prop_assert_eq!(x.encode().cmp(&y.encode()), a.cmp(&b));
    }

    #[test]
    fn the_prefix_of_a_task_does_not_hold_one_with_a_longer_name(id in any_id(), a in any_task()) {
        let longer = TaskName::new(format!("{a}x")).unwrap();
        let prefix = KeyPrefix::Task(id, a.clone()).encode();
        prop_assert!(RecordKey::TaskLocal(id, a).encode().starts_with(&prefix));
        prop_assert!(!RecordKey::TaskLocal(id, longer).encode().starts_with(&prefix));
    }
}

#[test]
fn bytes_on_disk_do_not_change_unnoticed() {
    let id = AllocId::new(Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff));
    let key = RecordKey::TaskLocal(id, TaskName::new("web").unwrap());
    let mut expected = vec![0x10];
    expected.extend(0x0011_2233_4455_6677_8899_aabb_ccdd_eeffu128.to_be_bytes());
    expected.extend(b"\x80web\x00\x01");
    assert_eq!(key.encode(), expected);
    assert_eq!(RecordKey::Job(JobId::new("web").unwrap()).encode(), b"\x60web");
    assert_eq!(variable("default", "nomad/jobs").encode(), b"\x70default\x00nomad/jobs");
    assert_eq!(RecordKey::VariablesIndex.encode(), b"\x70\x00\x01");
    assert_eq!(ended("web", "g", 258).encode(), b"\x60web\x00g\x00\x00\x00\x01\x02");
}

#[test]
fn unknown_parts_and_short_keys_are_refused() {
    assert_eq!(RecordKey::parse(&[]), Err(KeyError::Length));
    assert_eq!(RecordKey::parse(&[0x99]), Err(KeyError::Unknown { tag: 0x99 }));
    assert_eq!(RecordKey::parse(&[0x10, 1, 2]), Err(KeyError::Length));
    assert_eq!(RecordKey::parse(&[0x40, 7]), Err(KeyError::Unknown { tag: 7 }));
    assert!(matches!(RecordKey::parse(&[0x30]), Err(KeyError::Name(_))));
    assert_eq!(RecordKey::parse(&[0x30, 0xff]), Err(KeyError::NotUtf8));
    assert!(matches!(RecordKey::parse(&[0x60]), Err(KeyError::Name(_))));
    assert_eq!(RecordKey::parse(&[0x60, 0xff]), Err(KeyError::NotUtf8));
    assert_eq!(RecordKey::parse(b"\x70default"), Err(KeyError::Length));
    assert_eq!(RecordKey::parse(b"\x70\x00\x02"), Err(KeyError::Unknown { tag: 2 }));
    for bad in [b"\x70default\x00".as_slice(), b"\x70default\x00a b", b"\x70a_b\x00a"] {
        assert!(matches!(RecordKey::parse(bad), Err(KeyError::Variable(_))), "{bad:?}");
    }
    for half in [
        b"\x60web\x00".as_slice(),
        b"\x60web\x00g\x00\x00\x00\x01",
        b"\x60web\x00g\x01\x00\x00\x00\x01",
    ] {
        assert_eq!(RecordKey::parse(half), Err(KeyError::Length), "{half:?}");
    }
    assert!(matches!(RecordKey::parse(b"\x60web\x00\x00\x00\x00\x00\x01"), Err(KeyError::Name(_))));
}

#[test]
fn no_two_keys_share_bytes_text_or_number() {
    let keys = every_key();
    for (at, a) in keys.iter().enumerate() {
        for b in &keys[at + 1..] {
            assert_ne!(a.encode(), b.encode(), "{a} {b}");
            assert_ne!(a.to_string(), b.to_string());
        }
    }
    let mut kinds: Vec<u8> = keys.iter().map(|key| key.kind() as u8).collect();
    kinds.sort_unstable();
    kinds.dedup();
    // Agents out there have files with the first eight. None is skipped or used twice.
    assert_eq!(kinds, (1..=23).collect::<Vec<u8>>());
}

#[test]
fn the_numbers_of_the_records_do_not_change() {
    let numbers = [
        (RecordKind::Meta, 1),
        (RecordKind::Alloc, 2),
        (RecordKind::AllocState, 3),
        (RecordKind::TaskLocal, 4),
        (RecordKind::TaskState, 5),
        (RecordKind::DeviceLedger, 6),
        (RecordKind::PluginHandle, 7),
        (RecordKind::NodeRegistration, 8),
        (RecordKind::Counters, 9),
        (RecordKind::DeploymentStatus, 10),
        (RecordKind::NetworkStatus, 11),
        (RecordKind::AcknowledgedState, 12),
        (RecordKind::DriverManager, 13),
        (RecordKind::DeviceManager, 14),
        (RecordKind::Job, 15),
        (RecordKind::EndedPlaces, 16),
        (RecordKind::NodeBoot, 17),
        (RecordKind::JobVersions, 18),
        (RecordKind::JobDeployments, 19),
        (RecordKind::Variable, 20),
        (RecordKind::VariablesIndex, 21),
        (RecordKind::NodeScheduling, 22),
        (RecordKind::Namespace, 23),
    ];
    for (kind, number) in numbers {
        assert_eq!(kind as u8, number, "{kind:?}");
    }
}

#[test]
fn a_prefix_of_an_id_or_an_unknown_text_is_read_from_a_wider_group() {
    let id = AllocId::new(Uuid::from_u128(7));
    assert_eq!(KeyPrefix::covering(&format!("allocation/{id}/task/w")), KeyPrefix::Alloc(id));
    assert_eq!(KeyPrefix::covering("allocation/0000"), KeyPrefix::Allocs);
    assert_eq!(KeyPrefix::covering("plugin/e"), KeyPrefix::Plugins);
    assert_eq!(KeyPrefix::covering("job/w"), KeyPrefix::Jobs);
    assert_eq!(KeyPrefix::covering("variable/default/n"), KeyPrefix::Variables);
    assert_eq!(KeyPrefix::covering("all"), KeyPrefix::All);
}

#[test]
fn a_text_that_names_no_record_is_refused_with_the_text() {
    let plugins = ["plugin", "plugin/a/b", "plugin/"];
    let jobs = ["job", "job/a/b", "job/", "job/a/ended/g", "job/a/ended/g/01", "job/a/ended/g/x"];
    let rest = ["", "meta", "meta/x", "allocation/", "allocation/7/state"];
    let variables =
        ["variable", "variable/", "variable/x", "variable//a", "variable/default/nomad"];
    for text in plugins.into_iter().chain(jobs).chain(rest).chain(variables) {
        assert!(text.parse::<RecordKey>().is_err(), "{text}");
    }
    let id = AllocId::new(Uuid::from_u128(7));
    assert!(format!("allocation/{id}/task/web/state/x").parse::<RecordKey>().is_err());
    let error = "node/else".parse::<RecordKey>().unwrap_err();
    assert!(error.to_string().contains("\"node/else\""), "{error}");
}

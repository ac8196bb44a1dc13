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

fn any_job() -> impl Strategy<Value = JobId> {
    "[a-z%/2F_.ü-]{1,20}"
        .prop_filter("no names", |n| n != "." && n != "..")
        .prop_map(|n| JobId::new(n).unwrap())
}

fn ended(job: &str, group: &str, block: u32) -> Key {
    let (job, group) = (JobId::new(job).unwrap(), GroupName::new(group).unwrap());
    Key::EndedPlaces(Box::new(EndedBlock { job, group, block }))
}

fn variable(namespace: &str, path: &str) -> Key {
    Key::Variable(Box::new(VarKey::new(namespace, path).unwrap()))
}

fn any_key() -> impl Strategy<Value = Key> {
    prop_oneof![
        Just(Key::Meta(MetaItem::SchemaVersion)),
        Just(Key::Meta(MetaItem::Counters)),
        any_id().prop_map(Key::Alloc),
        any_id().prop_map(Key::AllocState),
        any_id().prop_map(Key::DeploymentStatus),
        any_id().prop_map(Key::NetworkStatus),
        any_id().prop_map(Key::AcknowledgedState),
        (any_id(), any_task()).prop_map(|(id, task)| Key::TaskLocal(id, task)),
        (any_id(), any_task()).prop_map(|(id, task)| Key::TaskState(id, task)),
        Just(Key::DeviceLedger),
        any_task().prop_map(|n| Key::PluginHandle(PluginName::new(n.as_str()).unwrap())),
        Just(Key::NodeRegistration),
        Just(Key::NodeBoot),
        Just(Key::NodeScheduling),
        "[a-zA-Z0-9-]{1,12}".prop_map(|name| Key::Namespace(Namespace::new(&name).unwrap())),
        Just(Key::DriverManager),
        Just(Key::DeviceManager),
        any_job().prop_map(Key::Job),
        any_job().prop_map(Key::JobVersions),
        any_job().prop_map(Key::JobDeployments),
        ("[a-z0-9-]{1,3}", "[a-z/_~-]{1,6}|nomad/jobs/[a-z]{1,2}")
            .prop_filter_map("reserved", |(namespace, path)| VarKey::new(&namespace, path).ok())
            .prop_map(|key| Key::Variable(Box::new(key))),
        Just(Key::VariablesIndex),
        (any_job(), any_task(), any::<u32>()).prop_map(|(job, group, block)| ended(
            job.as_str(),
            group.as_str(),
            block
        )),
    ]
}

/// Two different ids and one task: every key there is with them.
fn every_key() -> Vec<Key> {
    let name = TaskName::new("web").unwrap();
    let mut keys = vec![
        Key::Meta(MetaItem::SchemaVersion),
        Key::Meta(MetaItem::Counters),
        Key::DeviceLedger,
        Key::PluginHandle(PluginName::new("web").unwrap()),
        Key::NodeRegistration,
        Key::NodeBoot,
        Key::NodeScheduling,
        Key::Namespace(Namespace::new("web").unwrap()),
        Key::DriverManager,
        Key::DeviceManager,
        Key::Job(JobId::new("web").unwrap()),
        Key::JobVersions(JobId::new("web").unwrap()),
        Key::JobDeployments(JobId::new("web").unwrap()),
        variable("default", "web"),
        variable("default", "web/a"),
        variable("defaul", "t/web"),
        Key::VariablesIndex,
        ended("web", "web", 0),
        ended("web", "web", 1),
        ended("web", "we", 0),
    ];
    for id in [0x10, 0x1080].map(|n| AllocId::new(Uuid::from_u128(n))) {
        keys.extend([
            Key::Alloc(id),
            Key::AllocState(id),
            Key::DeploymentStatus(id),
            Key::NetworkStatus(id),
            Key::AcknowledgedState(id),
            Key::TaskLocal(id, name.clone()),
            Key::TaskState(id, name.clone()),
        ]);
    }
    keys
}

/// Whether the key belongs to the group, by the key's meaning and not by its bytes.
fn belongs(prefix: &Prefix, key: &Key) -> bool {
    let task = match key {
        Key::TaskLocal(id, task) | Key::TaskState(id, task) => Some((id, task)),
        _ => None,
    };
    match prefix {
        Prefix::All => true,
        Prefix::Meta => matches!(key, Key::Meta(_)),
        Prefix::Allocs => key.alloc().is_some(),
        Prefix::Alloc(id) => key.alloc() == Some(*id),
        Prefix::Tasks(id) => task.is_some_and(|(of, _)| of == id),
        Prefix::Task(id, name) => task == Some((id, name)),
        Prefix::Plugins => matches!(key, Key::PluginHandle(_)),
        Prefix::Node => {
            matches!(key, Key::NodeRegistration | Key::NodeBoot | Key::NodeScheduling)
        }
        Prefix::Managers => matches!(key, Key::DriverManager | Key::DeviceManager),
        Prefix::Jobs => matches!(key, Key::Job(_)) || beside(key).is_some(),
        Prefix::BesideJob(job) => beside(key) == Some(job),
        Prefix::Variables => matches!(key, Key::Variable(_) | Key::VariablesIndex),
        Prefix::Namespaces => matches!(key, Key::Namespace(_)),
    }
}

/// The job that a key is beside.
fn beside(key: &Key) -> Option<&JobId> {
    match key {
        Key::EndedPlaces(of) => Some(&of.job),
        Key::JobVersions(job) | Key::JobDeployments(job) => Some(job),
        _ => None,
    }
}

fn any_prefix() -> impl Strategy<Value = Prefix> {
    prop_oneof![
        Just(Prefix::All),
        Just(Prefix::Meta),
        Just(Prefix::Allocs),
        any_id().prop_map(Prefix::Alloc),
        any_id().prop_map(Prefix::Tasks),
        (any_id(), any_task()).prop_map(|(id, task)| Prefix::Task(id, task)),
        Just(Prefix::Plugins),
        Just(Prefix::Node),
        Just(Prefix::Managers),
        Just(Prefix::Jobs),
        any_task().prop_map(|n| Prefix::BesideJob(JobId::new(n.as_str()).unwrap())),
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
    fn every_key_parses_back_from_its_text(key in any_key()) {
        prop_assert_eq!(key.to_string().parse::<Key>().unwrap(), key);
    }

    #[test]
    fn any_text_is_refused_or_names_one_key(text in "(meta|allocation|plugin|node|device|manager|job)?[a-z0-9/-]{0,50}") {
        if let Ok(key) = text.parse::<Key>() {
            prop_assert_eq!(key.to_string().parse::<Key>().unwrap(), key);
        }
    }

    #[test]
    fn a_prefix_holds_exactly_the_keys_of_its_group(
        prefix in any_prefix(), key in any_key(), id in any_id(), task in any_task(), own in any::<bool>(),
    ) {
        let bytes = prefix.encode();
        prop_assert_eq!(key.encode().starts_with(&bytes), belongs(&prefix, &key));
        // Random ids never meet: also the groups this very key belongs to, and their neighbours.
        let id = key.alloc().filter(|_| own).unwrap_or(id);
        let task = match &key {
            Key::TaskLocal(_, name) | Key::TaskState(_, name) if own => name.clone(),
            _ => task,
        };
        let job = match &key {
            Key::JobVersions(job) | Key::JobDeployments(job) if own => job.clone(),
            Key::EndedPlaces(of) if own => of.job.clone(),
            Key::Job(job) if own => job.clone(),
            _ => JobId::new(task.as_str()).unwrap(),
        };
        let ended = Prefix::BesideJob(job);
        for prefix in [Prefix::Alloc(id), Prefix::Tasks(id), Prefix::Task(id, task), ended] {
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
        let around = Prefix::around(&text[..*cut.get(&ends)]);
        prop_assert!(belongs(&around, &key), "{:?}", around);
    }

    #[test]
    fn any_bytes_are_refused_or_are_the_bytes_of_the_key_they_parse_to(
        area in prop::sample::select(vec![0x01u8, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x99]),
        rest in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut bytes = vec![area];
        bytes.extend(rest);
        if let Ok(key) = Key::parse(&bytes) {
            prop_assert_eq!(key.encode(), bytes);
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
    assert_eq!(Key::Job(JobId::new("web").unwrap()).encode(), b"\x60web");
    assert_eq!(variable("default", "nomad/jobs").encode(), b"\x70default\x00nomad/jobs");
    assert_eq!(Key::VariablesIndex.encode(), b"\x70\x00\x01");
    assert_eq!(ended("web", "g", 258).encode(), b"\x60web\x00g\x00\x00\x00\x01\x02");
}

#[test]
fn unknown_parts_and_short_keys_are_refused() {
    assert_eq!(Key::parse(&[]), Err(KeyError::Length));
    assert_eq!(Key::parse(&[0x99]), Err(KeyError::Unknown { tag: 0x99 }));
    assert_eq!(Key::parse(&[0x10, 1, 2]), Err(KeyError::Length));
    assert_eq!(Key::parse(&[0x40, 7]), Err(KeyError::Unknown { tag: 7 }));
    assert!(matches!(Key::parse(&[0x30]), Err(KeyError::Name(_))));
    assert_eq!(Key::parse(&[0x30, 0xff]), Err(KeyError::NotUtf8));
    assert!(matches!(Key::parse(&[0x60]), Err(KeyError::Name(_))));
    assert_eq!(Key::parse(&[0x60, 0xff]), Err(KeyError::NotUtf8));
    assert_eq!(Key::parse(b"\x70default"), Err(KeyError::Length));
    assert_eq!(Key::parse(b"\x70\x00\x02"), Err(KeyError::Unknown { tag: 2 }));
    for bad in [b"\x70default\x00".as_slice(), b"\x70default\x00a b", b"\x70a_b\x00a"] {
        assert!(matches!(Key::parse(bad), Err(KeyError::Variable(_))), "{bad:?}");
    }
    for half in [
        b"\x60web\x00".as_slice(),
        b"\x60web\x00g\x00\x00\x00\x01",
        b"\x60web\x00g\x01\x00\x00\x00\x01",
    ] {
        assert_eq!(Key::parse(half), Err(KeyError::Length), "{half:?}");
    }
    assert!(matches!(Key::parse(b"\x60web\x00\x00\x00\x00\x00\x01"), Err(KeyError::Name(_))));
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
    // The first eight are in files of agents out there; none is skipped or used twice.
    assert_eq!(kinds, (1..=23).collect::<Vec<u8>>());
}

#[test]
fn the_numbers_of_the_records_do_not_change() {
    let numbers = [
        (Kind::Meta, 1),
        (Kind::Alloc, 2),
        (Kind::AllocState, 3),
        (Kind::TaskLocal, 4),
        (Kind::TaskState, 5),
        (Kind::DeviceLedger, 6),
        (Kind::PluginHandle, 7),
        (Kind::NodeRegistration, 8),
        (Kind::Counters, 9),
        (Kind::DeploymentStatus, 10),
        (Kind::NetworkStatus, 11),
        (Kind::AcknowledgedState, 12),
        (Kind::DriverManager, 13),
        (Kind::DeviceManager, 14),
        (Kind::Job, 15),
        (Kind::EndedPlaces, 16),
        (Kind::NodeBoot, 17),
        (Kind::JobVersions, 18),
        (Kind::JobDeployments, 19),
        (Kind::Variable, 20),
        (Kind::VariablesIndex, 21),
        (Kind::NodeScheduling, 22),
        (Kind::Namespace, 23),
    ];
    for (kind, number) in numbers {
        assert_eq!(kind as u8, number, "{kind:?}");
    }
}

#[test]
fn a_prefix_of_an_id_or_an_unknown_text_is_read_from_a_wider_group() {
    let id = AllocId::new(Uuid::from_u128(7));
    assert_eq!(Prefix::around(&format!("allocation/{id}/task/w")), Prefix::Alloc(id));
    assert_eq!(Prefix::around("allocation/0000"), Prefix::Allocs);
    assert_eq!(Prefix::around("plugin/e"), Prefix::Plugins);
    assert_eq!(Prefix::around("job/w"), Prefix::Jobs);
    assert_eq!(Prefix::around("variable/default/n"), Prefix::Variables);
    assert_eq!(Prefix::around("all"), Prefix::All);
}

#[test]
fn a_text_that_names_no_record_is_refused_with_the_text() {
    let plugins = ["plugin", "plugin/a/b", "plugin/"];
    let jobs = ["job", "job/a/b", "job/", "job/a/ended/g", "job/a/ended/g/01", "job/a/ended/g/x"];
    let rest = ["", "meta", "meta/x", "allocation/", "allocation/7/state"];
    let variables =
        ["variable", "variable/", "variable/x", "variable//a", "variable/default/nomad"];
    for text in plugins.into_iter().chain(jobs).chain(rest).chain(variables) {
        assert!(text.parse::<Key>().is_err(), "{text}");
    }
    let id = AllocId::new(Uuid::from_u128(7));
    assert!(format!("allocation/{id}/task/web/state/x").parse::<Key>().is_err());
    let error = "node/else".parse::<Key>().unwrap_err();
    assert!(error.to_string().contains("\"node/else\""), "{error}");
}

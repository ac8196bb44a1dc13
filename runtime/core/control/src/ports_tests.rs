#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use proptest::prelude::*;

use super::*;
use ostler_model::rng::Rng;

fn alloc(number: u128) -> AllocId {
    AllocId::new(uuid::Uuid::from_u128(number))
}

fn fixed(label: &str, port: u16) -> PortSpec {
    PortSpec { label: label.into(), fixed: Some(port), to: None, host_network: None }
}

fn dynamic(label: &str) -> PortSpec {
    PortSpec { label: label.into(), fixed: None, to: None, host_network: None }
}

fn assign(
    ledger: &mut PortLedger,
    alloc: AllocId,
    ports: &[PortSpec],
    in_use: &dyn Fn(u16) -> bool,
) -> Result<Vec<AllocatedPort>, Vec<PortError>> {
    let rules = PortRules {
        host_ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
        host_networks: &BTreeMap::new(),
        rng: &Rng::from_seed(3),
        reserved: &BTreeSet::from([105]),
        in_use,
    };
    ledger.assign(alloc, ports, None, &rules)
}

const NOBODY: &dyn Fn(u16) -> bool = &|_| false;

#[test]
fn a_fixed_port_is_assigned_once_and_the_second_asker_is_told_by_whom_it_is_held() {
    let mut ledger = PortLedger::default();
    let given = assign(&mut ledger, alloc(1), &[fixed("http", 8080)], NOBODY).unwrap();
    assert_eq!((given[0].value, given[0].to, &*given[0].host_ip), (8080, 8080, "127.0.0.1"));
    let errors = assign(&mut ledger, alloc(2), &[fixed("web", 8080)], NOBODY).unwrap_err();
    assert_eq!(
        errors[0].to_string(),
        "port 8080 (\"web\") is held by allocation 00000000 (port label \"http\"); \
         ask for another or a dynamic one"
    );
}

#[test]
fn one_failing_port_keeps_all_from_being_assigned_and_every_failure_is_said() {
    let mut ledger = PortLedger::default();
    let before = ledger.clone();
    let wanted = [fixed("a", 80), dynamic("b"), fixed("c", 0), fixed("d", 81), fixed("e", 81)];
    let errors = assign(&mut ledger, alloc(1), &wanted, &|port| port == 80).unwrap_err();
    assert!(matches!(errors[0], PortError::InUse { port: 80, .. }));
    assert!(matches!(errors[1], PortError::Zero { .. }));
    assert!(matches!(errors[2], PortError::Taken { port: 81, .. }));
    assert_eq!(errors.len(), 3);
    assert_eq!(ledger, before);
}

#[test]
fn dynamic_ports_skip_assigned_reserved_and_used_ones_until_none_is_left() {
    let mut ledger = PortLedger::new(100..=105);
    let used: &dyn Fn(u16) -> bool = &|port| port == 103;
    let wanted = [dynamic("a"), dynamic("b"), fixed("c", 101), dynamic("d")];
    let given = assign(&mut ledger, alloc(1), &wanted, used).unwrap();
    let labels: Vec<&str> = given.iter().map(|port| port.label.as_str()).collect();
    assert_eq!(labels, ["a", "b", "c", "d"]);
    let ports: BTreeSet<u16> = given.iter().map(|port| port.value).collect();
    assert_eq!(ports, BTreeSet::from([100, 101, 102, 104]));
    let errors = assign(&mut ledger, alloc(2), &[dynamic("x")], used).unwrap_err();
    assert!(matches!(errors[0], PortError::Exhausted { first: 100, last: 105, .. }));
    assert_eq!(ledger.release(alloc(1)), 4);
    assert_eq!(ledger.release(alloc(1)), 0);
    assert!(assign(&mut ledger, alloc(2), &[dynamic("x")], used).is_ok());
}

#[test]
fn the_edge_of_the_port_range_does_not_overflow() {
    let mut ledger = PortLedger::new(65_535..=65_535);
    let given = assign(&mut ledger, alloc(1), &[dynamic("a")], NOBODY).unwrap();
    assert_eq!(given[0].value, 65_535);
    #[expect(clippy::reversed_empty_ranges, reason = "an empty range is the case tested")]
    let mut empty = PortLedger::new(10..=9);
    assert!(assign(&mut empty, alloc(1), &[dynamic("a")], NOBODY).is_err());
}

#[test]
fn restored_ports_are_entered_without_asking_the_node() {
    let mut ledger = PortLedger::default();
    let given = assign(&mut ledger, alloc(1), &[fixed("a", 80), dynamic("b")], NOBODY).unwrap();
    let mut restored = PortLedger::default();
    restored.adopt(alloc(1), &given).unwrap();
    assert_eq!(restored, ledger);
    assert!(restored.adopt(alloc(2), &given).is_err());
    assert_eq!(restored, ledger);
}

#[test]
fn the_probe_sees_a_listener_on_loopback_and_not_after_it_is_gone() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    assert!(port_in_use(port));
    drop(listener);
    assert!(!port_in_use(port));
}

proptest! {
    #[test]
    fn no_port_is_assigned_twice(
        steps in prop::collection::vec((0_u128..4, 0_usize..4, any::<bool>()), 0..40),
        seed in any::<u64>(),
    ) {
        let rng = Rng::from_seed(seed);
        let mut ledger = PortLedger::new(100..=109);
        let mut assigned: BTreeMap<u16, u128> = BTreeMap::new();
        for (owner, count, release) in steps {
            if release {
                ledger.release(alloc(owner));
                assigned.retain(|_, held_by| *held_by != owner);
                continue;
            }
            let wanted: Vec<PortSpec> = (0..count).map(|n| dynamic(&n.to_string())).collect();
            let rules = PortRules {
                host_ip: IpAddr::V4(Ipv4Addr::LOCALHOST),
                host_networks: &BTreeMap::new(),
                rng: &rng,
                reserved: &BTreeSet::new(),
                in_use: NOBODY,
            };
            let result = ledger.assign(alloc(owner), &wanted, None, &rules);
            prop_assert_eq!(result.is_ok(), assigned.len() + count <= 10);
            for port in result.unwrap_or_default() {
                prop_assert!((100..=109).contains(&port.value));
                prop_assert_eq!(assigned.insert(port.value, owner), None);
            }
            prop_assert_eq!(ledger.holders().count(), assigned.len());
        }
    }
}

#[test]
fn an_assignment_costs_no_more_where_many_ports_are_held() {
    let held = |count: u16| {
        let port = |value| AllocatedPort {
            label: format!("p{value}"),
            value,
            to: value,
            host_ip: "127.0.0.1".into(),
            task: None,
        };
        let mut ledger = PortLedger::default();
        ledger.adopt(alloc(1), &(1..=count).map(port).collect::<Vec<_>>()).unwrap();
        ledger
    };
    let time = |mut ledger: PortLedger| {
        let began = ostler_model::clock::Stopwatch::start();
        for port in 60_000..60_100_u16 {
            assign(&mut ledger, alloc(port.into()), &[fixed("http", port)], NOBODY).unwrap();
        }
        began.elapsed()
    };
    // The least of a few: somebody else may have had the processor.
    let least = |count| (0..3).map(|_| time(held(count))).min().unwrap();
    let (many, few) = (least(20_000), least(10));
    assert!(many < few * 20, "{many:?} beside {few:?}");
}

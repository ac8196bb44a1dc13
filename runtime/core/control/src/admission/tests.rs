#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use proptest::prelude::{Strategy, any, prop, prop_assert, prop_assert_eq, proptest};

use super::*;
use ostler_model::device::{DeviceGroup, DeviceInstance, GroupKey, Health};
use ostler_model::ids::{PluginName, TaskName};
use ostler_model::job::{JobKind, Lifecycle, LifecycleHook, NetworkSpec, Operator, PortSpec};
use ostler_model::resources::{CoreRequest, DeviceRequest, NumaAffinity, Resources};
use ostler_node::{DriverView, NodeCores, NodeId};
use ostler_testing::fixtures;

fn task(name: &str, cpu_mhz: u32, memory_mb: u32) -> Task {
    Task {
        driver: PluginName::new("exec").unwrap(),
        resources: Resources { cpu_mhz, memory_mb, ..Resources::default() },
        ..fixtures::task(name).unwrap()
    }
}

fn group(name: &str, count: u32, tasks: Vec<Task>) -> TaskGroup {
    TaskGroup { count, ..fixtures::group(name, tasks).unwrap() }
}

fn job(groups: Vec<TaskGroup>) -> Job {
    fixtures::job("demo", JobKind::Batch, groups).unwrap()
}

fn health(state: HealthState, reason: &str) -> Health {
    Health { state, reason: reason.into() }
}

/// 1000 MHz, 1000 MiB, driver `exec`, two devices, one rack.
fn view() -> NodeView {
    let mut view = NodeView::new(NodeId::new(Rng::from_seed(1).uuid()), "box");
    view.resources = NodeTotals { cpu_mhz: 1_000, memory_mb: 1_000 };
    view.meta.insert("rack".into(), "r1".into());
    let exec = DriverView { health: health(HealthState::Healthy, ""), ..Default::default() };
    view.drivers.insert(PluginName::new("exec").unwrap(), exec);
    let instance = |id: &str| DeviceInstance {
        id: id.into(),
        health: health(HealthState::Healthy, ""),
        locality: None,
    };
    view.devices.push(DeviceGroup {
        key: GroupKey { vendor: "local".into(), kind: "file".into(), name: "data".into() },
        plugin: PluginName::new("files").unwrap(),
        instances: vec![instance("a"), instance("b")],
        attributes: vec![],
    });
    view
}

fn device(name: &str, count: u32) -> DeviceRequest {
    DeviceRequest { name: name.into(), count, constraints: vec![], affinities: vec![] }
}

fn port(label: &str, fixed: Option<u16>) -> PortSpec {
    PortSpec { label: label.into(), fixed, to: None, host_network: None }
}

fn rule(left: &str, right: &str) -> Constraint {
    Constraint { left: left.into(), operator: Operator::Equal, right: right.into() }
}

fn place(admission: &mut Admission, job: Job, seed: u64) -> Result<Vec<Allocation>, Refusal> {
    place_on(admission, &view(), job, seed)
}

fn place_on(
    admission: &mut Admission,
    view: &NodeView,
    job: Job,
    seed: u64,
) -> Result<Vec<Allocation>, Refusal> {
    let rng = Rng::from_seed(seed);
    let mut placing = Placing {
        new_id: &mut |_, _| AllocId::new(rng.uuid()),
        now: Timestamp::from_nanos(5),
        rng: &rng,
        port_in_use: &|port| port == 9,
        explain: None,
    };
    admission.place(&Arc::new(job), view, &mut placing)
}

#[test]
fn a_job_that_fits_gets_named_allocations_with_devices_and_ports() {
    let mut worker = task("work", 100, 100);
    worker.resources.devices = vec![device("file", 1)];
    let mut workers = group("workers", 2, vec![worker]);
    workers.network =
        Some(NetworkSpec { ports: vec![port("http", None)], ..NetworkSpec::default() });
    let mut admission = Admission::default();
    let placed = place(&mut admission, job(vec![workers]), 1).unwrap();
    let names: Vec<&str> = placed.iter().map(|alloc| alloc.name.as_str()).collect();
    assert_eq!(names, ["demo.workers[0]", "demo.workers[1]"]);
    let work = TaskName::new("work").unwrap();
    assert_eq!(placed[0].devices[&work][0].ids, ["a"]);
    assert_eq!(placed[1].devices[&work][0].ids, ["b"]);
    assert_ne!(placed[0].ports[0].value, placed[1].ports[0].value);
    assert_eq!(placed[0].ports[0].host_ip, "127.0.0.1");
    assert_eq!(admission.assigned_totals(), NodeTotals { cpu_mhz: 200, memory_mb: 200 });
    for alloc in &placed {
        admission.release_alloc(alloc.id);
        admission.release_alloc(alloc.id);
    }
    assert_eq!(admission, Admission::default());
}

#[test]
fn every_problem_of_every_group_is_listed_and_nothing_is_claimed() {
    let mut first = task("one", 5_000, 10);
    first.driver = PluginName::new("exex").unwrap();
    first.resources.devices = vec![device("file", 1), device("gpu", 1)];
    first.constraints = vec![rule("${meta.rack}", "r2")];
    let mut a = group("a", 1, vec![first]);
    a.network = Some(NetworkSpec {
        ports: vec![port("x", Some(9)), port("y", None)],
        ..NetworkSpec::default()
    });
    let b = group("b", 1, vec![task("two", 10, 5_000)]);
    let mut wanted = job(vec![a, b]);
    wanted.datacenters = vec!["paris-*".into()];
    wanted.constraints = vec![rule("${meta.color}", "red")];
    let mut admission = Admission::default();
    let refusal = place(&mut admission, wanted, 1).unwrap_err();
    assert_eq!(admission, Admission::default());
    let text = refusal.to_string();
    for part in [
        "job demo does not fit on node box",
        "the job is for data center paris-*; this node is in dc1",
        "constraint of the job: ${meta.color} = red is false: ${meta.color} is not set",
        "task one: no driver exex (did you mean exec?); the loaded ones are: exec",
        "constraint of task one: ${meta.rack} = r2 is false: ${meta.rack} is r1",
        "allocation 0 needs 5000 MHz of processor time; 1000 of 1000 are free",
        "no plugin offers gpu; there is local/file/data",
        "port 9 (\"x\") is in use by another program",
        "group b:\n    - allocation 0 needs 5000 MiB of memory",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
    assert!(serde_json::to_string(&refusal).unwrap().contains("\"kind\":\"unknown_driver\""));
}

#[test]
fn a_driver_of_every_agent_that_is_not_there_is_told_to_be_off_unless_it_was_refused() {
    let of = |driver: &str, node: &NodeView| {
        let driver = PluginName::new(driver).unwrap();
        no_driver(&driver, node).map(|none| none.message)
    };
    let mut node = view();
    for name in ["wasm", "mock_driver", "raw_exec"] {
        let said = of(name, &node).unwrap();
        let beginning = format!("no driver {name}; the loaded ones are: exec; {name} ");
        assert!(said.starts_with(&beginning) && said.contains(" is off"), "{said}");
        assert!(said.contains(&format!("plugin \"{name}\" {{ enabled = ")), "{said}");
    }
    assert_eq!(of("docker", &node).unwrap(), "no driver docker; the loaded ones are: exec");
    node.drivers.clear();
    let said = of("exec", &node).unwrap();
    assert!(
        said.starts_with("no driver exec; the loaded ones are: none; exec comes with"),
        "{said}"
    );
    let mut refused = task("one", 1, 1);
    refused.driver = PluginName::new("exec").unwrap();
    node.refused_plugins.insert("exec".into(), "it lacks a grant".into());
    let job = job(vec![group("g", 1, vec![refused])]);
    let said = place_on(&mut Admission::default(), &node, job, 1).unwrap_err().to_string();
    assert!(said.contains("plugin exec was refused") && !said.contains("is off"), "{said}");
}

#[test]
fn what_a_refused_plugin_may_have_offered_is_told_with_its_reason() {
    let mut wanted = task("one", 1, 1);
    wanted.resources.devices = vec![device("py/widget", 1)];
    let mut foreign = task("two", 1, 1);
    foreign.driver = PluginName::new("pydrv").unwrap();
    let job = job(vec![group("g", 1, vec![wanted, foreign])]);
    let mut node = view();
    node.refused_plugins.insert("pydev".into(), "it asks for sockets".into());
    let mut admission = Admission::default();
    let text = place_on(&mut admission, &node, job, 1).unwrap_err().to_string();
    for part in [
        "no plugin offers py/widget; there is local/file/data (plugin pydev was refused: it asks \
         for sockets)",
        "no driver pydrv; the loaded ones are: exec (plugin pydev was refused: it asks for sockets)",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}

#[test]
fn a_device_held_by_a_running_allocation_is_refused_with_its_name() {
    let wants = |name: &str, count| {
        let mut task = task(name, 1, 1);
        task.resources.devices = vec![device("local/file/data", count)];
        job(vec![group("g", 1, vec![task])])
    };
    let mut admission = Admission::default();
    let holder = place(&mut admission, wants("first", 1), 1).unwrap();
    let text = place(&mut admission, wants("second", 2), 2).unwrap_err().to_string();
    let expected = format!("a is held by task first of allocation {}", holder[0].id.short());
    assert!(text.contains(&expected), "{text}");
    admission.release_alloc(holder[0].id);
    assert!(place(&mut admission, wants("second", 2), 3).is_ok());
}

#[test]
fn an_allocation_that_stands_in_its_own_way_is_named_by_its_name() {
    let mut twice = task("t", 1, 1);
    twice.resources.ports = vec![port("own", Some(8_080))];
    let mut web = group("web", 1, vec![twice]);
    web.network =
        Some(NetworkSpec { ports: vec![port("http", Some(8_080))], ..NetworkSpec::default() });
    let refused = place(&mut Admission::default(), job(vec![web]), 1).unwrap_err();
    for text in [refused.to_string(), refused.problems()] {
        assert!(text.contains("is held by demo.web[0] of this job"), "{text}");
    }
}

#[test]
fn a_conflict_inside_one_job_says_which_of_its_allocations_it_is_with() {
    let mut web = group("web", 2, vec![task("t", 1, 1)]);
    web.network =
        Some(NetworkSpec { ports: vec![port("http", Some(8_080))], ..NetworkSpec::default() });
    let mut admission = Admission::default();
    let text = place(&mut admission, job(vec![web]), 1).unwrap_err().to_string();
    assert!(
        text.contains("allocation 1: port 8080 (\"http\") is held by demo.web[0] of this job"),
        "{text}"
    );
    assert_eq!(admission, Admission::default());
}

#[test]
fn an_unhealthy_driver_is_refused_with_its_reason() {
    let mut view = view();
    let exec = view.drivers.values_mut().next().unwrap();
    exec.health = health(HealthState::Unhealthy, "no cgroup");
    let problems = group_problems(&group("g", 1, vec![task("t", 1, 1)]), &view);
    assert_eq!(problems[0].to_string(), "task t: driver exec is unhealthy: no cgroup");
}

#[test]
fn a_huge_count_is_refused_before_anything_is_made() {
    let mut admission = Admission::default();
    let huge = job(vec![group("g", u32::MAX, vec![task("t", 0, 0)])]);
    let refusal = place(&mut admission, huge, 1).unwrap_err();
    assert!(matches!(refusal.groups[0].problems[0], Problem::TooManyTasks { .. }));
}

/// With `count` cores of 500 MHz of its own.
fn pinned(name: &str, count: u32) -> Task {
    let mut task = task(name, 0, 10);
    task.resources.cores = Some(CoreRequest { count, numa: NumaAffinity::None });
    task
}

/// Two cores that can be reserved.
fn with_cores() -> NodeView {
    let mut view = view();
    view.attributes.insert("cpu.numcores".to_owned(), 2.into());
    let cores = NodeCores { ids: "0-1".parse().unwrap(), missing: String::new() };
    view.set_cores(cores);
    view.drivers.get_mut("exec").unwrap().gives_cores = true;
    view
}

#[test]
fn cores_are_claimed_with_their_processor_time_and_free_again_after_a_release() {
    let (view, mut admission) = (with_cores(), Admission::default());
    let one = || job(vec![group("g", 1, vec![pinned("one", 1)])]);
    let first = place_on(&mut admission, &view, one(), 1).unwrap().remove(0);
    let second = place_on(&mut admission, &view, one(), 2).unwrap().remove(0);
    let name = TaskName::new("one").unwrap();
    assert_eq!(first.cores_of(&name).to_string(), "0");
    assert_eq!(second.cores_of(&name).to_string(), "1");
    assert_eq!(second.cores[&name].cpu_mhz, 500);
    assert_eq!(admission.assigned_totals().cpu_mhz, 1_000);
    let third = place_on(&mut admission, &view, one(), 3).unwrap_err().to_string();
    let wanted =
        "task one of allocation 0 needs 1 core for itself; of this node's cores 0-1, none is free";
    assert!(third.contains(wanted), "{third}");
    admission.end_alloc(first.id, &BTreeSet::new());
    let again = place_on(&mut admission, &view, one(), 4).unwrap().remove(0);
    assert_eq!(again.cores_of(&name).to_string(), "0");

    let mut later = Admission::default();
    later.adopt(&again).unwrap();
    assert_eq!(later.adopt(&first), Err(AdoptError::Cores { alloc: first.id }));
    later.adopt(&second).unwrap();
    assert_eq!(later, admission, "as the one that placed them");
}

#[test]
fn one_core_stays_for_tasks_that_share_them() {
    let (view, mut admission) = (with_cores(), Admission::default());
    let both = job(vec![group("g", 1, vec![pinned("one", 1), task("rest", 100, 10)])]);
    place_on(&mut admission, &view, both, 1).unwrap();
    let last = job(vec![group("g", 1, vec![pinned("last", 1)])]);
    let mut roomy = view.clone();
    roomy.resources.cpu_mhz = 10_000;
    roomy.attributes.insert("cpu.numcores".to_owned(), 20.into());
    let refused = place_on(&mut admission, &roomy, last, 2).unwrap_err().to_string();
    assert!(refused.contains("none would be left for tasks that share them"), "{refused}");
    // All of them, where nobody shares.
    let all = job(vec![group("g", 1, vec![pinned("all", 2)])]);
    place_on(&mut Admission::default(), &view, all, 3).unwrap();
}

#[test]
fn a_node_and_a_driver_that_give_no_cores_say_why() {
    let all = || job(vec![group("g", 1, vec![pinned("t", 1)])]);
    let mut view = with_cores();
    view.set_cores(NodeCores { missing: "there is no cpuset".to_owned(), ..NodeCores::default() });
    let refused = place_on(&mut Admission::default(), &view, all(), 1).unwrap_err().to_string();
    assert!(
        refused.contains("this node can reserve none, so ask for cpu: there is no cpuset"),
        "{refused}"
    );
    assert_eq!(refused.lines().count(), 3, "{refused}");
    // What an earlier agent gave is still held; others are placed all the same.
    let mut admission = Admission::default();
    let held = place_on(&mut admission, &with_cores(), all(), 2).unwrap();
    assert_eq!(held.len(), 1);
    place_on(&mut admission, &view, job(vec![group("g", 1, vec![task("t", 10, 10)])]), 3).unwrap();
    let mut view = with_cores();
    view.drivers.get_mut("exec").unwrap().gives_cores = false;
    let refused = place_on(&mut Admission::default(), &view, all(), 1).unwrap_err().to_string();
    assert!(
        refused.contains("driver exec gives none") && refused.contains("ask for cpu"),
        "{refused}"
    );
}

#[test]
fn tasks_that_run_one_after_the_other_need_only_the_largest() {
    let phase = |name: &str, memory, hook, sidecar| {
        let mut task = task(name, 1, memory);
        task.lifecycle = Some(Lifecycle { hook, sidecar });
        task
    };
    let tasks = vec![
        phase("before", 900, LifecycleHook::Prestart, false),
        phase("beside", 50, LifecycleHook::Prestart, true),
        task("main", 1, 400),
        phase("also", 400, LifecycleHook::Poststart, false),
        phase("after", 100, LifecycleHook::Poststop, false),
    ];
    assert_eq!(
        needs::group_needs(&group("g", 1, tasks), &|task| task.resources.cpu_mhz.into()),
        NodeTotals { cpu_mhz: 3, memory_mb: 950 }
    );
}

#[test]
fn restored_allocations_give_the_same_ledgers_and_cannot_be_entered_twice() {
    let mut worker = task("work", 100, 100);
    worker.resources.devices = vec![device("file", 1)];
    let mut workers = group("workers", 2, vec![worker]);
    workers.network =
        Some(NetworkSpec { ports: vec![port("http", None)], ..NetworkSpec::default() });
    let mut admission = Admission::default();
    let placed = place(&mut admission, job(vec![workers]), 1).unwrap();
    let mut restored = Admission::default();
    for alloc in &placed {
        restored.adopt(alloc).unwrap();
    }
    assert_eq!(restored, admission);
    assert!(matches!(restored.adopt(&placed[0]), Err(AdoptError::Known { .. })));
    let mut twin = placed[0].clone();
    twin.id = AllocId::new(uuid::Uuid::from_u128(5));
    assert!(matches!(restored.adopt(&twin), Err(AdoptError::Device { .. })));
    assert_eq!(restored, admission);
}

#[test]
fn an_id_drawn_twice_is_refused_and_harms_nobody() {
    let mut admission = Admission::default();
    let wanted = || job(vec![group("g", 1, vec![task("t", 10, 10)])]);
    place(&mut admission, wanted(), 1).unwrap();
    let before = admission.clone();
    let refusal = place(&mut admission, wanted(), 1).unwrap_err();
    assert!(matches!(refusal.groups[0].problems[0], Problem::IdInUse { .. }));
    assert_eq!(admission, before);
}

fn jobs() -> impl Strategy<Value = Job> {
    let ports = prop::sample::select(vec![None, Some(80_u16), Some(81)]);
    let one = (0_u32..400, 0_u32..400, 0_u32..3, prop::option::of(ports), 0_u32..3);
    prop::collection::vec(one, 1..3).prop_map(|groups| {
        type Drawn = (u32, u32, u32, Option<Option<u16>>, u32);
        let make = |(at, (cpu, memory, devices, fixed, count)): (usize, Drawn)| {
            let mut only = task("t", cpu, memory);
            if devices > 0 {
                only.resources.devices = vec![device("file", devices)];
            }
            let mut made = group(&format!("g{at}"), count, vec![only]);
            made.network = fixed.map(|fixed| NetworkSpec {
                ports: vec![port("p", fixed)],
                ..NetworkSpec::default()
            });
            made
        };
        job(groups.into_iter().enumerate().map(make).collect())
    })
}

proptest! {
    #[test]
    fn nothing_is_assigned_twice_or_beyond_the_node_and_a_refusal_changes_nothing(
        steps in prop::collection::vec((jobs(), any::<bool>()), 0..20),
    ) {
        let mut admission = Admission::default();
        let mut live: Vec<Allocation> = Vec::new();
        for (seed, (job, release)) in (0_u64..).zip(steps) {
            if release && !live.is_empty() {
                let gone = live.remove(0);
                admission.release_alloc(gone.id);
            }
            let before = admission.clone();
            match place(&mut admission, job, seed) {
                Ok(placed) => live.extend(placed),
                Err(refusal) => {
                    prop_assert!(!refusal.to_string().is_empty());
                    prop_assert_eq!(&before, &admission);
                }
            }
            let assigned = admission.assigned_totals();
            prop_assert!(assigned.cpu_mhz <= 1_000 && assigned.memory_mb <= 1_000, "{:?}", assigned);
            let ports: Vec<u16> =
                live.iter().flat_map(|alloc| alloc.ports.iter().map(|port| port.value)).collect();
            prop_assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), ports.len());
            prop_assert_eq!(admission.ports().holders().count(), ports.len());
            let ids: Vec<&String> = live
                .iter().flat_map(|alloc| alloc.devices.values().flatten())
                .flat_map(|device| &device.ids).collect();
            prop_assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
            prop_assert_eq!(admission.devices().holders().count(), ids.len());
        }
    }
}

/// A constraint that counts allocations.
fn few(operator: Operator, left: &str, right: &str) -> Constraint {
    Constraint { left: left.into(), operator, right: right.into() }
}

fn placed_alone(admission: &mut Admission, job: &Job, index: u32) -> Result<AllocId, String> {
    // Each has ids of its own.
    static SEED: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(100);
    let rng = Rng::from_seed(SEED.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    let mut placing = Placing {
        new_id: &mut |_, _| AllocId::new(rng.uuid()),
        now: Timestamp::from_nanos(5),
        rng: &rng,
        port_in_use: &|_| false,
        explain: None,
    };
    let group = job.groups.get(usize::from(index > 9)).unwrap().name.clone();
    let indexes = move |of: &TaskGroup| if of.name == group { vec![index] } else { Vec::new() };
    let placed = admission.place_some(&Arc::new(job.clone()), &indexes, &view(), &mut placing);
    placed.map(|placed| placed[0].id).map_err(|refusal| refusal.problems())
}

#[test]
fn of_a_group_with_distinct_hosts_one_allocation_is_here_at_a_time() {
    let mut first = group("a", 2, vec![task("t", 10, 10)]);
    first.constraints = vec![few(Operator::DistinctHosts, "", "true")];
    let both = job(vec![first, group("b", 2, vec![task("u", 10, 10)])]);
    let mut admission = Admission::default();
    let one = placed_alone(&mut admission, &both, 0).unwrap();
    placed_alone(&mut admission, &both, 10).expect("another group");
    assert_eq!(
        placed_alone(&mut admission, &both, 1).unwrap_err(),
        "constraint of the group: by distinct_hosts at most 1 of its allocations may be on this \
         node, and 1 are; allocation 1 waits"
    );
    admission.end_alloc(one, &BTreeSet::new());
    placed_alone(&mut admission, &both, 1).unwrap();
}

#[test]
fn distinct_hosts_of_a_job_counts_all_its_groups_and_those_without_it() {
    let plain =
        job(vec![group("a", 2, vec![task("t", 9, 9)]), group("b", 2, vec![task("u", 9, 9)])]);
    let mut limited = plain.clone();
    limited.constraints = vec![few(Operator::DistinctHosts, "", "")];
    let mut off = plain.clone();
    off.constraints = vec![few(Operator::DistinctHosts, "", "false")];
    let other = Job { id: ostler_model::ids::JobId::new("other").unwrap(), ..limited.clone() };
    let mut admission = Admission::default();
    placed_alone(&mut admission, &other, 0).unwrap();
    placed_alone(&mut admission, &plain, 0).expect("nobody limits it");
    let refused = placed_alone(&mut admission, &limited, 10).unwrap_err();
    assert!(refused.starts_with("constraint of the job: by distinct_hosts"), "{refused}");
    placed_alone(&mut admission, &off, 10).expect("switched off");
}

#[test]
fn so_many_allocations_share_a_property_as_its_constraint_says() {
    let mut group = group("a", 5, vec![task("t", 10, 10)]);
    group.constraints = vec![few(Operator::DistinctProperty, "${meta.rack}", "2")];
    let racks = job(vec![group.clone()]);
    let mut admission = Admission::default();
    placed_alone(&mut admission, &racks, 0).unwrap();
    placed_alone(&mut admission, &racks, 1).unwrap();
    let refused = placed_alone(&mut admission, &racks, 2).unwrap_err();
    assert!(refused.contains("distinct_property ${meta.rack} at most 2"), "{refused}");
    group.constraints = vec![few(Operator::DistinctProperty, "${meta.row}", "")];
    let refused = placed_alone(&mut Admission::default(), &job(vec![group]), 0).unwrap_err();
    assert!(refused.contains("${meta.row} is not set"), "{refused}");
}

#[test]
fn all_or_nothing_counts_what_is_placed_together() {
    let mut group = group("a", 2, vec![task("t", 10, 10)]);
    group.constraints = vec![few(Operator::DistinctHosts, "", "true")];
    let mut admission = Admission::default();
    place(&mut admission, job(vec![group]), 1).unwrap_err();
    assert_eq!(admission, Admission::default(), "nothing is left of what would have fitted");
}

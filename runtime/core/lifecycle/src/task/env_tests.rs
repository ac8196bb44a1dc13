#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use ostler_model::alloc::DesiredStatus;
use ostler_model::ids::{JobId, TaskName};
use ostler_model::job::{Job, JobKind};
use ostler_model::network::AllocNetwork;
use ostler_model::resources::{AllocatedCores, Resources};
use ostler_model::saved::NetworkStatus;
use ostler_model::time::Timestamp;
use ostler_testing::fixtures;

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn task(name: &str) -> Task {
    let resources = Resources { cpu_mhz: 250, memory_mb: 64, ..Resources::default() };
    Task { resources, ..fixtures::task(name).unwrap() }
}

fn alloc(tasks: Vec<Task>) -> Allocation {
    let group = TaskGroup {
        count: 3,
        meta: map(&[("level", "group"), ("owner", "group")]),
        ..fixtures::group("cache", tasks).unwrap()
    };
    let job = Job {
        id: JobId::new("redis").unwrap(),
        name: "Redis".to_owned(),
        kind: JobKind::Service,
        priority: 50,
        datacenters: vec!["dc1".to_owned()],
        meta: map(&[("level", "job"), ("owner", "job"), ("team-name", "job")]),
        constraints: Vec::new(),
        groups: vec![group],
        source_dir: Some("/jobs".into()),
        placement: ostler_model::placement::Placement::default(),
        all_at_once: false,
        parent: None,
    };
    Allocation {
        id: "6f1f8e4e-0f5c-4f7e-9a51-2f8b8f0c3c11".parse().unwrap(),
        name: "redis.cache[2]".to_owned(),
        job: Arc::new(job),
        group: GroupName::new("cache").unwrap(),
        index: 2,
        created_at: Timestamp::from_nanos(1),
        desired: DesiredStatus::Run,
        ports: Vec::new(),
        devices: BTreeMap::new(),
        cores: BTreeMap::new(),
        modify_index: 1,
        create_index: 1,
        job_version: 0,
        previous: None,
        deployment: None,
        reschedules: Vec::new(),
        desired_description: String::new(),
    }
}

fn node() -> Arc<NodeFacts> {
    Arc::new(NodeFacts {
        host_volumes: BTreeMap::new(),
        id: "node-id".to_owned(),
        name: "host-1".to_owned(),
        datacenter: "dc1".to_owned(),
        class: "big".to_owned(),
        region: String::new(),
        pool: "default".to_owned(),
        attributes: map(&[("cpu.arch", "amd64")]),
        meta: map(&[("rack", "r1")]),
    })
}

fn dirs() -> TaskDirs {
    TaskDirs::new(FsIsolation::Preopen, Path::new("/a"), Path::new("/t")).unwrap()
}

fn build_with(
    alloc: &Allocation,
    task: &Task,
    hook_env: &[(String, String)],
) -> Result<TaskEnv, EnvError> {
    let (node, dirs, of_driver) = (&node(), &dirs(), &[][..]);
    TaskEnv::build(&EnvInput { alloc, task, node, dirs, of_driver, hook_env, network: None })
}

fn build(task: Task) -> TaskEnv {
    build_with(&alloc(vec![task.clone()]), &task, &[]).unwrap()
}

fn get<'a>(env: &'a TaskEnv, name: &str) -> Option<&'a str> {
    env.vars.get(name).map(String::as_str)
}

#[test]
fn a_task_with_cores_of_its_own_knows_which_and_what_they_are() {
    let (web, other) = (task("web"), task("other"));
    let mut alloc = alloc(vec![web.clone(), other.clone()]);
    let cores = AllocatedCores { cores: "1-2".parse().unwrap(), cpu_mhz: 5_000 };
    alloc.cores.insert(web.name.clone(), cores);
    let env = build_with(&alloc, &web, &[]).unwrap();
    assert_eq!(get(&env, "NOMAD_CPU_CORES"), Some("1-2"));
    assert_eq!(get(&env, "NOMAD_CPU_LIMIT"), Some("5000"));
    let env = build_with(&alloc, &other, &[]).unwrap();
    assert_eq!((get(&env, "NOMAD_CPU_CORES"), get(&env, "NOMAD_CPU_LIMIT")), (None, Some("250")));
}

#[test]
fn a_task_knows_who_and_where_it_is_and_nothing_of_the_agents_environment() {
    let env = build(task("web"));
    for (name, value) in [
        ("ALLOC_DIR", "/alloc"),
        ("TASK_DIR", "/local"),
        ("SECRETS_DIR", "/secrets"),
        ("ALLOC_ID", "6f1f8e4e-0f5c-4f7e-9a51-2f8b8f0c3c11"),
        ("SHORT_ALLOC_ID", "6f1f8e4e"),
        ("ALLOC_NAME", "redis.cache[2]"),
        ("ALLOC_INDEX", "2"),
        ("TASK_NAME", "web"),
        ("GROUP_NAME", "cache"),
        ("JOB_ID", "redis"),
        ("JOB_NAME", "Redis"),
        ("NAMESPACE", "default"),
        ("DC", "dc1"),
        ("REGION", "global"),
        ("CPU_LIMIT", "250"),
        ("MEMORY_LIMIT", "64"),
    ] {
        assert_eq!(get(&env, &format!("NOMAD_{name}")), Some(value), "{name}");
    }
    assert!(env.vars.keys().all(|name| name.starts_with("NOMAD_")), "{:?}", env.vars);
    assert_eq!(get(&env, "NOMAD_MEMORY_MAX_LIMIT"), None);
    let mut pairs = env.pairs();
    pairs.sort();
    assert_eq!(pairs, env.pairs());
}

#[test]
fn memory_max_is_shown_when_it_is_asked_for() {
    let mut task = task("web");
    task.resources.memory_max_mb = Some(128);
    assert_eq!(get(&build(task), "NOMAD_MEMORY_MAX_LIMIT"), Some("128"));
}

#[test]
fn a_task_without_isolation_gets_host_paths_and_one_with_it_its_own() {
    let (alloc, task) = (Path::new("/d/id/alloc"), Path::new("/d/id/web"));
    let host = TaskDirs::new(FsIsolation::None, alloc, task).unwrap();
    assert_eq!(host.alloc, "/d/id/alloc");
    assert_eq!(host.task, "/d/id/web/local");
    assert_eq!(host.secrets, "/d/id/web/secrets");
    let own = TaskDirs::new(FsIsolation::Chroot, alloc, task).unwrap();
    assert_eq!(own, dirs());
    let odd = Path::new(OsStr::from_bytes(b"/d/\xff"));
    assert!(matches!(
        TaskDirs::new(FsIsolation::None, odd, task),
        Err(EnvError::PathNotText { .. })
    ));
}

#[test]
fn each_port_has_all_its_names_and_odd_labels_become_clean() {
    let mut alloc = alloc(vec![task("web")]);
    let port = |label: &str, value, to, host_ip: &str| AllocatedPort {
        label: label.to_owned(),
        value,
        to,
        host_ip: host_ip.to_owned(),
        task: None,
    };
    alloc.ports = vec![port("http", 21_000, 80, "10.0.0.1"), port("a-b.c", 22_000, 22_000, "::1")];
    let env = build_with(&alloc, &task("web"), &[]).unwrap();
    for (name, value) in [
        ("IP_http", "10.0.0.1"),
        ("PORT_http", "21000"),
        ("ADDR_http", "10.0.0.1:21000"),
        ("HOST_IP_http", "10.0.0.1"),
        ("HOST_PORT_http", "21000"),
        ("HOST_ADDR_http", "10.0.0.1:21000"),
        ("ALLOC_PORT_http", "80"),
        ("PORT_a_b_c", "22000"),
        ("ADDR_a_b_c", "[::1]:22000"),
    ] {
        assert_eq!(get(&env, &format!("NOMAD_{name}")), Some(value), "{name}");
    }
}

#[test]
fn in_a_network_of_its_own_a_task_has_its_ports_as_they_are_called_there() {
    let mut alloc = alloc(vec![task("web"), task("db")]);
    let port = |label: &str, value, of: Option<&str>| AllocatedPort {
        label: label.to_owned(),
        value,
        to: 80,
        host_ip: "10.0.0.1".to_owned(),
        task: of.map(|name| TaskName::new(name).unwrap()),
    };
    alloc.ports = vec![port("http", 21_000, None), port("sql", 22_000, Some("db"))];
    let network = AllocNetwork {
        namespace: "/ns".into(),
        status: NetworkStatus {
            interface_name: "eth0".to_owned(),
            address: "172.26.64.9".to_owned(),
            ..NetworkStatus::default()
        },
        hostname: None,
    };
    let of = |name: &str| {
        let (task, node, dirs) = (task(name), node(), dirs());
        let network = Some(&network);
        TaskEnv::build(&EnvInput {
            alloc: &alloc,
            task: &task,
            node: &node,
            dirs: &dirs,
            of_driver: &[],
            hook_env: &[],
            network,
        })
        .unwrap()
    };
    let web = of("web");
    for (name, value) in [
        ("IP_http", Some("10.0.0.1")),
        ("PORT_http", Some("80")),
        ("ADDR_http", Some("10.0.0.1:21000")),
        ("HOST_PORT_http", Some("21000")),
        ("ALLOC_PORT_http", Some("80")),
        ("ALLOC_IP_http", Some("172.26.64.9")),
        ("ALLOC_ADDR_http", Some("172.26.64.9:80")),
        ("ALLOC_INTERFACE_http", Some("eth0")),
        ("PORT_sql", None),
        ("ADDR_db_sql", Some("10.0.0.1:22000")),
        ("PORT_db_sql", Some("22000")),
    ] {
        assert_eq!(get(&web, &format!("NOMAD_{name}")), value, "{name}");
    }
    let db = of("db");
    assert_eq!(get(&db, "NOMAD_PORT_sql"), Some("22000"));
    assert_eq!(get(&db, "NOMAD_ADDR_sql"), Some("10.0.0.1:22000"));
    assert_eq!(get(&db, "NOMAD_ADDR_db_sql"), None);
}

#[test]
fn meta_of_the_task_wins_over_the_groups_over_the_jobs_and_comes_in_upper_case_too() {
    let mut task = task("web");
    task.meta = map(&[("level", "task"), ("foo", "low"), ("FOO", "high")]);
    let env = build(task);
    for (name, value) in [
        ("level", "task"),
        ("LEVEL", "task"),
        ("owner", "group"),
        ("OWNER", "group"),
        ("team_name", "job"),
        ("TEAM_NAME", "job"),
        ("foo", "low"),
        ("FOO", "high"),
    ] {
        assert_eq!(get(&env, &format!("NOMAD_META_{name}")), Some(value), "{name}");
    }
}

#[test]
fn hooks_win_over_the_env_block_and_that_over_what_is_built_in() {
    let mut task = task("web");
    task.env = map(&[("NOMAD_DC", "mine"), ("GPU", "none"), ("SEEN", "${GPU} ${NOMAD_DC}")]);
    let hook = [("GPU".to_owned(), "0".to_owned()), ("GPU".to_owned(), "1".to_owned())];
    let env = build_with(&alloc(vec![task.clone()]), &task, &hook).unwrap();
    assert_eq!(get(&env, "NOMAD_DC"), Some("mine"));
    assert_eq!(get(&env, "GPU"), Some("1"));
    assert_eq!(get(&env, "SEEN"), Some("1 dc1"), "values do not see the env block itself");
}

#[test]
fn the_config_sees_the_env_block_the_node_and_the_job() {
    let mut task = task("web");
    task.env = map(&[("NAME", "${node.unique.name}-${NOMAD_ALLOC_INDEX}")]);
    let env = build(task);
    let text = "${NAME} ${env.NAME} ${attr.cpu.arch} ${meta.rack} ${node.region} ${job.dir}";
    assert_eq!(env.interpolate(text).unwrap(), "host-1-2 host-1-2 amd64 r1 global /jobs");
    let config = JsonObject::from(json!({"args": ["${NAME}"]}).as_object().unwrap().clone());
    assert_eq!(env.interpolate_config(&config).unwrap().text(), r#"{"args":["host-1-2"]}"#);
}

#[test]
fn a_job_without_a_file_has_no_directory_and_says_so() {
    let mut alloc = alloc(vec![task("web")]);
    Arc::make_mut(&mut alloc.job).source_dir = None;
    let env = build_with(&alloc, &task("web"), &[]).unwrap();
    assert_eq!(env.interpolate("${job.dir}/x").unwrap(), "${job.dir}/x");
    assert_eq!(env.unknown_in(["${job.dir}/x"])[0].reference, "job.dir");
}

#[test]
fn values_of_meta_are_replaced_by_what_is_known_before_them_for_tasks_and_groups() {
    let mut task = task("web");
    task.meta = map(&[
        ("who", "${NOMAD_JOB_NAME}[${NOMAD_ALLOC_INDEX}] at ${node.datacenter} ${attr.cpu.arch}"),
        ("again", "${NOMAD_META_who}"),
        ("shell", "$${HOME} ${1} ${NOPE}"),
    ]);
    let mut alloc = alloc(vec![task.clone()]);
    Arc::make_mut(&mut alloc.job).meta.insert("rack".to_owned(), "${meta.rack}".to_owned());
    let env = build_with(&alloc, &task, &[]).unwrap();
    assert_eq!(get(&env, "NOMAD_META_who"), Some("Redis[2] at dc1 amd64"));
    assert_eq!(get(&env, "NOMAD_META_WHO"), Some("Redis[2] at dc1 amd64"));
    assert_eq!(get(&env, "NOMAD_META_again"), Some("${NOMAD_META_who}"), "they see no other");
    assert_eq!(get(&env, "NOMAD_META_shell"), Some("$${HOME} ${1} ${NOPE}"));
    assert_eq!(get(&env, "NOMAD_META_rack"), Some("r1"));
    let unknown: Vec<_> = env.unknown.iter().map(|one| one.reference.as_str()).collect();
    assert_eq!(unknown, ["NOMAD_META_who"]);
    let of_group = TaskEnv::of_group(&alloc, &node(), None).unwrap();
    assert_eq!(get(&of_group, "NOMAD_META_rack"), Some("r1"));
}

#[test]
fn what_a_driver_gives_is_seen_by_all_texts_and_replaced_by_the_env_block() {
    let mut task = task("web");
    task.env = map(&[("PATH", "${PATH}:/opt/bin")]);
    task.meta = map(&[("home", "${HOME}")]);
    let of_driver = [("PATH", "/bin"), ("HOME", "/root")];
    let of_driver = of_driver.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let env = TaskEnv::build(&EnvInput {
        alloc: &alloc(vec![task.clone()]),
        task: &task,
        node: &node(),
        dirs: &dirs(),
        of_driver: &of_driver,
        hook_env: &[],
        network: None,
    });
    let env = env.unwrap();
    assert_eq!(get(&env, "PATH"), Some("/bin:/opt/bin"));
    assert_eq!(get(&env, "NOMAD_META_home"), Some("/root"));
    assert_eq!(env.lookup("HOME"), Some("/root"));
    assert_eq!(env.interpolate("${HOME}/x").unwrap(), "/root/x");
}

#[test]
fn an_unknown_reference_in_the_env_block_stays_as_it_is_and_is_told_with_the_nearest_name() {
    let mut task = task("web");
    task.env = map(&[("OUT", "${NOMAD_TASK_DIRR}/out ${NOPE}")]);
    // It is told once, wherever it stands.
    task.meta = map(&[("out", "${NOMAD_TASK_DIRR}/out")]);
    let env = build_with(&alloc(vec![task.clone()]), &task, &[]).unwrap();
    assert_eq!(get(&env, "OUT"), Some("${NOMAD_TASK_DIRR}/out ${NOPE}"));
    let told = env.unknown.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(told, ["${NOMAD_TASK_DIRR} (nearest: ${NOMAD_TASK_DIR})"]);
}

#[test]
fn names_and_values_no_process_can_be_given_are_refused() {
    for (name, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "x\0y")] {
        let mut task = task("web");
        task.env = map(&[(name, value)]);
        let error = build_with(&alloc(vec![task.clone()]), &task, &[]).unwrap_err();
        assert!(matches!(error, EnvError::Variable { .. }), "{name:?}: {error}");
    }
}

#[test]
fn an_environment_too_large_for_a_process_is_refused() {
    let mut task = task("web");
    task.env = map(&[("A", &"x".repeat(ENV_BYTES_MAX / 2)), ("B", &"x".repeat(ENV_BYTES_MAX / 2))]);
    let error = build_with(&alloc(vec![task.clone()]), &task, &[]).unwrap_err();
    assert!(matches!(error, EnvError::TooLarge { .. }), "{error}");
}

#[test]
fn a_group_the_job_does_not_have_is_an_error() {
    let mut alloc = alloc(vec![task("web")]);
    alloc.group = GroupName::new("other").unwrap();
    let error = build_with(&alloc, &task("web"), &[]).unwrap_err();
    assert!(matches!(error, EnvError::UnknownGroup { .. }));
}

proptest! {
    #[test]
    fn nothing_of_one_tasks_environment_reaches_another(
        mine in prop::collection::btree_map("[A-Z]{1,6}", "[a-z]{0,8}", 0..6),
        theirs in prop::collection::btree_map("[A-Z]{1,6}", "[a-z]{0,8}", 0..6),
        my_meta in prop::collection::btree_map("[a-z]{1,6}", "[a-z]{0,8}", 0..4),
        their_meta in prop::collection::btree_map("[a-z]{1,6}", "[a-z]{0,8}", 0..4),
    ) {
        let me = Task { env: mine, meta: my_meta, ..task("me") };
        let other = Task { env: theirs, meta: their_meta, ..task("other") };
        let alone = build_with(&alloc(vec![me.clone()]), &me, &[]).unwrap();
        let both = alloc(vec![other.clone(), me.clone()]);
        let _ = build_with(&both, &other, &[("HOOK".to_owned(), "x".to_owned())]).unwrap();
        let beside = build_with(&both, &me, &[]).unwrap();
        prop_assert_eq!(alone.vars, beside.vars);
    }
}

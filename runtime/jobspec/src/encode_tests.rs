#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::{Syntax, parse};
use super::nomad_json;
use ostler_model::ids::{GroupName, JobId, PluginName, TaskName};
use ostler_model::job::*;
use ostler_model::json::JsonObject;
use ostler_model::limits::MIB;
use ostler_model::network::NetworkMode;
use ostler_model::resources::{DeviceRequest, Resources};
use ostler_model::saved::DnsConfig;
use ostler_model::volume::{VolumeMount, VolumeRequest};

fn read_back(job: &Job) -> Job {
    let text = json!({ "Job": nomad_json(job) }).to_string();
    match parse(text.as_bytes(), Path::new("-"), Some(Syntax::Json)) {
        Ok(job) => job,
        Err(found) => panic!("{}", found.render(&text, false)),
    }
}

#[test]
fn every_example_comes_back_as_it_was() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/jobs");
    let mut read = 0;
    for entry in std::fs::read_dir(examples).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "hcl") {
            let job = super::super::parse_file(&path).unwrap();
            assert!(job.source_dir.is_some());
            assert_eq!(read_back(&job), job, "{}", path.display());
            read += 1;
        }
    }
    assert!(read >= 6, "{read} examples");
}

#[test]
fn a_job_has_the_fields_and_units_of_nomads_api() {
    let text = r#"job "j" {
      group "g" {
        network {
          port "p" { static = 80 }
          port "q" { to = 7 }
        }
        service {
          port = "p"
          check {
            type = "http"
            path = "/x"
            interval = "10s"
            timeout = "1s"
          }
        }
        ephemeral_disk { sticky = true }
        update { health_check = "task_states" }
        max_run_duration = "1h"
        task "t" {
          driver = "exec"
          resources { memory = 64 }
        }
      }
    }"#;
    let job = parse(text.as_bytes(), Path::new("/jobs/j.hcl"), None).unwrap();
    let json = nomad_json(&job);
    assert_eq!(json["ID"], "j");
    assert_eq!(json["SourceDir"], "/jobs");
    assert_eq!((&json["Stop"], &json["Affinities"]), (&Value::Null, &Value::Null));
    assert_eq!(json["Update"]["HealthCheck"], "");
    let group = &json["TaskGroups"][0];
    assert_eq!(group["EphemeralDisk"], json!({"Sticky": true, "SizeMB": 300, "Migrate": false}));
    assert_eq!(group["Update"]["HealthCheck"], "task_states");
    assert_eq!(group["Update"]["MinHealthyTime"], 10_000_000_000_i64);
    assert_eq!(group["Migrate"]["HealthCheck"], "checks");
    assert_eq!(group["MaxRunDuration"], 3_600_000_000_000_i64);
    assert_eq!(group["Networks"][0]["ReservedPorts"][0]["Value"], 80);
    assert_eq!(group["Networks"][0]["DynamicPorts"][0]["To"], 7);
    let check = &group["Services"][0]["Checks"][0];
    assert_eq!((&check["Type"], &check["Interval"]), (&json!("http"), &json!(10_000_000_000_i64)));
    let task = &group["Tasks"][0];
    assert_eq!(task["Resources"]["MemoryMB"], 64);
    assert_eq!(task["KillTimeout"], 5_000_000_000_i64);
    assert_eq!(task["LogConfig"]["MaxFiles"], 10);
}

fn texts() -> impl Strategy<Value = std::collections::BTreeMap<String, String>> {
    prop::collection::btree_map("[a-z_]{1,6}", "[ -~äö]{0,8}", 0..3)
}

fn constraint() -> impl Strategy<Value = Constraint> {
    let operator = prop::sample::select(vec![
        Operator::Equal,
        Operator::NotEqual,
        Operator::Less,
        Operator::LessOrEqual,
        Operator::Greater,
        Operator::GreaterOrEqual,
        Operator::Regexp,
        Operator::SetContainsAll,
        Operator::SetContainsAny,
        Operator::IsSet,
        Operator::IsNotSet,
    ]);
    (operator, "[a-z]{1,5}").prop_map(|(operator, right)| Constraint {
        left: "${attr.x}".to_owned(),
        operator,
        right: match operator {
            Operator::IsSet | Operator::IsNotSet => String::new(),
            _ => right,
        },
    })
}

fn nanos(range: std::ops::Range<u64>) -> impl Strategy<Value = Duration> {
    range.prop_map(Duration::from_nanos)
}

const SECOND: u64 = 1_000_000_000;

fn resources() -> impl Strategy<Value = Resources> {
    let device = (1..4_u32, prop::collection::vec(constraint(), 0..2), -100..0_i8).prop_map(
        |(count, constraints, weight)| {
            let affinities =
                constraints.iter().cloned().map(|rule| Affinity { rule, weight }).collect();
            DeviceRequest { name: "a/b/c d".to_owned(), count, constraints, affinities }
        },
    );
    (1..9_999_u32, 1..500_u32, prop::option::of(500..900_u32), prop::collection::vec(device, 0..2))
        .prop_map(|(cpu_mhz, memory_mb, memory_max_mb, devices)| Resources {
            cpu_mhz,
            memory_mb,
            memory_max_mb,
            devices,
            ports: vec![PortSpec {
                label: "of_task".to_owned(),
                fixed: None,
                to: None,
                host_network: None,
            }],
        })
}

fn restart() -> impl Strategy<Value = RestartPolicy> {
    (1..5_u32, nanos(5 * SECOND..90 * SECOND), any::<bool>()).prop_map(
        |(attempts, interval, fail)| RestartPolicy {
            attempts,
            interval,
            delay: interval / 5,
            mode: if fail { RestartMode::Fail } else { RestartMode::Delay },
        },
    )
}

fn task(name: &'static str, hook: Option<LifecycleHook>) -> impl Strategy<Value = Task> {
    let plain = (texts(), texts(), prop::collection::vec(constraint(), 0..2), resources());
    let times = (nanos(0..90 * SECOND), prop::option::of(nanos(1..90 * SECOND)), restart());
    let rest = (
        prop::option::of(Just("SIGINT".to_owned())),
        prop::option::of(Just("nobody".to_owned())),
        any::<bool>(),
        (1..9_u32, 1..9_u32, any::<bool>()),
    );
    (plain, times, rest).prop_map(move |(plain, times, (kill_signal, user, truth, logs))| Task {
        name: TaskName::new(name).unwrap(),
        driver: PluginName::new("exec").unwrap(),
        config: JsonObject::from(
            json!({"a": [1, null, {"b": plain.1.len()}], "c": truth}).as_object().unwrap().clone(),
        ),
        env: plain.0,
        meta: plain.1,
        constraints: plain.2,
        resources: plain.3,
        kill_timeout: times.0,
        shutdown_delay: times.1,
        restart: times.2,
        kill_signal,
        leader: truth && hook.is_none(),
        lifecycle: hook.map(|hook| Lifecycle { hook, sidecar: truth }),
        logs: LogConfig { max_files: logs.0, max_file_size_mb: logs.1, disabled: logs.2 },
        user,
        payload: None,
        volume_mounts: truth.then(mount).into_iter().collect(),
    })
}

fn service(task: Option<&'static str>) -> impl Strategy<Value = Service> {
    let http = prop::sample::select(vec!["GET", "POST"]).prop_map(|method| CheckKind::Http {
        method: method.to_owned(),
        path: "/x?y=%20".to_owned(),
    });
    let check =
        (prop_oneof![Just(CheckKind::Tcp), http], nanos(SECOND..90 * SECOND), any::<bool>())
            .prop_map(|(kind, interval, own)| Check {
                name: format!("a check ({own})"),
                kind,
                port: own.then(|| "dynamic".to_owned()),
                interval,
                timeout: interval / 3,
            });
    prop::collection::vec(check, 0..2).prop_map(move |checks| Service {
        name: "web-${NOMAD_ALLOC_INDEX}".to_owned(),
        port: Some("fixed".to_owned()),
        task: task.map(|name| TaskName::new(name).unwrap()),
        checks,
    })
}

fn health() -> impl Strategy<Value = HealthPolicy> {
    let check = prop::sample::select(vec![
        HealthCheck::Checks,
        HealthCheck::TaskStates,
        HealthCheck::Manual,
    ]);
    (check, nanos(0..90 * SECOND), nanos(1..90 * SECOND)).prop_map(|(check, min, more)| {
        HealthPolicy { check, min_healthy_time: min, healthy_deadline: min + more }
    })
}

fn mount() -> VolumeMount {
    VolumeMount { volume: "data".to_owned(), destination: "/data".to_owned(), read_only: true }
}

fn volume(read_only: bool) -> VolumeRequest {
    VolumeRequest { source: "of-the-node".to_owned(), read_only }
}

fn dns() -> DnsConfig {
    DnsConfig {
        servers: vec!["192.0.2.53".to_owned()],
        searches: Vec::new(),
        options: vec!["ndots:2".to_owned()],
    }
}

fn group(kind: JobKind) -> impl Strategy<Value = TaskGroup> {
    let hook = prop::sample::select(vec![
        LifecycleHook::Prestart,
        LifecycleHook::Poststart,
        LifecycleHook::Poststop,
    ]);
    let tasks = hook.prop_flat_map(|hook| (task("main", None), task("side", Some(hook))));
    let services = (
        prop::option::of(service(None)),
        prop::option::of(service(Some("main"))),
        prop::option::of(service(Some("side"))),
    );
    let health = match kind {
        JobKind::Service => health().prop_map(Some).boxed(),
        JobKind::System => prop::option::of(health()).boxed(),
        JobKind::Batch | JobKind::Sysbatch => Just(None).boxed(),
    };
    let plain = (0..2_u32, texts(), prop::collection::vec(constraint(), 0..2), 0..9_u16);
    let times = (prop::option::of(nanos(1..90 * SECOND)), prop::option::of(nanos(1..90 * SECOND)));
    let disk = (any::<bool>(), any::<bool>(), 10..9_999_u32);
    (plain, tasks, services, health, times, disk).prop_map(
        |((count, meta, constraints, to), tasks, services, health, times, disk)| TaskGroup {
            name: GroupName::new("g").unwrap(),
            count,
            meta,
            constraints,
            network: Some(NetworkSpec {
                ports: vec![
                    PortSpec {
                        label: "fixed".to_owned(),
                        fixed: Some(80),
                        to: None,
                        host_network: None,
                    },
                    PortSpec {
                        label: "dynamic".to_owned(),
                        fixed: None,
                        to: (to > 0).then_some(to),
                        host_network: None,
                    },
                ],
                mode: [NetworkMode::Bridge, NetworkMode::Cni("x".to_owned())][usize::from(to > 4)]
                    .clone(),
                dns: (to % 2 == 0).then(dns),
            }),
            tasks: vec![tasks.0.into(), tasks.1.into()],
            shutdown_delay: times.0,
            ephemeral_disk: EphemeralDisk { sticky: disk.0, migrate: disk.1, size_mb: disk.2 },
            health,
            services: [services.0, services.1, services.2].into_iter().flatten().collect(),
            max_run_duration: times.1,
            stop_after_disconnect: None,
            volumes: [("data".to_owned(), volume(count > 0))].into(),
        },
    )
}

fn job() -> impl Strategy<Value = Job> {
    let kind = prop::sample::select(vec![
        JobKind::Service,
        JobKind::Batch,
        JobKind::System,
        JobKind::Sysbatch,
    ]);
    kind.prop_flat_map(|kind| {
        let plain = (1..=100_u8, texts(), prop::collection::vec(constraint(), 0..2));
        let dir = prop::option::of(Just("/srv/jobs".into()));
        (Just(kind), plain, group(kind), dir)
    })
    .prop_map(|(kind, (priority, meta, constraints), group, source_dir)| Job {
        id: JobId::new("an-id").unwrap(),
        name: "a name".to_owned(),
        kind,
        namespace: "default".to_owned(),
        priority,
        datacenters: vec!["dc1".to_owned(), "dc2".to_owned()],
        meta,
        constraints,
        groups: vec![group],
        source_dir,
        parent: None,
    })
}

proptest! {
    #[test]
    fn any_job_comes_back_as_it_was(job in job()) {
        prop_assert!(u64::try_from(nomad_json(&job).to_string().len()).unwrap() < MIB);
        prop_assert_eq!(read_back(&job), job);
    }
}

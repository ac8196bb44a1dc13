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
use ostler_model::artifact::{ArtifactMode, TaskArtifact};
use ostler_model::ids::{GroupName, JobId, PluginName, TaskName};
use ostler_model::job::*;
use ostler_model::json::JsonObject;
use ostler_model::limits::MIB;
use ostler_model::network::NetworkMode;
use ostler_model::resources::{DeviceRequest, Resources};
use ostler_model::rollout::{DelayFunction, ReschedulePolicy, UpdatePolicy};
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
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/jobs");
    let mut read = 0;
    for entry in std::fs::read_dir(examples).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "hcl") {
            let job = super::super::parse_file(&path).unwrap();
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
          env { DIR = "${job.dir}" }
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
    let disk = json!({"Sticky": true, "SizeMB": 300, "Migrate": false, "SizeStated": false});
    assert_eq!(group["EphemeralDisk"], disk);
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
    let devices = prop::collection::vec(device, 0..2);
    let secrets = prop::option::of(Just(1));
    (1..9_999_u32, 1..500_u32, prop::option::of(500..900_u32), secrets, devices).prop_map(
        |(cpu_mhz, memory_mb, memory_max_mb, secrets_mb, devices)| Resources {
            cpu_mhz,
            cores: None,
            memory_mb,
            memory_max_mb,
            secrets_mb,
            devices,
            ports: vec![PortSpec {
                label: "of_task".to_owned(),
                fixed: None,
                to: None,
                host_network: None,
            }],
        },
    )
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
        artifacts: if truth { vec![artifact(&user)] } else { Vec::new() },
        kill_signal,
        leader: truth && hook.is_none(),
        lifecycle: hook.map(|hook| Lifecycle { hook, sidecar: truth }),
        logs: LogConfig { max_files: logs.0, max_file_size_mb: logs.1, disabled: logs.2 },
        user,
        payload: None,
        affinities: Vec::new(),
        templates: Vec::new(),
        volume_mounts: truth.then(mount).into_iter().collect(),
    })
}

fn artifact(user: &Option<String>) -> TaskArtifact {
    let map = |name: &str, text: &str| [(name.to_owned(), text.to_owned())].into();
    TaskArtifact {
        source: "https://h/${NOMAD_JOB_ID}.zip//a?b=c".to_owned(),
        options: map("archive", "zip"),
        headers: map("X-Token", "${env[\"TOKEN\"]}"),
        mode: if user.is_some() { ArtifactMode::Dir } else { ArtifactMode::Any },
        destination: "../alloc/data/".to_owned(),
    }
}

fn tls() -> impl Strategy<Value = Option<CheckTls>> {
    let given = (any::<bool>(), prop::option::of("[a-z]{1,5}[.]example"));
    prop::option::of(
        given.prop_map(|(skip_verify, server_name)| CheckTls { skip_verify, server_name }),
    )
}

fn http() -> impl Strategy<Value = CheckKind> {
    let headers = prop::collection::btree_map(
        "[A-Za-z-]{1,6}",
        prop::collection::vec("[ -~]{0,6}", 0..3),
        0..3,
    );
    let method = prop::sample::select(vec!["GET", "POST"]);
    (method, "/[a-z?=]{0,6}", tls(), headers, "[ -~]{0,8}").prop_map(
        |(method, path, tls, headers, body)| {
            let http = HttpCheck { tls, headers, body, ..HttpCheck::new(method, &path) };
            CheckKind::Http(Box::new(http))
        },
    )
}

fn grpc() -> impl Strategy<Value = CheckKind> {
    ("[a-z.]{0,6}", tls()).prop_map(|(service, tls)| CheckKind::Grpc { service, tls })
}

fn check_restart() -> impl Strategy<Value = Option<CheckRestart>> {
    let given = (1..9_u32, nanos(0..90 * SECOND), any::<bool>());
    prop::option::of(given.prop_map(|(limit, grace, ignore_warnings)| CheckRestart {
        limit,
        grace,
        ignore_warnings,
    }))
}

fn check(in_group: bool) -> impl Strategy<Value = Check> {
    let script = ("/[a-z]{1,5}", prop::collection::vec("[ -~]{1,5}", 0..3))
        .prop_map(|(command, args)| CheckKind::Script { command, args });
    let kind = prop_oneof![Just(CheckKind::Tcp), http(), grpc(), script];
    let status = prop::sample::select(vec![
        CheckStatus::Pending,
        CheckStatus::Passing,
        CheckStatus::Warning,
        CheckStatus::Critical,
    ]);
    let on_update = prop::sample::select(vec![
        OnUpdate::RequireHealthy,
        OnUpdate::IgnoreWarnings,
        OnUpdate::Ignore,
    ]);
    let counts = [0..5_u32, 0..5_u32, 0..5_u32];
    let more = (status, on_update, counts, check_restart());
    (kind, nanos(SECOND..90 * SECOND), any::<bool>(), more).prop_map(
        move |(kind, interval, own, (initial, on_update, counts, restart))| {
            let script = !kind.needs_port();
            let [success, critical, warning] = if script { [0; 3] } else { counts };
            let name = |text: &str| TaskName::new(text).unwrap();
            Check {
                port: (own && !script).then(|| "dynamic".to_owned()),
                address_mode: (own && !script).then_some(AddressMode::Host),
                initial,
                on_update,
                success_before_passing: success,
                failures_before_critical: critical,
                failures_before_warning: warning,
                restart,
                task: (in_group && script).then(|| name("side")),
                ..Check::new(format!("a check ({own})"), kind, interval, Duration::from_secs(1))
            }
        },
    )
}

fn service(task: Option<&'static str>) -> impl Strategy<Value = Service> {
    let checks = prop::collection::vec(check(task.is_none()), 0..2);
    let words = || prop::collection::vec("[a-z ]{1,5}", 0..3);
    let port = prop::sample::select(vec!["fixed", "8080", "${NOMAD_PORT_x}"]);
    let address = prop::option::of("[a-z]{1,5}");
    let runs_in = any::<bool>();
    (checks, words(), words(), texts(), texts(), port, address, runs_in).prop_map(
        move |(checks, tags, canary_tags, meta, canary_meta, port, address, runs_in)| {
            let name = |text: &str| TaskName::new(text).unwrap();
            Service {
                name: "s".to_owned(),
                port: Some(port.to_owned()),
                task: task.map(name),
                runs_in: (task.is_none() && runs_in).then(|| name("main")),
                tags,
                canary_tags,
                meta,
                canary_meta,
                address_mode: match address {
                    Some(_) => AddressMode::Auto,
                    None => AddressMode::Host,
                },
                address,
                checks,
            }
        },
    )
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

fn update() -> impl Strategy<Value = UpdatePolicy> {
    let times = (nanos(1..90 * SECOND), prop::option::of(nanos(200 * SECOND..900 * SECOND)));
    (0..5_u32, times, any::<bool>(), any::<bool>(), 0..4_u32).prop_map(
        |(max_parallel, (stagger, progress), auto_revert, promotes, canary)| UpdatePolicy {
            max_parallel,
            stagger,
            progress_deadline: progress.unwrap_or_default(),
            auto_revert,
            auto_promote: promotes && canary > 0,
            canary,
        },
    )
}

fn reschedule(kind: JobKind) -> impl Strategy<Value = ReschedulePolicy> {
    let every = matches!(kind, JobKind::System | JobKind::Sysbatch);
    let functions =
        vec![DelayFunction::Constant, DelayFunction::Exponential, DelayFunction::Fibonacci];
    let times = (nanos(5 * SECOND..90 * SECOND), nanos(90 * SECOND..900 * SECOND));
    let limited = prop::option::of(1..4_u32);
    let some = (prop::sample::select(functions), times, limited).prop_map(
        |(delay_function, (delay, max_delay), attempts)| ReschedulePolicy {
            attempts: attempts.unwrap_or(0),
            interval: Duration::from_secs(9_000),
            delay,
            delay_function,
            max_delay,
            unlimited: attempts.is_none(),
        },
    );
    if every { Just(ReschedulePolicy::NEVER).boxed() } else { some.boxed() }
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
    let disk = (any::<bool>(), any::<bool>(), prop_oneof![Just(300), 10..9_999_u32], any::<bool>());
    let rules = (health, update(), reschedule(kind));
    (plain, tasks, services, rules, times, disk).prop_map(
        |((count, meta, constraints, to), tasks, services, rules, times, disk)| TaskGroup {
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
                hostname: (to % 2 == 1).then(|| "web-${NOMAD_ALLOC_INDEX}".to_owned()),
            }),
            tasks: vec![tasks.0.into(), tasks.1.into()],
            shutdown_delay: times.0,
            ephemeral_disk: EphemeralDisk {
                sticky: disk.0,
                migrate: disk.1,
                size_mb: disk.2,
                size_stated: disk.3 || disk.2 != 300,
            },
            health: rules.0,
            update: rules.0.map(|_| rules.1),
            reschedule: rules.2,
            services: [services.0, services.1, services.2].into_iter().flatten().collect(),
            max_run_duration: times.1,
            placement: ostler_model::placement::Placement::default(),
            scaling: None,
            stop_after_disconnect: None,
            migrate_parallel: 1,
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
    .prop_map(|(kind, (priority, mut meta, constraints), group, source_dir)| {
        // A job has its directory where something refers to it.
        if source_dir.is_some() {
            meta.insert("DIR".to_owned(), "${job.dir}".to_owned());
        }
        Job {
            id: JobId::new("an-id").unwrap(),
            name: "a name".to_owned(),
            kind,
            priority,
            datacenters: vec!["dc1".to_owned(), "dc2".to_owned()],
            meta,
            constraints,
            groups: vec![group],
            source_dir,
            placement: ostler_model::placement::Placement::default(),
            all_at_once: false,
            parent: None,
        }
    })
}

proptest! {
    #[test]
    fn any_job_comes_back_as_it_was(job in job()) {
        prop_assert!(u64::try_from(nomad_json(&job).to_string().len()).unwrap() < MIB);
        prop_assert_eq!(read_back(&job), job);
    }
}

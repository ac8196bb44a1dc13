//! Files that are accepted, and what comes out.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::{good, in_group, in_job, in_task, task};
use crate::{Syntax, nomad_json, parse};
use ostler_model::job::{
    JobKind, LifecycleHook, LogConfig, Operator, PortSpec, RestartMode, RestartPolicy,
};
use ostler_model::resources::{CoreRequest, NumaAffinity};

const REDIS: &str = r#"
# The example job everybody starts with.
job "redis" {
  datacenters = ["dc1"]
  type        = "service"

  group "cache" {
    count = 1

    network {
      port "db" {
        to = 6379
      }
    }

    restart {
      attempts = 10
      interval = "5m"
      delay    = "25s"
      mode     = "delay"
    }

    task "redis" {
      driver = "docker"

      config {
        image          = "redis:7"
        ports          = ["db"]
        auth_soft_fail = true
      }

      resources {
        cpu    = 500
        memory = 256
      }
    }
  }
}
"#;

#[test]
fn the_classic_redis_job_is_read() {
    let job = good(REDIS);
    assert_eq!((job.id.as_str(), job.name.as_str()), ("redis", "redis"));
    assert_eq!((job.kind, job.priority, job.namespace()), (JobKind::Service, 50, "default"));
    assert_eq!(job.datacenters, ["dc1"]);
    let group = &job.groups[0];
    assert_eq!((group.name.as_str(), group.count), ("cache", 1));
    let port = PortSpec { label: "db".to_owned(), fixed: None, to: Some(6379), host_network: None };
    assert_eq!(group.network.as_ref().unwrap().ports, [port]);
    let task = &group.tasks[0];
    assert_eq!(task.driver.as_str(), "docker");
    let config = json!({"image": "redis:7", "ports": ["db"], "auth_soft_fail": true});
    assert_eq!(serde_json::Value::Object(task.config.map().clone()), config);
    assert_eq!((task.resources.cpu_mhz, task.resources.memory_mb), (500, 256));
    assert_eq!(task.restart.mode, RestartMode::Delay);
    assert_eq!(task.restart.delay, Duration::from_secs(25));
}

#[test]
fn what_is_left_out_has_nomads_defaults() {
    let task = task("");
    assert_eq!((task.resources.cpu_mhz, task.resources.memory_mb), (100, 300));
    assert_eq!(task.resources.memory_max_mb, None);
    assert_eq!(task.kill_timeout, Duration::from_secs(5));
    assert_eq!(task.logs, LogConfig::default());
    assert_eq!(task.restart, RestartPolicy::default_for(JobKind::Service));
    assert_eq!(
        (task.kill_signal, task.lifecycle, task.user, task.leader),
        (None, None, None, false)
    );
    let job = good(&in_job("type = \"batch\""));
    assert_eq!(job.groups[0].tasks[0].restart, RestartPolicy::default_for(JobKind::Batch));
    assert_eq!(job.datacenters, ["*"]);
}

#[test]
fn every_key_of_a_task_arrives() {
    let task = task(
        r#"
        leader = false
        user = "nobody"
        kill_timeout = "1m30s"
        kill_signal = "SIGINT"
        shutdown_delay = "2s"
        env { A = 1 }
        meta = { "b.c" = "d" }
        constraint {
          attribute = "${attr.kernel.name}"
          operator = "!="
          value = "windows"
        }
        logs {
          max_files = 3
          max_file_size = 4
          disabled = true
        }
        resources {
          cpu = 200
          memory = 64
          memory_max = 128
          device "nvidia/gpu/H100 PCIe" {
            count = 2
            constraint {
              attribute = "${device.attr.memory}"
              operator = ">="
              value = "40 GiB"
            }
            affinity {
              attribute = "${device.model}"
              value = "x"
              weight = -50
            }
          }
        }"#,
    );
    assert_eq!(task.user.as_deref(), Some("nobody"));
    assert_eq!(task.kill_timeout, Duration::from_secs(90));
    assert_eq!(task.kill_signal.as_deref(), Some("SIGINT"));
    assert_eq!(task.shutdown_delay, Some(Duration::from_secs(2)));
    assert_eq!((task.env["A"].as_str(), task.meta["b.c"].as_str()), ("1", "d"));
    assert_eq!(task.constraints[0].operator, Operator::NotEqual);
    assert_eq!(task.logs, LogConfig { max_files: 3, max_file_size_mb: 4, disabled: true });
    assert_eq!(task.resources.memory_max_mb, Some(128));
    let device = &task.resources.devices[0];
    assert_eq!((device.name.as_str(), device.count), ("nvidia/gpu/H100 PCIe", 2));
    assert_eq!(device.constraints[0].right, "40 GiB");
    assert_eq!(device.affinities[0].weight, -50);
}

#[test]
fn a_numa_block_becomes_a_rule_of_the_devices_it_names_and_reads_back_from_json() {
    let rules = |affinity: &str| {
        let job = good(&in_task(&format!(
            "resources {{\ndevice \"gpu\" {{}}\ndevice \"nic\" {{}}\n\
             numa {{\naffinity = \"{affinity}\"\ndevices = [\"nic\"]\n}}\n}}"
        )));
        let text = json!({ "Job": nomad_json(&job) }).to_string();
        let again = parse(text.as_bytes(), Path::new("j.json"), Some(Syntax::Json)).unwrap();
        assert_eq!(again.groups[0].tasks[0].resources, job.groups[0].tasks[0].resources);
        job.groups[0].tasks[0].resources.devices.clone()
    };
    let [gpu, nic] = rules("require").try_into().unwrap();
    assert_eq!((gpu.constraints.len(), gpu.affinities.len()), (0, 0));
    let rule = &nic.constraints[0];
    assert_eq!((rule.left.as_str(), rule.operator), ("${device.numa_node}", Operator::IsSet));
    let [_, nic] = rules("prefer").try_into().unwrap();
    assert_eq!((nic.constraints.len(), nic.affinities[0].weight), (0, 50));
    let [_, nic] = rules("none").try_into().unwrap();
    assert_eq!((nic.constraints.len(), nic.affinities.len()), (0, 0));
}

#[test]
fn cores_stand_in_the_place_of_cpu_and_read_back_from_json() {
    let numa = "numa { affinity = \"require\" }";
    for (more, numa) in [("", NumaAffinity::None), (numa, NumaAffinity::Require)] {
        let job = good(&in_task(&format!("resources {{\ncores = 2\n{more}\n}}")));
        let resources = job.groups[0].tasks[0].resources.clone();
        assert_eq!(resources.cores, Some(CoreRequest { count: 2, numa }));
        assert_eq!(resources.cpu_mhz, 0);
        let json = nomad_json(&job);
        let written = &json["TaskGroups"][0]["Tasks"][0]["Resources"];
        assert_eq!((&written["CPU"], &written["Cores"]), (&json!(0), &json!(2)));
        let text = json!({ "Job": json }).to_string();
        let again = parse(text.as_bytes(), Path::new("j.json"), Some(Syntax::Json)).unwrap();
        assert_eq!(again.groups[0].tasks[0].resources, resources);
    }
    let job = good(&in_task("resources { memory = 10 }"));
    let resources = &job.groups[0].tasks[0].resources;
    assert_eq!((resources.cpu_mhz, resources.cores), (100, None));
}

#[test]
fn every_key_of_a_job_and_a_group_arrives() {
    let job = good(&in_job(
        "name = \"n\"\nregion = \"r\"\nnamespace = \"default\"\npriority = 7\nmeta { a = true }\nnode_pool = \"default\"",
    ));
    assert_eq!((job.name.as_str(), job.namespace(), job.priority), ("n", "default", 7));
    assert_eq!(job.meta["a"], "true");
    let job = good(&in_group(
        "count = 3\nshutdown_delay = \"1s\"\nmeta { a = 1.5 }\nconstraint {\nattribute = \"${node.class}\"\noperator = \"is_set\"\n}",
    ));
    let group = &job.groups[0];
    assert_eq!((group.count, group.shutdown_delay), (3, Some(Duration::from_secs(1))));
    assert_eq!((group.meta["a"].as_str(), group.constraints.len()), ("1.5", 1));
}

#[test]
fn restart_attributes_come_from_task_then_group_then_kind() {
    let job = good(
        r#"job "j" {
          type = "batch"
          group "g" {
            restart {
              attempts = 9
              delay = "1s"
            }
            task "own" {
              driver = "mock"
              restart { delay = "2s" }
            }
            task "inherits" { driver = "mock" }
          }
        }"#,
    );
    let [own, inherits] = job.groups[0].tasks.as_slice() else { panic!("two tasks") };
    let day = Duration::from_secs(86_400);
    assert_eq!((own.restart.attempts, own.restart.delay), (9, Duration::from_secs(2)));
    assert_eq!((inherits.restart.attempts, inherits.restart.delay), (9, Duration::from_secs(1)));
    assert_eq!((own.restart.interval, inherits.restart.interval), (day, day));
}

#[test]
fn texts_become_numbers_and_numbers_texts() {
    let task = task(
        "env = { PORT = 6379, ON = true, RATE = 0.5 }\nleader = \"true\"\nresources { cpu = \"64\" }",
    );
    assert_eq!(task.env["PORT"], "6379");
    assert_eq!((task.env["ON"].as_str(), task.env["RATE"].as_str()), ("true", "0.5"));
    assert!(task.leader);
    assert_eq!(task.resources.cpu_mhz, 64);
}

#[test]
fn what_is_known_only_later_stays_in_the_text() {
    let task = task(
        r#"config {
          a = "${NOMAD_PORT_db} ${ attr.cpu.arch } ${meta.x} ${node.unique.id} ${env["X"]} ${device.model} ${job.dir}"
          b = attr.kernel.name
          c = "$${HOME} %%{x}"
          d = <<-EOT
            echo ${HOME} ${NOMAD_TASK_DIR} $${1}
              two
            EOT
          e = "${attr.x}"
        }"#,
    );
    let config = task.config.into_map();
    assert_eq!(
        config["a"],
        "${NOMAD_PORT_db} ${attr.cpu.arch} ${meta.x} ${node.unique.id} ${env[\"X\"]} ${device.model} ${job.dir}"
    );
    assert_eq!(config["b"], "${attr.kernel.name}");
    assert_eq!(config["c"], "${HOME} %{x}");
    assert_eq!(config["d"], "echo ${HOME} ${NOMAD_TASK_DIR} ${1}\n  two\n");
    assert_eq!(config["e"], "${attr.x}");
}

#[test]
fn blocks_in_a_config_become_objects_and_repeated_ones_lists() {
    let task = task(
        "config {\none { a = 1 }\nmany { a = 1 }\nmany { a = 2 }\nmany { a = 3 }\nnamed \"x\" \"y\" { a = null }\nlist = [1, [true, null], {k = \"v\", 7 = 8}]\n}",
    );
    assert_eq!(
        serde_json::Value::Object(task.config.into_map()),
        json!({
            "one": {"a": 1},
            "many": [{"a": 1}, {"a": 2}, {"a": 3}],
            "named": {"x": {"y": {"a": null}}},
            "list": [1, [true, null], {"k": "v", "7": 8}],
        })
    );
}

#[test]
fn variables_locals_operators_and_functions_are_evaluated() {
    let text = format!(
        "variable \"n\" {{\n type = number\n default = 2\n}}\nlocals {{\n ports = {{ db = 6379 }}\n list = [\"a\", \"b\"]\n twice = local.once * 2\n once = var.n + 1\n}}\n{}",
        in_task(
            r#"config {
              sum = local.twice
              half = 7 / 2
              rest = -7 % 4
              port = local.ports["db"]
              port2 = "p${local.ports.db}"
              second = local.list[1]
              pick = var.n >= 2 && !false ? "big" : "small"
              joined = upper(join("-", local.list))
              text = format("%s:%d %v%%", lower("A"), var.n, true)
              json = jsonencode({ a = [1, null], b = "x" })
              all = concat(local.list, ["c"])
              same = "${local.list}"
              paren = (1 + 2) * 3 == 9
            }"#
        )
    );
    let job = good(&text);
    assert_eq!(
        serde_json::Value::Object(job.groups[0].tasks[0].config.map().clone()),
        json!({
            "sum": 6, "half": 3.5, "rest": -3, "port": 6379, "port2": "p6379", "second": "b",
            "pick": "big", "joined": "A-B", "text": "a:2 true%",
            "json": "{\"a\":[1,null],\"b\":\"x\"}", "all": ["a", "b", "c"], "same": ["a", "b"],
            "paren": true,
        })
    );
}

#[test]
fn short_forms_of_constraints_are_read() {
    for (short, operator) in [
        ("version", Operator::Version),
        ("semver", Operator::Semver),
        ("regexp", Operator::Regexp),
        ("set_contains", Operator::SetContainsAll),
        ("set_contains_any", Operator::SetContainsAny),
    ] {
        let task = task(&format!("constraint {{\nattribute = attr.x\n{short} = \"1\"\n}}"));
        assert_eq!(
            (task.constraints[0].operator, task.constraints[0].right.as_str()),
            (operator, "1")
        );
    }
}

#[test]
fn lifecycle_tasks_stand_beside_a_main_task() {
    let job = good(&in_group(
        "task \"first\" {\ndriver = \"mock\"\nlifecycle {\nhook = \"prestart\"\nsidecar = true\n}\n}",
    ));
    let lifecycle = job.groups[0].tasks[1].lifecycle.unwrap();
    assert_eq!((lifecycle.hook, lifecycle.sidecar), (LifecycleHook::Prestart, true));
}

#[test]
fn null_means_not_given() {
    let task = task("template = null\nuser = null\nresources = null\nenv = { A = null, B = 1 }");
    assert_eq!(task.user, None);
    assert_eq!(task.env.len(), 1);
}

#[test]
fn a_byte_order_mark_and_dos_line_ends_do_no_harm() {
    let text = format!("\u{feff}{}", in_task("env { A = 1 }").replace('\n', "\r\n"));
    assert_eq!(good(&text).groups[0].tasks[0].env["A"], "1");
}

#[test]
fn a_task_at_the_top_of_a_job_is_a_group_of_its_own() {
    let job = good(&in_job(
        "task \"alone\" {\ndriver = \"mock\"\n}\ntask \"other\" {\ndriver = \"mock\"\n}",
    ));
    let names = |group: &ostler_model::job::TaskGroup| {
        let tasks: Vec<_> = group.tasks.iter().map(|task| task.name.to_string()).collect();
        (group.name.to_string(), group.count, tasks)
    };
    let groups: Vec<_> = job.groups.iter().map(names).collect();
    let one = |group: &str, task: &str| (group.to_owned(), 1, vec![task.to_owned()]);
    assert_eq!(groups, [one("alone", "alone"), one("other", "other"), one("g", "t")]);
    good("job \"j\" {\ntask \"t\" { driver = \"mock\" }\n}");
}

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::path::Path;
use std::time::Duration;

use super::super::{Syntax, parse};
use ostler_model::job::{
    EphemeralDisk, HealthCheck, HealthPolicy, Job, JobKind, LifecycleHook, Operator, RestartMode,
};

fn read(text: &str) -> Result<Job, Vec<String>> {
    parse(text.as_bytes(), Path::new("-"), Some(Syntax::Json)).map_err(|found| {
        let short = |d: &super::super::FileDiagnostic| {
            let without = super::super::FileDiagnostic { path: None, ..d.clone() };
            without.to_string().replacen("-:", "", 1)
        };
        found.iter().map(short).collect()
    })
}

fn task(members: &str) -> Result<Job, Vec<String>> {
    read(&format!(
        "{{\"Job\":{{\"ID\":\"j\",\"TaskGroups\":[{{\"Name\":\"g\",\"Tasks\":[{{\"Name\":\"t\",\"Driver\":\"d\",\n{members}\n}}]}}]}}}}"
    ))
}

/// What a command line sends for a small job: most fields are there and say nothing.
const REQUEST: &str = r#"{"Job": {"Region": null, "Namespace": null, "ID": "web", "Name": "web", "Type": "service",
  "Priority": 60, "AllAtOnce": false, "Datacenters": ["dc1"], "Constraints": [{"LTarget": "${attr.os.name}", "RTarget": "debian", "Operand": "="}],
  "Affinities": null, "NodePool": "default", "Update": null, "Multiregion": null, "Spreads": [], "Periodic": null,
  "ParameterizedJob": null, "Meta": {"owner": "us"}, "VaultToken": "", "Stop": null, "Dispatched": false,
  "Status": "running", "Version": 3, "SubmitTime": 1700000000000000000, "JobModifyIndex": 7,
  "TaskGroups": [{"Name": "front", "Count": null, "Constraints": null, "EphemeralDisk": null, "Scaling": null,
    "RestartPolicy": {"Attempts": 4, "Interval": 60000000000, "Delay": 5000000000, "Mode": "delay", "RenderTemplates": false},
    "ShutdownDelay": null, "Services": [], "Volumes": {},
    "Networks": [{"Mode": "", "Device": "", "CIDR": "", "IP": "", "DNS": {"Servers": null}, "MBits": 0,
      "ReservedPorts": [{"Label": "https", "Value": 443, "To": 0, "HostNetwork": "default"}],
      "DynamicPorts": [{"Label": "admin", "Value": 0, "To": 9000, "HostNetwork": ""}]}],
    "Tasks": [{"Name": "serve", "Driver": "exec", "User": "", "KillSignal": "", "Kind": "", "Leader": true,
      "Lifecycle": null, "Config": {"command": "/bin/serve", "args": ["${NOMAD_PORT_admin}", 1, null]},
      "Env": {"MODE": "fast", "LEVEL": 2}, "Services": null, "Templates": null, "Artifacts": [],
      "Resources": {"CPU": 150, "MemoryMB": 80, "MemoryMaxMB": 0, "DiskMB": 0, "IOPS": null, "Networks": null,
        "Devices": [{"Name": "nvidia/gpu", "Count": 2, "Constraints": null,
          "Affinities": [{"LTarget": "${device.model}", "RTarget": "x", "Operand": "regexp", "Weight": 30}]}]},
      "RestartPolicy": null, "KillTimeout": 20000000000, "ShutdownDelay": 0,
      "LogConfig": {"MaxFiles": 2, "MaxFileSizeMB": 5, "Disabled": false, "Enabled": null}},
     {"Name": "prepare", "Driver": "exec", "Lifecycle": {"Hook": "prestart", "Sidecar": false}}]}]},
  "Region": "", "Namespace": "", "SecretID": "", "Diff": true}"#;

#[test]
fn a_block_that_makes_another_kind_of_job_is_refused_even_when_it_is_empty() {
    for (key, said) in [
        (
            "Periodic",
            "Periodic is valid in Nomad, not supported by Ostler; the servers of a cluster",
        ),
        ("ParameterizedJob", "ParameterizedJob is valid in Nomad, not supported by Ostler"),
        ("Multiregion", "Multiregion is valid in Nomad, not supported by Ostler"),
    ] {
        let with = |value: &str| {
            read(&format!(
                "{{\"Job\":{{\"ID\":\"j\",\"{key}\":{value},\"TaskGroups\":[{{\"Name\":\"g\",\"Tasks\":[\
                 {{\"Name\":\"t\",\"Driver\":\"d\"}}]}}]}}}}"
            ))
        };
        for value in ["{}", "{\"Enabled\": false}", "{\"Regions\": []}"] {
            let found = with(value).unwrap_err();
            assert!(found.len() == 1 && found[0].contains(said), "{key}: {value}: {found:?}");
        }
        with("null").unwrap();
    }
}

#[test]
fn a_request_of_a_command_line_is_read() {
    let job = read(REQUEST).unwrap();
    assert_eq!((job.id.as_str(), job.kind, job.priority), ("web", JobKind::Service, 60));
    assert_eq!(job.constraints[0].operator, Operator::Equal);
    assert_eq!((job.meta["owner"].as_str(), job.source_dir), ("us", None));
    let group = &job.groups[0];
    assert_eq!((group.count, group.shutdown_delay), (1, None));
    let ports = &group.network.as_ref().unwrap().ports;
    assert_eq!((ports[0].label.as_str(), ports[0].fixed, ports[0].to), ("https", Some(443), None));
    assert_eq!((ports[1].label.as_str(), ports[1].fixed, ports[1].to), ("admin", None, Some(9000)));
    let [serve, prepare] = group.tasks.as_slice() else { panic!("two tasks") };
    assert_eq!(serve.config.map()["args"], serde_json::json!(["${NOMAD_PORT_admin}", 1, null]));
    assert_eq!((serve.env["LEVEL"].as_str(), serve.leader), ("2", true));
    assert_eq!((serve.user.clone(), serve.kill_signal.clone()), (None, None));
    assert_eq!((serve.restart.attempts, serve.restart.mode), (4, RestartMode::Delay));
    assert_eq!(serve.restart.interval, Duration::from_secs(60));
    assert_eq!(serve.kill_timeout, Duration::from_secs(20));
    assert_eq!((serve.resources.memory_mb, serve.resources.memory_max_mb), (80, None));
    assert_eq!(serve.resources.devices[0].affinities[0].weight, 30);
    assert_eq!((serve.logs.max_files, serve.logs.max_file_size_mb), (2, 5));
    assert_eq!(prepare.lifecycle.unwrap().hook, LifecycleHook::Prestart);
}

#[test]
fn the_job_alone_is_read_too() {
    let job = read(r#"{"ID":"j","TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Driver":"d"}]}]}"#);
    assert_eq!(job.unwrap().name, "j");
}

#[test]
fn durations_are_nanoseconds_or_texts() {
    let job = task(r#""KillTimeout": "7s""#).unwrap();
    assert_eq!(job.groups[0].tasks[0].kill_timeout, Duration::from_secs(7));
    let problem = task(r#""KillTimeout": -1"#).unwrap_err();
    assert!(problem[0].starts_with("2:16: KillTimeout must be nanoseconds"), "{problem:?}");
}

#[test]
fn features_that_are_used_are_refused_in_the_words_of_json() {
    for (members, expected) in [
        (
            r#""Templates": [{"DestPath": "x"}]"#,
            "2:15: a template needs EmbeddedTmpl or SourcePath",
        ),
        (
            r#""Vault": {"Policies": ["x"]}"#,
            "2:1: Vault is valid in Nomad, not supported by Ostler; this agent does not use Vault",
        ),
        (r#""Kind": "connect""#, "2:1: Kind is valid in Nomad"),
        (r#""Resources": {"Cores": 2, "CPU": 100}"#, "2:15: Cores and CPU are both here"),
        (
            r#""KillTimout": 1"#,
            "2:1: \"KillTimout\" is unknown in a task (did you mean KillTimeout?)",
        ),
        (
            r#""kill_timeout": 1"#,
            "2:1: \"kill_timeout\" is unknown in a task (did you mean KillTimeout?)",
        ),
        (r#""Leader": "yes""#, "2:11: Leader must be true or false, not \"yes\""),
        (r#""Resources": []"#, "2:14: Resources must be an object"),
        (r#""Constraints": {}"#, "2:16: Constraints must be a list of objects"),
        (r#""Constraints": [1]"#, "2:17: Constraints must hold objects, not a number"),
        (r#""Constraints": [{"LTarget": "x"}]"#, "2:17: a constraint needs a RTarget"),
        (r#""User": "a", "User": "b""#, "2:14: \"User\" is given twice"),
        (r#""Resources": {"CPU": 0}"#, "2:22: CPU must be at least 1, not 0"),
        (r#""Resources": {"Devices": [{"Count": 1}]}"#, "2:27: a device needs a Name"),
    ] {
        let found = task(members).unwrap_err();
        assert_eq!(found.len(), 1, "{members}: {found:?}");
        assert!(found[0].starts_with(expected), "{members}: {found:?}");
    }
}

#[test]
fn names_given_twice_are_reported_at_any_depth() {
    let found = task(r#""Config": {"x": {"a": 1, "a": 2}}"#).unwrap_err();
    assert_eq!(found, ["2:26: \"a\" is given twice"]);
}

#[test]
fn an_empty_hook_is_a_missing_one() {
    let found = task(r#""Lifecycle": {"Hook": ""}"#).unwrap_err();
    assert!(found[0].starts_with("2:1: Lifecycle needs a Hook"), "{found:?}");
}

#[test]
fn the_two_lists_of_ports_are_kept_apart() {
    let group = |network: &str| {
        read(&format!(
            "{{\"ID\":\"j\",\"TaskGroups\":[{{\"Name\":\"g\",\"Tasks\":[{{\"Name\":\"t\",\"Driver\":\"d\"}}],\"Networks\":[\n{network}]}}]}}"
        ))
    };
    let found = group(r#"{"DynamicPorts": [{"Label": "a", "Value": 80}]}"#).unwrap_err();
    assert!(found[0].starts_with("2:34: a dynamic port has no Value"), "{found:?}");
    let found = group(r#"{"ReservedPorts": [{"Label": "a"}]}"#).unwrap_err();
    assert!(found[0].starts_with("2:20: a reserved port needs a Value"), "{found:?}");
    let found = group(r#"{"Mode": "bridgee"}"#).unwrap_err();
    assert!(found[0].starts_with("2:10: \"bridgee\" is not a network mode"), "{found:?}");
}

#[test]
fn what_is_no_job_says_so() {
    for (text, expected) in [
        ("{}", "1:1: there is no job here"),
        ("[]", "1:1: a job is an object, not a list"),
        (r#"{"Job": 1}"#, "1:9: Job must be an object"),
        (
            r#"{"Job": {"ID": "x"}, "Jbo": 1}"#,
            "1:22: \"Jbo\" is unknown beside Job (did you mean Job?)",
        ),
        (r#"{"job": {"x": {}}}"#, "1:1: the JSON form of HCL is not supported"),
        (r#"{"Job": {"TaskGroups": null}}"#, "1:2: Job needs an ID"),
    ] {
        let found = read(text).unwrap_err();
        assert!(found.iter().any(|p| p.starts_with(expected)), "{text}: {found:?}");
    }
}

#[test]
fn what_is_no_json_is_reported_where_reading_stopped() {
    for (text, expected) in [
        ("{", "1:2: a name in quotes"),
        ("{\"a\" 1}", "1:6: a colon"),
        ("{\"a\": 1 \"b\"}", "1:9: a comma or }"),
        ("{\"a\": }", "1:7: a value is expected"),
        ("{\"a\": nul}", "1:7: a value is expected here; a text needs quotes"),
        ("{\"a\": 01}", "1:7: this is not a number"),
        ("{\"a\": 1e999}", "1:7: this is not a number"),
        ("{\"a\": \"x", "1:7: this text is never closed"),
        ("{\"a\": \"\\x\"}", "1:7: this text has an escape"),
        ("{\"a\": \"x\ny\"}", "1:9: a text must not contain line breaks"),
        ("{\"a\": [1,]}", "1:10: a value is expected here"),
        ("{\"ID\": 1} x", "1:11: nothing may follow"),
    ] {
        let found = read(text).unwrap_err();
        assert_eq!(found.len(), 1, "{text}: {found:?}");
        assert!(found[0].starts_with(expected), "{text}: {found:?}");
    }
}

/// What a server keeps of a job with lifecycle tasks, as it answers it: every field is there. Values
/// are those observed.
const ANSWER: &str = include_str!("answer.json");

#[test]
fn what_a_server_answers_for_a_job_is_read_as_a_job() {
    let job = read(ANSWER).unwrap();
    assert_eq!((job.id.as_str(), job.kind), ("life", JobKind::Service));
    let group = &job.groups[0];
    assert_eq!(group.health, Some(HealthPolicy::default()));
    assert_eq!(group.ephemeral_disk, EphemeralDisk::default());
    assert_eq!(group.tasks.len(), 3);
    let task_states =
        ANSWER.replacen("\"HealthCheck\": \"checks\"", "\"HealthCheck\": \"task_states\"", 1);
    let health = read(&task_states).unwrap().groups[0].health.unwrap();
    assert_eq!(health.check, HealthCheck::TaskStates);
}

#[test]
fn what_a_server_answers_for_a_batch_job_has_no_health() {
    let kind = ANSWER.replacen("\"service\"", "\"batch\"", 1);
    let found = read(&kind).unwrap_err();
    assert!(found[0].contains("Update is for jobs of type service and system"), "{found:?}");
    let job: serde_json::Value = serde_json::from_str(&kind).unwrap();
    let mut job = job.as_object().unwrap().clone();
    let group = job["TaskGroups"][0].as_object_mut().unwrap();
    group["Update"] = serde_json::Value::Null;
    group["Migrate"] = serde_json::Value::Null;
    // The job's own block has times of zero and says nothing.
    let job = read(&serde_json::Value::Object(job).to_string()).unwrap();
    assert_eq!(job.groups[0].health, None);
}

#[test]
fn what_cannot_be_of_a_reschedule_is_refused() {
    for (from, to, expected) in [
        ("\"Attempts\": 0", "\"Attempts\": 7", "Attempts and Unlimited contradict each other"),
        ("\"Delay\": 30000000000", "\"Delay\": 1", "the delay must be at least 5s"),
    ] {
        let found = read(&ANSWER.replacen(from, to, 1)).unwrap_err();
        assert!(found[0].contains(expected), "{found:?}");
    }
}

#[test]
fn services_and_times_are_refused_in_the_words_of_json() {
    for (services, expected) in [
        (r#"{"PortLabel": "p"}"#, "3:15: the group's network has no port \"p\""),
        (r#"{"Provider": "consul"}"#, "3:14: Provider consul needs a Consul agent"),
        (r#"{"TaskName": "u"}"#, "3:14: a service in a task is of that task"),
        (r#"{"Checks": [{"Type": "tcp"}]}"#, "3:13: a check needs a port"),
        // What a command line makes of a sidecar_service block without anything in it.
        (
            r#"{"Connect": {"Native": false, "SidecarService": {"Tags": null, "Port": ""}}}"#,
            "3:2: Connect is valid in Nomad",
        ),
        (r#"{"Checks": {}}"#, "3:12: Checks must be a list of objects"),
    ] {
        let found = task(&format!("\"Services\": [\n{services}]")).unwrap_err();
        assert!(found[0].starts_with(expected), "{services}: {found:?}");
    }
}

#[test]
fn the_directory_of_a_job_may_be_given() {
    let job = read(
        r#"{"ID":"j","SourceDir":"/srv","Meta":{"DIR":"${job.dir}"},"TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Driver":"d"}]}]}"#,
    );
    assert_eq!(job.unwrap().source_dir.as_deref(), Some(Path::new("/srv")));
}

#[test]
fn a_job_is_in_the_namespace_that_it_names() {
    let with = |namespace: &str| {
        read(&format!(
            "{{\"Job\":{{\"ID\":\"j\",\n\"Namespace\": {namespace},\n\"TaskGroups\":[{{\"Name\":\"g\",\
             \"Tasks\":[{{\"Name\":\"t\",\"Driver\":\"d\"}}]}}]}}}}"
        ))
    };
    for own in ["null", "\"\"", "\"default\""] {
        assert_eq!(with(own).unwrap().namespace(), "default", "{own}");
    }
    let other = with("\"prod\"").unwrap();
    assert_eq!((other.namespace(), other.id.as_str()), ("prod", "j"));
    let problem = with("\"a b\"").unwrap_err();
    let expected = "2:14: \"a b\" is not a valid namespace name";
    assert!(problem.len() == 1 && problem[0].starts_with(expected), "{problem:?}");
}

#[test]
fn what_is_wrong_is_said_with_the_keys_that_lead_there() {
    let paths = |text: &str| -> Vec<(Option<String>, String)> {
        let found = parse(text.as_bytes(), Path::new(""), Some(Syntax::Json)).unwrap_err();
        found.iter().map(|d| (d.path.clone(), d.message.clone())).collect()
    };
    let text = r#"{"Job":{"ID":"j","Priority":200,"TaskGroups":[{"Name":"web","Tasks":[{"Name":"a","Driver":"d"},{"Name":"db","Driver":"d","Resources":{"CPU":0},"Config":{"x":[{"a b":1,"a b":2}]}}]},{"Name":"é"}]}}"#;
    let found = paths(text);
    let expected = [
        ("Priority", "Priority must be"),
        (
            r#"TaskGroups[0] ("web") > Tasks[1] ("db") > Resources > CPU"#,
            "CPU must be at least 1, not 0",
        ),
        (r#"TaskGroups[0] ("web") > Tasks[1] ("db") > Config > x[0]"#, "\"a b\" is given twice"),
        (r#"TaskGroups[1] ("é")"#, "Tasks must hold at least one task"),
    ];
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for ((path, message), (expected_path, expected)) in found.iter().zip(expected) {
        assert_eq!(path.as_deref(), Some(expected_path));
        assert!(message.starts_with(expected), "{message}");
    }
    // A line of a program is no place; a file with lines has them, too.
    let found = parse(text.as_bytes(), Path::new(""), Some(Syntax::Json)).unwrap_err();
    let shown = found.render(text, false);
    assert!(
        shown.starts_with("error: Priority: Priority must be 1 to 100, not 200\nerror: Task"),
        "{shown}"
    );
    let lines = text.replace(",\"TaskGroups", ",\n\"TaskGroups");
    let found = parse(lines.as_bytes(), Path::new("j.json"), Some(Syntax::Json)).unwrap_err();
    let shown = found.render(&lines, false);
    assert!(shown.starts_with("j.json:1:29: error: Priority: Priority must be"), "{shown}");
    assert!(shown.contains("^^^\n"), "{shown}");
    assert_eq!(paths("[1")[0].0, None);
}

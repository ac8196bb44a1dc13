//! What is accepted and not done, and where a driver's complaints about `config` belong.

use std::path::Path;

use super::super::{ConfigFault, Syntax, read};
use super::{in_group, in_job, in_task};

fn of(text: &str, syntax: Syntax) -> Vec<String> {
    match read(text.as_bytes(), Path::new("dir/job.hcl"), Some(syntax)) {
        Ok(parsed) => parsed
            .warnings
            .iter()
            .map(|warning| {
                assert!(warning.to_string().starts_with("dir/job.hcl:"));
                format!("{}:{}: {}", warning.line, warning.column, warning.message)
            })
            .collect(),
        Err(found) => panic!("{}", found.render(text, false)),
    }
}

#[track_caller]
fn warned(text: &str, expected: &[&str]) {
    let found = of(text, Syntax::Hcl);
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found:?} is not {expected:?}");
    }
}

/// A job as programs send it: `job` and `group` are members of either.
fn json(job: &str, group: &str, count: u32) -> String {
    let task = r#"{"Name": "t", "Driver": "mock"}"#;
    let group = format!(r#"{{"Name": "g", "Count": {count}, "Tasks": [{task}]{group}}}"#);
    format!(r#"{{"ID": "j", "Type": "service"{job}, "TaskGroups": [{group}]}}"#)
}

#[test]
fn each_key_that_is_accepted_and_not_done_is_named_where_it_stands() {
    let service = "network {\nport \"p\" {}\n}\nservice {\nprovider = \"nomad\"\nport = \"p\"\ncheck {\ntype = \"tcp\"\n\
                   interval = \"2s\"\ntimeout = \"1s\"\n}\n}";
    warned(&in_group(service), &[]);
    warned(
        &in_task("service {\nprovider = \"nomad\"\nenable_tag_override = true\n}"),
        &["7:1: enable_tag_override has no effect yet: only the job can change the tags"],
    );
    warned(
        &in_task("resources {\ndisk = 64\niops = 10\n}"),
        &[
            "6:1: disk has no effect, nor has it in Nomad; write ephemeral_disk { size = … }",
            "7:1: iops has no effect, nor has it in Nomad; leave it out",
        ],
    );
    warned(
        &in_task("service {\nprovider = \"nomad\"\naddress_mode = \"driver\"\n}"),
        &["7:16: only a driver that gives tasks a network has an address"],
    );
    warned(
        &in_job("region = \"eu\""),
        &["5:10: region has no effect yet: this node is in region global"],
    );
    warned(&in_job("priority = 70"), &[]);
}

#[test]
fn a_value_that_says_what_happens_anyway_is_no_reason_for_a_warning() {
    for body in ["region = \"global\"", "priority = 50", "update {\ncanary = 0\n}"] {
        warned(&in_job(body), &[]);
    }
}

#[test]
fn each_warning_is_told_once_however_often_the_key_is_there() {
    let update = "service {\nprovider = \"nomad\"\nenable_tag_override = true\n}\n";
    let group = |name: &str| {
        format!("group \"{name}\" {{\n{update}task \"t\" {{ driver = \"mock\" }}\n}}\n")
    };
    let text = format!("job \"j\" {{\n{}{}}}\n", group("a"), group("b"));
    warned(&text, &["5:1: enable_tag_override has no effect yet"]);
}

#[test]
fn what_nomad_accepts_and_has_no_effect_is_accepted_and_told_where_it_stands() {
    let check = |more: &str| {
        let check = format!("check {{\ninterval = \"2s\"\ntimeout = \"1s\"\n{more}\n}}");
        in_group(&format!(
            "network {{\nport \"p\" {{}}\n}}\nservice {{\nprovider = \"nomad\"\nport = \"p\"\n{check}\n}}"
        ))
    };
    let template = |more: &str| {
        in_task(&format!("template {{\ndata = \"x\"\ndestination = \"local/x\"\n{more}\n}}"))
    };
    for (text, expected) in [
        (
            check("type = \"tcp\"\npath = \"/\""),
            "14:8: path has no effect in a check of type tcp; leave it out",
        ),
        (
            check("type = \"http\"\npath = \"/\"\ncommand = \"/bin/true\""),
            "15:11: command has no effect in a check of type http",
        ),
        (
            in_group("network {\ndns {\nservers = [\"192.0.2.1\"]\n}\n}"),
            "5:1: dns has no effect: the node's own network has the node's own dns",
        ),
        (
            template("change_mode = \"restart\"\nchange_signal = \"SIGHUP\""),
            "9:17: change_signal has no effect unless change_mode is \"signal\"",
        ),
        (
            template("change_script {\ncommand = \"/bin/true\"\n}"),
            "8:1: change_script has no effect unless change_mode is \"script\"",
        ),
        (
            in_task("resources {\nnetwork {\nmode = \"bridge\"\nport \"p\" {}\n}\n}"),
            "7:8: mode has no effect in the network of a task, nor has it in Nomad",
        ),
        (
            in_task("resources {\nnetwork {\ndns {\nservers = [\"192.0.2.1\"]\n}\n}\n}"),
            "7:1: dns has no effect in the network of a task, nor has it in Nomad",
        ),
        (
            in_group(
                "update { health_check = \"checks\" }\nmigrate { health_check = \"task_states\" }",
            ),
            "5:1: health_check, min_healthy_time and healthy_deadline of migrate have no effect",
        ),
        (
            in_group("migrate { min_healthy_time = \"2s\" }"),
            "4:1: health_check, min_healthy_time and healthy_deadline of migrate have no effect",
        ),
        (
            in_task("lifecycle {\nhook = \"poststop\"\nsidecar = true\n}"),
            "7:11: sidecar has no effect on a poststop task",
        ),
        (
            in_task("kill_timeout = \"15m\""),
            "5:16: on a node whose max_kill_timeout (30s unless configured) allows it, kill_timeout and \
             shutdown_delay let a stop take 15m, longer than progress_deadline (10m)",
        ),
        (
            in_task("kill_timeout = \"6m\"\nshutdown_delay = \"6m\""),
            "5:16: on a node whose max_kill_timeout (30s unless configured) allows it, kill_timeout and \
             shutdown_delay let a stop take 12m",
        ),
        (
            in_task("kill_timeout = \"6m\"\nshutdown_delay = \"11m\""),
            "5:16: kill_timeout and shutdown_delay let a stop take 17m",
        ),
        (
            in_group("count = 2\nupdate { max_parallel = 3 }"),
            "2:1: max_parallel (3) is above the count of the group (2)",
        ),
        (
            in_group("service { name = \"web\" }\nservice { name = \"db\" }"),
            "4:1: a service without provider is one of Consul in Nomad; here it is listed by this node alone",
        ),
    ] {
        warned(&text, &[expected]);
    }
    // Where they say what happens anyway, or nobody waits.
    for text in [
        in_group("update { min_healthy_time = \"2s\" }\nmigrate { min_healthy_time = \"2s\" }"),
        in_task("kill_timeout = \"15m\"")
            .replace("group \"g\" {", "group \"g\" {\nupdate { progress_deadline = \"0s\" }"),
        in_task("kill_timeout = \"15m\"").replace("job \"j\" {", "job \"j\" {\ntype = \"batch\""),
        in_group("volume \"client/plugins\" {\ntype = \"host\"\nsource = \"x\"\n}"),
        in_task("lifecycle {\nhook = \"prestart\"\n}"),
    ] {
        warned(&text, &[]);
    }
    let two = |second: &str| {
        in_job(&format!(
            "group \"h\" {{\nupdate {{\ncanary = 1\n{second}\n}}\ntask \"t\" {{ driver = \"mock\" }}\n}}\n\
             group \"i\" {{\nupdate {{\ncanary = 1\nauto_promote = true\n}}\ntask \"t\" {{ driver = \"mock\" }}\n}}"
        ))
    };
    warned(&two("auto_promote = true"), &[]);
    warned(&two(""), &["1:1: auto_promote has no effect: all groups with canaries are promoted"]);
}

#[test]
fn a_job_of_a_file_cannot_be_one_that_is_stopped() {
    let text = r#"{"ID": "j", "Stop": true, "TaskGroups": [{"Name": "g", "Tasks": [
        {"Name": "t", "Driver": "mock"}]}]}"#;
    let found = read(text.as_bytes(), Path::new("job.json"), None).unwrap_err().to_string();
    assert!(found.contains("Stop is true: the job of such a text stays stopped"), "{found}");
    let request = super::super::read_request(text.as_bytes(), &[]).unwrap();
    assert!(request.stop);
    assert!(read(text.replace("true", "false").as_bytes(), Path::new("j.json"), None).is_ok());
}

#[test]
fn a_job_has_its_directory_where_something_refers_to_it_and_is_the_same_from_anywhere_else() {
    let job = |text: &str, file: &str| read(text.as_bytes(), Path::new(file), None).unwrap().job;
    let plain = in_task("");
    let all = ["-", "/a/job.hcl", "/b/job.hcl", ""].map(|file| job(&plain, file));
    assert!(all.iter().all(|job| *job == all[0]));
    let refers = in_task("env = { DIR = \"${job.dir}\" }");
    assert_eq!(job(&refers, "/a/job.hcl").source_dir.as_deref(), Some(Path::new("/a")));
    assert_ne!(job(&refers, "/a/job.hcl"), job(&refers, "/b/job.hcl"));
}

#[test]
fn a_file_with_errors_tells_the_errors_alone() {
    let text = in_job("priority = 70\nregoin = \"eu\"");
    let found = read(text.as_bytes(), Path::new("job.hcl"), None).unwrap_err();
    assert_eq!(found.len(), 1, "{found}");
}

#[test]
fn what_a_stock_client_fills_in_is_no_noise() {
    // As the command line sends it, and as its library fills it in.
    let sent = r#", "Region": null, "Priority": null, "Update": null, "Reschedule": null"#;
    let filled = r#", "Region": "global", "Priority": 50, "Update": {"Stagger": 30000000000,
        "MaxParallel": 1, "HealthCheck": "checks", "MinHealthyTime": 10000000000,
        "HealthyDeadline": 300000000000, "ProgressDeadline": 600000000000, "AutoRevert": false,
        "AutoPromote": false, "Canary": 0}"#;
    let migrate = r#", "Migrate": {"MaxParallel": 1, "HealthCheck": "checks",
        "MinHealthyTime": 10000000000, "HealthyDeadline": 300000000000}"#;
    for job in [sent, filled] {
        assert_eq!(of(&json(job, migrate, 1), Syntax::Json), [""; 0], "{job}");
    }
    assert_eq!(of(&json(filled, migrate, 3), Syntax::Json), [""; 0]);
}

#[test]
fn what_is_sent_on_of_a_job_without_such_keys_warns_of_nothing() {
    let job = super::good(&in_group("count = 3"));
    let sent = super::super::nomad_json(&job).to_string();
    assert_eq!(of(&sent, Syntax::Json), [""; 0]);
}

#[test]
fn what_a_driver_finds_wrong_is_shown_where_it_stands() {
    let text =
        in_task("config {\ncomand = \"x\"\nargs = [\"a\", 1]\nnetwork {\nlistn = true\n}\n}");
    let parsed = read(text.as_bytes(), Path::new("job.hcl"), None).unwrap();
    let fault = |path, suggestion| ConfigFault {
        group: "g",
        task: "t",
        path,
        message: "is wrong",
        suggestion,
        of_driver: false,
    };
    let faults = [
        fault("comand", Some("command")),
        fault("args.1", None),
        fault("network.listn", None),
        fault("", None),
        fault("network.listn.deeper.0", None),
    ];
    let found = parsed.places.diagnostics(faults, &text, "job.hcl");
    let places: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(
        places,
        [
            "job.hcl:5:1: is wrong",
            "job.hcl:6:1: is wrong (did you mean command?)",
            "job.hcl:7:14: is wrong",
            "job.hcl:9:1: is wrong",
            "job.hcl:9:1: is wrong",
        ]
    );
    let other = parsed.places.diagnostics([ConfigFault { task: "u", ..faults[0] }], &text, "f");
    assert_eq!(other.diagnostics[0].line, 1, "an unknown task is no reason to fail");
}

#[test]
fn without_a_config_its_task_is_the_place() {
    let text = in_task("");
    let parsed = read(text.as_bytes(), Path::new("job.hcl"), None).unwrap();
    let fault = ConfigFault {
        group: "g",
        task: "t",
        path: "",
        message: "command is missing",
        suggestion: None,
        of_driver: false,
    };
    let found = parsed.places.diagnostics([fault], &text, "job.hcl");
    assert_eq!(found.to_string(), "job.hcl:3:1: command is missing");
}

#[test]
fn a_nested_one_line_block_says_what_to_do() {
    for text in [
        "job \"a\" { group \"g\" { task \"t\" { driver = \"mock\" } } }",
        "job \"a\" {\n group \"g\" { count = 2 task \"t\" {} }\n}",
        "job \"a\" {\n group \"g\" { count = 2, meta = {} }\n}",
    ] {
        let found = read(text.as_bytes(), Path::new("job.hcl"), None).unwrap_err().to_string();
        assert!(
            found.contains("a one-line block holds one attribute; put nested blocks on lines"),
            "{text}: {found}"
        );
    }
    let broken = "job \"a\" {\n meta = {\n a = ]\n }\n}";
    let found = read(broken.as_bytes(), Path::new("job.hcl"), None).unwrap_err().to_string();
    assert!(!found.contains("one-line"), "{found}");
}

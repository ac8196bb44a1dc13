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
    let service = "network {\nport \"p\" {}\n}\nservice {\nport = \"p\"\ncheck {\ntype = \"tcp\"\n\
                   interval = \"2s\"\ntimeout = \"1s\"\n}\n}";
    warned(&in_group(service), &[]);
    warned(
        &in_task("service { enable_tag_override = true }"),
        &["5:11: enable_tag_override has no effect yet: nobody but the job can change the tags"],
    );
    warned(
        &in_task("resources {\ndisk = 64\niops = 10\n}"),
        &[
            "6:1: disk has no effect, nor has it in Nomad; write ephemeral_disk { size = … }",
            "7:1: iops has no effect, nor has it in Nomad; leave it out",
        ],
    );
    warned(
        &in_task("service { address_mode = \"driver\" }"),
        &["5:26: only a driver that gives tasks a network has an address"],
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
    let update = "service {\nenable_tag_override = true\n}\n";
    let group = |name: &str| {
        format!("group \"{name}\" {{\n{update}task \"t\" {{ driver = \"mock\" }}\n}}\n")
    };
    let text = format!("job \"j\" {{\n{}{}}}\n", group("a"), group("b"));
    warned(&text, &["4:1: enable_tag_override has no effect yet"]);
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

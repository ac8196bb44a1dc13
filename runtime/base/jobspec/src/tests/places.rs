//! Where what is brought for a task goes, and what is refused of that.

use std::path::Path;

use super::check;
use super::{good, in_task};

#[test]
fn what_is_brought_to_where_the_task_cannot_have_it_is_refused_with_its_line() {
    let template = |to: &str| format!("template {{\ndata = \"x\"\ndestination = \"{to}\"\n}}");
    let artifact =
        |to: &str| format!("artifact {{\nsource = \"http://h/x.tar\"\ndestination = \"{to}\"\n}}");
    for (to, said) in [
        ("../alloc/logs/t.stdout.0", "is in a part of the shared directory that tasks only read"),
        ("${NOMAD_ALLOC_DIR}/x", "is in a part of the shared directory that tasks only read"),
        ("${NOMAD_TASK_DIR}/../../other/x", "leads out of the task's own directory"),
    ] {
        let expected = format!("7:15: the destination \"{to}\" {said}");
        for driver in ["mock", "exec", "raw_exec", "wasm"] {
            for body in [template(to), artifact(to)] {
                check(&in_task(&body).replace("mock", driver), &[&expected]);
            }
        }
    }
    for (to, said) in [
        ("/etc/app.conf", "would be in /etc, which the task sees as it is on the node"),
        ("usr/bin/tool", "would be in /usr, which the task sees as it is on the node"),
    ] {
        let expected = format!("7:15: the destination \"{to}\" {said}");
        for body in [template(to), artifact(to)] {
            check(&in_task(&body).replace("mock", "exec"), &[&expected]);
            good(&in_task(&body));
        }
    }
    let unseen = ["7:15: the task would not see the destination"];
    for body in [template("app/x"), artifact("app/x")] {
        check(&in_task(&body).replace("mock", "wasm"), &unseen);
    }
    // The node itself reads the program of the task.
    let with_module = |to: &str, module: &str| {
        in_task(&format!("{}\nconfig {{ module = \"{module}\" }}", artifact(to)))
            .replace("mock", "wasm")
    };
    for module in ["app/x/main.wasm", "./app/x", "${NOMAD_META_module}"] {
        good(&with_module("app/x", module));
    }
    for module in ["app/y.wasm", "/app/x/main.wasm", "https://h/app/x/main.wasm"] {
        check(&with_module("app/x", module), &unseen);
    }
    for to in ["", ".", "local/app", "secrets/app", "tmp/x", "${NOMAD_ALLOC_DIR}/data/x"] {
        good(&with_module(to, "/app/main.wasm"));
    }
    check(&in_task(&template("local")), &["7:15: the destination is a directory of the task"]);
    for to in ["run.sh", "/app/latest/x", "${NOMAD_ALLOC_DIR}/data/x", "${meta.x}/logs"] {
        for driver in ["mock", "exec", "raw_exec"] {
            good(&in_task(&template(to)).replace("mock", driver));
        }
    }
    let body = template("local/x").replace("data", "perms = \"4755\"\ndata");
    let expected = "6:9: perms may not hold set-user-id, set-group-id or sticky bits: a template is not a \
                    program that runs as another user; write \"0755\"";
    check(&in_task(&body), &[expected]);
}

#[test]
fn a_volume_covers_no_place_of_the_task_as_a_whole_and_a_part_of_the_system_is_told() {
    let text = |to: &str| {
        format!(
            "job \"j\" {{\ngroup \"g\" {{\nvolume \"v\" {{\ntype = \"host\"\nsource = \"s\"\n}}\ntask \"t\" \
             {{\ndriver = \"exec\"\nvolume_mount {{\nvolume = \"v\"\ndestination = \"{to}\"\n}}\n}}\n}}\n}}\n"
        )
    };
    for (to, said) in [
        ("/", "\"/\" would cover /local of the task"),
        ("${NOMAD_TASK_DIR}", "\"${NOMAD_TASK_DIR}\" would cover /local of the task"),
        ("tmp", "\"/tmp\" would cover /tmp of the task"),
        (
            "/alloc/logs",
            "\"/alloc/logs\" cannot be: /alloc is read-only but for /alloc/data and /alloc/tmp",
        ),
    ] {
        check(&text(to), &[&format!("11:15: {said}")]);
    }
    for to in
        ["${NOMAD_TASK_DIR}/data", "/secrets/x", "/alloc/data/x", "/srv/data", "${meta.place}"]
    {
        good(&text(to));
    }
    let told =
        crate::read(text("/usr/share/x").as_bytes(), Path::new("dir/job.hcl"), None).unwrap();
    let told: Vec<_> = told.warnings.iter().map(ToString::to_string).collect();
    assert!(
        told.len() == 1 && told[0].contains("\"/usr/share/x\" is in /usr, which the task sees"),
        "{told:?}"
    );
}

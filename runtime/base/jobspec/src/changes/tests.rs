#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use super::*;

fn job(group: &str) -> Job {
    let text = format!("job \"j\" {{\n  group \"g\" {{\n{group}\n  }}\n}}");
    crate::parse(text.as_bytes(), Path::new("j.hcl"), None).unwrap()
}

fn task(inside: &str) -> Job {
    job(&format!("task \"t\" {{\n driver = \"mock\"\n{inside}\n}}"))
}

/// As if nothing could change under a task.
fn all(old: &Job, new: &Job) -> Vec<String> {
    changes(old, new, (old, new))
}

fn plain(old: &Job, new: &Job) -> Vec<String> {
    changes(old, new, (old, old))
}

#[test]
fn places_are_named_as_the_job_file_has_them() {
    let old = task("kill_timeout = \"5s\"\nconfig { command = \"/bin/a\" }");
    let mut new = task("kill_timeout = \"90s\"\nconfig { command = \"/bin/b\" }");
    if let Some(group) = new.groups.first_mut() {
        group.count = 3;
    }
    new.priority = 70;
    assert_eq!(
        plain(&old, &new),
        [
            "priority: 50 -> 70",
            "group \"g\" count: 1 -> 3",
            "group \"g\" task \"t\" config command: \"/bin/a\" -> \"/bin/b\"",
            "group \"g\" task \"t\" kill_timeout: 5s -> 1m 30s",
        ]
    );
    assert!(plain(&old, &old).is_empty());
}

#[test]
fn what_came_and_went_reads_so() {
    let rest = "task \"t\" { driver = \"mock\" }";
    let with = |service: &str| job(&format!("network {{\n port \"p\" {{}}\n}}\n{service}\n{rest}"));
    let one = with("service {\n name = \"web\"\n port = \"p\"\n provider = \"nomad\"\n}");
    let none = with("");
    assert_eq!(plain(&one, &none), ["group \"g\" service \"web\": removed"]);
    assert_eq!(plain(&none, &one), ["group \"g\" service \"web\": added"]);
    let rule = with("constraint {\n attribute = \"${attr.cpu.arch}\"\n value = \"amd64\"\n}");
    let [line] = &plain(&none, &rule)[..] else { panic!("one") };
    assert!(line.starts_with("group \"g\" constraint: added: attribute = "), "{line}");
    assert!(line.contains("value = \"amd64\""), "{line}");
    let env = |text: &str| task(&format!("env {{\n{text}\n}}"));
    assert_eq!(
        plain(&env("A = \"1\"\nB = \"2\""), &env("B = \"3\"\nC = \"4\"")),
        [
            "group \"g\" task \"t\" env A: removed: \"1\"",
            "group \"g\" task \"t\" env B: \"2\" -> \"3\"",
            "group \"g\" task \"t\" env C: added: \"4\"",
        ]
    );
}

#[test]
fn of_blocks_in_blocks_the_one_that_differs_is_named() {
    let with =
        |ports: &str| job(&format!("network {{\n{ports}\n}}\ntask \"t\" {{ driver = \"mock\" }}"));
    assert_eq!(
        plain(&with("port \"a\" { to = 80 }"), &with("port \"a\" { to = 81 }\nport \"b\" {}")),
        ["group \"g\" network port \"a\" to: 80 -> 81", "group \"g\" network port \"b\": added"]
    );
    // In JSON it is in another list then.
    assert_eq!(
        plain(&with("port \"a\" {}"), &with("port \"a\" { static = 28111 }")),
        ["group \"g\" network port \"a\" static: added: 28111"]
    );
    let none = job("task \"t\" { driver = \"mock\" }");
    assert_eq!(
        plain(&with("port \"a\" { to = 80 }"), &none),
        [
            "group \"g\" network: removed: mode = \"host\", port \"a\" { to = 80, host_network = \"default\" }"
        ]
    );
    let own = |dns: &str| with(&format!("mode = \"bridge\"\n{dns}"));
    assert_eq!(
        plain(&own(""), &own("dns {\nservers = [\"192.0.2.1\"]\n}")),
        ["group \"g\" network dns: added: servers = [\"192.0.2.1\"]"]
    );
    let spread = |percent: u8| {
        job(&format!(
            "spread {{\nattribute = \"${{node.datacenter}}\"\ntarget \"dc1\" {{\npercent = {percent}\n}}\n}}\n\
             task \"t\" {{ driver = \"mock\" }}"
        ))
    };
    assert_eq!(
        plain(&spread(60), &spread(70)),
        ["group \"g\" spread \"${node.datacenter}\" target \"dc1\" percent: 60 -> 70"]
    );
    let all = plain(&none, &spread(60));
    let expected = "group \"g\" spread: added: attribute = \"${node.datacenter}\", weight = 50, target \"dc1\" { \
                    percent = 60 }";
    assert_eq!(all, [expected]);
}

#[test]
fn blocks_that_are_alike_are_told_apart_by_their_numbers() {
    let rule = |value: &str| {
        format!("constraint {{\nattribute = \"${{meta.a}}\"\nvalue = \"{value}\"\n}}\n")
    };
    let with = |rules: &[&str]| {
        let rules: String = rules.iter().map(|value| rule(value)).collect();
        job(&format!("{rules}task \"t\" {{ driver = \"mock\" }}"))
    };
    assert_eq!(
        plain(&with(&["1", "2", "3"]), &with(&["1", "4", "5"])),
        [
            "group \"g\" constraint \"${meta.a}\" #2 value: \"2\" -> \"4\"",
            "group \"g\" constraint \"${meta.a}\" #3 value: \"3\" -> \"5\"",
        ]
    );
    let twice = plain(&with(&[]), &with(&["1", "1"]));
    let [first, second] = &twice[..] else { panic!("{twice:?}") };
    assert!(first.starts_with("group \"g\" constraint #1: added: attribute = "), "{first}");
    assert!(second.starts_with("group \"g\" constraint #2: added: attribute = "), "{second}");
    // Others are found where they stand now.
    assert!(plain(&with(&["1", "2"]), &with(&["2", "1"])).is_empty());
}

#[test]
fn texts_of_several_lines_and_lists_differ_line_by_line() {
    let template = |data: &str| {
        task(&format!("template {{\n destination = \"local/x\"\n data = <<EOT\n{data}EOT\n}}"))
    };
    let many: String = (0..40).map(|n| format!("line {n}\n")).collect();
    let other = many.replace("line 20\n", "line twenty\n");
    assert_eq!(
        plain(&template(&many), &template(&other)),
        [
            "group \"g\" task \"t\" template \"local/x\" data:\n    line 19\n  - line 20\n  + line twenty\n    \
          line 21"
        ]
    );
    let args = |args: &str| task(&format!("config {{ args = [{args}] }}"));
    assert_eq!(
        plain(&args("\"a\", \"b\", \"c\""), &args("\"a\", \"c\", \"d\"")),
        ["group \"g\" task \"t\" config args:\n    \"a\"\n  - \"b\"\n    \"c\"\n  + \"d\""]
    );
}

#[test]
fn of_long_texts_the_part_that_differs_is_shown() {
    let long = |end: &str| task(&format!("env {{ A = \"{}{end}\" }}", "x".repeat(500)));
    let [line] = &plain(&long("one"), &long("two"))[..] else { panic!("one") };
    assert!(line.contains("one\" -> …") && line.ends_with("two\""), "{line}");
    assert!(line.len() < 200, "{line}");
}

#[test]
fn what_forces_replacement_says_so_at_its_key() {
    let old = task("kill_timeout = \"5s\"\nenv { A = \"1\" }");
    let new = task("kill_timeout = \"9s\"\nenv { A = \"2\" }");
    // What of both cannot change under a task: all but the timeout.
    let decisive = task("kill_timeout = \"5s\"\nenv { A = \"2\" }");
    assert_eq!(
        changes(&old, &new, (&old, &decisive)),
        [
            "group \"g\" task \"t\" env A: \"1\" -> \"2\" (forces replacement)",
            "group \"g\" task \"t\" kill_timeout: 5s -> 9s",
        ]
    );
}

#[test]
fn meta_of_the_job_is_that_of_its_tasks_and_a_new_group_replaces_nothing() {
    let old = task("");
    let (mut new, mut decisive) = (old.clone(), old.clone());
    new.meta.insert("k".into(), "v".into());
    decisive.groups = task("meta { k = \"v\" }").groups;
    assert_eq!(
        changes(&old, &new, (&old, &decisive)),
        ["meta k: added: \"v\" (forces replacement)"]
    );
    let mut two = old.clone();
    two.groups.extend(job("task \"u\" { driver = \"mock\" }").groups.into_iter().map(
        |mut group| {
            group.name = "h".parse().unwrap();
            group
        },
    ));
    assert_eq!(all(&old, &two), ["group \"h\": added"]);
    assert_eq!(all(&two, &old), ["group \"h\": removed"]);
}

#[test]
fn blocks_are_found_by_their_names_wherever_they_stand() {
    let a = "task \"a\" { driver = \"mock\" }";
    let b = "task \"b\" {\n driver = \"mock\"\n user = \"x\"\n}";
    assert!(plain(&job(&format!("{a}\n{b}")), &job(&format!("{b}\n{a}"))).is_empty());
}

#[test]
fn a_job_that_is_another_one_altogether_is_not_told_to_the_end() {
    let env = |n: usize| {
        let lines: String = (0..500).map(|at| format!("K{at} = \"{n}\"\n")).collect();
        task(&format!("env {{\n{lines}}}"))
    };
    let told = plain(&env(1), &env(2));
    assert_eq!((told.len(), told.last().map(String::as_str)), (201, Some("and 300 more")));
}

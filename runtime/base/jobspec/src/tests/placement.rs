//! Where a job likes to be, and how many of it there may be.

use serde_json::json;

use super::super::{Syntax, nomad_json, parse};
use super::{good, in_group, in_job, in_task};
use ostler_model::job::{Job, Operator};
use std::path::Path;

/// The job as JSON, which reads as the same job.
#[track_caller]
fn written(job: &Job) -> serde_json::Value {
    let json = nomad_json(job);
    let again = parse(json.to_string().as_bytes(), Path::new("-"), Some(Syntax::Json));
    assert_eq!(again.unwrap(), *job);
    json
}

#[test]
fn spreads_and_affinities_are_kept_wherever_they_stand() {
    let spread = "spread {\nattribute = \"${node.datacenter}\"\ntarget \"dc1\" { percent = 70 }\n\
                  target \"dc2\" { percent = 30 }\n}\n";
    let affinity = "affinity {\nattribute = \"${attr.kernel.name}\"\nset_contains = \"linux\"\n\
                    weight = -20\n}\n";
    let spreads = json!([{
        "Attribute": "${node.datacenter}",
        "Weight": 50,
        "SpreadTarget": [{"Value": "dc1", "Percent": 70}, {"Value": "dc2", "Percent": 30}],
    }]);
    let affinities = json!([{
        "LTarget": "${attr.kernel.name}", "Operand": "set_contains", "RTarget": "linux", "Weight": -20,
    }]);
    let both = format!("{spread}{affinity}");
    let job = written(&good(&in_job(&both)));
    assert_eq!((&job["Spreads"], &job["Affinities"]), (&spreads, &affinities));
    let group = &written(&good(&in_group(&both)))["TaskGroups"][0];
    assert_eq!((&group["Spreads"], &group["Affinities"]), (&spreads, &affinities));
    let task = &written(&good(&in_task(affinity)))["TaskGroups"][0]["Tasks"][0];
    assert_eq!(task["Affinities"], affinities);
}

#[test]
fn a_constraint_on_allocations_is_the_same_in_its_long_and_short_forms() {
    let of = |body: &str| {
        let job = good(&in_group(&format!("constraint {{\n{body}\n}}")));
        let json = written(&job)["TaskGroups"][0]["Constraints"][0].clone();
        (job.groups[0].constraints[0].clone(), json)
    };
    let (rule, json) = of("distinct_hosts = true");
    assert_eq!((rule.operator, rule.most_on_node()), (Operator::DistinctHosts, Some(1)));
    assert_eq!(json, json!({"LTarget": "", "Operand": "distinct_hosts", "RTarget": "true"}));
    assert_eq!(of("operator = \"distinct_hosts\"\nvalue = true").0, rule);
    assert_eq!(of("operator = \"distinct_hosts\"").0.most_on_node(), Some(1));
    assert_eq!(of("distinct_hosts = false").0.most_on_node(), None);
    let (rule, json) = of("distinct_property = \"${meta.rack}\"\nvalue = 3");
    assert_eq!(rule.most_on_node(), Some(3));
    assert_eq!(
        json,
        json!({"LTarget": "${meta.rack}", "Operand": "distinct_property", "RTarget": "3"})
    );
    let long = "attribute = \"${meta.rack}\"\noperator = \"distinct_property\"\nvalue = 3";
    assert_eq!(of(long).0, rule);
    assert_eq!(of("distinct_property = \"${meta.rack}\"").0.most_on_node(), Some(1));
}

#[test]
fn all_at_once_is_kept() {
    assert!(good(&in_job("all_at_once = true")).all_at_once);
    assert_eq!(written(&good(&in_job("all_at_once = true")))["AllAtOnce"], true);
    assert_eq!(written(&good(&in_job("")))["AllAtOnce"], false);
}

#[test]
fn scaling_is_kept_with_what_an_autoscaler_is_told() {
    let body = "count = 2\nscaling {\nmax = 10\nenabled = false\npolicy {\ncooldown = \"1m\"\n\
                check \"load\" {\nquery = \"avg\"\n}\n}\n}";
    let job = good(&in_group(body));
    let scaling = job.groups[0].scaling.as_ref().unwrap();
    assert_eq!((scaling.min, scaling.max, scaling.enabled), (2, 10, false));
    let json = written(&job)["TaskGroups"][0]["Scaling"].clone();
    assert_eq!(json["Policy"], json!({"cooldown": "1m", "check": [{"load": [{"query": "avg"}]}]}));
    assert_eq!(json["Target"], json!({"Namespace": "default", "Job": "j", "Group": "g"}));
    assert_eq!((&json["Type"], &json["Min"]), (&json!("horizontal"), &json!(2)));
    // A group without a count has the least one.
    assert_eq!(good(&in_group("scaling {\nmin = 4\nmax = 9\n}")).groups[0].count, 4);
}

#[test]
fn an_identity_that_no_task_is_given_is_as_none() {
    let task = |identity: &str| {
        let text = format!(
            r#"{{"ID": "j", "TaskGroups": [{{"Name": "g", "Tasks": [
                {{"Name": "t", "Driver": "mock", {identity}}}]}}]}}"#
        );
        parse(text.as_bytes(), Path::new("-"), Some(Syntax::Json)).map_err(|e| e.to_string())
    };
    let filled = r#"{"Name": "default", "Audience": ["nomadproject.io"], "ChangeMode": "",
        "ChangeSignal": "", "Env": false, "File": false, "Filepath": "", "ServiceName": "", "TTL": 0}"#;
    task(&format!(r#""Identity": {filled}, "Identities": [{filled}]"#)).unwrap();
    let given = filled.replace("\"Env\": false", "\"Env\": true");
    let found = task(&format!(r#""Identities": [{filled}, {given}]"#)).unwrap_err();
    assert!(
        found.contains("Identities is valid in Nomad, not supported by Ostler; ident"),
        "{found}"
    );
}

#[test]
fn what_is_about_other_allocations_is_no_affinity_and_looks_at_something() {
    for (text, expected) in [
        (
            "affinity {\noperator = \"distinct_hosts\"\n}",
            "4:12: distinct_hosts is not an operator of affinities",
        ),
        (
            "constraint {\ndistinct_property = \"\"\n}",
            "4:21: distinct_property needs an attribute to look at",
        ),
    ] {
        let found = super::problems(&super::in_job(text));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].ends_with(expected.split_once(": ").unwrap().1), "{found:?}");
    }
}

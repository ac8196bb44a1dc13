//! `update`, `migrate`, `ephemeral_disk` and `max_run_duration`.

use std::time::Duration;

use super::check;
use super::{good, in_group, in_job};
use ostler_model::job::{EphemeralDisk, HealthCheck, HealthPolicy, Job};

fn health(job: &Job) -> Option<HealthPolicy> {
    job.groups[0].health
}

fn policy(check: HealthCheck, min: u64, deadline: u64) -> Option<HealthPolicy> {
    Some(HealthPolicy {
        check,
        min_healthy_time: Duration::from_secs(min),
        healthy_deadline: Duration::from_secs(deadline),
    })
}

#[test]
fn a_service_is_judged_unless_it_says_otherwise_and_a_batch_never() {
    for (kind, expected) in [
        ("service", Some(HealthPolicy::default())),
        ("system", None),
        ("batch", None),
        ("sysbatch", None),
    ] {
        assert_eq!(health(&good(&in_job(&format!("type = \"{kind}\"")))), expected, "{kind}");
    }
    let system = good(&in_job("type = \"system\"\nupdate {}"));
    assert_eq!(health(&system), Some(HealthPolicy::default()));
    for kind in ["batch", "sysbatch"] {
        check(
            &in_job(&format!("type = \"{kind}\"\nmigrate {{}}")),
            &["6:1: migrate is for jobs of type service and system"],
        );
    }
}

#[test]
fn what_a_group_says_of_its_health_goes_before_the_job() {
    let text = |job: &str, group: &str| {
        in_group(group).replace("job \"j\" {", &format!("job \"j\" {{\n{job}"))
    };
    for (job, group, expected) in [
        ("update { min_healthy_time = \"1s\" }", "", policy(HealthCheck::Checks, 1, 300)),
        (
            "update {\nmin_healthy_time = \"1s\"\nhealth_check = \"manual\"\n}",
            "update {\nmin_healthy_time = \"2s\"\nhealthy_deadline = \"3s\"\n}",
            policy(HealthCheck::Manual, 2, 3),
        ),
        // What it says of health is of other nodes.
        ("migrate { health_check = \"task_states\" }", "", policy(HealthCheck::Checks, 10, 300)),
        (
            "migrate { healthy_deadline = \"5m\" }",
            "update { healthy_deadline = \"1m\" }",
            policy(HealthCheck::Checks, 10, 60),
        ),
    ] {
        assert_eq!(health(&good(&text(job, group))), expected, "{job} {group}");
    }
}

#[test]
fn wrong_rules_for_health_are_reported_where_they_stand() {
    for (body, expected) in [
        (
            "update { health_check = \"check\" }",
            "4:25: \"check\" is not a valid health_check; valid values are checks, task_states, manual (did \
             you mean checks?)",
        ),
        (
            "update {\nmin_healthy_time = \"2m\"\nhealthy_deadline = \"1m\"\n}",
            "5:20: min_healthy_time (2m) must be below healthy_deadline (1m)",
        ),
        (
            "update { healthy_deadline = \"10s\" }",
            "4:29: min_healthy_time (10s) must be below healthy_deadline (10s)",
        ),
        ("update {}\nupdate {}", "5:1: update is given twice"),
        ("update = {}", "4:1: update is a block; write update { … }"),
        (
            "update { max_paralel = 1 }",
            "4:10: \"max_paralel\" is unknown in update (did you mean max_parallel?)",
        ),
    ] {
        check(&in_group(body), &[expected]);
    }
    // Once, not once per group.
    check(
        &in_job(
            "update { min_healthy_time = \"6m\" }\ngroup \"h\" {\ntask \"t\" { driver = \"mock\" }\n}",
        ),
        &["5:29: min_healthy_time (6m) must be below healthy_deadline (5m)"],
    );
}

#[test]
fn a_group_says_how_many_of_it_a_drain_stops_at_the_same_time() {
    let parallel = |job: &str, group: &str| {
        let text = in_group(group).replace("job \"j\" {", &format!("job \"j\" {{\n{job}"));
        good(&text).groups[0].migrate_parallel
    };
    assert_eq!(parallel("", ""), 1);
    assert_eq!(parallel("migrate { max_parallel = 3 }", ""), 3);
    assert_eq!(parallel("migrate { max_parallel = 3 }", "migrate { max_parallel = 0 }"), 0);
}

#[test]
fn a_group_says_what_becomes_of_its_disk() {
    let disk = |body: &str| good(&in_group(body)).groups[0].ephemeral_disk;
    assert_eq!(disk(""), EphemeralDisk::default());
    assert_eq!(disk("ephemeral_disk {}"), EphemeralDisk::default());
    let usual = EphemeralDisk { size_stated: true, ..EphemeralDisk::default() };
    assert_eq!(disk("ephemeral_disk { size = 300 }"), usual);
    assert_eq!(
        disk("ephemeral_disk {\nsticky = true\nmigrate = \"true\"\nsize = 10\n}"),
        EphemeralDisk { sticky: true, migrate: true, size_mb: 10, size_stated: true }
    );
    for (body, expected) in [
        ("ephemeral_disk { size = 9 }", "4:25: size must be at least 10, not 9"),
        ("ephemeral_disk { sticky = 1 }", "4:27: sticky must be true or false, not a number"),
        (
            "ephemeral_disk { stiky = true }",
            "4:18: \"stiky\" is unknown in ephemeral_disk (did you mean sticky?)",
        ),
    ] {
        check(&in_group(body), &[expected]);
    }
}

#[test]
fn a_group_may_run_for_a_limited_time() {
    let time = |body: &str| good(&in_group(body)).groups[0].max_run_duration;
    assert_eq!(time("max_run_duration = \"1h\""), Some(Duration::from_secs(3_600)));
    assert_eq!(time("max_run_duration = \"0s\""), None);
    check(
        &in_group("max_run_duration = 5"),
        &["4:20: max_run_duration: \"5\": a duration needs a unit"],
    );
}

#[test]
fn the_directory_of_a_job_cannot_be_written_in_hcl() {
    check(&in_job("source_dir = \"/\""), &["5:1: \"source_dir\" is unknown in a job"]);
}

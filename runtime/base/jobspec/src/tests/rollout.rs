//! `update` and `reschedule`: how a new version takes over, and what comes after what failed.

use std::path::Path;
use std::time::Duration;

use super::super::{Syntax, nomad_json, parse};
use super::check;
use super::{good, in_group, in_job};
use ostler_model::job::{Job, JobKind};
use ostler_model::rollout::{DelayFunction, ReschedulePolicy, UpdatePolicy};

fn update(job: &Job) -> Option<UpdatePolicy> {
    job.groups[0].update
}

fn reschedule(job: &Job) -> ReschedulePolicy {
    job.groups[0].reschedule
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// A job whose text has this before its group, and this in it.
fn both(job: &str, group: &str) -> String {
    in_group(group).replace("job \"j\" {", &format!("job \"j\" {{\n{job}"))
}

#[test]
fn a_service_is_replaced_one_by_one_unless_it_says_otherwise() {
    let usual = UpdatePolicy::default();
    assert_eq!((usual.max_parallel, usual.canary), (1, 0));
    for (kind, expected) in
        [("service", Some(usual)), ("system", None), ("batch", None), ("sysbatch", None)]
    {
        assert_eq!(update(&good(&in_job(&format!("type = \"{kind}\"")))), expected, "{kind}");
    }
    let told = UpdatePolicy { max_parallel: 3, stagger: secs(5), ..usual };
    let job = "update {\nmax_parallel = 3\nstagger = \"5s\"\n}";
    assert_eq!(update(&good(&both(job, ""))), Some(told));
    let group = "update {\nmax_parallel = 0\ncanary = 2\nauto_promote = true\nauto_revert = true\n\
                 progress_deadline = \"0s\"\n}";
    let own = UpdatePolicy {
        max_parallel: 0,
        canary: 2,
        auto_promote: true,
        auto_revert: true,
        progress_deadline: Duration::ZERO,
        ..told
    };
    assert_eq!(update(&good(&both(job, group))), Some(own));
}

#[test]
fn what_contradicts_itself_in_update_is_reported_where_it_stands() {
    for (body, expected) in [
        (
            "update { auto_promote = true }",
            "4:25: auto_promote promotes canaries, and canary of group g is 0",
        ),
        ("update { stagger = \"0s\" }", "4:20: stagger must be above zero"),
        (
            "update { progress_deadline = \"5m\" }",
            "4:30: healthy_deadline (5m) must be below progress_deadline (5m)",
        ),
        (
            "update { healthy_deadline = \"11m\" }",
            "4:29: healthy_deadline (11m) must be below progress_deadline (10m)",
        ),
        ("update { canary = -1 }", "4:19: canary must be"),
    ] {
        check(&in_group(body), &[expected]);
    }
    let batch = |update: &str| {
        let text = format!(
            r#"{{"ID": "j", "Type": "batch", "Update": {update}, "TaskGroups": [{{"Name": "g",
                "Tasks": [{{"Name": "t", "Driver": "mock"}}]}}]}}"#
        );
        parse(text.as_bytes(), Path::new("job.json"), Some(Syntax::Json))
    };
    assert!(batch(r#"{"MaxParallel": 0, "MinHealthyTime": 0, "HealthCheck": ""}"#).is_ok());
    let found = batch(r#"{"MaxParallel": 2}"#).unwrap_err().to_string();
    assert!(found.contains("Update is for jobs of type service and system"), "{found}");
}

#[test]
fn a_job_may_promote_the_canaries_that_only_its_groups_have() {
    let promote = "update { auto_promote = true }";
    let own = update(&good(&both(promote, "update { canary = 1 }"))).unwrap();
    assert!(own.auto_promote && own.canary == 1);
    let problem = "2:25: auto_promote promotes canaries, and canary of group g is 0";
    check(&both(promote, ""), &[problem]);
    check(
        &both("update { canary = 1 }", "update {\ncanary = 0\nauto_promote = true\n}"),
        &["7:16: auto_promote promotes canaries, and canary of group g is 0"],
    );
}

#[test]
fn json_says_the_same_and_what_servers_fill_in_says_nothing() {
    let with = |update: &str, group: &str| {
        let text = format!(
            r#"{{"ID": "j", "Type": "service", "Update": {update}, "TaskGroups": [{{"Name": "g"{group},
                "Tasks": [{{"Name": "t", "Driver": "mock"}}]}}]}}"#
        );
        parse(text.as_bytes(), Path::new("job.json"), Some(Syntax::Json)).unwrap()
    };
    let usual = UpdatePolicy::default();
    let of = |max_parallel| Some(UpdatePolicy { max_parallel, ..usual });
    let zeros = r#"{"MaxParallel": 0, "Stagger": 0, "HealthCheck": "", "MinHealthyTime": 0,
        "HealthyDeadline": 0, "ProgressDeadline": 0, "AutoRevert": false, "Canary": 0}"#;
    assert_eq!(update(&with(zeros, "")), of(1));
    assert_eq!(update(&with(r#"{"MaxParallel": 0}"#, "")), of(0));
    assert_eq!(update(&with(r#"{"MaxParallel": 4}"#, "")), of(4));
    let group = r#", "Update": {"Canary": 1, "AutoPromote": true}"#;
    let canary = UpdatePolicy { max_parallel: 4, canary: 1, auto_promote: true, ..usual };
    assert_eq!(update(&with(r#"{"MaxParallel": 4}"#, group)), Some(canary));
}

#[test]
fn what_fails_is_placed_again_as_the_kind_of_job_has_it() {
    for (kind, expected) in [
        ("service", ReschedulePolicy::default_for(JobKind::Service)),
        ("batch", ReschedulePolicy::default_for(JobKind::Batch)),
        ("system", ReschedulePolicy::NEVER),
        ("sysbatch", ReschedulePolicy::NEVER),
    ] {
        let job = good(&in_job(&format!("type = \"{kind}\"")));
        assert_eq!(reschedule(&job), expected, "{kind}");
        let json = nomad_json(&job)["TaskGroups"][0]["ReschedulePolicy"].clone();
        assert_eq!(json.is_null(), expected == ReschedulePolicy::NEVER, "{kind}: {json}");
    }
    let usual = ReschedulePolicy::default_for(JobKind::Service);
    let limited = "reschedule {\nattempts = 3\ninterval = \"1h\"\nunlimited = false\n}";
    let three = ReschedulePolicy { attempts: 3, interval: secs(3_600), unlimited: false, ..usual };
    assert_eq!(reschedule(&good(&in_group(limited))), three);
    let fibonacci = "reschedule {\ndelay = \"7s\"\ndelay_function = \"fibonacci\"\n}";
    let delay_function = DelayFunction::Fibonacci;
    let both = good(&both(limited, fibonacci));
    assert_eq!(reschedule(&both), ReschedulePolicy { delay: secs(7), delay_function, ..three });
    let never = "reschedule {\nattempts = 0\nunlimited = false\n}";
    assert!(!reschedule(&good(&in_group(never))).is_enabled());
}

#[test]
fn what_contradicts_itself_in_reschedule_is_reported_where_it_stands() {
    let limited =
        |more: &str| format!("reschedule {{\nattempts = 2\nunlimited = false\n{more}\n}}");
    for (body, expected) in [
        ("reschedule {\nattempts = 2\n}".to_owned(), "5:12: attempts and unlimited contradict"),
        (limited(""), "4:1: the interval must be at least 15s"),
        (limited("interval = \"14s\""), "7:12: the interval must be at least 15s"),
        (
            limited("interval = \"1m\""),
            "5:12: 2 attempts do not fit into an interval of 1m; it must be above 1m",
        ),
        (
            limited("interval = \"59s\"\ndelay_function = \"constant\""),
            "5:12: 2 attempts do not fit into an interval of 59s; it must be at least 1m",
        ),
        ("reschedule { delay = \"4s\" }".to_owned(), "4:22: the delay must be at least 5s"),
        (
            "reschedule { max_delay = \"10s\" }".to_owned(),
            "4:26: the longest delay (10s) must not be below the first (30s)",
        ),
        (
            "reschedule { delay_function = \"linear\" }".to_owned(),
            "4:31: \"linear\" is not a valid delay_function; valid values are constant, exponential, fibonacci",
        ),
    ] {
        check(&in_group(&body), &[expected]);
    }
    let system = in_job("type = \"system\"\nreschedule { unlimited = true }");
    check(&system, &["6:1: reschedule is for jobs of type service and batch"]);
}

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::human::render_human;
use crate::report::RenderBuffers;
use crate::terminal::TerminalInfo;
use ostler_model::time::Timestamp;

const SETTLE: Duration = Duration::from_secs(5);
const A: &str = "0f01c0de-0000-4000-8000-000000000001";
const B: &str = "0f02c0de-0000-4000-8000-000000000002";

fn job(version: u64, count: u64) -> WireJob<'static> {
    let groups = json!([{"Name": "g", "Count": count}]);
    serde_json::from_value(json!({"ID": "j", "Version": version, "TaskGroups": groups})).unwrap()
}

fn alloc(id: &str, status: &str, events: &[&str]) -> Value {
    let total = events.len();
    let events: Vec<_> =
        events.iter().map(|kind| json!({"Type": kind, "DisplayMessage": "text"})).collect();
    json!({
        "ID": id, "Name": "j.g[0]", "JobVersion": 3, "DesiredStatus": "run",
        "ClientStatus": status, "ClientDescription": "why",
        "TaskStates": {"t": {"State": "running", "Events": events, "EventsTotal": total}},
    })
}

const FILE: &str = r#"
job "j" {
  group "g" {
    task "t" { driver = "mock" }
  }
  group "judged" {
    update {}
    task "t" { driver = "mock" }
  }
  group "last" {
    update {}
    reschedule {
      attempts  = 0
      unlimited = false
    }
    task "t" { driver = "mock" }
  }
  group "once" {
    reschedule {
      attempts       = 1
      interval       = "24h"
      delay          = "5s"
      delay_function = "constant"
      unlimited      = false
    }
    task "t" { driver = "mock" }
  }
  group "hand" {
    update { health_check = "manual" }
    task "t" { driver = "mock" }
  }
}"#;

fn watch(placed: &[&str]) -> JobWatch {
    let placed = placed.iter().map(|id| id.parse().unwrap()).collect();
    let job = ostler_jobspec::parse(FILE.as_bytes(), Path::new("j.hcl"), None).unwrap();
    JobWatch::new(3, placed, &job, SETTLE)
}

/// As people read it, a line each.
fn lines(news: &[RunReport]) -> Vec<String> {
    let mut rendered = RenderBuffers::default();
    news.iter().for_each(|report| render_human(report, &TerminalInfo::default(), &mut rendered));
    String::from_utf8(rendered.stderr).unwrap().lines().map(str::to_owned).collect()
}

/// Of a group that has somebody judge.
fn judged(id: &str, status: &str, healthy: Option<bool>) -> Value {
    let mut alloc = alloc(id, status, &[]);
    alloc["TaskGroup"] = json!("judged");
    alloc["DeploymentStatus"] = json!({ "Healthy": healthy });
    alloc
}

#[test]
fn where_somebody_judges_running_is_not_enough() {
    let (mut watch, job) = (watch(&[A, B]), job(3, 2));
    let mut verdict = |of_a: Value, of_b: Value| look(&mut watch, &job, &[of_a, of_b]).1;
    let plain = || alloc(B, "running", &[]);
    assert_eq!(verdict(judged(A, "running", None), plain()), JobVerdict::Going);
    assert_eq!(verdict(judged(A, "running", Some(true)), plain()), JobVerdict::Runs);
    assert_eq!(verdict(judged(A, "complete", None), plain()), JobVerdict::Runs, "it did its work");
    let unhealthy = || judged(A, "running", Some(false));
    assert_eq!(verdict(unhealthy(), plain()), JobVerdict::Unhealthy(A.parse().unwrap()));
    assert_eq!(verdict(unhealthy(), alloc(B, "failed", &[])), failed(B));
    let mut last = judged(A, "failed", Some(false));
    last["TaskGroup"] = json!("last");
    assert_eq!(verdict(last, plain()), failed(A));
}

/// What is seen at once, and again when what runs has done so for long enough.
fn look(watch: &mut JobWatch, job: &WireJob, allocs: &[Value]) -> (Vec<String>, JobVerdict) {
    let (news, verdict) = look_at(watch, job, allocs, &[], Duration::ZERO);
    match verdict {
        JobVerdict::Settling(left) => {
            assert_eq!(left, SETTLE);
            let (more, verdict) = look_at(watch, job, allocs, &[], SETTLE);
            assert_eq!(more, [""; 0], "the same again is no news");
            (news, verdict)
        }
        other => (news, other),
    }
}

fn look_at(
    watch: &mut JobWatch,
    job: &WireJob,
    allocs: &[Value],
    deployments: &[Value],
    now: Duration,
) -> (Vec<String>, JobVerdict) {
    let allocs: Vec<Alloc> =
        allocs.iter().map(|alloc| serde_json::from_value(alloc.clone()).unwrap()).collect();
    let deployments: Vec<WireDeployment> =
        deployments.iter().map(|one| serde_json::from_value(one.clone()).unwrap()).collect();
    let looked = JobSnapshot { job, allocs: &allocs, deployments: &deployments, now };
    let (news, verdict) = watch.update(&looked);
    (lines(&news), verdict)
}

fn failed(id: &str) -> JobVerdict {
    JobVerdict::Failed(Some(id.parse().unwrap()))
}

#[test]
fn news_are_told_once_and_in_order() {
    let (mut watch, job) = (watch(&[A]), job(3, 1));
    let (news, verdict) = look(&mut watch, &job, &[alloc(A, "pending", &["Received"])]);
    assert_eq!(verdict, JobVerdict::Going);
    let expected =
        ["placed j.g[0] as allocation 0f01c0de", "g[0]/t      | 00:00:00 Received: text"];
    assert_eq!(news, expected);
    let (news, _) = look(&mut watch, &job, &[alloc(A, "pending", &["Received"])]);
    assert!(news.is_empty(), "{news:?}");
    let (news, verdict) = look(&mut watch, &job, &[alloc(A, "running", &["Received", "Started"])]);
    assert_eq!(verdict, JobVerdict::Runs);
    let expected =
        ["g[0]/t      | 00:00:00 Started: text", "allocation 0f01c0de of j.g[0] is running: why"];
    assert_eq!(news, expected);
}

#[test]
fn a_failed_job_names_the_task_and_what_it_failed_of() {
    let mut failed = alloc(A, "failed", &["Driver Failure", "Not Restarting"]);
    let task = &mut failed["TaskStates"]["t"];
    task["Failed"] = json!(true);
    task["Events"][0]["DisplayMessage"] = json!("/bin/x was not found");
    task["Events"][1]["FailsTask"] = json!(true);
    let why = |alloc: Value| watch(&[A]).failures(&[serde_json::from_value(alloc).unwrap()], false);
    assert_eq!(why(failed), "\n  task t of j.g[0] failed: /bin/x was not found");
    assert_eq!(why(alloc(A, "running", &["Started"])), "");
}

#[test]
fn what_an_allocation_was_given_is_told_with_its_place() {
    let mut given = alloc(A, "pending", &[]);
    given["AllocatedResources"] = json!({
        "Shared": {"Ports": [{"Label": "http", "Value": 8080, "To": 80, "HostIP": "::1"}]},
        "Tasks": {"t": {"Devices": [
            {"Vendor": "nvidia", "Type": "gpu", "Name": "H100", "DeviceIDs": ["a", "b"]},
        ]}},
    });
    let (news, _) = look(&mut watch(&[A]), &job(3, 1), &[given]);
    let expected = [
        "placed j.g[0] as allocation 0f01c0de",
        "  port http: ::1:8080",
        "  t: nvidia/gpu/H100 [a, b]",
    ];
    assert_eq!(news, expected);
}

#[test]
fn an_event_of_a_kind_that_only_a_newer_agent_knows_is_told() {
    let (news, _) = look(&mut watch(&[A]), &job(3, 1), &[alloc(A, "pending", &["Paused"])]);
    assert_eq!(news[1], "g[0]/t      | 00:00:00 Task hook message: Paused: text");
}

#[test]
fn what_happened_to_an_allocation_before_its_update_is_no_news() {
    let (mut watch, job) = (watch(&[]), job(3, 1));
    let (news, verdict) = look(&mut watch, &job, &[alloc(A, "running", &["Started"])]);
    assert_eq!(verdict, JobVerdict::Runs);
    assert_eq!(news, ["allocation 0f01c0de of j.g[0] is running: why"]);
}

#[test]
fn it_goes_on_until_every_place_is_filled_and_decided() {
    let (mut watch, job) = (watch(&[A, B]), job(3, 2));
    let mut verdict = |allocs: &[Value]| look(&mut watch, &job, allocs).1;
    assert_eq!(verdict(&[]), JobVerdict::Going);
    assert_eq!(verdict(&[alloc(A, "running", &[])]), JobVerdict::Going, "one place is empty");
    assert_eq!(verdict(&[alloc(A, "failed", &[]), alloc(B, "pending", &[])]), JobVerdict::Going);
    assert_eq!(verdict(&[alloc(A, "failed", &[]), alloc(B, "running", &[])]), failed(A));
    assert_eq!(verdict(&[alloc(A, "complete", &[]), alloc(B, "running", &[])]), JobVerdict::Runs);
}

#[test]
fn what_waits_for_others_ends_the_following_when_the_rest_is_decided() {
    let (mut watch, mut job) = (watch(&[A]), job(3, 3));
    job.facts.places.waiting = 2;
    let mut verdict = |status: &str| look(&mut watch, &job, &[alloc(A, status, &[])]).1;
    assert_eq!(verdict("pending"), JobVerdict::Going);
    assert_eq!(verdict("running"), JobVerdict::Waits);
    assert_eq!(verdict("failed"), failed(A));
    assert_eq!(look(&mut watch, &job, &[]).1, JobVerdict::Going, "one is on its way");
    job.facts.places.waiting = 3;
    assert_eq!(look(&mut watch, &job, &[]).1, JobVerdict::Waits);
}

#[test]
fn places_whose_allocations_were_collected_count_as_these_ended() {
    let (mut watch, mut job) = (watch(&[]), job(3, 2));
    job.facts.places.complete = 2;
    assert_eq!(look(&mut watch, &job, &[]).1, JobVerdict::Done);
    (job.facts.places.complete, job.facts.places.failed) = (1, 1);
    assert_eq!(look(&mut watch, &job, &[]).1, JobVerdict::Failed(None));
}

#[test]
fn allocations_of_other_versions_and_stopped_ones_do_not_count() {
    let (mut watch, job) = (watch(&[A]), job(3, 1));
    let mut old = alloc(A, "running", &["Started"]);
    old["JobVersion"] = json!(2);
    let mut stopped = alloc(B, "failed", &["Started"]);
    stopped["DesiredStatus"] = json!("stop");
    assert_eq!(look(&mut watch, &job, &[old, stopped]), (Vec::new(), JobVerdict::Going));
}

#[test]
fn a_newer_version_or_a_stop_overtakes() {
    let mut stopped = job(3, 1);
    stopped.facts.stop = true;
    for overtaken in [job(4, 1), stopped] {
        let (_, verdict) = look(&mut watch(&[A]), &overtaken, &[alloc(A, "running", &[])]);
        assert!(matches!(verdict, JobVerdict::Overtaken(_)), "{verdict:?}");
    }
}

#[test]
fn what_it_waits_for_is_told_when_it_changes() {
    let (mut watch, mut job) = (watch(&[]), job(3, 1));
    job.facts.status_description = "group g waits: port\x1b taken".into();
    assert_eq!(look(&mut watch, &job, &[]).0, ["group g waits: port\\u{1b} taken"]);
    assert!(look(&mut watch, &job, &[]).0.is_empty());
}

#[test]
fn what_fails_at_once_has_not_run() {
    let (mut watch, job) = (watch(&[A]), job(3, 1));
    let mut at = |status: &str, task: Value, seconds: u64| {
        let mut one = alloc(A, status, &[]);
        one["TaskStates"]["t"] = task;
        look_at(&mut watch, &job, &[one], &[], Duration::from_secs(seconds)).1
    };
    let run = |restarts: u64, state: &str| json!({ "State": state, "Restarts": restarts });
    let left = |seconds| JobVerdict::Settling(Duration::from_secs(seconds));
    assert_eq!(at("running", run(0, "running"), 10), left(5));
    assert_eq!(at("running", run(0, "running"), 13), left(2));
    // It is started again: its time begins anew.
    assert_eq!(at("running", run(1, "pending"), 14), left(5));
    assert_eq!(at("running", run(1, "pending"), 29), left(5), "it does not run while it waits");
    assert_eq!(at("running", run(1, "running"), 30), left(5));
    assert_eq!(at("pending", run(2, "pending"), 34), JobVerdict::Going);
    assert_eq!(at("running", run(2, "running"), 40), left(5));
    assert_eq!(at("running", run(2, "running"), 45), JobVerdict::Runs);
    assert_eq!(at("failed", run(2, "dead"), 46), failed(A));
}

#[test]
fn what_ran_before_it_was_followed_counts_at_once_and_what_is_complete_is_done() {
    let (mut before, one) = (watch(&[]), job(3, 1));
    let now = |watch: &mut JobWatch, alloc: Value| look_at(watch, &one, &[alloc], &[], SETTLE).1;
    assert_eq!(now(&mut before, alloc(A, "running", &[])), JobVerdict::Runs);
    assert_eq!(now(&mut before, alloc(A, "complete", &[])), JobVerdict::Done);
    // Its successor came while it was followed.
    assert_eq!(now(&mut before, alloc(B, "running", &[])), JobVerdict::Settling(SETTLE));
}

/// The deployment of the version, of one group.
fn deployment(status: &str, group: Value) -> Value {
    json!({
        "ID": "0d010000-0000-4000-8000-000000000001", "JobVersion": 3, "Status": status,
        "StatusDescription": "why", "TaskGroups": { "judged": group },
    })
}

/// With one group of three.
fn of_deployment(status: &str, group: Value, allocs: &[Value]) -> (Vec<String>, JobVerdict) {
    look_at(&mut watch(&[]), &job(3, 3), allocs, &[deployment(status, group)], Duration::ZERO)
}

#[test]
fn a_deployment_is_followed_to_its_end() {
    let three = || json!({ "DesiredTotal": 3, "HealthyAllocs": 1 });
    let one = || judged(A, "running", Some(true));
    let verdict = |status: &str, allocs: &[Value]| of_deployment(status, three(), allocs).1;
    assert_eq!(verdict("running", &[one()]), JobVerdict::Going);
    // What fails gets successors.
    let sick = judged(B, "running", Some(false));
    assert_eq!(verdict("running", &[one(), sick]), JobVerdict::Going);
    assert_eq!(verdict("running", &[one(), judged(B, "failed", None)]), JobVerdict::Going);
    assert_eq!(verdict("successful", &[one()]), JobVerdict::Runs);
    assert!(matches!(verdict("cancelled", &[one()]), JobVerdict::Overtaken(_)));
    let given_up = JobVerdict::GivenUp {
        deployment: "0d010000-0000-4000-8000-000000000001".to_owned(),
        why: "why".to_owned(),
    };
    assert_eq!(verdict("failed", &[]), given_up);
    // Also when an earlier version came back meanwhile.
    let all = [deployment("failed", three())];
    assert_eq!(look_at(&mut watch(&[]), &job(4, 3), &[], &all, SETTLE).1, given_up);
}

#[test]
fn a_deployment_of_which_nothing_comes_after_a_failure_is_over() {
    let ended = |reverts: bool, group: &str| {
        let mut failed = judged(A, "failed", None);
        failed["TaskGroup"] = json!(group);
        of_deployment("running", json!({ "DesiredTotal": 1, "AutoRevert": reverts }), &[failed]).1
    };
    assert_eq!(ended(false, "judged"), JobVerdict::Going, "it gets a successor");
    assert_eq!(ended(false, "last"), failed(A));
    assert_eq!(ended(true, "last"), JobVerdict::Going, "an earlier version comes back");
}

/// Of a group whose failed allocations get one successor.
fn once(id: &str, status: &str, more: Value) -> Value {
    let mut alloc = alloc(id, status, &[]);
    alloc["TaskGroup"] = json!("once");
    alloc["TaskStates"]["t"] = json!({"State": "dead", "FinishedAt": "2026-01-02T03:04:05Z"});
    for (key, value) in more.as_object().unwrap() {
        alloc[key] = value.clone();
    }
    alloc
}

/// What a successor has on record of the one before it.
fn after(failed: &str) -> Value {
    let time = Timestamp::parse("2026-01-02T03:04:00Z").unwrap().nanos();
    let event = json!({"RescheduleTime": time, "PrevAllocID": failed, "Delay": 5_000_000_000_u64});
    json!({"RescheduleTracker": {"Events": [event]}})
}

#[test]
fn what_failed_is_no_end_before_its_successors_have_failed_too() {
    let (mut watch, job) = (watch(&[A]), job(3, 1));
    let mut at = |seconds: u64, allocs: &[Value]| {
        look_at(&mut watch, &job, allocs, &[], Duration::from_secs(seconds))
    };
    let again = JobVerdict::Settling(Duration::from_secs(1));
    at(0, &[once(A, "running", json!({}))]);
    assert_eq!(at(10, &[once(A, "failed", json!({}))]).1, again, "nobody has decided it yet");
    let comes = json!({"FollowupEvalID": "0e"});
    let (news, verdict) = at(11, &[once(A, "failed", comes.clone())]);
    let expected =
        "another allocation will take the place of 0f01c0de; `ostler explain 0f01c0de` says when";
    assert_eq!((news, verdict), (vec![expected.to_owned()], JobVerdict::Going));
    assert_eq!(at(60, &[once(A, "failed", comes)]), (Vec::new(), JobVerdict::Going), "told once");
    let left = || once(A, "failed", json!({"DesiredStatus": "stop"}));
    let (news, verdict) = at(61, &[left(), once(B, "pending", after(A))]);
    assert_eq!(news, ["placed j.g[0] as allocation 0f02c0de, in place of 0f01c0de that failed"]);
    assert_eq!(verdict, JobVerdict::Going);
    assert_eq!(at(62, &[left(), once(B, "failed", after(A))]).1, failed(B), "that was all");
}

#[test]
fn a_successor_that_did_the_work_makes_the_job_complete() {
    let (mut watch, job) = (watch(&[A]), job(3, 1));
    let mut at = |allocs: &[Value]| look_at(&mut watch, &job, allocs, &[], SETTLE).1;
    at(&[once(A, "failed", json!({}))]);
    let left = once(A, "failed", json!({"DesiredStatus": "stop"}));
    assert_eq!(at(&[left, once(B, "complete", after(A))]), JobVerdict::Done);
}

#[test]
fn of_what_the_agent_never_says_whether_it_is_followed_it_is_not_waited_for_ever() {
    let (mut watch, job) = (watch(&[A]), job(3, 1));
    let mut at = |seconds: u64, state: &str| {
        let mut one = once(A, "failed", json!({}));
        one["TaskStates"]["t"]["State"] = json!(state);
        look_at(&mut watch, &job, &[one], &[], Duration::from_secs(seconds)).1
    };
    let again = JobVerdict::Settling(Duration::from_secs(1));
    assert_eq!(at(0, "running"), again);
    assert_eq!(at(600, "running"), again, "it is not over");
    assert_eq!(at(601, "dead"), again);
    assert_eq!(at(630, "dead"), again);
    assert_eq!(at(631, "dead"), failed(A));
}

#[test]
fn a_deployment_of_which_the_last_attempt_failed_is_over() {
    let verdict = |alloc: Value| {
        let group = json!({ "DesiredTotal": 1 });
        of_deployment("running", group, &[alloc]).1
    };
    assert_eq!(verdict(once(A, "failed", json!({}))), JobVerdict::Going);
    assert_eq!(verdict(once(B, "failed", after(A))), failed(B));
}

#[test]
fn canaries_wait_for_somebody_also_where_they_are_as_many_as_the_count() {
    let group = |canaries: u64, healthy: u64, promoted: bool, auto: bool| {
        json!({
            "DesiredTotal": 3, "DesiredCanaries": canaries, "HealthyAllocs": healthy,
            "Promoted": promoted, "AutoPromote": auto,
        })
    };
    let canary = || judged(A, "running", Some(true));
    let verdict = |group: Value| of_deployment("running", group, &[canary()]).1;
    assert_eq!(verdict(group(3, 3, false, false)), JobVerdict::Canaries);
    assert_eq!(verdict(group(3, 2, false, false)), JobVerdict::Going);
    assert_eq!(
        verdict(group(1, 1, false, true)),
        JobVerdict::Going,
        "they are accepted by themselves"
    );
    assert_eq!(verdict(group(1, 1, true, false)), JobVerdict::Going, "the rest follows");
    let since = once(B, "failed", after(A));
    let verdict = of_deployment("running", group(1, 1, false, false), &[since]).1;
    assert_eq!(verdict, failed(B), "it was healthy");
}

#[test]
fn a_paused_deployment_is_told_once_and_waited_for() {
    let (mut watch, job) = (watch(&[]), job(3, 1));
    let mut look = || {
        let all = [deployment("paused", json!({ "DesiredTotal": 1 }))];
        look_at(&mut watch, &job, &[judged(A, "running", None)], &all, SETTLE)
    };
    let (news, verdict) = look();
    assert_eq!(verdict, JobVerdict::Going);
    assert!(news.iter().any(|line| line.contains("deployment resume 0d010000")), "{news:?}");
    let (news, verdict) = look();
    assert_eq!((news, verdict), (Vec::new(), JobVerdict::Going));
}

#[test]
fn health_that_somebody_says_is_not_waited_for() {
    let (mut watch, job) = (watch(&[A]), job(3, 2));
    let all = [deployment("running", json!({ "DesiredTotal": 2 }))];
    let mut one = alloc(A, "running", &[]);
    one["TaskGroup"] = json!("hand");
    let mut at = |seconds| {
        let now = Duration::from_secs(seconds);
        look_at(&mut watch, &job, std::slice::from_ref(&one), &all, now).1
    };
    assert_eq!(at(10), JobVerdict::Settling(SETTLE));
    let of = "0d010000-0000-4000-8000-000000000001".to_owned();
    assert_eq!(at(15), JobVerdict::ByHand(of));
}

#[test]
fn a_deployment_of_which_the_rest_does_not_fit_waits() {
    let mut job = job(3, 3);
    job.facts.places.waiting = 1;
    let all = [deployment("running", json!({ "DesiredTotal": 3 }))];
    let verdict = |allocs: &[Value]| look_at(&mut watch(&[]), &job, allocs, &all, SETTLE).1;
    assert_eq!(verdict(&[]), JobVerdict::Waits);
    assert_eq!(verdict(&[judged(A, "running", None)]), JobVerdict::Going);
    assert_eq!(verdict(&[judged(A, "running", Some(true))]), JobVerdict::Waits);
}

#[test]
fn a_deployment_of_which_something_failed_for_good_and_was_collected_is_over() {
    let mut job = job(3, 2);
    let all = [deployment("running", json!({ "DesiredTotal": 2 }))];
    let verdict =
        |job: &WireJob, allocs: &[Value]| look_at(&mut watch(&[]), job, allocs, &all, SETTLE).1;
    assert_eq!(verdict(&job, &[]), JobVerdict::Going);
    job.facts.places.failed = 2;
    assert_eq!(verdict(&job, &[]), JobVerdict::Failed(None));
    assert_eq!(verdict(&job, &[alloc(A, "pending", &[])]), JobVerdict::Going, "another comes");
}

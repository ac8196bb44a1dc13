//! What is new with a job that was just registered, and when to stop following it. Pure.
//!
//! ```text
//!            every wanted allocation runs or is complete ─► Runs
//! Going ─┬─► none is pending, one failed                 ─► Failed
//!        ├─► one was judged unhealthy                    ─► Unhealthy
//!        ├─► canaries are healthy, and wait for somebody  ─► Canaries
//!        ├─► the rest waits for what others hold         ─► Waits
//!        └─► another version came, or a stop             ─► Overtaken
//! ```
//! Where the group has somebody judge (an `update` block), running is not enough: the verdict is
//! waited for. It comes within the group's `healthy_deadline`, whatever the tasks do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Deserialize as _;
use serde::de::IntoDeserializer as _;

use super::super::human::failures;
use super::super::progress::{Labels, Seen, labels};
use super::super::report::Report;
use ostler_model::alloc::{AllocState, ClientStatus, DesiredStatus};
use ostler_model::event::{EventKind, TaskEvent};
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::job::{self, HealthCheck};
use ostler_model::saved::DeploymentStatus;
use ostler_model::task::{ExitResult, TaskState};
use ostler_wire::{self as wire, Alloc, Job};

/// How far the job is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Not there yet.
    Going,
    /// All of it runs, or ran to its end.
    Runs,
    /// An allocation failed, and no other is on its way; none is named when it was collected.
    Failed(Option<AllocId>),
    /// An allocation runs and was judged unhealthy.
    Unhealthy(AllocId),
    /// What runs of it is healthy, and waits to be accepted before the rest follows.
    Canaries,
    /// What is left does not fit until something of others becomes free.
    Waits,
    /// Somebody changed the job meanwhile.
    Overtaken(String),
}

/// What was told of a job.
pub(super) struct Watch {
    version: u64,
    /// Allocations this registration made; of others, what happened before is no news.
    placed: Vec<AllocId>,
    /// Groups whose allocations are judged.
    judged: BTreeSet<String>,
    /// Somebody has to accept its canaries.
    asks: bool,
    labels: BTreeMap<String, Labels>,
    seen: BTreeMap<AllocId, Seen>,
    waits_for: String,
}

impl Watch {
    /// Nothing was told of this version of a job.
    pub(super) fn new(version: u64, placed: Vec<AllocId>, job: &job::Job) -> Self {
        let judges = |group: &&job::TaskGroup| {
            group.health.is_some_and(|policy| policy.check != HealthCheck::Manual)
        };
        let judged = job.groups.iter().filter(judges).map(|group| group.name.to_string()).collect();
        let asks = job.groups.iter().filter_map(|group| group.update);
        let asks = asks.into_iter().any(|update| update.canary > 0 && !update.auto_promote);
        let (labels, seen) = (labels(job), BTreeMap::new());
        Self { version, placed, judged, asks, labels, seen, waits_for: String::new() }
    }

    /// What is new, and how far the job is.
    pub(super) fn look(&mut self, job: &Job, allocs: &[Alloc]) -> (Vec<Report>, Verdict) {
        let mut news = Vec::new();
        if job.facts.status_description != self.waits_for {
            self.waits_for = job.facts.status_description.to_string();
            if !self.waits_for.is_empty() {
                news.push(Report::Progress { message: self.waits_for.clone() });
            }
        }
        let wanted: Vec<&Alloc> = allocs.iter().filter(|alloc| self.wanted(alloc)).collect();
        for alloc in &wanted {
            news.extend(self.news(alloc));
        }
        (news, self.verdict(job, &wanted))
    }

    /// It is of this version and shall run.
    fn wanted(&self, alloc: &Alloc) -> bool {
        alloc.version() == self.version && alloc.desired_status == DesiredStatus::Run
    }

    fn news(&mut self, alloc: &Alloc) -> Vec<Report> {
        let state = state(alloc);
        let seen = self.seen.entry(alloc.id).or_insert_with(|| {
            let labels = self.labels.get(&*alloc.name).cloned().unwrap_or_default();
            let seen = Seen::new(alloc.into(), labels);
            if self.placed.contains(&alloc.id) { seen } else { seen.since(&state) }
        });
        seen.update(&state)
    }

    /// A line for each task that failed.
    pub(super) fn failures(&self, allocs: &[Alloc]) -> String {
        let wanted = allocs.iter().filter(|alloc| self.wanted(alloc));
        wanted.map(|alloc| failures(&alloc.name, &state(alloc))).collect()
    }

    fn verdict(&self, job: &Job, wanted: &[&Alloc]) -> Verdict {
        if job.facts.version != self.version {
            let version = job.facts.version;
            return Verdict::Overtaken(format!("version {version} of the job came"));
        }
        if job.facts.stop {
            return Verdict::Overtaken("the job was stopped".to_owned());
        }
        let places: u64 = job.task_groups.iter().map(|group| u64::from(group.count)).sum();
        let is = |status| wanted.iter().filter(|alloc| alloc.client_status == status).count();
        let failed = wanted.iter().find(|alloc| alloc.client_status == ClientStatus::Failed);
        let one_failed = failed.is_some() || job.facts.places.failed > 0;
        let good = wanted.iter().filter(|alloc| self.good(alloc)).count();
        // Those that were collected did their work.
        let good = u64::try_from(good).unwrap_or(0).saturating_add(job.facts.places.complete);
        let waiting = job.facts.places.waiting;
        let unhealthy = |alloc: &&&Alloc| self.judges(alloc) && alloc.healthy() == Some(false);
        let unhealthy = wanted.iter().find(unhealthy);
        match good {
            good if good >= places => Verdict::Runs,
            _ if one_failed && is(ClientStatus::Pending) == 0 => {
                Verdict::Failed(failed.map(|alloc| alloc.id))
            }
            good => match unhealthy {
                Some(alloc) => Verdict::Unhealthy(alloc.id),
                None if self.asks && Self::awaits(wanted) => Verdict::Canaries,
                None if waiting > 0 && good.saturating_add(waiting) >= places => Verdict::Waits,
                None => Verdict::Going,
            },
        }
    }

    /// All that is there are canaries, and they are healthy.
    fn awaits(wanted: &[&Alloc]) -> bool {
        let canary = |alloc: &&Alloc| {
            let status = alloc.deployment_status.as_ref();
            status.is_some_and(|status| status.canary && status.healthy == Some(true))
        };
        !wanted.is_empty() && wanted.iter().all(canary)
    }

    fn good(&self, alloc: &Alloc) -> bool {
        match alloc.client_status {
            ClientStatus::Complete => true,
            ClientStatus::Running => !self.judges(alloc) || alloc.healthy() == Some(true),
            _ => false,
        }
    }

    fn judges(&self, alloc: &Alloc) -> bool {
        self.judged.contains(&*alloc.task_group)
    }
}

/// What became of it.
fn state(alloc: &Alloc) -> AllocState {
    let states = alloc.task_states.iter();
    let named =
        states.filter_map(|(name, of)| Some((TaskName::new(&**name).ok()?, task(of).into())));
    AllocState {
        client_status: alloc.client_status,
        client_description: alloc.why().to_owned(),
        tasks: Arc::new(named.collect()),
        health: Some(DeploymentStatus { healthy: alloc.healthy(), ..Default::default() }),
        network: None,
    }
}

/// Of a task what is told of it.
fn task(state: &wire::TaskState) -> TaskState {
    let exit = |exit: &wire::LastExit| ExitResult {
        exit_code: exit.exit_code,
        signal: exit.signal,
        oom_killed: exit.oom_killed,
        error: Some(exit.error.to_string()).filter(|error| !error.is_empty()),
    };
    let event = |event: &wire::TaskEvent| {
        let text = event.display_message.to_string();
        let known: Result<_, serde::de::value::Error> =
            EventKind::deserialize((&*event.kind).into_deserializer());
        // A kind that only a newer agent knows is told in the text.
        let (kind, text) = known.map_or_else(
            |_| (EventKind::HookMessage, format!("{}: {text}", event.kind)),
            |kind| (kind, text.clone()),
        );
        let fails_task = event.fails_task;
        TaskEvent { fails_task, ..TaskEvent::new(kind, event.time, text) }
    };
    TaskState {
        failed: state.failed,
        last_exit: state.last_exit.as_ref().map(exit),
        events: state.events.iter().map(event).collect(),
        events_total: state.events_total,
        ..TaskState::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use std::path::Path;

    use serde_json::{Value, json};

    use super::super::super::human::human;
    use super::super::super::report::Rendered;
    use super::super::super::terminal::Terminal;
    use super::*;

    const A: &str = "0f01c0de-0000-4000-8000-000000000001";
    const B: &str = "0f02c0de-0000-4000-8000-000000000002";

    fn job(version: u64, count: u64) -> Job<'static> {
        let groups = json!([{"Name": "g", "Count": count}]);
        serde_json::from_value(json!({"ID": "j", "Version": version, "TaskGroups": groups}))
            .unwrap()
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
}"#;

    fn watch(placed: &[&str]) -> Watch {
        let placed = placed.iter().map(|id| id.parse().unwrap()).collect();
        let job = ostler_jobspec::parse(FILE.as_bytes(), Path::new("j.hcl"), None).unwrap();
        Watch::new(3, placed, &job)
    }

    /// As people read it, a line each.
    fn lines(news: &[Report]) -> Vec<String> {
        let mut rendered = Rendered::default();
        news.iter().for_each(|report| human(report, &Terminal::default(), &mut rendered));
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
        assert_eq!(verdict(judged(A, "running", None), plain()), Verdict::Going);
        assert_eq!(verdict(judged(A, "running", Some(true)), plain()), Verdict::Runs);
        assert_eq!(verdict(judged(A, "complete", None), plain()), Verdict::Runs, "it did its work");
        let unhealthy = || judged(A, "running", Some(false));
        assert_eq!(verdict(unhealthy(), plain()), Verdict::Unhealthy(A.parse().unwrap()));
        assert_eq!(verdict(unhealthy(), alloc(B, "failed", &[])), failed(B));
        assert_eq!(verdict(judged(A, "failed", Some(false)), plain()), failed(A));
    }

    fn look(watch: &mut Watch, job: &Job, allocs: &[Value]) -> (Vec<String>, Verdict) {
        let allocs: Vec<Alloc> =
            allocs.iter().map(|alloc| serde_json::from_value(alloc.clone()).unwrap()).collect();
        let (news, verdict) = watch.look(job, &allocs);
        (lines(&news), verdict)
    }

    fn failed(id: &str) -> Verdict {
        Verdict::Failed(Some(id.parse().unwrap()))
    }

    #[test]
    fn news_are_told_once_and_in_order() {
        let (mut watch, job) = (watch(&[A]), job(3, 1));
        let (news, verdict) = look(&mut watch, &job, &[alloc(A, "pending", &["Received"])]);
        assert_eq!(verdict, Verdict::Going);
        let expected =
            ["placed j.g[0] as allocation 0f01c0de", "g[0]/t      | 00:00:00 Received: text"];
        assert_eq!(news, expected);
        let (news, _) = look(&mut watch, &job, &[alloc(A, "pending", &["Received"])]);
        assert!(news.is_empty(), "{news:?}");
        let (news, verdict) =
            look(&mut watch, &job, &[alloc(A, "running", &["Received", "Started"])]);
        assert_eq!(verdict, Verdict::Runs);
        let expected = [
            "g[0]/t      | 00:00:00 Started: text",
            "allocation 0f01c0de of j.g[0] is running: why",
        ];
        assert_eq!(news, expected);
    }

    #[test]
    fn a_failed_job_names_the_task_and_what_it_failed_of() {
        let mut failed = alloc(A, "failed", &["Driver Failure", "Not Restarting"]);
        let task = &mut failed["TaskStates"]["t"];
        task["Failed"] = json!(true);
        task["Events"][0]["DisplayMessage"] = json!("/bin/x was not found");
        task["Events"][1]["FailsTask"] = json!(true);
        let why = |alloc: Value| watch(&[A]).failures(&[serde_json::from_value(alloc).unwrap()]);
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
        assert_eq!(verdict, Verdict::Runs);
        assert_eq!(news, ["allocation 0f01c0de of j.g[0] is running: why"]);
    }

    #[test]
    fn it_goes_on_until_every_place_is_filled_and_decided() {
        let (mut watch, job) = (watch(&[A, B]), job(3, 2));
        let mut verdict = |allocs: &[Value]| look(&mut watch, &job, allocs).1;
        assert_eq!(verdict(&[]), Verdict::Going);
        assert_eq!(verdict(&[alloc(A, "running", &[])]), Verdict::Going, "one place is empty");
        assert_eq!(verdict(&[alloc(A, "failed", &[]), alloc(B, "pending", &[])]), Verdict::Going);
        assert_eq!(verdict(&[alloc(A, "failed", &[]), alloc(B, "running", &[])]), failed(A));
        assert_eq!(verdict(&[alloc(A, "complete", &[]), alloc(B, "running", &[])]), Verdict::Runs);
    }

    #[test]
    fn what_waits_for_others_ends_the_following_when_the_rest_is_decided() {
        let (mut watch, mut job) = (watch(&[A]), job(3, 3));
        job.facts.places.waiting = 2;
        let mut verdict = |status: &str| look(&mut watch, &job, &[alloc(A, status, &[])]).1;
        assert_eq!(verdict("pending"), Verdict::Going);
        assert_eq!(verdict("running"), Verdict::Waits);
        assert_eq!(verdict("failed"), failed(A));
        assert_eq!(look(&mut watch, &job, &[]).1, Verdict::Going, "one is on its way");
        job.facts.places.waiting = 3;
        assert_eq!(look(&mut watch, &job, &[]).1, Verdict::Waits);
    }

    #[test]
    fn places_whose_allocations_were_collected_count_as_these_ended() {
        let (mut watch, mut job) = (watch(&[]), job(3, 2));
        job.facts.places.complete = 2;
        assert_eq!(look(&mut watch, &job, &[]).1, Verdict::Runs);
        (job.facts.places.complete, job.facts.places.failed) = (1, 1);
        assert_eq!(look(&mut watch, &job, &[]).1, Verdict::Failed(None));
    }

    #[test]
    fn allocations_of_other_versions_and_stopped_ones_do_not_count() {
        let (mut watch, job) = (watch(&[A]), job(3, 1));
        let mut old = alloc(A, "running", &["Started"]);
        old["JobVersion"] = json!(2);
        let mut stopped = alloc(B, "failed", &["Started"]);
        stopped["DesiredStatus"] = json!("stop");
        assert_eq!(look(&mut watch, &job, &[old, stopped]), (Vec::new(), Verdict::Going));
    }

    #[test]
    fn a_newer_version_or_a_stop_overtakes() {
        let mut stopped = job(3, 1);
        stopped.facts.stop = true;
        for overtaken in [job(4, 1), stopped] {
            let (_, verdict) = look(&mut watch(&[A]), &overtaken, &[alloc(A, "running", &[])]);
            assert!(matches!(verdict, Verdict::Overtaken(_)), "{verdict:?}");
        }
    }

    #[test]
    fn what_it_waits_for_is_told_when_it_changes() {
        let (mut watch, mut job) = (watch(&[]), job(3, 1));
        job.facts.status_description = "group g waits: port\x1b taken".into();
        assert_eq!(look(&mut watch, &job, &[]).0, ["group g waits: port\\u{1b} taken"]);
        assert!(look(&mut watch, &job, &[]).0.is_empty());
    }
}

//! What is new with a job that was just registered, and when that is over. Pure.
//!
//! ```text
//!            every wanted allocation runs or is complete ─► Runs
//! Going ─┬─► none is pending, one failed                 ─► Failed
//!        ├─► one was judged unhealthy                    ─► Unhealthy
//!        ├─► the rest waits for what others hold         ─► Waits
//!        └─► another version came, or a stop             ─► Overtaken
//! ```
//! Where the group has somebody judge (an `update` block), running is not enough: the verdict is
//! waited for. It comes within the group's `healthy_deadline`, whatever the tasks do.

use std::collections::{BTreeMap, BTreeSet};

use super::super::terminal::one_line;
use ostler_model::alloc::{ClientStatus, DesiredStatus};
use ostler_model::event;
use ostler_model::ids::AllocId;
use ostler_wire::{Alloc, Job, TaskEvent, TaskState};

/// How far the job is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Not there yet.
    Going,
    /// All of it runs, or ran to its end.
    Runs,
    /// An allocation failed, and no other is on its way.
    Failed,
    /// An allocation runs and was judged unhealthy.
    Unhealthy,
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
    told: BTreeMap<AllocId, Told>,
    waits_for: String,
}

#[derive(Default)]
struct Told {
    status: ClientStatus,
    /// Events told of each task.
    events: BTreeMap<String, u64>,
    healthy: Option<bool>,
}

impl Watch {
    /// Nothing was told of this version of a job.
    pub(super) const fn new(version: u64, placed: Vec<AllocId>, judged: BTreeSet<String>) -> Self {
        Self { version, placed, judged, told: BTreeMap::new(), waits_for: String::new() }
    }

    /// What is new, a line each, and how far the job is.
    pub(super) fn look(&mut self, job: &Job, allocs: &[Alloc]) -> (Vec<String>, Verdict) {
        let mut news = Vec::new();
        if job.facts.status_description != self.waits_for {
            self.waits_for = job.facts.status_description.to_string();
            if !self.waits_for.is_empty() {
                news.push(one_line(&self.waits_for));
            }
        }
        let wanted: Vec<&Alloc> = allocs.iter().filter(|alloc| self.wanted(alloc)).collect();
        for alloc in &wanted {
            self.tell(alloc, &mut news);
        }
        (news, self.verdict(job, &wanted))
    }

    /// It is of this version and shall run.
    fn wanted(&self, alloc: &Alloc) -> bool {
        alloc.version() == self.version && alloc.desired_status == DesiredStatus::Run
    }

    fn tell(&mut self, alloc: &Alloc, news: &mut Vec<String>) {
        let (short, name) = (alloc.id.short(), one_line(&alloc.name));
        let first = !self.told.contains_key(&alloc.id);
        let old = first && !self.placed.contains(&alloc.id);
        let told = self.told.entry(alloc.id).or_default();
        if first && !old {
            news.push(format!("allocation {short} of {name} is placed"));
        }
        let mut events = Vec::new();
        for (task, state) in &alloc.task_states {
            let seen = told.events.insert(task.to_string(), state.events_total).unwrap_or(0);
            if !old {
                events.extend(fresh(state, seen).iter().map(|event| (task, event)));
            }
        }
        // Stable: events of one task stay in their order.
        events.sort_by_key(|(_, event)| event.time);
        news.extend(events.into_iter().map(|(task, event)| line(&short, task, event)));
        if alloc.client_status != told.status {
            told.status = alloc.client_status;
            let (status, why) = (alloc.client_status, one_line(alloc.why()));
            news.push(format!("allocation {short} of {name} is {status}: {why}"));
        }
        let healthy = alloc.healthy();
        if healthy != told.healthy {
            told.healthy = healthy;
            if let Some(healthy) = healthy {
                let word = if healthy { "healthy" } else { "unhealthy" };
                news.push(format!("allocation {short} of {name} is {word}"));
            }
        }
    }

    /// What the first task that failed did so of: `task init: Exit Code: 7`.
    pub(super) fn why_failed(&self, allocs: &[Alloc]) -> Option<String> {
        let wanted = allocs.iter().filter(|alloc| self.wanted(alloc));
        let mut tasks = wanted.flat_map(|alloc| &alloc.task_states).filter(|(_, task)| task.failed);
        tasks.find_map(|(name, task)| {
            let kinds: Vec<_> = task.events.iter().map(|e| (&*e.kind, e.fails_task)).collect();
            let event = task.events.get(event::says_why(&kinds)?)?;
            Some(one_line(&format!("task {name}: {}", event.display_message)))
        })
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
        let failed = is(ClientStatus::Failed) > 0 || job.facts.places.failed > 0;
        let good = wanted.iter().filter(|alloc| self.good(alloc)).count();
        // Those that were collected did their work.
        let good = u64::try_from(good).unwrap_or(0).saturating_add(job.facts.places.complete);
        let waiting = job.facts.places.waiting;
        let unhealthy = |alloc: &&Alloc| self.judges(alloc) && alloc.healthy() == Some(false);
        match good {
            good if good >= places => Verdict::Runs,
            _ if failed && is(ClientStatus::Pending) == 0 => Verdict::Failed,
            _ if wanted.iter().copied().any(|alloc| unhealthy(&alloc)) => Verdict::Unhealthy,
            good if waiting > 0 && good.saturating_add(waiting) >= places => Verdict::Waits,
            _ => Verdict::Going,
        }
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

/// The events after the first `seen` that ever were, as far as they are kept.
fn fresh<'a>(state: &'a TaskState<'_>, seen: u64) -> &'a [TaskEvent<'a>] {
    let kept = u64::try_from(state.events.len()).unwrap_or(u64::MAX);
    // An agent that does not count has at least those it shows.
    let total = state.events_total.max(kept);
    let gone = total - kept;
    let begin = usize::try_from(seen.saturating_sub(gone)).unwrap_or(usize::MAX);
    state.events.get(begin..).unwrap_or_default()
}

fn line(alloc: &str, task: &str, event: &TaskEvent) -> String {
    let time = event.time.to_string();
    // Of 2026-01-02T03:04:05Z the time of day.
    let time = time.get(11..19).unwrap_or(&time);
    let (task, kind) = (one_line(task), one_line(&event.kind));
    match one_line(&event.display_message) {
        message if message.is_empty() => format!("  {alloc} {task} | {time} {kind}"),
        message => format!("  {alloc} {task} | {time} {kind}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use serde_json::{Value, json};

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

    fn watch(placed: &[&str]) -> Watch {
        let placed = placed.iter().map(|id| id.parse().unwrap()).collect();
        Watch::new(3, placed, BTreeSet::from(["judged".to_owned()]))
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
        assert_eq!(verdict(unhealthy(), plain()), Verdict::Unhealthy);
        assert_eq!(verdict(unhealthy(), alloc(B, "failed", &[])), Verdict::Failed);
        assert_eq!(verdict(judged(A, "failed", Some(false)), plain()), Verdict::Failed);
    }

    fn look(watch: &mut Watch, job: &Job, allocs: &[Value]) -> (Vec<String>, Verdict) {
        let allocs: Vec<Alloc> =
            allocs.iter().map(|alloc| serde_json::from_value(alloc.clone()).unwrap()).collect();
        watch.look(job, &allocs)
    }

    #[test]
    fn news_are_told_once_and_in_order() {
        let (mut watch, job) = (watch(&[A]), job(3, 1));
        let (news, verdict) = look(&mut watch, &job, &[alloc(A, "pending", &["Received"])]);
        assert_eq!(verdict, Verdict::Going);
        let expected =
            ["allocation 0f01c0de of j.g[0] is placed", "  0f01c0de t | 00:00:00 Received: text"];
        assert_eq!(news, expected);
        let (news, _) = look(&mut watch, &job, &[alloc(A, "pending", &["Received"])]);
        assert!(news.is_empty(), "{news:?}");
        let (news, verdict) =
            look(&mut watch, &job, &[alloc(A, "running", &["Received", "Started"])]);
        assert_eq!(verdict, Verdict::Runs);
        let expected = [
            "  0f01c0de t | 00:00:00 Started: text",
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
        let why = |alloc: Value| watch(&[A]).why_failed(&[serde_json::from_value(alloc).unwrap()]);
        assert_eq!(why(failed).as_deref(), Some("task t: /bin/x was not found"));
        assert_eq!(why(alloc(A, "running", &["Started"])), None);
    }

    #[test]
    fn what_happened_to_an_allocation_before_its_update_is_no_news() {
        let (mut watch, job) = (watch(&[]), job(3, 1));
        let (news, verdict) = look(&mut watch, &job, &[alloc(A, "running", &["Started"])]);
        assert_eq!(verdict, Verdict::Runs);
        assert_eq!(news, ["allocation 0f01c0de of j.g[0] is running: why"]);
    }

    #[test]
    fn it_goes_on_until_every_place_is_filled_and_settled() {
        let (mut watch, job) = (watch(&[A, B]), job(3, 2));
        let mut verdict = |allocs: &[Value]| look(&mut watch, &job, allocs).1;
        assert_eq!(verdict(&[]), Verdict::Going);
        assert_eq!(verdict(&[alloc(A, "running", &[])]), Verdict::Going, "one place is empty");
        assert_eq!(verdict(&[alloc(A, "failed", &[]), alloc(B, "pending", &[])]), Verdict::Going);
        assert_eq!(verdict(&[alloc(A, "failed", &[]), alloc(B, "running", &[])]), Verdict::Failed);
        assert_eq!(verdict(&[alloc(A, "complete", &[]), alloc(B, "running", &[])]), Verdict::Runs);
    }

    #[test]
    fn what_waits_for_others_ends_the_following_when_the_rest_has_settled() {
        let (mut watch, mut job) = (watch(&[A]), job(3, 3));
        job.facts.places.waiting = 2;
        let mut verdict = |status: &str| look(&mut watch, &job, &[alloc(A, status, &[])]).1;
        assert_eq!(verdict("pending"), Verdict::Going);
        assert_eq!(verdict("running"), Verdict::Waits);
        assert_eq!(verdict("failed"), Verdict::Failed);
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
        assert_eq!(look(&mut watch, &job, &[]).1, Verdict::Failed);
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
    fn events_beyond_those_kept_are_not_told_twice() {
        let event = |kind: &str| TaskEvent { kind: kind.to_owned().into(), ..TaskEvent::default() };
        let state = TaskState {
            events: vec![event("c"), event("d")],
            events_total: 4,
            ..TaskState::default()
        };
        let kinds = |seen| fresh(&state, seen).iter().map(|e| e.kind.clone()).collect::<String>();
        assert_eq!([0, 2, 3, 4, 9].map(kinds), ["cd", "cd", "d", "", ""]);
    }

    #[test]
    fn what_it_waits_for_is_told_when_it_changes() {
        let (mut watch, mut job) = (watch(&[]), job(3, 1));
        job.facts.status_description = "group g waits: port\x1b taken".into();
        assert_eq!(look(&mut watch, &job, &[]).0, ["group g waits: port\\u{1b} taken"]);
        assert!(look(&mut watch, &job, &[]).0.is_empty());
    }
}

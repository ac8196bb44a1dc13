//! The news of a job that was just registered, and when to stop following it. Pure.
//!
//! ```text
//!   its version has a deployment, which decides (`deployment_verdict`)
//!   else       every wanted allocation is complete         ─► Done
//! Going ─┬─►   every one runs, and has for a while, or is complete ─► Runs
//!   ▲    ├─►   none is pending, one failed for good        ─► Failed
//!   │    ├─►   one was judged unhealthy                    ─► Unhealthy
//!   │    ├─►   the rest waits for what others hold         ─► Waits
//!   │    └─►   another version came, or a stop             ─► Overtaken
//!   └────────  all run, not long enough; one failed, and
//!              what comes after it is not decided (`successor`) ─► Settling
//! ```
//! Where the health of a group is judged (an `update` block), running is not enough: this waits for
//! the verdict. It comes within the group's `healthy_deadline`, whatever the tasks do. Where health
//! is not judged, the allocations must run for a while: a task that fails at once runs for a moment
//! too.

mod deployment_verdict;
mod successor;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize as _;
use serde::de::IntoDeserializer as _;

use crate::human::failures;
use crate::progress::{AllocProgress, Labels, labels};
use crate::report::RunReport;
use ostler_model::alloc::{AllocState, ClientStatus, DesiredStatus};
use ostler_model::event::{EventKind, TaskEvent};
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::job::{self, HealthCheck};
use ostler_model::rollout::ReschedulePolicy;
use ostler_model::saved::DeploymentStatus;
use ostler_model::task::{ExitResult, TaskState, TaskStatus};
use ostler_wire::{self as wire, Alloc, WireDeployment, WireJob};

/// How far the job has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum JobVerdict {
    /// The outcome is still open.
    Going,
    /// Time decides the outcome: all of the job runs and must go on for this long, or an allocation
    /// failed and this is the time until the next check whether another takes its place.
    Settling(Duration),
    /// All of the job runs, or ran to its end.
    Runs,
    /// All of the job ran to its end.
    Done,
    /// An allocation failed for good and no other is on its way; `None` when it
    /// was already removed.
    Failed(Option<AllocId>),
    /// An allocation runs and was judged unhealthy.
    Unhealthy(AllocId),
    /// The deployment of the version failed.
    GivenUp {
        /// The id of the deployment.
        deployment: String,
        /// Why it failed, and whether an earlier version comes back.
        why: String,
    },
    /// The canaries are healthy and wait for somebody to promote them before the rest follows.
    Canaries,
    /// Allocations run and wait for somebody to say to the deployment with this id whether
    /// they are healthy.
    ByHand(String),
    /// The rest does not fit until resources that others hold become free.
    Waits,
    /// Somebody changed the job meanwhile; the text says how.
    Overtaken(String),
}

/// A job with its allocations and deployments at one moment.
pub(super) struct JobSnapshot<'a> {
    pub job: &'a WireJob<'a>,
    /// All allocations of the job, also those of earlier versions.
    pub allocs: &'a [Alloc<'a>],
    /// All deployments that are kept, newest first.
    pub deployments: &'a [WireDeployment<'a>],
    /// The time of a clock that never goes back.
    pub now: Duration,
}

/// What is known of a job that is followed, and what of it was reported.
pub(super) struct JobWatch {
    version: u64,
    /// Allocations that this registration placed. Earlier events of others are no news.
    placed: Vec<AllocId>,
    /// Groups for whose allocations the agent judges the health.
    judged: BTreeSet<String>,
    /// Groups for whose allocations a person says whether they are healthy.
    by_hand: BTreeSet<String>,
    /// By group: when a failed allocation gets a successor.
    reschedule: BTreeMap<String, ReschedulePolicy>,
    /// How long allocations must run whose health nobody judges.
    settle: Duration,
    /// The tasks of running allocations, and since when they are unchanged.
    steady: BTreeMap<AllocId, SteadyTasks>,
    /// Since when no task runs any more, for each failed allocation.
    ended: BTreeMap<AllocId, Duration>,
    /// Failed allocations whose successor was reported.
    followed: BTreeSet<AllocId>,
    /// Allocations that were there before this registration.
    before: BTreeSet<AllocId>,
    looked: bool,
    labels: BTreeMap<String, Labels>,
    seen: BTreeMap<AllocId, AllocProgress>,
    waits_for: String,
    told_paused: bool,
}

/// The tasks of an allocation, and since when they are unchanged.
struct SteadyTasks {
    tasks: Vec<(TaskStatus, u64, Option<String>)>,
    /// The time of the last change; `None` when it was before the first snapshot.
    since: Option<Duration>,
}

impl JobWatch {
    /// Begin to follow this version of a job; nothing of it was reported yet.
    pub(super) fn new(
        version: u64,
        placed: Vec<AllocId>,
        job: &job::Job,
        settle: Duration,
    ) -> Self {
        let named = |wanted: &dyn Fn(&job::TaskGroup) -> bool| {
            let groups = job.groups.iter().filter(|group| wanted(group));
            groups.map(|group| group.name.to_string()).collect::<BTreeSet<_>>()
        };
        let check = |group: &job::TaskGroup| group.health.map(|policy| policy.check);
        let reschedule = job.groups.iter().map(|group| (group.name.to_string(), group.reschedule));
        Self {
            version,
            placed,
            judged: named(&|group| check(group).is_some_and(|check| check != HealthCheck::Manual)),
            by_hand: named(&|group| check(group) == Some(HealthCheck::Manual)),
            reschedule: reschedule.collect(),
            settle,
            steady: BTreeMap::new(),
            ended: BTreeMap::new(),
            followed: BTreeSet::new(),
            before: BTreeSet::new(),
            looked: false,
            labels: labels(job),
            seen: BTreeMap::new(),
            waits_for: String::new(),
            told_paused: false,
        }
    }

    /// The news in a snapshot, and how far the job has come.
    pub(super) fn update(&mut self, looked: &JobSnapshot<'_>) -> (Vec<RunReport>, JobVerdict) {
        let (job, mut news) = (looked.job, Vec::new());
        if job.facts.status_description != self.waits_for {
            self.waits_for = job.facts.status_description.to_string();
            if !self.waits_for.is_empty() {
                news.push(RunReport::Progress { message: self.waits_for.clone() });
            }
        }
        if !self.looked {
            let others = looked.allocs.iter().filter(|alloc| !self.placed.contains(&alloc.id));
            self.before = others.map(|alloc| alloc.id).collect();
        }
        let wanted: Vec<&Alloc> =
            looked.allocs.iter().filter(|alloc| self.is_wanted(alloc)).collect();
        for alloc in &wanted {
            news.extend(self.alloc_news(alloc));
            self.note_steady(alloc, looked.now);
            self.note_ended(alloc, looked.now);
            news.extend(self.successor_news(alloc, looked.now));
        }
        self.looked = true;
        let own = looked.deployments.iter().find(|one| self.is_own_deployment(one, job));
        news.extend(own.and_then(|deployment| self.paused_news(deployment)));
        (news, self.verdict(looked, own, &wanted))
    }

    /// Does this deployment bring the version that is followed?
    fn is_own_deployment(&self, deployment: &WireDeployment, job: &WireJob) -> bool {
        deployment.job_version == self.version
            && deployment.job_create_index == job.facts.create_index
    }

    /// Is the allocation of the followed version, and is it to run?
    fn is_wanted(&self, alloc: &Alloc) -> bool {
        alloc.version() == self.version && alloc.desired_status == DesiredStatus::Run
    }

    fn alloc_news(&mut self, alloc: &Alloc) -> Vec<RunReport> {
        let state = alloc_state(alloc);
        let seen = self.seen.entry(alloc.id).or_insert_with(|| {
            let labels = self.labels.get(&*alloc.name).cloned().unwrap_or_default();
            let seen = AllocProgress::new(alloc.into(), labels);
            if self.before.contains(&alloc.id) { seen.skip_known(&state) } else { seen }
        });
        seen.update(&state)
    }

    fn note_steady(&mut self, alloc: &Alloc, now: Duration) {
        if alloc.client_status != ClientStatus::Running {
            self.steady.remove(&alloc.id);
            return;
        }
        let tasks = alloc.task_states.values();
        let last = |task: &wire::WireTaskState| task.last_restart.as_deref().map(str::to_owned);
        let tasks: Vec<_> = tasks.map(|task| (task.state, task.restarts, last(task))).collect();
        let before = !self.looked && self.before.contains(&alloc.id);
        let since = if before { None } else { Some(now) };
        let known = self
            .steady
            .entry(alloc.id)
            .or_insert_with(|| SteadyTasks { tasks: tasks.clone(), since });
        if known.tasks != tasks {
            *known = SteadyTasks { tasks, since: Some(now) };
        }
    }

    /// How much longer an allocation has to run until it counts as running.
    fn settle_remaining(&self, alloc: &Alloc, now: Duration) -> Duration {
        let Some(known) = self.steady.get(&alloc.id) else { return self.settle };
        let Some(since) = known.since else { return Duration::ZERO };
        let waits = |(state, restarts, _): &(TaskStatus, u64, Option<String>)| {
            *state == TaskStatus::Pending && *restarts > 0
        };
        if known.tasks.iter().any(waits) {
            self.settle
        } else {
            self.settle.saturating_sub(now.saturating_sub(since))
        }
    }

    /// A line for each failed task of the allocations that are to run; with `ended` also of others.
    pub(super) fn failures(&self, allocs: &[Alloc], ended: bool) -> String {
        let of_version = |alloc: &&Alloc| alloc.version() == self.version;
        let wanted =
            allocs.iter().filter(of_version).filter(|alloc| ended || self.is_wanted(alloc));
        wanted.map(|alloc| failures(&alloc.name, &alloc_state(alloc))).collect()
    }

    fn verdict(
        &self,
        looked: &JobSnapshot<'_>,
        deployment: Option<&WireDeployment>,
        wanted: &[&Alloc],
    ) -> JobVerdict {
        if let Some(given_up) = deployment.and_then(deployment_verdict::failed_verdict) {
            return given_up;
        }
        let facts = &looked.job.facts;
        if facts.version != self.version {
            return JobVerdict::Overtaken(format!(
                "version {} of the job was registered",
                facts.version
            ));
        }
        if facts.stop {
            return JobVerdict::Overtaken("the job was stopped".to_owned());
        }
        match deployment {
            Some(deployment) => self.deployed_verdict(deployment, looked, wanted),
            None => self.undeployed_verdict(looked, wanted),
        }
    }

    /// The verdict on a version without a deployment.
    fn undeployed_verdict(&self, looked: &JobSnapshot<'_>, wanted: &[&Alloc]) -> JobVerdict {
        let (job, counted) = (looked.job, &looked.job.facts.places);
        let places: u64 = job.task_groups.iter().map(|group| u64::from(group.count)).sum();
        let complete = Self::count_with_status(wanted, ClientStatus::Complete)
            .saturating_add(counted.complete);
        let good = wanted.iter().filter(|alloc| self.is_good(alloc)).count();
        // Complete allocations that were removed have done their work.
        let good = u64::try_from(good).unwrap_or(0).saturating_add(counted.complete);
        let failed = self.find_failed_for_good(wanted, looked.now);
        let one_failed = failed.is_some() || counted.failed > 0;
        let unhealthy = |alloc: &&&Alloc| self.is_judged(alloc) && alloc.healthy() == Some(false);
        let unhealthy = wanted.iter().find(unhealthy);
        let runs = wanted.iter().filter(|alloc| alloc.client_status == ClientStatus::Running);
        let left = runs.filter(|alloc| !self.is_judged(alloc));
        let left =
            left.map(|alloc| self.settle_remaining(alloc, looked.now)).max().unwrap_or_default();
        match good {
            _ if complete >= places => JobVerdict::Done,
            good if good >= places && !left.is_zero() => JobVerdict::Settling(left),
            good if good >= places => JobVerdict::Runs,
            _ if one_failed && Self::count_with_status(wanted, ClientStatus::Pending) == 0 => {
                JobVerdict::Failed(failed.map(|alloc| alloc.id))
            }
            good => match unhealthy {
                Some(alloc) => JobVerdict::Unhealthy(alloc.id),
                None if counted.waiting > 0 && good.saturating_add(counted.waiting) >= places => {
                    JobVerdict::Waits
                }
                None => self
                    .next_look(wanted, looked.now)
                    .map_or(JobVerdict::Going, JobVerdict::Settling),
            },
        }
    }

    /// The number of allocations with this status.
    fn count_with_status(wanted: &[&Alloc], status: ClientStatus) -> u64 {
        let having = wanted.iter().filter(|alloc| alloc.client_status == status);
        u64::try_from(having.count()).unwrap_or(u64::MAX)
    }

    fn is_good(&self, alloc: &Alloc) -> bool {
        match alloc.client_status {
            ClientStatus::Complete => true,
            ClientStatus::Running => !self.is_judged(alloc) || alloc.healthy() == Some(true),
            _ => false,
        }
    }

    fn is_judged(&self, alloc: &Alloc) -> bool {
        self.judged.contains(&*alloc.task_group)
    }
}

/// The state of an allocation, from the API.
fn alloc_state(alloc: &Alloc) -> AllocState {
    let states = alloc.task_states.iter();
    let named =
        states.filter_map(|(name, of)| Some((TaskName::new(&**name).ok()?, task_state(of).into())));
    AllocState {
        client_status: alloc.client_status,
        client_description: alloc.description().to_owned(),
        tasks: Arc::new(named.collect()),
        health: Some(DeploymentStatus { healthy: alloc.healthy(), ..Default::default() }),
        network: None,
    }
}

/// The state of a task, from the API, as far as it is reported.
fn task_state(state: &wire::WireTaskState) -> TaskState {
    let exit = |exit: &wire::LastExit| ExitResult {
        exit_code: exit.exit_code,
        signal: exit.signal,
        oom_killed: exit.oom_killed,
        error: Some(exit.error.to_string()).filter(|error| !error.is_empty()),
    };
    let event = |event: &wire::WireTaskEvent| {
        let text = event.display_message.to_string();
        let known: Result<_, serde::de::value::Error> =
            EventKind::deserialize((&*event.kind).into_deserializer());
        // A kind of event that only a newer agent knows is put into the text.
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
mod tests;

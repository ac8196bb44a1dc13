//! What is new with a job that was just registered, and when to stop following it. Pure.
//!
//! ```text
//!   its version is deployed: the deployment decides (`deployed`)
//!   else       every wanted allocation is complete         ─► Done
//! Going ─┬─►   every one runs, and has for a while, or is complete ─► Runs
//!   ▲    ├─►   none is pending, one failed for good        ─► Failed
//!   │    ├─►   one was judged unhealthy                    ─► Unhealthy
//!   │    ├─►   the rest waits for what others hold         ─► Waits
//!   │    └─►   another version came, or a stop             ─► Overtaken
//!   └────────  all run, not long enough; one failed, and
//!              what comes after it is not decided (`successor`) ─► Settling
//! ```
//! Where the group has somebody judge (an `update` block), running is not enough: the verdict is
//! waited for. It comes within the group's `healthy_deadline`, whatever the tasks do. Where nobody judges,
//! what runs must go on for a while: a task that fails at once runs for a moment too.

mod deployed;
mod successor;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize as _;
use serde::de::IntoDeserializer as _;

use super::super::human::failures;
use super::super::progress::{Labels, Seen, labels};
use super::super::report::Report;
use ostler_model::alloc::{AllocState, ClientStatus, DesiredStatus};
use ostler_model::event::{EventKind, TaskEvent};
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::job::{self, HealthCheck};
use ostler_model::rollout::ReschedulePolicy;
use ostler_model::saved::DeploymentStatus;
use ostler_model::task::{ExitResult, TaskState, TaskStatus};
use ostler_wire::{self as wire, Alloc, Deployment, Job};

/// How far the job is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Not there yet.
    Going,
    /// Time decides it: all of it runs, and counts when it has for so much longer; or one failed, and it is to be
    /// looked at again then whether another takes its place.
    Settling(Duration),
    /// All of it runs, or ran to its end.
    Runs,
    /// All of it ran to its end.
    Done,
    /// An allocation failed for good, and no other is on its way; none is named when it was collected.
    Failed(Option<AllocId>),
    /// An allocation runs and was judged unhealthy.
    Unhealthy(AllocId),
    /// The deployment of the version failed.
    GivenUp {
        /// Which.
        deployment: String,
        /// Why, and whether an earlier version comes back.
        why: String,
    },
    /// What runs of it is healthy, and waits to be accepted before the rest follows.
    Canaries,
    /// What runs of it waits for somebody to say to this deployment whether it is healthy.
    ByHand(String),
    /// What is left does not fit until something of others becomes free.
    Waits,
    /// Somebody changed the job meanwhile.
    Overtaken(String),
}

/// A job at one moment.
pub(super) struct Looked<'a> {
    pub job: &'a Job<'a>,
    /// All of it, of earlier versions too.
    pub allocs: &'a [Alloc<'a>],
    /// All that are kept, newest first.
    pub deployments: &'a [Deployment<'a>],
    /// On a clock that only goes on.
    pub now: Duration,
}

/// What was told of a job.
pub(super) struct Watch {
    version: u64,
    /// Allocations this registration made; of others, what happened before is no news.
    placed: Vec<AllocId>,
    /// Groups whose allocations are judged.
    judged: BTreeSet<String>,
    /// Groups of whose allocations somebody says whether they are healthy.
    by_hand: BTreeSet<String>,
    /// By group: when what failed gets a successor.
    reschedule: BTreeMap<String, ReschedulePolicy>,
    /// How long what nobody judges must run.
    settle: Duration,
    /// Since when allocations run as they do now.
    steady: BTreeMap<AllocId, Steady>,
    /// Since when nothing runs of those that failed.
    ended: BTreeMap<AllocId, Duration>,
    /// Those whose successor was told of.
    followed: BTreeSet<AllocId>,
    /// Those that were there before this registration.
    before: BTreeSet<AllocId>,
    looked: bool,
    labels: BTreeMap<String, Labels>,
    seen: BTreeMap<AllocId, Seen>,
    waits_for: String,
    told_paused: bool,
}

/// Tasks of an allocation as they were, and since when.
struct Steady {
    tasks: Vec<(TaskStatus, u64, Option<String>)>,
    /// None: before anybody looked.
    since: Option<Duration>,
}

impl Watch {
    /// Nothing was told of this version of a job.
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

    /// What is new, and how far the job is.
    pub(super) fn look(&mut self, looked: &Looked<'_>) -> (Vec<Report>, Verdict) {
        let (job, mut news) = (looked.job, Vec::new());
        if job.facts.status_description != self.waits_for {
            self.waits_for = job.facts.status_description.to_string();
            if !self.waits_for.is_empty() {
                news.push(Report::Progress { message: self.waits_for.clone() });
            }
        }
        if !self.looked {
            let others = looked.allocs.iter().filter(|alloc| !self.placed.contains(&alloc.id));
            self.before = others.map(|alloc| alloc.id).collect();
        }
        let wanted: Vec<&Alloc> = looked.allocs.iter().filter(|alloc| self.wanted(alloc)).collect();
        for alloc in &wanted {
            news.extend(self.news(alloc));
            self.note_steady(alloc, looked.now);
            self.note_ended(alloc, looked.now);
            news.extend(self.follows(alloc, looked.now));
        }
        self.looked = true;
        let own = looked.deployments.iter().find(|one| self.brings(one, job));
        news.extend(own.and_then(|deployment| self.paused(deployment)));
        (news, self.verdict(looked, own, &wanted))
    }

    /// Is this the deployment of the version that is followed?
    fn brings(&self, deployment: &Deployment, job: &Job) -> bool {
        deployment.job_version == self.version
            && deployment.job_create_index == job.facts.create_index
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
            if self.before.contains(&alloc.id) { seen.since(&state) } else { seen }
        });
        seen.update(&state)
    }

    fn note_steady(&mut self, alloc: &Alloc, now: Duration) {
        if alloc.client_status != ClientStatus::Running {
            self.steady.remove(&alloc.id);
            return;
        }
        let tasks = alloc.task_states.values();
        let last = |task: &wire::TaskState| task.last_restart.as_deref().map(str::to_owned);
        let tasks: Vec<_> = tasks.map(|task| (task.state, task.restarts, last(task))).collect();
        let before = !self.looked && self.before.contains(&alloc.id);
        let since = if before { None } else { Some(now) };
        let known =
            self.steady.entry(alloc.id).or_insert_with(|| Steady { tasks: tasks.clone(), since });
        if known.tasks != tasks {
            *known = Steady { tasks, since: Some(now) };
        }
    }

    /// How much longer an allocation has to run until it counts.
    fn unsettled(&self, alloc: &Alloc, now: Duration) -> Duration {
        let Some(known) = self.steady.get(&alloc.id) else { return self.settle };
        let Some(since) = known.since else { return Duration::ZERO };
        let waits = |(state, restarts, _): &(TaskStatus, u64, Option<String>)| {
            *state == TaskStatus::Pending && *restarts > 0
        };
        match known.tasks.iter().any(waits) {
            true => self.settle,
            false => self.settle.saturating_sub(now.saturating_sub(since)),
        }
    }

    /// A line for each task that failed, of what shall run; `ended`: also of what does not any more.
    pub(super) fn failures(&self, allocs: &[Alloc], ended: bool) -> String {
        let of_version = |alloc: &&Alloc| alloc.version() == self.version;
        let wanted = allocs.iter().filter(of_version).filter(|alloc| ended || self.wanted(alloc));
        wanted.map(|alloc| failures(&alloc.name, &state(alloc))).collect()
    }

    fn verdict(
        &self,
        looked: &Looked<'_>,
        deployment: Option<&Deployment>,
        wanted: &[&Alloc],
    ) -> Verdict {
        if let Some(given_up) = deployment.and_then(deployed::given_up) {
            return given_up;
        }
        let facts = &looked.job.facts;
        if facts.version != self.version {
            return Verdict::Overtaken(format!("version {} of the job came", facts.version));
        }
        if facts.stop {
            return Verdict::Overtaken("the job was stopped".to_owned());
        }
        match deployment {
            Some(deployment) => self.deployed(deployment, looked, wanted),
            None => self.alone(looked, wanted),
        }
    }

    /// Of a version that is not deployed.
    fn alone(&self, looked: &Looked<'_>, wanted: &[&Alloc]) -> Verdict {
        let (job, counted) = (looked.job, &looked.job.facts.places);
        let places: u64 = job.task_groups.iter().map(|group| u64::from(group.count)).sum();
        let complete = Self::with(wanted, ClientStatus::Complete).saturating_add(counted.complete);
        let good = wanted.iter().filter(|alloc| self.good(alloc)).count();
        // Those that were collected did their work.
        let good = u64::try_from(good).unwrap_or(0).saturating_add(counted.complete);
        let failed = self.failed_for_good(wanted, looked.now);
        let one_failed = failed.is_some() || counted.failed > 0;
        let unhealthy = |alloc: &&&Alloc| self.judges(alloc) && alloc.healthy() == Some(false);
        let unhealthy = wanted.iter().find(unhealthy);
        let runs = wanted.iter().filter(|alloc| alloc.client_status == ClientStatus::Running);
        let left = runs.filter(|alloc| !self.judges(alloc));
        let left = left.map(|alloc| self.unsettled(alloc, looked.now)).max().unwrap_or_default();
        match good {
            _ if complete >= places => Verdict::Done,
            good if good >= places && !left.is_zero() => Verdict::Settling(left),
            good if good >= places => Verdict::Runs,
            _ if one_failed && Self::with(wanted, ClientStatus::Pending) == 0 => {
                Verdict::Failed(failed.map(|alloc| alloc.id))
            }
            good => match unhealthy {
                Some(alloc) => Verdict::Unhealthy(alloc.id),
                None if counted.waiting > 0 && good.saturating_add(counted.waiting) >= places => {
                    Verdict::Waits
                }
                None => {
                    self.undecided(wanted, looked.now).map_or(Verdict::Going, Verdict::Settling)
                }
            },
        }
    }

    /// How many have this status.
    fn with(wanted: &[&Alloc], status: ClientStatus) -> u64 {
        let having = wanted.iter().filter(|alloc| alloc.client_status == status);
        u64::try_from(having.count()).unwrap_or(u64::MAX)
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
mod tests;

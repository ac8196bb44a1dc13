//! The machine against a node in memory: what it says is carried out at once, late, or badly.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod assigned;
mod changes;
mod collecting;
mod deploying;
mod large;
mod leaving;
mod lower_count;
mod many;
mod node_drain;
mod overtaking;
mod planning;
mod purging;
mod random;
mod replaced_canaries;
mod rescheduling;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::gc::choice::{FsUse, GcPolicy};
use crate::tables::{AllocReport, AllocVerdict, NodeTables};
use crate::unowned_runs::UnownedRuns;
use crate::views::{AgentStage, RegisterOptions};
use crate::{JobStatus, SubmitError};
use ostler_model::alloc::{Allocation, ClientStatus, DesiredStatus};
use ostler_model::device::{Health, HealthState};
use ostler_model::ids::{AllocId, JobId, PluginName};
use ostler_model::job::{Job, Task, TaskGroup};
use ostler_model::resources::Resources;
use ostler_model::rng::Rng;
use ostler_model::rollout::{JobDeployments, JobVersions};
use ostler_model::saved::{JobOrigin, JobRecord, SavedAllocState};
use ostler_model::scheduling::NodeScheduling;
use ostler_model::time::Timestamp;
use ostler_node::{DriverView, NodeId, NodeTotals, NodeView};
use ostler_state::StateError;
use ostler_testing::fixtures;

const SECOND: Duration = Duration::from_secs(1);

/// What the disk does with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disk {
    Works,
    Fails,
    /// It answers when [`Play::disk_answers`] is called.
    Hangs,
}

/// An owner of an allocation, as far as the machine sees one.
#[derive(Clone, Debug)]
pub(super) struct FakeOwner {
    pub(super) newest: Arc<Allocation>,
    pub(super) told: u32,
    pub(super) hurried: bool,
    pub(super) ended: bool,
}

/// The machine and a node in memory.
pub(super) struct Play {
    pub(super) machine: Machine,
    pub(super) uptime: Duration,
    pub(super) view: NodeView,
    pub(super) rng: Rng,
    pub(super) disk: Disk,
    pub(super) fs: Option<FsUse>,
    /// Batches that wait for the disk.
    hanging: Vec<(BatchId, Vec<Write>)>,
    pub(super) owners: BTreeMap<AllocId, FakeOwner>,
    pub(super) answers: BTreeMap<RequestId, ControlAnswer>,
    asked: RequestId,
    /// Removals are answered by [`Play::removed`].
    pub(super) slow_removals: bool,
    pub(super) removing: BTreeSet<AllocId>,
    pub(super) removed: Vec<AllocId>,
    pub(super) measures: u32,
    /// Records as they are on disk.
    pub(super) records: BTreeMap<String, Option<Arc<Allocation>>>,
    pub(super) jobs: BTreeMap<JobId, Arc<JobRecord>>,
    pub(super) versions: BTreeMap<JobId, JobVersions>,
    pub(super) deployments: BTreeMap<JobId, JobDeployments>,
    pub(super) scheduling: NodeScheduling,
    pub(super) writes: u32,
    pub(super) killed: u32,
    pub(super) no_owner: BTreeSet<AllocId>,
    /// What is restored of allocations, which their owners say before anything else.
    restored: BTreeMap<AllocId, (bool, AllocReport)>,
}

pub(super) fn task(name: &str) -> Task {
    Task {
        driver: PluginName::new("exec").unwrap(),
        resources: Resources { cpu_mhz: 100, memory_mb: 100, ..Resources::default() },
        ..fixtures::task(name).unwrap()
    }
}

pub(super) fn job(name: &str, count: u32) -> Job {
    let alloc = fixtures::allocation(
        ostler_model::job::JobKind::Service,
        vec![task("t")],
        &Rng::from_seed(1),
    );
    let group = TaskGroup { count, ..fixtures::group("g", vec![task("t")]).unwrap() };
    let job = alloc.unwrap().job;
    Job { id: JobId::new(name).unwrap(), name: name.into(), groups: vec![group], ..(*job).clone() }
}

/// The same with another environment: a destructive update.
pub(super) fn changed(job: &Job, value: &str) -> Job {
    let mut job = job.clone();
    job.groups[0].tasks[0].env.insert("A".into(), value.into());
    job
}

impl Play {
    /// A node with room for ten allocations.
    pub(super) fn new() -> Self {
        let mut view = NodeView::new(NodeId::new(Rng::from_seed(1).uuid()), "box");
        view.datacenter = "dc1".into();
        view.resources = NodeTotals { cpu_mhz: 1_000, memory_mb: 1_000 };
        let health = Health { state: HealthState::Healthy, reason: String::new() };
        let exec = DriverView { health, ..Default::default() };
        view.drivers.insert(PluginName::new("exec").unwrap(), exec);
        let tables = NodeTables::new(0, Timestamp::default(), UnownedRuns::default());
        let mut play = Self {
            machine: Machine::new(tables),
            uptime: SECOND,
            view,
            rng: Rng::from_seed(7),
            disk: Disk::Works,
            fs: None,
            hanging: Vec::new(),
            owners: BTreeMap::new(),
            answers: BTreeMap::new(),
            asked: 0,
            slow_removals: false,
            removing: BTreeSet::new(),
            removed: Vec::new(),
            measures: 0,
            records: BTreeMap::new(),
            jobs: BTreeMap::new(),
            versions: BTreeMap::new(),
            deployments: BTreeMap::new(),
            scheduling: NodeScheduling::default(),
            writes: 0,
            killed: 0,
            no_owner: BTreeSet::new(),
            restored: BTreeMap::new(),
        };
        play.ask(ControlRequest::Ready(None));
        play
    }

    /// The node of another agent, which draws other ids than [`Play::new`].
    pub(super) fn another() -> Self {
        Self { rng: Rng::from_seed(8), ..Self::new() }
    }

    /// Take an event and everything that follows from it at once.
    pub(super) fn feed(&mut self, event: ControlEvent) {
        let mut events = std::collections::VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let world = World {
                now: Timestamp::from_nanos(u64::try_from(self.uptime.as_nanos()).unwrap()),
                uptime: self.uptime,
                node: &self.view,
                rng: &self.rng,
                port_in_use: &|_| false,
            };
            for effect in self.machine.step(&world, event) {
                self.carry_out(effect, &mut events);
            }
        }
    }

    fn carry_out(
        &mut self,
        effect: ControlEffect,
        events: &mut std::collections::VecDeque<ControlEvent>,
    ) {
        match effect {
            ControlEffect::Answer { request, answer } => {
                assert!(self.answers.insert(request, *answer).is_none(), "answered twice");
            }
            ControlEffect::Write { batch, writes, own, wait: _ } => {
                self.writes += 1;
                for alloc in own {
                    let id = alloc.id;
                    let result = if self.no_owner.contains(&id) {
                        Err("no owner".to_owned())
                    } else {
                        let restored = self.restored.remove(&id);
                        let ended = restored.as_ref().is_some_and(|(ended, _)| *ended);
                        let new = FakeOwner { newest: alloc, told: 0, hurried: false, ended };
                        assert!(self.owners.insert(id, new).is_none(), "two owners");
                        let said = restored
                            .map(|(_, report)| ControlEvent::Reported { alloc: id, report });
                        events.extend(said);
                        Ok(())
                    };
                    events.push_back(ControlEvent::Owned { alloc: id, result });
                }
                match self.disk {
                    Disk::Works => {
                        self.write(writes);
                        events.push_back(ControlEvent::Written { batch, result: Ok(()) });
                    }
                    Disk::Fails => {
                        events.push_back(ControlEvent::Written { batch, result: Err(broken()) });
                    }
                    Disk::Hangs => self.hanging.push((batch, writes)),
                }
            }
            ControlEffect::Tell { alloc, .. } => {
                let owner = self.owners.get_mut(&alloc.id).expect("nobody is told without owner");
                assert!(alloc.modify_index > owner.newest.modify_index, "an older copy");
                (owner.newest, owner.told) = (alloc, owner.told + 1);
            }
            ControlEffect::Hurry { alloc, .. } => {
                self.owners.get_mut(&alloc).unwrap().hurried = true
            }
            ControlEffect::ReleaseDevices(alloc) => {
                events.push_back(ControlEvent::DevicesOwed { alloc, owing: BTreeSet::new() });
            }
            ControlEffect::RestoreClaim(..) => {}
            ControlEffect::Remove(alloc) => {
                assert!(self.removing.insert(alloc), "removed twice at a time");
                if !self.slow_removals {
                    self.take_removal(alloc);
                    events.push_back(ControlEvent::Removed { alloc, result: Ok(()) });
                }
            }
            ControlEffect::Measure { .. } => {
                self.measures += 1;
                events.push_back(ControlEvent::Measured(self.fs));
            }
            ControlEffect::KillTasks => self.killed += 1,
        }
    }

    fn write(&mut self, writes: Vec<Write>) {
        for write in writes {
            match write {
                Write::Job(record) => {
                    self.jobs.insert(record.job.id.clone(), Arc::clone(&record));
                    self.records.insert(format!("job {}", record.job.id), None);
                }
                // The store takes no more of what is being removed.
                Write::Alloc(alloc) if self.removing.contains(&alloc.id) => {}
                Write::Alloc(alloc) => {
                    self.records.insert(format!("alloc {}", alloc.id), Some(alloc));
                }
                Write::ForgetJob(job) => {
                    self.jobs.remove(&job);
                    drop(self.records.remove(&format!("job {job}")));
                }
                Write::Versions(job, known) => drop(self.versions.insert(job, known)),
                Write::Deployments(job, known) => drop(self.deployments.insert(job, known)),
                Write::ForgetVersions(job) => drop(self.versions.remove(&job)),
                Write::ForgetDeployments(job) => drop(self.deployments.remove(&job)),
                Write::ForgetPlaces(job) => {
                    self.versions.remove(&job);
                    self.deployments.remove(&job);
                }
                Write::ForgetAlloc(id) => drop(self.records.remove(&format!("alloc {id}"))),
                Write::Assigned(id) => {
                    self.records.insert(format!("assigned {id}"), None);
                }
                Write::Scheduling(node) => self.scheduling = *node,
                Write::Ledger(_) | Write::Places(..) => {}
            }
        }
    }

    fn take_removal(&mut self, alloc: AllocId) {
        self.removing.remove(&alloc);
        self.owners.remove(&alloc);
        self.records.remove(&format!("alloc {alloc}"));
        self.removed.push(alloc);
    }

    /// A removal ends.
    pub(super) fn removal(&mut self, alloc: AllocId, result: Result<(), NotRemoved>) {
        if result.is_ok() {
            self.take_removal(alloc);
        }
        // One that takes long goes on.
        if !matches!(&result, Err(NotRemoved { left: RemovalLeft::Unknown, .. })) {
            self.removing.remove(&alloc);
        }
        // Its directory stays then, or its owner has left: nothing of it runs.
        let ended = result.as_ref().is_err_and(|not| not.left != RemovalLeft::Unknown);
        if let Some(owner) = self.owners.get_mut(&alloc).filter(|_| ended) {
            owner.ended = true;
        }
        self.feed(ControlEvent::Removed { alloc, result });
    }

    /// The disk answers what hung.
    pub(super) fn disk_answers(&mut self) {
        let all = self.hanging.len();
        self.disk_answers_to(all);
    }

    /// The disk answers the oldest that hangs.
    pub(super) fn disk_answers_first(&mut self) {
        self.disk_answers_to(1);
    }

    fn disk_answers_to(&mut self, count: usize) {
        for (batch, writes) in self.hanging.drain(..count).collect::<Vec<_>>() {
            let result = match self.disk {
                Disk::Fails => Err(broken()),
                Disk::Works | Disk::Hangs => {
                    self.write(writes);
                    Ok(())
                }
            };
            self.feed(ControlEvent::Written { batch, result });
        }
    }

    /// Time passes; alarms come when they are due.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.uptime + time;
        while let Some(at) = self.machine.next_alarm().filter(|at| *at <= end) {
            self.uptime = at.max(self.uptime);
            self.feed(ControlEvent::Alarm);
        }
        self.uptime = end;
    }

    pub(super) fn ask(&mut self, ask: ControlRequest) -> RequestId {
        self.asked += 1;
        let request = self.asked;
        self.feed(ControlEvent::Asked { request, ask });
        request
    }

    pub(super) fn change(&mut self, job: &str, asked: JobAction) -> RequestId {
        let job = JobId::new(job).unwrap();
        self.ask(ControlRequest::Change { job, asked, skip_shutdown_delay: false })
    }

    pub(super) fn register(&mut self, job: &Job) -> RequestId {
        let asked = JobAction::Version(Arc::new(job.clone()), RegisterOptions::default());
        self.change(job.id.as_str(), asked)
    }

    pub(super) fn stop(&mut self, job: &str, purge: bool) -> RequestId {
        let (origin, reason) = (JobOrigin::Api, String::new());
        self.change(job, JobAction::Stop { origin, reason, purge })
    }

    /// The answer to a change.
    pub(super) fn changed(&mut self, request: RequestId) -> Result<DecidedChange, SubmitError> {
        match self.answers.remove(&request) {
            Some(ControlAnswer::Changed(result)) => result,
            other => panic!("no change: {other:?}"),
        }
    }

    pub(super) fn is_answered(&self, request: RequestId) -> bool {
        self.answers.contains_key(&request)
    }

    /// What the owner of an allocation says.
    pub(super) fn report(&mut self, alloc: AllocId, status: ClientStatus, ended: bool) {
        let started = status != ClientStatus::Pending;
        let ended_at =
            ended.then(|| Timestamp::from_nanos(u64::try_from(self.uptime.as_nanos()).unwrap()));
        if let Some(owner) = self.owners.get_mut(&alloc) {
            owner.ended |= ended;
            let report = AllocReport { status, started, ended_at, ended, ..AllocReport::default() };
            self.feed(ControlEvent::Reported { alloc, report });
        }
    }

    /// The owner of an allocation judges its health.
    pub(super) fn judge(&mut self, alloc: AllocId, healthy: bool) {
        let Some(owner) = self.owners.get(&alloc).filter(|owner| !owner.ended) else { return };
        let deployment = owner.newest.deployment_id().map(Box::from);
        let verdict = Some(AllocVerdict { healthy, at: self.now(), deployment });
        let status = ClientStatus::Running;
        let report = AllocReport { status, started: true, verdict, ..AllocReport::default() };
        self.feed(ControlEvent::Reported { alloc, report });
    }

    pub(super) fn now(&self) -> Timestamp {
        Timestamp::from_nanos(u64::try_from(self.uptime.as_nanos()).unwrap())
    }

    /// An agent is killed, and the next one finds what is on record; `ended`: allocations that were over.
    pub(super) fn restart(&mut self) {
        let mut restored = RestoredNode { own: true, ..RestoredNode::default() };
        restored.jobs = self.jobs.values().cloned().collect();
        restored.versions = self.versions.clone().into_iter().collect();
        restored.deployments = self.deployments.clone().into_iter().collect();
        restored.scheduling = self.scheduling.clone();
        let mut allocs: Vec<_> = self.records.values().flatten().cloned().collect();
        allocs.sort_by_key(|alloc| (alloc.create_index, alloc.id));
        let tables = self.machine.tables();
        let known: BTreeMap<AllocId, (ClientStatus, bool, AllocReport)> = tables
            .allocs()
            .map(|e| (e.allocation.id, (e.client_status(), e.ended, e.report.clone())))
            .collect();
        for alloc in &allocs {
            let (client_status, finished, _) = known[&alloc.id].clone();
            let saved = SavedAllocState { client_status, finished, ..SavedAllocState::default() };
            restored.allocs.push((Arc::clone(alloc), Some(saved)));
        }
        let recorded = tables.index();
        self.owners.clear();
        self.hanging.clear();
        let tables = NodeTables::new(recorded, self.now(), UnownedRuns::default());
        self.machine = Machine::new(tables);
        self.restored =
            known.into_iter().map(|(id, (_, ended, said))| (id, (ended, said))).collect();
        self.ask(ControlRequest::Restore(Box::new(restored)));
        self.ask(ControlRequest::Ready(None));
        self.pass(SECOND);
    }

    pub(super) fn end(&mut self, alloc: AllocId) {
        self.report(alloc, ClientStatus::Complete, true);
    }

    /// Those that are told to stop come to their ends.
    pub(super) fn end_stopped(&mut self) {
        let stopped = |o: &&FakeOwner| o.newest.desired == DesiredStatus::Stop && !o.ended;
        let ids: Vec<_> = self.owners.values().filter(stopped).map(|o| o.newest.id).collect();
        ids.into_iter().for_each(|id| self.end(id));
    }

    /// Allocations that are to run and are not over.
    pub(super) fn live(&self) -> Vec<AllocId> {
        let live = self.machine.tables().unended_allocs().filter(|entry| {
            entry.allocation.desired == DesiredStatus::Run && !entry.client_status().is_terminal()
        });
        live.map(|entry| entry.allocation.id).collect()
    }

    pub(super) fn status(&self, job: &str) -> Option<JobStatus> {
        let job = JobId::new(job).unwrap();
        let view = self.machine.tables().job_view(&job, &|entry| entry.client_status());
        view.map(|view| view.status)
    }

    pub(super) fn blocked(&self, job: &str) -> usize {
        let job = JobId::new(job).unwrap();
        self.machine.tables().job(&job).map_or(0, |entry| entry.blocked.len())
    }
}

pub(super) fn broken() -> StateError {
    StateError::Thread { source: std::io::Error::other("broken") }
}

#[test]
fn a_request_that_is_refused_changes_nothing_and_is_answered() {
    let mut play = Play::new();
    let stop = play.stop("none", false);
    assert!(play.changed(stop).unwrap().before.is_none());
    assert_eq!((play.writes, play.machine.tables().count()), (0, 0));
    assert!(play.machine.is_quiet());
    assert_eq!(play.machine.tables().stage(), AgentStage::Ready);
}

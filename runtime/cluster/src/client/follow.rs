//! Allocations as the servers want them.
//!
//! ```text
//! GetClientAllocs ─► listed ─┬─ gone ─► stopped, collected when they are over
//!                            └─ pull ─► GetAllocs ─► converted ─┬─ run ──► assign ─► refused: waits
//!                                                               ├─ stop ─► stop
//!                                                               └─ cannot be run ─► told as failed
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;

use ostler_model::alloc::{Allocation, ClientStatus, DesiredStatus};
use ostler_model::causes;
use ostler_model::event::{EventKind, TaskEvent};
use ostler_model::ids::{AllocId, JobId};
use ostler_model::limits::CLUSTER_UPDATES_PER_CALL;
use ostler_model::saved::AcknowledgedState;
use ostler_model::task::{TaskState, TaskStatus};

use super::links::Line;
use super::{Client, EnterError, Pauses};
use crate::assigned;
use crate::msgpack::Value;
use crate::rpc::{field, text};
use crate::servers::ClientAllocs;
use crate::wanted::WantedAllocs;

/// What is known between two answers.
struct Follower<'a> {
    client: &'a Client,
    wanted: WantedAllocs,
    /// Those that cannot be entered yet: something they need is another one's.
    waiting: BTreeMap<AllocId, (Allocation, u64)>,
    /// To be ended and forgotten.
    gone: BTreeSet<AllocId>,
}

pub(super) async fn run(client: &Client) {
    client.is_registered().await;
    let (wanted, waiting, gone) = (WantedAllocs::default(), BTreeMap::new(), BTreeSet::new());
    let mut follower = Follower { client, wanted, waiting, gone };
    let mut pauses = Pauses::new(&client.options.rng);
    let mut changes = client.node.changes();
    loop {
        // One question at a time: a server answers the next one on the stream after this one.
        let mut question = pin!(client.listed(follower.wanted.index()));
        let answer = loop {
            changes.borrow_and_update();
            follower.tend().await;
            let busy = !follower.waiting.is_empty() || !follower.gone.is_empty();
            tokio::select! {
                answer = &mut question => break answer,
                // What waits may have become possible.
                changed = changes.changed(), if busy => if changed.is_err() {
                    return;
                },
            }
        };
        let mut followed = match answer {
            Ok(listed) => follower.answered(listed).await,
            Err(error) => Err(error),
        };
        // What was listed is carried out before anything newer is asked for: nothing newer may come.
        while let Err(error) = followed {
            tracing::warn!(error, "what the servers want of this node is not done yet");
            pauses.pause().await;
            followed = follower.pull_all().await;
        }
        pauses.reset();
    }
}

impl Client {
    async fn listed(&self, index: u64) -> Result<ClientAllocs, String> {
        let calls = self.calls(Line::Follow).await.map_err(|error| causes::chain(&error))?;
        let secret = &self.options.secret;
        let listed = calls.client_allocs(self.id, secret, index).await;
        listed.map_err(|error| error.to_string())
    }
}

impl Follower<'_> {
    async fn answered(&mut self, listed: ClientAllocs) -> Result<(), String> {
        let ClientAllocs { index, allocs: listed, migrate_tokens } = listed;
        let here = self.client.node.assigned();
        let here: BTreeSet<_> = here.into_iter().map(|(id, _)| id).collect();
        let Some(todo) = self.wanted.listed(index, listed, &here) else { return Ok(()) };
        // Before what they are for begins.
        self.client.migrate_tokens.send_replace(Some(migrate_tokens));
        self.waiting.retain(|id, _| self.wanted.wants(*id));
        self.gone.extend(todo.gone);
        let kept = |id| self.wanted.wants(id) || here.contains(&id);
        self.client.updates().keep(kept);
        self.pull_all().await
    }

    /// Pull what is listed and not carried out.
    async fn pull_all(&mut self) -> Result<(), String> {
        let mut todo = self.wanted.left();
        while !todo.pull.is_empty() {
            let before = todo.pull.len();
            for ids in todo.pull.chunks(CLUSTER_UPDATES_PER_CALL) {
                self.pull(ids, todo.min_index).await?;
            }
            todo = self.wanted.left();
            if todo.pull.len() >= before {
                return Err("a server does not have what it has listed".to_owned());
            }
        }
        Ok(())
    }

    async fn pull(&mut self, ids: &[AllocId], min_index: u64) -> Result<(), String> {
        let calls = self.client.calls(Line::Pull).await.map_err(|error| causes::chain(&error))?;
        let allocs = calls.allocs(ids, &self.client.options.secret, min_index).await;
        let mut run: BTreeMap<JobId, Vec<(Allocation, u64)>> = BTreeMap::new();
        for described in allocs.map_err(|error| error.to_string())? {
            let index = field(&described, "AllocModifyIndex").and_then(Value::as_u64);
            let Some((id, index)) = assigned::id_of(&described).ok().zip(index) else { continue };
            if !self.wanted.is_news(id, index) {
                continue;
            }
            self.told_again(id, &described);
            match assigned::allocation(&described) {
                Ok(alloc) if alloc.desired == DesiredStatus::Stop => self.stop(&alloc, index).await,
                // It was over before this node knew it, or has forgotten it: it does not run again.
                Ok(_) if self.is_over(id, &described) => self.wanted.carried_out(id, index),
                Ok(alloc) => {
                    run.entry(alloc.job.id.clone()).or_default().push((alloc, index));
                }
                Err(error) => {
                    self.fail(id, &described, &error.to_string());
                    self.wanted.carried_out(id, index);
                }
            }
        }
        for (job, allocs) in run {
            self.assign(job, allocs).await;
        }
        Ok(())
    }

    /// Servers that lost sight of this node have taken an allocation to be unknown: they hear of it again.
    fn told_again(&self, id: AllocId, described: &Value) {
        if field(described, "ClientStatus").and_then(text) != Some("unknown") {
            return;
        }
        if let Some(state) = self.client.node.state(id) {
            self.client.updates().forgotten(id, state);
            self.client.news.notify_one();
        }
    }

    fn is_over(&self, id: AllocId, described: &Value) -> bool {
        let status = field(described, "ClientStatus").and_then(text);
        let over = status.is_some_and(|status| ["complete", "failed", "lost"].contains(&status));
        over && self.client.node.alloc(id).is_none()
    }

    async fn assign(&mut self, job: JobId, allocs: Vec<(Allocation, u64)>) {
        let copies = allocs.iter().map(|(alloc, _)| alloc.clone()).collect();
        match self.client.node.assign(job.clone(), copies).await {
            Ok(refused) => {
                for (alloc, index) in allocs {
                    let id = alloc.id;
                    self.wanted.carried_out(id, index);
                    self.waiting.remove(&id);
                    if let Some(why) = refused.get(&id) {
                        tracing::info!(alloc = %id, why, "an allocation of the servers waits");
                        self.waiting.insert(id, (alloc, index));
                    }
                }
            }
            Err(EnterError::CannotRun(error)) => {
                for (alloc, index) in allocs {
                    let tasks = alloc.task_group().into_iter().flat_map(|group| &group.tasks);
                    let names = tasks.map(|task| task.name.clone()).collect();
                    self.told_failed(alloc.id, names, &error);
                    self.wanted.carried_out(alloc.id, index);
                }
            }
            // The disk, most often: they are pulled and tried again.
            Err(EnterError::NotEntered(error)) => {
                tracing::warn!(%job, error, "allocations are not entered");
            }
        }
    }

    async fn stop(&mut self, alloc: &Allocation, index: u64) {
        self.waiting.remove(&alloc.id);
        let known = self.client.node.alloc(alloc.id);
        let runs = known.filter(|known| known.allocation.desired == DesiredStatus::Run);
        if let Some(known) = runs {
            let why = match alloc.desired_description.as_str() {
                "" => "the servers stop it",
                why => why,
            };
            if let Err(error) = self.client.node.stop(&known.allocation, why).await {
                // It is asked for again with the next answer.
                tracing::warn!(alloc = %alloc.id, error, "not stopped yet");
                return;
            }
        }
        self.wanted.carried_out(alloc.id, index);
    }

    /// What could not be done before.
    async fn tend(&mut self) {
        let mut again: BTreeMap<JobId, Vec<(Allocation, u64)>> = BTreeMap::new();
        for (alloc, index) in self.waiting.values() {
            again.entry(alloc.job.id.clone()).or_default().push((alloc.clone(), *index));
        }
        for (job, allocs) in again {
            self.assign(job, allocs).await;
        }
        for id in self.gone.clone() {
            let Some(known) = self.client.node.alloc(id) else {
                self.client.updates().gone(id);
                self.gone.remove(&id);
                continue;
            };
            if known.ended {
                if let Err(error) = self.client.node.collect(id).await {
                    tracing::debug!(alloc = %id, error, "it stays for now");
                }
            } else if known.allocation.desired == DesiredStatus::Run {
                let why = "the servers do not know it any more";
                if let Err(error) = self.client.node.stop(&known.allocation, why).await {
                    tracing::warn!(alloc = %id, error, "not stopped yet");
                }
            }
        }
    }

    /// It cannot be run: the servers hear why, and put another one in its place.
    fn fail(&self, id: AllocId, described: &Value, why: &str) {
        let status = field(described, "ClientStatus").and_then(text);
        if status == Some("failed") {
            return;
        }
        let tasks = field(described, "AllocatedResources").and_then(|of| field(of, "Tasks"));
        let names = tasks.and_then(Value::as_map).into_iter().flatten();
        let names = names.filter_map(|(name, _)| text(name)?.parse().ok()).collect();
        self.told_failed(id, names, why);
    }

    fn told_failed(&self, id: AllocId, tasks: Vec<ostler_model::ids::TaskName>, why: &str) {
        tracing::warn!(alloc = %id, why, "an allocation of the servers cannot be run");
        let now = self.client.options.clock.now();
        let mut event = TaskEvent::new(EventKind::SetupFailure, now, why);
        event.fails_task = true;
        let mut state = TaskState { status: TaskStatus::Dead, ..TaskState::default() };
        state.finished_at = Some(now);
        state.push_event(event);
        let failed = AcknowledgedState {
            client_status: ClientStatus::Failed,
            client_description: why.to_owned(),
            tasks: tasks.into_iter().map(|name| (name, state.clone())).collect(),
            ..AcknowledgedState::default()
        };
        self.client.updates().changed(id, failed);
        self.client.news.notify_one();
    }
}

//! Allocations as the servers want them.
//!
//! ```text
//! GetClientAllocs ─► listed ─┬─ gone ─► stopped, collected when they are over
//!                            └─ pull ─► GetAllocs ─► converted ─┬─ run ──► assign ─► refused: waits
//!                                 ▲         │                  ├─ stop ─► stop
//!                                 └─ halves ┴─ cannot be read  └─ cannot be run ─► told as failed
//! ```
//! One allocation that cannot be read, or is too large, holds up no other: an answer that cannot be read is
//! asked for again in halves, until it is that one's alone.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;

use ostler_model::alloc::{Allocation, ClientStatus, DesiredStatus};
use ostler_model::causes;
use ostler_model::clock::Stopwatch;
use ostler_model::ids::{AllocId, JobId, TaskName};
use ostler_model::limits::{CLUSTER_BLOCK_WALL, CLUSTER_UPDATES_PER_CALL};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::links::Line;
use super::{Client, EnterError, Pauses, PlacedAlloc, Progress};
use crate::assigned;
use crate::caller::ServerCallError;
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
    /// What was listed first is carried out.
    begun: bool,
    /// So many are pulled with one call.
    at_once: usize,
    /// Of the node.
    changes: watch::Receiver<u64>,
}

pub(super) async fn run(client: &Arc<Client>) {
    client.is_registered().await;
    let (wanted, waiting, gone) = (WantedAllocs::default(), BTreeMap::new(), BTreeSet::new());
    let changes = client.node.changes();
    let (begun, at_once) = (false, CLUSTER_UPDATES_PER_CALL);
    let mut follower = Follower { client, wanted, waiting, gone, begun, at_once, changes };
    let mut pauses = Pauses::new(&client.options.rng);
    let mut left = false;
    loop {
        let asked = Stopwatch::start();
        // One question at a time: a server answers the next one on the stream after this one.
        let mut question = client.ask(follower.wanted.index());
        let answer = loop {
            if !left {
                break follower.tend_until(&mut question).await;
            }
            // Nothing newer may come, and what was listed may be gone: both are waited for.
            let pause = pauses.pause();
            match follower.tend_until(first(&mut question, pause)).await {
                Some(answer) => break answer,
                None => left = !follower.carried_out().await,
            }
        };
        // A question is never given up here: an error says that it ended in a panic.
        let answer = answer.unwrap_or_else(|error| Err(error.to_string()));
        let pause = match answer.map(|listed| follower.answered(listed)) {
            Ok(true) => {
                left = !follower.carried_out().await;
                if !left {
                    pauses.reset();
                }
                client.comes_to(Progress::CaughtUp);
                false
            }
            // One that lags, or was set back, and does not wait until it has news.
            Ok(false) => asked.elapsed() < CLUSTER_BLOCK_WALL,
            Err(error) => {
                tracing::warn!(error, "the servers do not say what they want of this node");
                true
            }
        };
        if pause {
            follower.tend_until(pauses.pause()).await;
        }
    }
}

/// What comes, if it does before the time is over.
async fn first<T>(comes: impl Future<Output = T>, over: impl Future<Output = ()>) -> Option<T> {
    tokio::select! {
        // What is drawn among them would differ from play to play of a simulation.
        biased;
        came = comes => Some(came),
        () = over => None,
    }
}

type Listed = Result<ClientAllocs, String>;

impl Client {
    /// Ask for what is listed after this index. In a task of its own: it holds the way to the servers while it
    /// looks for one, and must not wait there for what this loop does meanwhile.
    fn ask(self: &Arc<Self>, index: u64) -> AbortOnDropHandle<Listed> {
        let client = Arc::clone(self);
        AbortOnDropHandle::new(tokio::spawn(async move { client.listed(index).await }))
    }

    async fn listed(&self, index: u64) -> Listed {
        let calls = self.calls(Line::Follow).await.map_err(|error| causes::chain(&error))?;
        let secret = &self.options.secret;
        let listed = calls.client_allocs(self.id, secret, index).await;
        listed.map_err(|error| error.to_string())
    }
}

impl Follower<'_> {
    /// Wait for something, and do meanwhile what becomes possible.
    async fn tend_until<T>(&mut self, awaited: impl Future<Output = T>) -> T {
        let mut awaited = pin!(awaited);
        loop {
            self.changes.borrow_and_update();
            self.tend().await;
            let busy = !self.waiting.is_empty() || !self.gone.is_empty();
            tokio::select! {
                // What is drawn among them would differ from play to play of a simulation.
                biased;
                done = &mut awaited => return done,
                // An error means that the agent ends, and all of this with it.
                Ok(()) = self.changes.changed(), if busy => {}
            }
        }
    }

    /// An answer has come. `false`: it is no newer than the last one.
    fn answered(&mut self, listed: ClientAllocs) -> bool {
        let ClientAllocs { index, allocs: listed, migrate_tokens } = listed;
        let here = self.client.node.assigned();
        let here: BTreeSet<_> = here.into_iter().map(|(id, _)| id).collect();
        let Some(todo) = self.wanted.listed(index, listed, &here) else { return false };
        // Before what they are for begins.
        self.client.migrate_tokens.send_replace(Some(migrate_tokens));
        self.waiting.retain(|id, _| self.wanted.wants(*id));
        self.gone.extend(todo.gone);
        let kept = |id| self.wanted.wants(id) || here.contains(&id);
        self.client.updates().keep(kept);
        true
    }

    /// Carry out what is listed. `false`: something is left.
    async fn carried_out(&mut self) -> bool {
        let done = self.pull_all().await;
        if let Err(error) = &done {
            tracing::warn!(error, "what the servers want of this node is not done yet");
        }
        self.begun |= done.is_ok();
        done.is_ok()
    }

    /// Pull what is listed and not carried out.
    async fn pull_all(&mut self) -> Result<(), String> {
        let mut todo = self.wanted.left();
        while !todo.pull.is_empty() {
            let before = todo.pull.len();
            for ids in todo.pull.chunks(self.at_once) {
                self.pull(ids, todo.min_index).await?;
            }
            self.at_once = self.at_once.saturating_mul(2).min(CLUSTER_UPDATES_PER_CALL);
            todo = self.wanted.left();
            if todo.pull.len() >= before {
                return Err("a server does not have what it has listed".to_owned());
            }
        }
        Ok(())
    }

    async fn pull(&mut self, ids: &[AllocId], min_index: u64) -> Result<(), String> {
        let mut parts = vec![ids];
        while let Some(ids) = parts.pop() {
            let calls = self.client.calls(Line::Pull).await;
            let calls = calls.map_err(|error| causes::chain(&error))?;
            // What became of an allocation before this node was started, only the leader knows for sure: its
            // index does not say it.
            let secret = &self.client.options.secret;
            match (calls.allocs(ids, secret, min_index, self.begun).await, ids) {
                (Ok(allocs), _) => self.carry_out(allocs).await,
                (Err(error @ ServerCallError::Unreadable { .. }), [id]) => {
                    self.fail_unread(*id, &error.to_string()).await;
                }
                (Err(ServerCallError::Unreadable { .. }), _) => {
                    let (first, second) = ids.split_at(ids.len() / 2);
                    parts.extend([second, first]);
                }
                (Err(error), _) => {
                    if matches!(error, ServerCallError::Late { .. }) {
                        // They may be too much for the way there.
                        self.at_once = (ids.len() / 2).max(1);
                    }
                    return Err(error.to_string());
                }
            }
        }
        Ok(())
    }

    /// No answer with it can be read: it does not run, nor goes on as another copy of it said.
    async fn fail_unread(&mut self, id: AllocId, why: &str) {
        let Some(index) = self.wanted.index_of(id) else { return };
        self.waiting.remove(&id);
        let node = &self.client.node;
        let known = node.alloc(id);
        if known.is_none() && !node.is_entering(id) {
            self.client.fail_with(id, Vec::new(), why);
        }
        let runs =
            |known: &PlacedAlloc| known.allocation.desired == DesiredStatus::Run && !known.ended;
        if let Some(known) = known.filter(runs)
            && !self.ends(&known.allocation, why).await
        {
            return;
        }
        self.wanted.carried_out(id, index);
    }

    async fn carry_out(&mut self, allocs: Vec<Value>) {
        let mut run: BTreeMap<JobId, Vec<(Allocation, u64)>> = BTreeMap::new();
        for described in allocs {
            let index = field(&described, "AllocModifyIndex").and_then(Value::as_u64);
            let Some((id, index)) = assigned::id_of(&described).ok().zip(index) else { continue };
            if !self.wanted.is_news(id, index) {
                continue;
            }
            if is_terminal(&described) {
                self.client.updates().is_over(id);
            }
            self.told_again(id, &described);
            match assigned::allocation(&described) {
                Ok(alloc) if alloc.desired == DesiredStatus::Stop => {
                    self.stop(&alloc, index, &described).await;
                }
                // It was over before this node knew it, has forgotten it, or lost what it had told: it does
                // not run again.
                Ok(alloc) if is_terminal(&described) => {
                    let why = "the servers know that it is over".to_owned();
                    let alloc = Allocation { desired_description: why, ..alloc };
                    self.stop(&alloc, index, &described).await;
                }
                Ok(alloc) => {
                    run.entry(alloc.job.id.clone()).or_default().push((alloc, index));
                }
                Err(error) => {
                    self.client.fail(id, &described, &error.to_string());
                    self.wanted.carried_out(id, index);
                }
            }
        }
        for (job, allocs) in run {
            self.assign(job, allocs).await;
        }
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
                    self.client.fail_with(alloc.id, task_names(&alloc), &error);
                    self.wanted.carried_out(alloc.id, index);
                }
            }
            // The disk, most often: they are pulled and tried again.
            Err(EnterError::NotEntered(error)) => {
                tracing::warn!(%job, error, "allocations are not entered");
            }
        }
    }

    async fn stop(&mut self, alloc: &Allocation, index: u64, described: &Value) {
        self.waiting.remove(&alloc.id);
        let node = &self.client.node;
        let (known, entering) = (node.alloc(alloc.id), node.is_entering(alloc.id));
        if known.is_none() && !entering && !is_terminal(described) {
            // It never came as far as this node: nobody else says what became of it.
            let why = "it was stopped before it ran";
            self.client.told_over(alloc.id, task_names(alloc), ClientStatus::Complete, why);
        }
        let runs = known.map_or(entering, |known| {
            known.allocation.desired == DesiredStatus::Run && !known.ended
        });
        if runs {
            let why = match alloc.desired_description.as_str() {
                "" => "the servers stop it",
                why => why,
            };
            if !self.ends(alloc, why).await {
                return;
            }
        }
        self.wanted.carried_out(alloc.id, index);
    }

    /// Have it ended here. `false`: not yet; it is asked for again.
    async fn ends(&self, alloc: &Allocation, why: &str) -> bool {
        let stopped = self.client.node.stop(alloc, why).await;
        if let Err(error) = &stopped {
            tracing::warn!(alloc = %alloc.id, error, "not stopped yet");
        }
        stopped.is_ok()
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
                if !self.client.node.is_entering(id) {
                    self.client.updates().gone(id);
                    self.gone.remove(&id);
                }
                continue;
            };
            if known.ended {
                if let Err(error) = self.client.node.collect(id).await {
                    tracing::debug!(alloc = %id, error, "it stays for now");
                }
            } else if known.allocation.desired == DesiredStatus::Run {
                let why = "the servers do not know it any more";
                let _later = self.ends(&known.allocation, why).await;
            }
        }
    }
}

/// Do the servers know that it is over?
fn is_terminal(described: &Value) -> bool {
    field(described, "ClientStatus").and_then(text).is_some_and(assigned::is_terminal)
}

fn task_names(alloc: &Allocation) -> Vec<TaskName> {
    let tasks = alloc.task_group().into_iter().flat_map(|group| &group.tasks);
    tasks.map(|task| task.name.clone()).collect()
}

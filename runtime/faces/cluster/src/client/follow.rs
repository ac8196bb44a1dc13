//! Follows the allocations that the servers want on this node.
//!
//! ```text
//! GetClientAllocs ─► listed ─┬─ gone ─► stopped, collected when they have ended
//!                            └─ pull ─► GetAllocs ─► converted ─┬─ run ──► assign ─► refused: waits
//!                                 ▲         │                  ├─ stop ─► stop
//!                                 └─ halves ┴─ cannot be read  └─ cannot be run ─► reported as failed
//! ```
//! An allocation that cannot be read, or is too large, does not delay others: if an answer cannot
//! be read, its allocations are requested again in halves, until only that one is left.

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

use super::links::LinkPurpose;
use super::{ClusterClient, EnterError, JoinProgress, PlacedAlloc, RetryPauses};
use crate::assigned_allocs;
use crate::caller::ServerCallError;
use crate::msgpack::Value;
use crate::rpc::{field, text};
use crate::servers::ClientAllocs;
use crate::wanted_allocs::WantedAllocs;

/// The state of the loop between two answers.
struct AllocFollower<'a> {
    client: &'a ClusterClient,
    wanted: WantedAllocs,
    /// The allocations that cannot be entered yet, because another one has something that they
    /// need, each with its index.
    waiting: BTreeMap<AllocId, (Allocation, u64)>,
    /// The allocations to be stopped and forgotten.
    gone: BTreeSet<AllocId>,
    /// Whether the first list has been carried out.
    begun: bool,
    /// The number of allocations that one call pulls.
    at_once: usize,
    /// Notified when an allocation of the node has changed.
    changes: watch::Receiver<u64>,
}

pub(super) async fn run(client: &Arc<ClusterClient>) {
    client.wait_registered().await;
    let (wanted, waiting, gone) = (WantedAllocs::default(), BTreeMap::new(), BTreeSet::new());
    let changes = client.node.changes();
    let (begun, at_once) = (false, CLUSTER_UPDATES_PER_CALL);
    let mut follower = AllocFollower { client, wanted, waiting, gone, begun, at_once, changes };
    let mut pauses = RetryPauses::new(&client.options.rng);
    let mut left = false;
    loop {
        let asked = Stopwatch::start();
        // There is one question at a time, because a server answers the next one on the stream
        // after this one.
        let mut question = client.ask(follower.wanted.index());
        let answer = loop {
            if !left {
                break follower.tend_until(&mut question).await;
            }
            // There may be no newer list, and what was listed may be gone, so wait for both.
            let pause = pauses.pause();
            match follower.tend_until(first_in_time(&mut question, pause)).await {
                Some(answer) => break answer,
                None => left = !follower.carry_out_list().await,
            }
        };
        // A question is never given up here, so an error means that it panicked.
        let answer = answer.unwrap_or_else(|error| Err(error.to_string()));
        let pause = match answer.map(|listed| follower.apply_answer(listed)) {
            Ok(true) => {
                left = !follower.carry_out_list().await;
                if !left {
                    pauses.reset();
                }
                client.advance_to(JoinProgress::CaughtUp);
                false
            }
            // The server lags, or was set back, and does not wait until it has news.
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

/// The result of `comes`, if it is ready before `over`.
async fn first_in_time<T>(
    comes: impl Future<Output = T>,
    over: impl Future<Output = ()>,
) -> Option<T> {
    tokio::select! {
        // A random choice between the branches would make runs of a simulation differ.
        biased;
        came = comes => Some(came),
        () = over => None,
    }
}

type ClientAllocsResult = Result<ClientAllocs, String>;

impl ClusterClient {
    /// Ask for the list after this index, in a task of its own. The task holds the lock of the
    /// connection while it looks for a server, and must not wait there for other work of this loop.
    fn ask(self: &Arc<Self>, index: u64) -> AbortOnDropHandle<ClientAllocsResult> {
        let client = Arc::clone(self);
        AbortOnDropHandle::new(tokio::spawn(async move { client.fetch_list(index).await }))
    }

    async fn fetch_list(&self, index: u64) -> ClientAllocsResult {
        let calls = self.calls(LinkPurpose::Follow).await.map_err(|error| causes::chain(&error))?;
        let secret = &self.options.secret;
        let listed = calls.client_allocs(self.id, secret, index).await;
        listed.map_err(|error| error.to_string())
    }
}

impl AllocFollower<'_> {
    /// Wait for `awaited`, and meanwhile do postponed work as soon as it is possible.
    async fn tend_until<T>(&mut self, awaited: impl Future<Output = T>) -> T {
        let mut awaited = pin!(awaited);
        loop {
            self.changes.borrow_and_update();
            self.tend().await;
            let busy = !self.waiting.is_empty() || !self.gone.is_empty();
            tokio::select! {
                // A random choice between the branches would make runs of a simulation differ.
                biased;
                done = &mut awaited => return done,
                // An error means that the agent ends, and this loop with it.
                Ok(()) = self.changes.changed(), if busy => {}
            }
        }
    }

    /// Apply an answer. Returns `false` if it is no newer than the last one.
    fn apply_answer(&mut self, listed: ClientAllocs) -> bool {
        let ClientAllocs { index, allocs: listed, migrate_tokens } = listed;
        let here = self.client.node.assigned_allocs();
        let here: BTreeSet<_> = here.into_iter().map(|(id, _)| id).collect();
        let Some(todo) = self.wanted.apply_list(index, listed, &here) else { return false };
        // The tokens must be there before the allocations that need them start.
        self.client.migrate_tokens.send_replace(Some(migrate_tokens));
        self.waiting.retain(|id, _| self.wanted.wants(*id));
        self.gone.extend(todo.gone);
        let kept = |id| self.wanted.wants(id) || here.contains(&id);
        self.client.updates().retain_allocs(kept);
        true
    }

    /// Carry out the list. Returns `false` if something is left.
    async fn carry_out_list(&mut self) -> bool {
        let done = self.pull_all().await;
        if let Err(error) = &done {
            tracing::warn!(error, "what the servers want of this node is not done yet");
        }
        self.begun |= done.is_ok();
        done.is_ok()
    }

    /// Pull the listed allocations that have not been carried out.
    async fn pull_all(&mut self) -> Result<(), String> {
        let mut todo = self.wanted.remaining_allocs();
        while !todo.pull.is_empty() {
            let before = todo.pull.len();
            for ids in todo.pull.chunks(self.at_once) {
                self.pull(ids, todo.min_index).await?;
            }
            self.at_once = self.at_once.saturating_mul(2).min(CLUSTER_UPDATES_PER_CALL);
            todo = self.wanted.remaining_allocs();
            if todo.pull.len() >= before {
                return Err("a server does not have what it has listed".to_owned());
            }
        }
        Ok(())
    }

    async fn pull(&mut self, ids: &[AllocId], min_index: u64) -> Result<(), String> {
        let mut parts = vec![ids];
        while let Some(ids) = parts.pop() {
            let calls = self.client.calls(LinkPurpose::Pull).await;
            let calls = calls.map_err(|error| causes::chain(&error))?;
            // Only the leader knows for sure what became of an allocation before this node was
            // started; its index does not say so.
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
                        // These may be too many allocations for one answer on this connection.
                        self.at_once = (ids.len() / 2).max(1);
                    }
                    return Err(error.to_string());
                }
            }
        }
        Ok(())
    }

    /// Handle an allocation that no answer can be read with. It is not run, and an earlier copy of
    /// it is stopped.
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
            && !self.stop_alloc(&known.allocation, why).await
        {
            return;
        }
        self.wanted.mark_carried_out(id, index);
    }

    async fn carry_out(&mut self, allocs: Vec<Value>) {
        let mut run: BTreeMap<JobId, Vec<(Allocation, u64)>> = BTreeMap::new();
        for described in allocs {
            let index = field(&described, "AllocModifyIndex").and_then(Value::as_u64);
            let Some((id, index)) = assigned_allocs::id_of(&described).ok().zip(index) else {
                continue;
            };
            if !self.wanted.is_news(id, index) {
                continue;
            }
            if is_terminal(&described) {
                self.client.updates().mark_over(id);
            }
            self.report_again(id, &described);
            match assigned_allocs::allocation(&described) {
                Ok(alloc) if alloc.desired == DesiredStatus::Stop => {
                    self.stop(&alloc, index, &described).await;
                }
                // It had ended before this node knew it, or this node has forgotten it or its
                // reports. It is not run again.
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
                    self.wanted.mark_carried_out(id, index);
                }
            }
        }
        for (job, allocs) in run {
            self.assign(job, allocs).await;
        }
    }

    /// Report an allocation again that the servers count as unknown because they lost contact with
    /// this node.
    fn report_again(&self, id: AllocId, described: &Value) {
        if field(described, "ClientStatus").and_then(text) != Some("unknown") {
            return;
        }
        if let Some(state) = self.client.node.state(id) {
            self.client.updates().requeue_forgotten(id, state);
            self.client.news.notify_one();
        }
    }

    async fn assign(&mut self, job: JobId, allocs: Vec<(Allocation, u64)>) {
        let copies = allocs.iter().map(|(alloc, _)| alloc.clone()).collect();
        match self.client.node.assign(job.clone(), copies).await {
            Ok(refused) => {
                for (alloc, index) in allocs {
                    let id = alloc.id;
                    self.wanted.mark_carried_out(id, index);
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
                    self.wanted.mark_carried_out(alloc.id, index);
                }
            }
            // Most often the disk is the cause. The allocations are pulled and tried again.
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
            // It was never on this node, so nobody else reports its end.
            let why = "it was stopped before it ran";
            self.client.report_over(alloc.id, task_names(alloc), ClientStatus::Complete, why);
        }
        let runs = known.map_or(entering, |known| {
            known.allocation.desired == DesiredStatus::Run && !known.ended
        });
        if runs {
            let why = match alloc.desired_description.as_str() {
                "" => "the servers stop it",
                why => why,
            };
            if !self.stop_alloc(alloc, why).await {
                return;
            }
        }
        self.wanted.mark_carried_out(alloc.id, index);
    }

    /// Stop an allocation on this node. Returns `false` if that failed; it is tried again.
    async fn stop_alloc(&self, alloc: &Allocation, why: &str) -> bool {
        let stopped = self.client.node.stop(alloc, why).await;
        if let Err(error) = &stopped {
            tracing::warn!(alloc = %alloc.id, error, "not stopped yet");
        }
        stopped.is_ok()
    }

    /// Try again what could not be done before.
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
                    self.client.updates().remove_alloc(id);
                    self.gone.remove(&id);
                }
                continue;
            };
            if known.ended {
                if let Err(error) = self.client.node.collect(id).await {
                    tracing::debug!(alloc = %id, error, "it stays for now");
                }
            } else if known.allocation.desired == DesiredStatus::Run {
                let why = "the servers no longer know it";
                let _later = self.stop_alloc(&known.allocation, why).await;
            }
        }
    }
}

/// Whether the servers count this allocation as ended.
fn is_terminal(described: &Value) -> bool {
    field(described, "ClientStatus").and_then(text).is_some_and(assigned_allocs::is_terminal)
}

fn task_names(alloc: &Allocation) -> Vec<TaskName> {
    let tasks = alloc.task_group().into_iter().flat_map(|group| &group.tasks);
    tasks.map(|task| task.name.clone()).collect()
}

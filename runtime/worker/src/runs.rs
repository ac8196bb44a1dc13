//! The runs of an agent's WASM tasks: in which worker each is, and what became of its tasks.

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::watch;

use super::backoff::Backoff;
use super::client::Worker;
use ostler_model::ids::RunId;
use ostler_model::limits::WORKLOADS_PER_RUN_MAX;
use ostler_model::ports::DriverEventSink;
use ostler_model::task::RawExit;
use ostler_model::time::Timestamp;
use ostler_plugin::host::wasm_task::EndedRuns;
use ostler_process::live::RunPlace;

/// A task that lives in a worker which an earlier agent started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LivingTask {
    /// Pid of the worker.
    pub worker: u32,
    /// Its run.
    pub run: RunId,
    /// Its id there.
    pub id: String,
    /// What it is of, as its worker says.
    pub place: Option<RunPlace>,
}

/// What was found in the workers of earlier agents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundTasks {
    /// Tasks that live.
    pub tasks: Vec<LivingTask>,
    /// Workers (pid, start time) that live and do not say what lives in them.
    pub unasked: Vec<(u32, u64)>,
    /// Workers of another data directory, of which this one is a copy: the tasks that its records have in a
    /// worker may live there.
    pub elsewhere: Vec<(u32, u64)>,
}

/// All runs.
#[derive(Default)]
pub(crate) struct Table {
    pub runs: HashMap<RunId, OfRun>,
    pub ended: EndedRuns,
    pub backoff: HashMap<String, Backoff>,
}

impl Table {
    /// Is a run in this worker that was not forgotten?
    pub fn has_runs_in(&self, worker: &Arc<Worker>) -> bool {
        self.runs.values().any(|of_run| Arc::ptr_eq(&of_run.worker, worker))
    }
}

/// A run.
pub(crate) struct OfRun {
    pub worker: Arc<Worker>,
    pub released: bool,
    pub said: Option<DriverEventSink>,
    /// MHz reserved, for all of its tasks together.
    cpu_mhz: u32,
    /// They count for the worker's share of the processor: a task of it lives.
    counted: bool,
    tasks: HashMap<String, watch::Sender<Option<RawExit>>>,
}

impl OfRun {
    /// One without a task.
    pub fn new(
        worker: &Arc<Worker>,
        released: bool,
        cpu_mhz: u32,
        said: Option<DriverEventSink>,
    ) -> Self {
        let (worker, tasks) = (Arc::clone(worker), HashMap::new());
        Self { worker, released, said, cpu_mhz, counted: false, tasks }
    }

    /// A task of it.
    pub fn task(&self, id: &str) -> Option<&watch::Sender<Option<RawExit>>> {
        self.tasks.get(id)
    }

    /// How many tasks it has.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// It has this task. One that ended before it was known stays ended.
    pub fn has(&mut self, id: String, exit: Option<RawExit>) {
        self.tasks.entry(id).or_insert_with(|| watch::channel(exit).0);
        self.count();
    }

    /// A task of it ended, one that is not known yet perhaps.
    pub fn exited(&mut self, id: String, exit: RawExit) {
        if self.tasks.contains_key(&id) || self.tasks.len() < WORKLOADS_PER_RUN_MAX {
            let told = self.tasks.entry(id).or_insert_with(|| watch::channel(None).0);
            told.send_replace(Some(exit));
            self.count();
        }
    }

    /// Its worker is gone.
    pub fn lose(&mut self, how: &str, now: Timestamp) {
        for exit in self.tasks.values().filter(|exit| exit.borrow().is_none()) {
            exit.send_replace(Some(RawExit {
                error: Some(format!("the worker process of WASM tasks is gone: {how}")),
                finished_at: now,
                ..RawExit::default()
            }));
        }
        self.count();
    }

    /// What it reserved counts for as long as a task of it lives.
    fn count(&mut self) {
        let lives = self.tasks.values().any(|exit| exit.borrow().is_none());
        if lives != self.counted {
            self.counted = lives;
            self.worker.reserved(self.cpu_mhz, lives);
        }
    }
}

impl Drop for OfRun {
    fn drop(&mut self) {
        if self.counted {
            self.worker.reserved(self.cpu_mhz, false);
        }
    }
}

//! The runs of an agent's WASM tasks: which worker has each run, and how its tasks ended.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use tokio::sync::watch;

use super::backoff::Backoff;
use super::client::{PendingQuestion, Worker};
use ostler_model::ids::RunId;
use ostler_model::limits::WORKLOADS_PER_RUN_MAX;
use ostler_model::ports::{DirMaker, DriverEventSink, RunNote, TaskContext};
use ostler_model::task::RawExit;
use ostler_model::time::Timestamp;
use ostler_process::live::RunPlace;
use ostler_sandbox::CodeFile;
use ostler_wasm_task::{EndedRuns, WasmTaskSpec};

/// A task that lives in a worker which an earlier agent started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LivingTask {
    /// Pid of the worker.
    pub worker: u32,
    /// The run that the task belongs to.
    pub run: RunId,
    /// Id of the task in its worker.
    pub id: String,
    /// Job, group and allocation of the task, as its worker says.
    pub place: Option<RunPlace>,
}

/// What was found in the workers of earlier agents.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FoundTasks {
    /// Tasks that live.
    pub tasks: Vec<LivingTask>,
    /// The notes of runs, by their ids, also of runs that ended with their worker.
    pub notes: BTreeMap<String, RunNote>,
    /// Workers (pid, start time) that live and do not answer which tasks live in them.
    pub unasked: Vec<(u32, u64)>,
    /// Workers (pid, start time) of another data directory, of which this one is a copy. A task
    /// that the records place in a worker may live there.
    pub elsewhere: Vec<(u32, u64)>,
}

/// All runs of this agent, those that ended lately, and how the workers of each kind did.
#[derive(Default)]
pub(crate) struct RunTable {
    pub runs: HashMap<RunId, WorkerRun>,
    pub ended: EndedRuns,
    pub backoff: HashMap<String, Backoff>,
}

/// A task that a worker was asked to hold.
pub(crate) struct PendingStart {
    /// Id of the task.
    pub id: String,
    pub context: Arc<TaskContext>,
    pub spec: WasmTaskSpec,
    pub code: CodeFile,
    /// The answer to come.
    pub held: io::Result<PendingQuestion>,
}

/// A run in its worker.
pub(crate) struct WorkerRun {
    pub worker: Arc<Worker>,
    pub released: bool,
    /// The note of the run, until it is released.
    pub note: Option<String>,
    pub said: Option<DriverEventSink>,
    /// Makes the directories of the task when it asks for them.
    pub dirs: Option<DirMaker>,
    /// Tasks that the worker was asked to hold, and of which nobody has read the answer.
    pub starts: Vec<PendingStart>,
    /// MHz reserved for all tasks of the run together.
    cpu_mhz: u32,
    /// Whether `cpu_mhz` counts for the worker's share of the processor, which is so while a task
    /// of the run lives.
    counted: bool,
    tasks: HashMap<String, watch::Sender<Option<RawExit>>>,
}

impl WorkerRun {
    /// A run without a task.
    pub fn new(
        worker: &Arc<Worker>,
        released: bool,
        cpu_mhz: u32,
        said: Option<DriverEventSink>,
    ) -> Self {
        let (worker, tasks) = (Arc::clone(worker), HashMap::new());
        Self {
            worker,
            released,
            note: None,
            said,
            dirs: None,
            starts: Vec::new(),
            cpu_mhz,
            counted: false,
            tasks,
        }
    }

    /// The exit of a task of this run, by the task's id.
    pub fn task(&self, id: &str) -> Option<&watch::Sender<Option<RawExit>>> {
        self.tasks.get(id)
    }

    /// How many tasks the run has.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Add a task to the run. A task that ended before it was known stays ended.
    pub fn add_task(&mut self, id: String, exit: Option<RawExit>) {
        self.tasks.entry(id).or_insert_with(|| watch::channel(exit).0);
        self.count();
    }

    /// Record the exit of a task, which may not be known yet.
    pub fn record_exit(&mut self, id: String, exit: RawExit) {
        if self.tasks.contains_key(&id) || self.tasks.len() < WORKLOADS_PER_RUN_MAX {
            let told = self.tasks.entry(id).or_insert_with(|| watch::channel(None).0);
            told.send_replace(Some(exit));
            self.count();
        }
    }

    /// Record that the worker is gone: each task that still lived ended with it. `how` says how
    /// the worker ended.
    pub fn record_loss(&mut self, how: &str, now: Timestamp) {
        for exit in self.tasks.values().filter(|exit| exit.borrow().is_none()) {
            exit.send_replace(Some(RawExit {
                error: Some(format!("the worker process of WASM tasks is gone: {how}")),
                finished_at: now,
                ..RawExit::default()
            }));
        }
        self.count();
    }

    /// Count the reservation of the run for its worker as long as a task of the run lives.
    fn count(&mut self) {
        let lives = self.tasks.values().any(|exit| exit.borrow().is_none());
        if lives != self.counted {
            self.counted = lives;
            self.worker.change_reserved(self.cpu_mhz, lives);
        }
    }
}

impl Drop for WorkerRun {
    fn drop(&mut self) {
        if self.counted {
            self.worker.change_reserved(self.cpu_mhz, false);
        }
    }
}

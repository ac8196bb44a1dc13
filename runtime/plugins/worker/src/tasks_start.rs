//! How the agent starts a task in a worker.
//!
//! ```text
//! spawn ─► code and worker at hand? ─ yes ─► order sent ─► the driver has its answer
//!             │ no                                              │ release
//!             ▼                                                 ▼
//!     code loaded, worker started ─► order sent ──────► confirmed: held, or refused
//!                                        ▲                      │ the worker ended
//!                                        └── another worker ◄───┘
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::client::{self, Worker};
use super::super::order;
use super::super::protocol::ToWorker;
use super::super::runs::{PendingStart, WorkerRun};
use super::WorkerTasksInner;
use ostler_model::ids::RunId;
use ostler_model::limits::WORKER_START_TRIES_MAX;
use ostler_model::ports::TaskContext;
use ostler_sandbox::{CodeFile, WasmFormat};
use ostler_wasm_task::{WasmTaskError, WasmTaskSpec, make_dirs, new_task_id, opens_dirs_late};

fn opens_late(context: &TaskContext, spec: &WasmTaskSpec, code: &CodeFile) -> bool {
    opens_dirs_late(context, spec, code.format == WasmFormat::Component)
}

impl WorkerTasksInner {
    /// Start a task without a wait, where its code and its worker are at hand. `None`: they are not.
    pub(super) fn spawn_at_once(
        self: &Arc<Self>,
        context: &Arc<TaskContext>,
        spec: &WasmTaskSpec,
    ) -> Option<Result<String, WasmTaskError>> {
        let code: CodeFile = self.code.find_task(&spec.path)?;
        let (key, _) = self.key(context);
        if !opens_late(context, spec, &code) || self.back_off(&key).is_some() {
            return None;
        }
        let slot = Arc::clone(self.places.try_lock().ok()?.get(&key)?);
        let slot = slot.try_lock().ok()?;
        let worker = slot.worker.as_ref().filter(|worker| !worker.is_lost())?;
        // A run that was let go has nobody who asks later whether its task is held.
        let released = |of_run: &WorkerRun| of_run.released;
        if self.table().runs.get(&context.run_id).is_some_and(released) {
            return None;
        }
        let id = new_task_id(&self.options.rng);
        Some(self.begin_start(worker, context, spec.clone(), code, id))
    }

    pub(super) async fn spawn(
        self: Arc<Self>,
        context: Arc<TaskContext>,
        spec: WasmTaskSpec,
    ) -> Result<String, WasmTaskError> {
        let code: CodeFile = self.code.load_task(&context, &spec.path).await?;
        if !opens_late(&context, &spec, &code) {
            make_dirs(&context).await?;
        }
        let worker = self.worker_for(&context).await?;
        let id = new_task_id(&self.options.rng);
        let id = self.begin_start(&worker, &context, spec, code, id)?;
        // Whoever starts a task by this slower way hears at once why it cannot run.
        self.confirm_starts(&context.run_id).await?;
        Ok(id)
    }

    /// The worker for a task. It is started when there is none.
    async fn worker_for(
        self: &Arc<Self>,
        context: &TaskContext,
    ) -> Result<Arc<Worker>, WasmTaskError> {
        let (key, outside) = self.key(context);
        let network = context.network.as_ref().map(|network| network.namespace.clone());
        self.worker(&key, (outside, network), |text| (context.events)(text, Vec::new())).await
    }

    /// Ask a worker to hold a task, and enter the task into the table. The answer is read by
    /// [`WorkerTasksInner::confirm_starts`].
    fn begin_start(
        &self,
        made: &Arc<Worker>,
        context: &Arc<TaskContext>,
        spec: WasmTaskSpec,
        code: CodeFile,
        id: String,
    ) -> Result<String, WasmTaskError> {
        let mut table = self.table();
        if table.ended.has(&context.run_id) {
            return Err(WasmTaskError::RunEnded);
        }
        let sent = order::build_order(context, spec.clone(), &code, &id)?;
        // All tasks of a run are in one worker, because messages to a worker name runs.
        let of_run = table.runs.entry(context.run_id.clone()).or_insert_with(|| {
            made.runs.fetch_add(1, Ordering::Relaxed);
            let said = Some(Arc::clone(&context.events));
            let mut of_run = WorkerRun::new(made, false, context.cpu_mhz, said);
            of_run.dirs = Some(Arc::clone(&context.dirs));
            of_run
        });
        let held = of_run.worker.begin_hold(sent.order, sent.fds);
        of_run.add_task(id.clone(), None);
        if of_run.worker.is_lost() {
            of_run.record_loss("it ended", self.options.clock.now());
        }
        let context = Arc::clone(context);
        of_run.starts.push(PendingStart { id: id.clone(), context, spec, code, held });
        Ok(id)
    }

    /// Wait until the worker holds every task of a run that it was asked to hold.
    pub(super) async fn confirm_starts(self: &Arc<Self>, run: &RunId) -> Result<(), WasmTaskError> {
        loop {
            let start = self.table().runs.get_mut(run).and_then(|of_run| of_run.starts.pop());
            match start {
                Some(start) => self.confirm_start(start).await?,
                None => return Ok(()),
            }
        }
    }

    async fn confirm_start(self: &Arc<Self>, start: PendingStart) -> Result<(), WasmTaskError> {
        let PendingStart { id, context, spec, code, held } = start;
        let run = &context.run_id;
        let (mut held, mut tries) = (client::wait_held(held).await, 1);
        loop {
            let Err(WasmTaskError::Worker { reason }) = &held else { return held };
            // The end of a worker says nothing about the task: the task is started in another
            // worker.
            let Some(released) =
                self.detach_run(run, &id).filter(|_| tries < WORKER_START_TRIES_MAX)
            else {
                return held;
            };
            tries += 1;
            tracing::warn!(%run, reason, "a task is started in another worker");
            let worker = self.worker_for(&context).await?;
            self.begin_start(&worker, &context, spec.clone(), code.clone(), id.clone())?;
            let again = {
                let mut table = self.table();
                let Some(of_run) = table.runs.get_mut(run) else {
                    return Err(WasmTaskError::RunEnded);
                };
                if let Some(note) = released {
                    of_run.released = true;
                    of_run.note.clone_from(&note);
                    of_run.worker.tell(&ToWorker::Release { run: run.to_string(), note });
                }
                of_run.starts.pop()
            };
            held = match again {
                Some(again) => client::wait_held(again.held).await,
                None => Err(WasmTaskError::RunEnded),
            };
        }
    }

    /// Take a run off its worker, if the worker is lost and had no other task of the run. Returns
    /// whether the run was let go, and with which note.
    fn detach_run(&self, run: &RunId, id: &str) -> Option<Option<Option<String>>> {
        let mut table = self.table();
        let of_run = table.runs.get_mut(run)?;
        let alone = of_run.len() == 1 && of_run.task(id).is_some();
        if !of_run.worker.is_lost() || !alone {
            return None;
        }
        let released = of_run.released.then(|| of_run.note.take());
        table.runs.remove(run);
        Some(released)
    }
}

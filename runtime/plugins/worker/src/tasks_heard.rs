//! How the agent handles the messages of workers, and their ends.

use std::sync::Arc;

use super::super::client::{Worker, WorkerListener};
use super::super::order;
use super::super::protocol::{FromWorker, ToWorker};
use super::super::runs::WorkerRun;
use super::WorkerTasksInner;
use ostler_model::limits::WORKER_NOTICES_MAX;

impl WorkerListener for WorkerTasksInner {
    /// A message about a run of another worker is ignored: a worker in which a guest broke out of
    /// its engine may say anything.
    fn handle_message(&self, worker: &Arc<Worker>, message: FromWorker) {
        let of_worker = |of_run: &WorkerRun| Arc::ptr_eq(&of_run.worker, worker);
        match message {
            FromWorker::Exited { run, id, exit } => {
                let Ok(run) = order::parse_run(&run) else { return };
                // Nobody waits for the exit of a run that was forgotten.
                let mut table = self.table();
                let of_run = table.runs.get_mut(&run).filter(|of_run| of_worker(of_run));
                if let Some(of_run) = of_run.filter(|_| order::is_id(&id)) {
                    of_run.record_exit(id, order::decode_exit(exit));
                }
            }
            FromWorker::Said { run, text } => {
                let Ok(run) = order::parse_run(&run) else { return };
                let table = self.table();
                let of_run = table.runs.get(&run).filter(|of_run| of_worker(of_run));
                let said = of_run.and_then(|of_run| of_run.said.clone());
                drop(table);
                if let Some(said) = said {
                    said(order::sanitize_text(text), Vec::new());
                }
            }
            FromWorker::WantsDirs { run: name } => {
                let Ok(run) = order::parse_run(&name) else { return };
                let table = self.table();
                let of_run = table.runs.get(&run).filter(|of_run| of_worker(of_run));
                let Some(make) = of_run.and_then(|of_run| of_run.dirs.clone()) else { return };
                drop(table);
                let worker = Arc::clone(worker);
                self.options.control.spawn(async move {
                    let error = make().await.err();
                    worker.tell(&ToWorker::DirsMade { run: name, error });
                });
            }
            FromWorker::Welcome { notices, .. } => {
                for notice in notices.into_iter().take(WORKER_NOTICES_MAX) {
                    tracing::warn!("{}", order::sanitize_text(notice));
                }
            }
            FromWorker::Held { .. }
            | FromWorker::Refused { .. }
            | FromWorker::Listed { .. }
            | FromWorker::Used { .. }
            | FromWorker::Unknown => {}
        }
    }

    fn handle_loss(&self, worker: &Arc<Worker>, how: String) {
        let now = self.options.clock.now();
        let mut tasks = 0_usize;
        {
            let mut table = self.table();
            let of_worker = table.runs.values_mut().filter(|of| Arc::ptr_eq(&of.worker, worker));
            for of_run in of_worker {
                tasks = tasks.saturating_add(of_run.len());
                of_run.record_loss(&how, now);
            }
        }
        self.workers().retain(|other| !Arc::ptr_eq(other, worker));
        let (pid, key) = (worker.pid(), &worker.key);
        if worker.is_retired() && tasks == 0 {
            tracing::info!(pid, key, "a worker of WASM tasks ended after its last task");
            return;
        }
        if tasks > 0 || worker.current {
            tracing::warn!(
                pid,
                key,
                how,
                tasks,
                "a worker of WASM tasks ended, and its tasks with it"
            );
        }
        // Whoever starts a worker tells when it did not come up.
        if worker.has_come_up() {
            self.record_end(&worker.key, worker.age());
        }
    }
}

//! What is heard of workers, and of their ends.

use std::sync::Arc;

use super::super::client::{Hears, Worker};
use super::super::order;
use super::super::protocol::FromWorker;
use super::super::runs::OfRun;
use super::Inner;
use ostler_model::limits::WORKER_NOTICES_MAX;

impl Hears for Inner {
    /// Of runs in other workers it has nothing to say: one that a guest broke out of says anything.
    fn heard(&self, worker: &Arc<Worker>, message: FromWorker) {
        let of_worker = |of_run: &OfRun| Arc::ptr_eq(&of_run.worker, worker);
        match message {
            FromWorker::Exited { run, id, exit } => {
                let Ok(run) = order::run(&run) else { return };
                // Of a run that was forgotten there is nobody to tell.
                let mut table = self.table();
                let of_run = table.runs.get_mut(&run).filter(|of_run| of_worker(of_run));
                if let Some(of_run) = of_run.filter(|_| order::is_id(&id)) {
                    of_run.exited(id, order::exit_heard(exit));
                }
            }
            FromWorker::Said { run, text } => {
                let Ok(run) = order::run(&run) else { return };
                let table = self.table();
                let of_run = table.runs.get(&run).filter(|of_run| of_worker(of_run));
                let said = of_run.and_then(|of_run| of_run.said.clone());
                drop(table);
                if let Some(said) = said {
                    said(order::text_heard(text), Vec::new());
                }
            }
            FromWorker::Welcome { notices, .. } => {
                for notice in notices.into_iter().take(WORKER_NOTICES_MAX) {
                    tracing::warn!("{}", order::text_heard(notice));
                }
            }
            FromWorker::Held { .. }
            | FromWorker::Refused { .. }
            | FromWorker::Listed { .. }
            | FromWorker::Used { .. }
            | FromWorker::Unknown => {}
        }
    }

    fn lost(&self, worker: &Arc<Worker>, how: String) {
        let now = self.options.clock.now();
        let mut tasks = 0_usize;
        {
            let mut table = self.table();
            let of_worker = table.runs.values_mut().filter(|of| Arc::ptr_eq(&of.worker, worker));
            for of_run in of_worker {
                tasks = tasks.saturating_add(of_run.len());
                of_run.lose(&how, now);
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
        // Of one that did not come up whoever starts it tells.
        if worker.came_up() {
            self.ended_after(&worker.key, worker.age());
        }
    }
}

//! What is left of a run when it is forgotten: its exit record, and its note.
//!
//! ```text
//! forget ─┬─ the process has ended ─► its files are removed, on a thread for such work
//!         └─ it has not ─► it is killed ─► ended (`oversee`) ─► its files are removed
//! ```

use std::sync::atomic::Ordering;

use super::{HostProcess, ProcessHost};
use ostler_model::disk_work::run_disk_work;
use ostler_model::ids::RunId;

impl ProcessHost {
    /// Forget a run, and kill what still runs of it. Calls of [`ProcessHost::wait`] that have begun
    /// still return the exit.
    pub fn forget_run(&self, run: &RunId) {
        let of_run = self.table().remove(run).unwrap_or_default();
        if of_run.noted {
            self.remove_files(run, 0, 0);
        }
        for process in of_run.processes.values() {
            process.kill();
            self.forget(run, process);
        }
    }

    /// Remove the exit record of a process: soon, or once it has ended.
    pub(super) fn forget(&self, run: &RunId, process: &HostProcess) {
        process.forgotten.store(true, Ordering::SeqCst);
        if process.exit.borrow().is_some() {
            self.remove_record(run, process);
            process.dismiss();
        }
    }

    pub(super) fn remove_record(&self, run: &RunId, process: &HostProcess) {
        self.remove_files(run, process.identity.pid, process.identity.start_ticks);
    }

    /// Remove the exit record and the note of a process, on a thread for such work: a slow disk holds
    /// up nothing else. What an agent that is killed leaves is swept by the next one;
    /// [`ProcessHost::finish_removals`] waits for the rest.
    fn remove_files(&self, run: &RunId, pid: u32, start_ticks: u64) {
        let Some(line) = self.line() else { return };
        let (records, run) = (line.records().clone(), run.clone());
        let removing = run_disk_work(move || records.remove(&run, pid, start_ticks));
        let removing = async move {
            if let Err(error) = removing.await {
                tracing::debug!(%error, "an exit record was not removed");
            }
        };
        drop(self.inner.removals.spawn_on(removing, &self.inner.control));
    }

    /// Wait until the exit records and notes of all runs that were forgotten are removed.
    pub async fn finish_removals(&self) {
        self.inner.removals.close();
        self.inner.removals.wait().await;
    }
}

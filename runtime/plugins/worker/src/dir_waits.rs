//! The tasks of a worker that wait for their directories, which the agent makes when they ask.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::protocol::FromWorker;
use super::serve::AgentConnection;
use ostler_model::clock;
use ostler_model::ids::RunId;
use ostler_model::limits::WORKER_DIRS_LOOK_INTERVAL;
use ostler_model::ports::DirMaker;

/// The directory that is made last.
const LAST: &str = "tmp";

type Made = Option<Result<(), String>>;

/// The runs whose directories are awaited. Clones share it.
#[derive(Clone, Default)]
pub(super) struct DirWaits(Arc<Mutex<HashMap<RunId, watch::Sender<Made>>>>);

impl DirWaits {
    fn lock(&self) -> MutexGuard<'_, HashMap<RunId, watch::Sender<Made>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What waits for the directories of a run. The agent may be gone, and the next one makes them
    /// without being asked. So what is there is looked at too.
    pub fn maker(&self, agent: &Arc<AgentConnection>, run: RunId, task_dir: PathBuf) -> DirMaker {
        let (waits, agent, last) = (self.clone(), Arc::clone(agent), task_dir.join(LAST));
        Arc::new(move || {
            let (waits, agent, run, last) =
                (waits.clone(), Arc::clone(&agent), run.clone(), last.clone());
            Box::pin(async move {
                if last.is_dir() {
                    return Ok(());
                }
                let mut made = {
                    let mut waits = waits.lock();
                    waits.entry(run.clone()).or_insert_with(|| watch::channel(None).0).subscribe()
                };
                agent.tell(&FromWorker::WantsDirs { run: run.to_string() });
                loop {
                    let known = made.wait_for(Option::is_some);
                    match clock::timeout(WORKER_DIRS_LOOK_INTERVAL, known).await {
                        Some(Ok(made)) => return made.clone().unwrap_or(Ok(())),
                        Some(Err(_)) => return Err("the run was forgotten".to_owned()),
                        None if last.is_dir() => return Ok(()),
                        None => {}
                    }
                }
            })
        })
    }

    /// The agent made the directories of a run, or could not.
    pub fn note_made(&self, run: &RunId, error: Option<String>) {
        if let Some(waits) = self.lock().get(run) {
            waits.send_replace(Some(error.map_or(Ok(()), Err)));
        }
    }

    /// Nobody waits for the directories of this run any more.
    pub fn forget(&self, run: &RunId) {
        self.lock().remove(run);
    }
}

//! Recovery of runs that an earlier process of the plugin, or of Nomad, has left.

use std::sync::Arc;

use tonic::Status;

use super::record::{NomadRunRecord, RunIdentities, VERSION};
use super::task::NomadTask;
use super::tasks::DriverTasks;
use super::{errors, translation};
use crate::proto::driver as wire;
use ostler_model::clock;
use ostler_model::limits::{NOMAD_RECOVER_PAUSE, NOMAD_RECOVER_TRIES};
use ostler_model::ports::{Adoption, StartedTask, TaskContext};
use ostler_model::task::Workload;

impl DriverTasks {
    /// Own a task of an earlier process again.
    pub(crate) async fn recover(self: &Arc<Self>, handle: wire::TaskHandle) -> Result<(), Status> {
        let task =
            handle.config.ok_or_else(|| Status::invalid_argument("no task in the handle"))?;
        let _turn = self.claim_start(&task.id)?;
        if self.task(&task.id).is_ok() {
            return Ok(());
        }
        if handle.version != VERSION {
            let text = format!("a handle of version {}, not {VERSION}", handle.version);
            return Err(Status::invalid_argument(text));
        }
        let kept = NomadRunRecord::decode(&handle.driver_state);
        let kept = kept.ok_or_else(|| Status::invalid_argument("the handle is not readable"))?;
        let spawned = Arc::new(RunIdentities::default());
        let context = translation::task_context(&task, &spawned, &self.events)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        if kept.run != context.run_id {
            return Err(Status::invalid_argument("the handle is that of another task"));
        }
        // The record on the disk may know processes that were started later.
        let (records, run) = (self.records.clone(), kept.run.clone());
        let newer = tokio::task::spawn_blocking(move || records.load(&run)).await.ok().flatten();
        let kept = newer.unwrap_or(kept);
        self.own((task.id.clone(), task.name), Arc::new(context), kept, spawned).await
    }

    /// Own a run again, whether it runs or has ended. After an error nothing of it is left.
    pub(super) async fn own(
        self: &Arc<Self>,
        names: (String, String),
        context: Arc<TaskContext>,
        kept: NomadRunRecord,
        spawned: Arc<RunIdentities>,
    ) -> Result<(), Status> {
        match self.adopt_run(&context, kept.clone()).await {
            Ok(owned) => {
                let (records, known) = (self.records.clone(), Arc::clone(&spawned));
                let again = owned.clone();
                let written = tokio::task::spawn_blocking(move || known.keep(&records, again));
                if let Ok(Err(error)) = written.await {
                    tracing::warn!(run = %owned.run, %error, "the record of a run cannot be written");
                }
                self.watch(NomadTask::new(names, context, owned, spawned));
                Ok(())
            }
            Err(reason) => {
                spawned.give_up();
                if !self.end_lost(&context, &kept).await {
                    tracing::error!(run = %kept.run, "something of a lost run does not end");
                }
                Err(Status::not_found(reason))
            }
        }
    }

    /// End and forget a run that nobody owns. `false`: part of it does not end, and it
    /// is not forgotten.
    async fn end_lost(&self, context: &Arc<TaskContext>, kept: &NomadRunRecord) -> bool {
        if matches!(kept.workload, Workload::Poll(_)) {
            let ended = self.driver.kill(Arc::clone(context), kept.handle.clone());
            let _gone = self.with_deadline(ended).await;
        }
        self.live.workloads.kill_run(&kept.run);
        let ended = self.live.workloads.end_leftovers(&kept.run, &kept.identities).await;
        if ended {
            self.forget(&kept.run).await;
        }
        ended
    }

    async fn adopt_run(
        &self,
        context: &Arc<TaskContext>,
        kept: NomadRunRecord,
    ) -> Result<NomadRunRecord, String> {
        let polled = matches!(kept.workload, Workload::Poll(_));
        let mut why = String::new();
        for look in 0..NOMAD_RECOVER_TRIES {
            if look > 0 {
                clock::sleep(NOMAD_RECOVER_PAUSE).await;
            }
            match self.live.workloads.adopt(&kept.run, &kept.identities, &kept.workload) {
                Adoption::Ended(_) => return Ok(kept),
                Adoption::NotRun => return Err("it was never let go".to_owned()),
                Adoption::Rebooted => return Err("the machine was restarted".to_owned()),
                Adoption::Unknown if !polled => {
                    return Err("it ended with the process that ran it".to_owned());
                }
                Adoption::NotNow(reason) => {
                    why = reason;
                    continue;
                }
                Adoption::Running | Adoption::Unknown => {}
            }
            let call = self.driver.recover(Arc::clone(context), kept.handle.clone());
            match self.with_deadline(call).await {
                Ok(StartedTask { handle, workload, .. }) => {
                    return Ok(NomadRunRecord { handle, workload, ..kept });
                }
                Err(error) if error.is_recoverable() => why = error.to_string(),
                Err(error) => return Err(error.to_string()),
            }
        }
        Err(why)
    }

    /// End what earlier runs of a task have left. There are such runs when Nomad was killed before
    /// it had kept their handles, and starts the task anew under another id.
    pub(super) async fn end_others(
        &self,
        task: &wire::TaskConfig,
        context: &TaskContext,
    ) -> Result<(), Status> {
        let of_task = context.run_id.of_task();
        let known: Vec<_> = {
            let table = self.table();
            let others = table.tasks.values().filter(|other| other.kept.run.of_task() == of_task);
            others.map(|other| other.id.clone()).collect()
        };
        for id in known {
            tracing::warn!(
                task = id,
                "Nomad starts a task again that it has not ended: it is ended"
            );
            self.destroy(&id, true).await?;
        }
        let (records, run) = (self.records.clone(), context.run_id.clone());
        let left = tokio::task::spawn_blocking(move || records.load_others(&run)).await;
        let left = left.map_err(|_| Status::unavailable("the plugin is shutting down"))?;
        let left = left.map_err(|error| {
            errors::start_status(
                format!("earlier runs of the task cannot be looked for: {error}"),
                true,
            )
        })?;
        for kept in left {
            tracing::warn!(run = %kept.run, "a run that Nomad does not know is ended");
            let spawned = Arc::new(RunIdentities::default());
            let of_it = translation::task_context(task, &spawned, &self.events);
            let of_it = of_it.map_err(|error| errors::start_status(error.to_string(), false))?;
            let of_it = Arc::new(TaskContext { run_id: kept.run.clone(), ..of_it });
            if !self.end_lost(&of_it, &kept).await {
                let text = format!("something of its earlier run {} does not end", kept.run);
                return Err(errors::start_status(text, true));
            }
        }
        Ok(())
    }
}

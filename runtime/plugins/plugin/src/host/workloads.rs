//! The host's processes and WASM tasks behind the one interface that task runners use.

use std::sync::Arc;

use ostler_model::causes::chain;
use ostler_model::clock::Clock;
use ostler_model::ids::RunId;
use ostler_model::limits::KILL_GRACE;
use ostler_model::ports::{Adoption, BoxFuture, ProcessIdentity, ReleaseError, RunNote, Workloads};
use ostler_model::session::{ExecPlan, ExecSession, TerminalSize};
use ostler_model::task::{RawExit, Usage, Workload};
use ostler_process::leftovers::{self, Certainty};
use ostler_process::{ProcessHost, identity};
use ostler_wasm_task::WasmTasks;

/// Processes and WASM tasks behind one interface.
#[derive(Clone)]
pub struct HostWorkloads {
    /// Native task processes.
    pub processes: ProcessHost,
    /// WASM tasks of the node.
    pub wasm_tasks: Arc<dyn WasmTasks>,
    /// Clock for the time of an exit that nobody saw.
    pub clock: Clock,
}

impl Workloads for HostWorkloads {
    fn wait(&self, run: &RunId, workload: &Workload) -> BoxFuture<'static, RawExit> {
        match workload {
            Workload::Process(id) => self.processes.wait(run, id),
            Workload::WasmTask(id) => self.wasm_tasks.wait(run, id),
            Workload::Poll(_) => {
                let exit = RawExit {
                    error: Some("a polled workload has no exit the host could see".to_owned()),
                    finished_at: self.clock.now(),
                    ..RawExit::default()
                };
                Box::pin(std::future::ready(exit))
            }
        }
    }

    fn kill_run(&self, run: &RunId) {
        self.processes.kill_run(run);
        self.wasm_tasks.kill_run(run);
    }

    fn note(&self, run: &RunId, about: RunNote) -> BoxFuture<'static, bool> {
        if self.processes.has_no_process(run) && self.wasm_tasks.note(run, &about) {
            return Box::pin(std::future::ready(true));
        }
        let (processes, run) = (self.processes.clone(), run.clone());
        Box::pin(async move {
            // The thread reports its own panic.
            let noted = tokio::task::spawn_blocking(move || processes.note(&run, &about)).await;
            noted.unwrap_or(false)
        })
    }

    fn release(&self, run: &RunId) -> BoxFuture<'static, Result<(), ReleaseError>> {
        let processes = self.processes.release(run);
        let wasm_tasks = self.wasm_tasks.release(run);
        Box::pin(async move {
            processes.await.map_err(|error| chain(&error))?;
            wasm_tasks.await
        })
    }

    fn adopt(&self, run: &RunId, identities: &[ProcessIdentity], workload: &Workload) -> Adoption {
        let id = match workload {
            Workload::Process(id) => id,
            Workload::WasmTask(id) => {
                self.processes.adopt_note(run);
                return self.wasm_tasks.adopt(run, id);
            }
            Workload::Poll(_) => return Adoption::Unknown,
        };
        let mut answer = Adoption::Unknown;
        let mut not_now = None;
        for identity in identities {
            match self.processes.adopt(run, identity) {
                Ok(adopted) if identity.id() == *id => answer = adopted,
                Ok(_) => {}
                Err(error) => {
                    let (pid, error) = (identity.pid, chain(&error));
                    tracing::warn!(%run, pid, error, "a process cannot be looked at now");
                    not_now = Some(format!("process {pid} cannot be looked at now: {error}"));
                }
            }
        }
        // What was adopted stays adopted, and answers the same when it is asked again.
        not_now.map_or(answer, Adoption::NotNow)
    }

    fn signal(&self, run: &RunId, workload: &Workload, signal: &str) -> Result<(), String> {
        match workload {
            Workload::Process(id) => {
                self.processes.signal(run, id, signal).map_err(|error| chain(&error))
            }
            Workload::WasmTask(_) | Workload::Poll(_) => {
                Err(format!("the host can only signal processes, and {run} is not one"))
            }
        }
    }

    fn exec(
        &self,
        run: &RunId,
        workload: &Workload,
        plan: ExecPlan,
        terminal: Option<TerminalSize>,
    ) -> BoxFuture<'static, Result<ExecSession, String>> {
        let Workload::Process(id) = workload else {
            let why = "commands can only run inside native tasks, and this is not one".to_owned();
            return Box::pin(std::future::ready(Err(why)));
        };
        let (host, run, id) = (self.processes.clone(), run.clone(), id.clone());
        Box::pin(async move {
            host.exec(&run, &id, plan, terminal).await.map_err(|error| chain(&error))
        })
    }

    fn end_leftovers<'a>(
        &'a self,
        run: &'a RunId,
        identities: &'a [ProcessIdentity],
    ) -> BoxFuture<'a, bool> {
        Box::pin(async move {
            let mut gone = true;
            for identity in identities {
                // The process works for a directory of which this one is a copy, and is not this
                // agent's.
                if self.processes.works_elsewhere(identity) {
                    let pid = identity.pid;
                    tracing::warn!(%run, pid, "a process of another data directory is left alone");
                    continue;
                }
                let ending = identity::end_leftover(run.clone(), identity.clone(), KILL_GRACE);
                if let Err(error) = ending.await {
                    let pid = identity.pid;
                    tracing::error!(%run, pid, %error, "what is left of a process cannot be ended");
                    gone = false;
                }
            }
            gone
        })
    }

    fn list_leftovers(&self, run: &RunId, identities: &[ProcessIdentity]) -> Vec<String> {
        let found = identities
            .iter()
            .filter_map(|identity| leftovers::find_remaining(run, identity, Certainty::Now).ok());
        found.flatten().map(|left| left.to_string()).collect()
    }

    fn usage(&self, run: &RunId, workload: &Workload) -> BoxFuture<'static, Option<Usage>> {
        match workload {
            Workload::Process(id) => Box::pin(std::future::ready(self.processes.usage(run, id))),
            Workload::WasmTask(id) => self.wasm_tasks.usage(run, id),
            Workload::Poll(_) => Box::pin(std::future::ready(None)),
        }
    }

    fn forget_run(&self, run: &RunId) {
        self.processes.forget_run(run);
        self.wasm_tasks.forget_run(run);
    }
}

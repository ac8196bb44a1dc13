//! `process`: task processes, for drivers with the grant and only for the task of the call.

use std::path::PathBuf;
use std::sync::Arc;

use crate::bindings::since_0_1::host::process::{
    Host, Isolation as Asked, PartState, ProcessError as WitError, ProcessState, SpawnRequest,
};
use crate::host::CallState;
use ostler_model::causes::chain;
use ostler_model::grants::{Authority, GrantAddition};
use ostler_model::isolation::IsolationKind;
use ostler_model::ports::TaskContext;
use ostler_process::netns::TaskNetwork;
use ostler_process::{Isolation, ProcessError, ProcessSpec, ProcessState as HostState};

#[path = "process_surroundings.rs"]
mod surroundings;

use surroundings::ProgramViolation;

impl From<ProcessError> for WitError {
    fn from(error: ProcessError) -> Self {
        match error {
            ProcessError::CommandNotFound { .. }
            | ProcessError::WorkingDirectory { .. }
            | ProcessError::UnknownUser { .. } => Self::NotFound(error.to_string()),
            ProcessError::UserNotPermitted { .. }
            | ProcessError::RootNotPermitted { .. }
            | ProcessError::ProcessesNotBounded { .. }
            | ProcessError::Mount { .. } => Self::Denied(error.to_string()),
            ProcessError::UnknownProcess { .. } => Self::UnknownProcess,
            ProcessError::UnknownSignal(_) => Self::UnknownSignal(error.to_string()),
            // The cause is what an operator looks for.
            other @ ProcessError::System { .. } => Self::Failed(chain(&other)),
            other => Self::Failed(other.to_string()),
        }
    }
}

impl CallState {
    fn process_task(&self) -> Result<Arc<TaskContext>, WitError> {
        if !self.plugin.grants.process {
            let added = GrantAddition::Ask(Authority::Process);
            let text = "starting processes is not granted";
            return Err(WitError::Denied(self.denial_text(text, Authority::Process, added)));
        }
        self.task.clone().ok_or(WitError::UnknownProcess)
    }

    /// The task of the call, for a function that changes something. A dry run is refused.
    fn process_task_to_change(&self) -> Result<Arc<TaskContext>, WitError> {
        let task = self.process_task()?;
        self.plugin.refusal_reason().map_or(Ok(task), |why| Err(WitError::Denied(why)))
    }

    /// Check a request against the job and the grants. The job names the user and the operator
    /// allows it; the driver only passes it on.
    fn narrow(
        &self,
        task: &TaskContext,
        request: &SpawnRequest,
        isolation: Option<&Isolation>,
    ) -> Result<(), WitError> {
        let grants = &self.plugin.grants;
        let user = request.user.as_deref();
        if user != task.user.as_deref() {
            let named = |user: Option<&str>| user.unwrap_or("the agent's own user").to_owned();
            return Err(WitError::Denied(format!(
                "the job says {}, not {}: a driver starts a task as the user its job names",
                named(task.user.as_deref()),
                named(user),
            )));
        }
        let lacks = |text: String, added| {
            Err(WitError::Denied(self.denial_text(&text, Authority::Process, added)))
        };
        if !grants.allow_user(user) {
            let user = user.unwrap_or_default().to_owned();
            return lacks(
                format!("running tasks as {user} is not granted"),
                GrantAddition::User(user),
            );
        }
        if !grants.allow_program(&request.command) {
            let program = request.command.clone();
            let text = format!("running {program} is not granted");
            return lacks(text, GrantAddition::Program(program));
        }
        if grants.programs.is_none() {
            return Ok(());
        }
        match surroundings::find_violation(&self.plugin.name, grants, task, request, isolation) {
            None => Ok(()),
            Some(ProgramViolation::Lacks(text, added)) => lacks(text, added),
            Some(ProgramViolation::Never(text)) => Err(WitError::Denied(text)),
        }
    }

    async fn spawn_process(
        &mut self,
        mut request: SpawnRequest,
        asked: Option<Asked>,
    ) -> Result<String, WitError> {
        let task = self.process_task_to_change()?;
        // Paths are looked up below, and most starts wait for another process.
        ostler_sandbox::leave_caller().await;
        let dirs = self.host_time.run_uncharged((task.dirs)()).await;
        dirs.map_err(|error| WitError::Failed(format!("the directories of the task: {error}")))?;
        let isolation = match asked {
            None => {
                self.refuse_bare()?;
                None
            }
            Some(asked) => {
                let processes = self.services.processes.clone();
                let abilities = self.host_time.run_uncharged(processes.abilities()).await;
                // Where no part is possible and none is demanded, the process is not isolated.
                Some(self.isolation(&task, asked, abilities)?)
                    .filter(|isolation| !isolation.parts.is_empty())
            }
        };
        let rooted =
            isolation.as_ref().is_some_and(|isolation| isolation.has(IsolationKind::Mounts));
        if self.plugin.grants.programs.is_some() && !rooted {
            // The directory that is checked is the one in which the process is started, whatever
            // becomes of a link meanwhile.
            surroundings::resolve_links(&mut request.cwd);
        }
        self.narrow(&task, &request, isolation.as_ref())?;
        // Where programs are granted one by one, a program is named by its path and not searched
        // for.
        let own = self.plugin.grants.programs.is_none().then_some(request.search);
        let search = own.into_iter().flatten().map(PathBuf::from).collect();
        let spec = ProcessSpec {
            run_id: task.run_id.clone(),
            command: request.command,
            search,
            args: request.args,
            env: request.env.into_iter().map(|var| (var.name, var.value)).collect(),
            cwd: PathBuf::from(request.cwd),
            user: request.user,
            isolation,
            network: task.network.as_ref().map(|network| TaskNetwork {
                namespace: network.namespace.clone(),
                hostname: network.hostname.clone(),
            }),
            stdout: task.stdout.clone(),
            stderr: task.stderr.clone(),
            record_identity: task.record_identity.clone(),
            cpu_mhz: task.cpu_mhz,
            cores: task.cores.clone(),
            memory_bytes_max: task.memory_bytes_max,
        };
        let start = self.services.processes.spawn(spec);
        Ok(self.host_time.run_uncharged(start).await?)
    }
}

impl CallState {
    fn charge_process(&mut self, request: &SpawnRequest) -> wasmtime::Result<()> {
        let vars: usize = request.env.iter().map(|v| v.name.len() + v.value.len()).sum();
        let texts = request.args.iter().chain(&request.search);
        self.budget.charge(vars + texts.map(String::len).sum::<usize>())?;
        Ok(())
    }
}

impl Host for CallState {
    async fn spawn(&mut self, request: SpawnRequest) -> wasmtime::Result<Result<String, WitError>> {
        self.charge_process(&request)?;
        Ok(self.spawn_process(request, None).await)
    }

    async fn spawn_isolated(
        &mut self,
        request: SpawnRequest,
        isolation: Asked,
    ) -> wasmtime::Result<Result<String, WitError>> {
        self.charge_process(&request)?;
        Ok(self.spawn_process(request, Some(isolation)).await)
    }

    async fn isolation_parts(&mut self) -> wasmtime::Result<Result<Vec<PartState>, WitError>> {
        self.budget.charge(0)?;
        if !self.plugin.grants.process {
            let added = GrantAddition::Ask(Authority::Process);
            let denied =
                self.denial_text("starting processes is not granted", Authority::Process, added);
            return Ok(Err(WitError::Denied(denied)));
        }
        let processes = self.services.processes.clone();
        let abilities = self.host_time.run_uncharged(processes.abilities()).await;
        Ok(Ok(self.part_states(abilities)))
    }

    async fn signal(
        &mut self,
        id: String,
        signal: String,
    ) -> wasmtime::Result<Result<(), WitError>> {
        self.budget.charge(id.len() + signal.len())?;
        Ok(self
            .process_task_to_change()
            .and_then(|task| Ok(self.services.processes.signal(&task.run_id, &id, &signal)?)))
    }

    async fn kill(&mut self, id: String) -> wasmtime::Result<Result<(), WitError>> {
        self.budget.charge(id.len())?;
        Ok(self
            .process_task_to_change()
            .and_then(|task| Ok(self.services.processes.kill(&task.run_id, &id)?)))
    }

    async fn state(&mut self, id: String) -> wasmtime::Result<Result<ProcessState, WitError>> {
        self.budget.charge(id.len())?;
        Ok(self.process_task().and_then(|task| {
            Ok(match self.services.processes.state(&task.run_id, &id)? {
                HostState::Running => ProcessState::Running,
                HostState::Exited => ProcessState::Exited,
            })
        }))
    }
}

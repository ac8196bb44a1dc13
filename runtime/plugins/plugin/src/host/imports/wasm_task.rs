//! `wasm-task`: WASM tasks, for drivers with the grant and only for the task of the call.

use std::path::PathBuf;
use std::sync::Arc;

use crate::bindings::since_0_1::host::wasm_task::{
    Host, SpawnRequest, TaskInput, TaskLimits as Narrower, TaskState, WasmError,
};
use crate::host::CallState;
use ostler_model::grants::{Authority, GrantAddition};
use ostler_model::limits::{ANSWER_NAME_BYTES_MAX, TaskLimits};
use ostler_model::ports::TaskContext;
use ostler_model::printable::printable_line;
use ostler_wasm_task::{PreopenedDir, TaskStdin, WasmTaskError, WasmTaskSpec};

impl From<WasmTaskError> for WasmError {
    fn from(error: WasmTaskError) -> Self {
        match error {
            WasmTaskError::NotFound { .. } => Self::NotFound(error.to_string()),
            // This is not the file's fault.
            WasmTaskError::Code { ref source, .. } if source.is_temporary() => {
                Self::Failed(error.to_string())
            }
            WasmTaskError::Refused { invalid: true, .. }
            | WasmTaskError::Code { .. }
            | WasmTaskError::OtherWorld { .. } => Self::Invalid(error.to_string()),
            WasmTaskError::OutsideTask { .. } => Self::Denied(error.to_string()),
            WasmTaskError::UnknownTask => Self::UnknownTask,
            other => Self::Failed(other.to_string()),
        }
    }
}

impl CallState {
    fn wasm_run(&self) -> Result<Arc<TaskContext>, WasmError> {
        if !self.plugin.grants.wasm_task {
            let added = GrantAddition::Ask(Authority::WasmTask);
            let text = "starting WASM tasks is not granted";
            let text = self.denial_text(text, Authority::WasmTask, added);
            return Err(WasmError::Denied(text));
        }
        self.task.clone().ok_or(WasmError::UnknownTask)
    }

    /// The task of the call, for a function that changes something. A dry run is refused.
    fn wasm_run_to_change(&self) -> Result<Arc<TaskContext>, WasmError> {
        let task = self.wasm_run()?;
        self.plugin.refusal_reason().map_or(Ok(task), |why| Err(WasmError::Denied(why)))
    }

    async fn spawn_wasm(
        &mut self,
        request: SpawnRequest,
        narrower: Option<Narrower>,
        input: TaskInput,
    ) -> Result<String, WasmError> {
        let task = self.wasm_run_to_change()?;
        if !task.cores.is_empty() {
            return Err(WasmError::Failed(
                "the task asks for cores of its own, and WASM tasks share theirs with others; ask for cpu"
                    .to_owned(),
            ));
        }
        let foreign = request.network.connect.iter().find(|to| !task.named.contains(to));
        if let Some(place) = foreign {
            return Err(WasmError::Denied(format!(
                "the job's config does not name {}: a task connects to what its job names",
                printable_line(place, ANSWER_NAME_BYTES_MAX)
            )));
        }
        let spec = WasmTaskSpec {
            path: PathBuf::from(request.path),
            args: request.args,
            env: request.env.into_iter().map(|var| (var.name, var.value)).collect(),
            dirs: request
                .dirs
                .into_iter()
                .map(|dir| PreopenedDir {
                    host_path: PathBuf::from(dir.host_path),
                    guest_path: dir.guest_path,
                    read_only: dir.read_only,
                })
                .collect(),
            limits: limits(&task, request.memory_bytes_max, narrower),
            listen: request.network.listen,
            connect: request.network.connect,
            input: match input {
                TaskInput::Nothing => TaskStdin::Nothing,
                TaskInput::Text(text) => TaskStdin::Text(text),
                TaskInput::File(path) => TaskStdin::File(PathBuf::from(path)),
            },
        };
        let start = self.services.wasm_tasks.spawn(task, spec);
        Ok(self.host_time.run_uncharged(start).await?)
    }
}

/// How much a task may use: the least of the host's limits, what its job reserved, and what its
/// driver asks for.
fn limits(task: &TaskContext, memory: Option<u64>, narrower: Option<Narrower>) -> TaskLimits {
    let of_task = TaskLimits {
        memory_bytes_max: memory.unwrap_or(u64::MAX).min(task.memory_bytes_max),
        disk_bytes_max: task.disk_bytes_max,
        ..TaskLimits::default()
    };
    let Some(narrower) = narrower else { return of_task };
    let least = |given: Option<u64>, most: u64| given.map_or(most, |given| given.min(most));
    TaskLimits {
        memory_bytes_max: of_task.memory_bytes_max,
        table_elements_max: least(narrower.table_elements, of_task.table_elements_max),
        transfer_bytes_max: least(narrower.transfer_bytes, of_task.transfer_bytes_max),
        handles_max: narrower.handles.map_or(of_task.handles_max, |n| n.min(of_task.handles_max)),
        random_bytes_max: least(narrower.random_bytes, of_task.random_bytes_max),
        disk_bytes_max: least(narrower.disk_bytes, of_task.disk_bytes_max),
    }
}

impl CallState {
    fn charge_wasm(&mut self, request: &SpawnRequest) -> wasmtime::Result<()> {
        let vars: usize = request.env.iter().map(|v| v.name.len() + v.value.len()).sum();
        self.budget.charge(vars + request.args.iter().map(String::len).sum::<usize>())?;
        Ok(())
    }
}

impl Host for CallState {
    async fn spawn(
        &mut self,
        request: SpawnRequest,
    ) -> wasmtime::Result<Result<String, WasmError>> {
        self.charge_wasm(&request)?;
        Ok(self.spawn_wasm(request, None, TaskInput::Nothing).await)
    }

    async fn spawn_limited(
        &mut self,
        request: SpawnRequest,
        limits: Narrower,
    ) -> wasmtime::Result<Result<String, WasmError>> {
        self.charge_wasm(&request)?;
        Ok(self.spawn_wasm(request, Some(limits), TaskInput::Nothing).await)
    }

    async fn spawn_reading(
        &mut self,
        request: SpawnRequest,
        limits: Narrower,
        input: TaskInput,
    ) -> wasmtime::Result<Result<String, WasmError>> {
        if let TaskInput::Text(text) | TaskInput::File(text) = &input {
            self.budget.charge(text.len())?;
        }
        self.charge_wasm(&request)?;
        Ok(self.spawn_wasm(request, Some(limits), input).await)
    }

    async fn kill(&mut self, id: String) -> wasmtime::Result<Result<(), WasmError>> {
        self.budget.charge(id.len())?;
        Ok(self
            .wasm_run_to_change()
            .and_then(|task| Ok(self.services.wasm_tasks.kill(&task.run_id, &id)?)))
    }

    async fn state(&mut self, id: String) -> wasmtime::Result<Result<TaskState, WasmError>> {
        self.budget.charge(id.len())?;
        Ok(self.wasm_run().and_then(|task| {
            let running = self.services.wasm_tasks.is_running(&task.run_id, &id)?;
            Ok(if running { TaskState::Running } else { TaskState::Exited })
        }))
    }
}

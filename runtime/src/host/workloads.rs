//! The host's workloads as the task runners see them.

use super::process::ProcessHost;
use super::wasm_task::WasmTaskHost;
use crate::clock::Clock;
use crate::driver::api::{BoxFuture, Workloads};
use crate::model::ids::RunId;
use crate::model::task::{RawExit, Workload};

/// Processes and WASM tasks behind one face.
#[derive(Clone)]
pub struct HostWorkloads {
    /// Native task processes.
    pub processes: ProcessHost,
    /// WASM tasks.
    pub wasm_tasks: WasmTaskHost,
    /// For the time of an exit that nobody saw.
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

    fn forget_run(&self, run: &RunId) {
        self.processes.forget_run(run);
        self.wasm_tasks.forget_run(run);
    }
}

//! The agent that serves: jobs that are registered, changed, stopped and restored.
//!
//! Items of the defect ledger (`nomad-client` §1.14) that concern the agent as a whole:
//!
//! * A3 (a destroyed allocation is revived by a late write): `state` bars such writes; here:
//!   `restart::a_collected_allocation_does_not_come_back`.
//! * A6, A8 (stale or empty answers of servers after a restart): nobody asks servers; the jobs on
//!   record are the truth. `restart::jobs_run_on_after_a_restart_and_nothing_starts_twice`.
//! * A7 (an index that goes back): `jobs::the_index_grows_with_every_change_and_over_restarts`,
//!   with a clock that was set back too.
//! * A12 (#16638, half-written allocations): `restart::half_an_allocation_is_removed_and_stops_nothing`.
//! * A19 (cores overlap after a restart): no cores are reserved; ports and devices:
//!   `restart::what_runs_keeps_its_port_and_its_device_over_a_restart`.
//! * A20 (jobs placed before drivers answered): `restart::a_job_waits_for_its_driver`.
//! * B22 (requests to allocations that ended): `jobs::an_allocation_that_ended_takes_no_requests`.
//! * B36 (allocations removed while the agent was away run on): there is nobody to remove them but
//!   this agent; for files: `restart::a_file_removed_while_no_agent_ran_stops_its_job`.
//! * I #6348 (a second agent on the directory hangs):
//!   `restart::a_second_agent_on_the_directory_is_refused_at_once`.

mod chain;
mod devices;
mod ends;
mod faults;
mod jobs;
mod jobs_dir;
mod restart;
mod secrets;

use std::path::Path;
use std::time::Duration;

use ostler_agent::{
    Agent, AgentHandle, AgentMode, AgentOptions, AllocView, JobStatus, LeaveMode, RegisterOptions,
    RegisterOutcome, StopOptions, SubmitError,
};
use ostler_model::alloc::{ClientStatus, DesiredStatus};
use ostler_model::ids::{AllocId, JobId};

use crate::support::jobs::{shell, wasm, with_guests};
use crate::support::system::eventually;
use crate::support::{DataDir, options, parse};

/// An agent that serves.
pub struct Served {
    pub agent: AgentHandle,
    pub data: DataDir,
}

pub fn serving(data: &Path, config: &str) -> AgentOptions {
    let config =
        ostler_jobspec::parse_agent_config(config.as_bytes(), Path::new("/test/ostler.hcl"))
            .unwrap();
    AgentOptions { mode: AgentMode::Durable, ..options(data, config) }
}

impl Served {
    pub async fn start() -> Self {
        Self::on(DataDir::new(), "").await
    }

    pub async fn on(data: DataDir, config: &str) -> Self {
        let agent = Agent::start(serving(data.path(), config)).await.unwrap();
        Self { agent, data }
    }

    /// Leave the tasks; the directory is free when this returns.
    pub async fn leave(self) -> DataDir {
        self.agent.leave(LeaveMode::LeaveTasks).await;
        self.data
    }

    /// Another agent on the same directory.
    pub async fn restart(self) -> Self {
        let data = self.leave().await;
        Self::on(data, "").await
    }

    /// Nothing of it is left running.
    pub async fn end(self) {
        self.agent.leave(LeaveMode::Drain { deadline: Duration::from_secs(30) }).await;
    }

    pub async fn register(&self, job: &str) -> RegisterOutcome {
        self.try_register(job).await.unwrap_or_else(|error| panic!("{error}"))
    }

    pub async fn try_register(&self, job: &str) -> Result<RegisterOutcome, SubmitError> {
        self.agent.register(parse(job), RegisterOptions::default()).await
    }

    /// The job is taken and waits for something of others: why. It is gone again afterwards.
    pub async fn waits(&self, job: &str) -> String {
        let job = parse(job);
        let id = job.id.clone();
        let taken = self.agent.register(job, RegisterOptions::default()).await.unwrap();
        assert_eq!(taken.placed, [], "{taken:?}");
        let view = self.agent.control().job(&id).unwrap();
        assert_eq!(view.status, JobStatus::Pending);
        assert!(view.blocked.iter().all(|blocked| !blocked.soon), "{:?}", view.blocked);
        let purge = StopOptions { purge: true, ..StopOptions::default() };
        self.agent.deregister(&id, purge).await.unwrap();
        taken.warnings.join("\n")
    }

    /// Allocations of the job that are to run, by index.
    pub fn wanted(&self) -> Vec<AllocView> {
        let mut views = self.agent.control().allocs();
        views.retain(|view| view.allocation.desired == DesiredStatus::Run);
        views.sort_by_key(|view| view.allocation.index);
        views
    }

    pub fn view(&self, id: AllocId) -> AllocView {
        self.agent.control().alloc(id).unwrap()
    }

    pub async fn until(&self, id: AllocId, status: ClientStatus) {
        eventually(&format!("{} is {status}", id.short()), || {
            self.agent.control().alloc(id).is_some_and(|view| view.state.client_status == status)
        })
        .await;
    }

    /// The allocations that are to run do, `count` of them.
    pub async fn until_running(&self, count: usize) -> Vec<AllocView> {
        eventually(&format!("{count} run"), || {
            let views = self.wanted();
            let running = |view: &AllocView| view.state.client_status == ClientStatus::Running;
            views.len() == count && views.iter().all(running)
        })
        .await;
        self.wanted()
    }
}

pub fn job_id() -> JobId {
    JobId::new("web").unwrap()
}

/// A service `web` with one group of these lines and a task that runs until it is stopped.
pub fn service(group: &str, task: &str) -> String {
    with_guests(&format!(
        "job \"web\" {{\n group \"g\" {{\n {group}\n {}\n }}\n}}",
        shell("t", "echo $$ > $NOMAD_TASK_DIR/pid; exec sleep 1000", task)
    ))
}

/// A service `web` whose task is a WASM program that sleeps and holds the one device of the node.
pub fn holder(group: &str, env: &str) -> String {
    let more = format!(
        "resources {{\n cpu = 20\n memory = 32\n device \"ostler/file\" {{\n count = 1\n }}\n }}\n \
         env {{\n A = \"{env}\"\n }}"
    );
    let task = wasm("t", "guest:toolbox", &["sleep", "1000000"], &more);
    with_guests(&format!("job \"web\" {{\n group \"g\" {{\n {group}\n {task}\n }}\n}}"))
}

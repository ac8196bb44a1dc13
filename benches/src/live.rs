//! An agent that serves: jobs are registered, native tasks have supervisors and outlive it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use ostler_agent::{
    Agent, AgentHandle, AgentMode, AgentOptions, AllocView, RegisterOptions, StopOptions,
};
use ostler_lifecycle::alloc::AllocHandle;
use ostler_logs::FollowFrom as Begin;
use ostler_model::clock::{self, Clock};
use ostler_model::config::AgentConfig;
use ostler_model::ids::JobId;
use ostler_model::job::Job;
use ostler_model::rng::Rng;
use ostler_model::task::TaskStatus;

use crate::guard::guard_bench;

/// Longer than anything here takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Benches are `ostler` itself where it is a child of an agent, or a whole agent, and the guard of the
/// bench that measures: call this first in `main`. `Some` when this process is one of these and has
/// done its work.
#[must_use]
pub fn own_child() -> Option<ExitCode> {
    let first = std::env::args_os().nth(1);
    let is_ostler = first.as_ref().and_then(|first| first.to_str()).is_some_and(|first| {
        first.starts_with("__") || ["agent", "nomad-plugin", "--version"].contains(&first)
    });
    if is_ostler {
        return Some(ostler_cli::main(std::env::args_os().collect()));
    }
    guard_bench()
}

/// Both drivers of native programs; what lies beside the data directory may be mounted. The node has
/// room for as many allocations as a bench makes.
fn config(data: &Path) -> AgentConfig {
    let beside = data.parent().unwrap_or(data).display();
    let text = format!(
        "plugin \"raw_exec\" {{\n enabled = true\n}}\nplugin \"exec\" {{\n grants {{\n process = \
         true\n isolation {{\n mounts = [\"{beside}/*\"]\n }}\n }}\n}}\nclient {{\n \
         cpu_total_compute = 1000000\n memory_total_mb = 1000000\n}}\n"
    );
    match ostler_jobspec::parse_agent_config(text.as_bytes(), Path::new("/bench.hcl")) {
        Ok(config) => config,
        Err(wrong) => panic!("{}", wrong.render(&text, false)),
    }
}

/// A running agent.
#[derive(Clone)]
pub struct LiveAgent {
    /// The way to it.
    pub handle: AgentHandle,
}

impl LiveAgent {
    /// Start an agent whose native tasks outlive it; compiled code is kept in `code`.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start(data: &Path, code: &Path) -> Self {
        Self::start_as(AgentMode::Durable, data, code).await
    }

    /// As [`LiveAgent::start`], in another mode.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start_as(mode: AgentMode, data: &Path, code: &Path) -> Self {
        let options = AgentOptions {
            data_dir: data.to_owned(),
            socket_dir: None,
            config: config(data),
            mode,
            compiler: None,
            code_dir: Some(PathBuf::from(code)),
            clock: Clock::system(),
            rng: Rng::system(),
            other_nodes: None,
        };
        match Agent::start(options).await {
            Ok(handle) => Self { handle },
            Err(error) => panic!("the agent does not start: {error}"),
        }
    }

    /// Register a job; returns when that is durable.
    ///
    /// # Panics
    /// When it is refused.
    pub async fn register(&self, job: Job) {
        if let Err(error) = self.handle.register(job, RegisterOptions::default()).await {
            panic!("the job is refused: {error}");
        }
    }

    /// The allocations of a job that are known now.
    #[must_use]
    pub fn allocs(&self, job: &JobId) -> Vec<AllocView> {
        let known = self.handle.control().job(job).map(|view| view.allocs).unwrap_or_default();
        known.into_iter().filter_map(|id| self.handle.control().alloc(id)).collect()
    }

    /// Wait until a job has `count` allocations with an owner. Need not be registered yet.
    ///
    /// # Panics
    /// When that takes too long.
    pub async fn owned(&self, job: &JobId, count: usize) -> Vec<AllocHandle> {
        let mut changes = self.handle.control().changes();
        let owned = async {
            loop {
                changes.borrow_and_update();
                let allocs = self.allocs(job);
                if allocs.len() >= count {
                    return allocs.into_iter().map(|alloc| alloc.handle).collect();
                }
                changes.changed().await.expect("the agent lives");
            }
        };
        clock::timeout(PATIENCE, owned).await.expect("the allocations have owners")
    }

    /// Register a job and wait until `count` allocations run; that the job is durable is awaited
    /// too.
    pub async fn run(&self, job: Job, count: usize) -> Vec<AllocHandle> {
        let (id, agent) = (job.id.clone(), self.clone());
        let registered = tokio::spawn(async move { agent.register(job).await });
        let allocs = self.owned(&id, count).await;
        for alloc in &allocs {
            running(alloc).await;
        }
        registered.await.expect("the job is registered");
        allocs
    }

    /// Stop a job and wait until nothing of it is left.
    ///
    /// # Panics
    /// When that takes too long.
    pub async fn purge(&self, job: &JobId) {
        let options = StopOptions { purge: true, ..StopOptions::default() };
        let allocs = self.allocs(job);
        self.handle.deregister(job, options).await.expect("the job is stopped");
        for alloc in allocs {
            let done = clock::timeout(PATIENCE, alloc.handle.wait_done()).await;
            drop(done.expect("the allocation ends"));
            let mut phase = alloc.handle.phase();
            let gone =
                phase.wait_for(|phase| *phase == ostler_lifecycle::alloc::AllocPhase::Destroyed);
            // An error means that the owner is gone.
            let _ended = clock::timeout(PATIENCE, gone).await.expect("the allocation is removed");
        }
    }

    /// Wait until the store had nothing to do for `quiet`; whether it came to that.
    pub async fn settle(&self, quiet: Duration) -> bool {
        let settled = async {
            loop {
                let before = self.handle.state_stats();
                clock::sleep(quiet).await;
                let after = self.handle.state_stats();
                if after.queued == 0 && after.commits == before.commits {
                    return;
                }
            }
        };
        clock::timeout(Duration::from_secs(30), settled).await.is_some()
    }
}

/// Wait until every task of an allocation runs (or has ended already).
///
/// # Panics
/// When that takes too long, or one failed.
pub async fn running(alloc: &AllocHandle) {
    let mut state = alloc.state();
    let begun =
        state.wait_for(|state| state.tasks.values().all(|task| task.status != TaskStatus::Pending));
    let begun = clock::timeout(PATIENCE, begun).await.expect("the tasks run");
    let begun = begun.expect("the owner lives").clone();
    assert!(begun.tasks.values().all(|task| !task.failed), "{begun:?}");
}

/// Wait until the health of an allocation is judged.
///
/// # Panics
/// When that takes too long.
pub async fn judged(alloc: &AllocHandle) {
    let mut state = alloc.state();
    let verdict = |health: &ostler_model::saved::DeploymentStatus| health.healthy.is_some();
    let judged = state.wait_for(|state| state.health.as_ref().is_some_and(verdict));
    let judged = clock::timeout(PATIENCE, judged).await.expect("the allocation is judged");
    drop(judged.expect("the owner lives"));
}

/// Wait for the first bytes that the only task of an allocation prints.
///
/// # Panics
/// When that takes too long.
pub async fn first_output(alloc: &AllocHandle) -> Vec<u8> {
    let task = ostler_model::ids::TaskName::new("t").expect("a name");
    let printed = async {
        let logs = alloc.wait_for_logs(&task).await.expect("the owner lives");
        logs.stdout.follow(Begin::Start).next(64).await.expect("some output").bytes
    };
    clock::timeout(PATIENCE, printed).await.expect("the task prints")
}

/// A job of `count` allocations with one task each, of `memory` MiB.
///
/// # Panics
/// When `driver` and `config` make no job.
#[must_use]
pub fn job(name: &str, kind: &str, count: u64, driver: &str, memory: u64, config: &str) -> Job {
    let text = format!(
        "job \"{name}\" {{\n  type = \"{kind}\"\n  group \"g\" {{\n    count = {count}\n    task \
         \"t\" {{\n      driver = \"{driver}\"\n      config {{\n{config}\n      }}\n      \
         resources {{\n        cpu = 1\n        memory = {memory}\n      }}\n    }}\n  }}\n}}\n"
    );
    match ostler_jobspec::parse(text.as_bytes(), Path::new("bench.hcl"), None) {
        Ok(job) => job,
        Err(diagnostics) => panic!("{}", diagnostics.render(&text, false)),
    }
}

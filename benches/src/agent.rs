//! An agent in a temporary directory, and one-task jobs.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use ostler_agent::{Agent, AgentHandle, AgentOptions, JobHandle};
use ostler_model::clock::{Clock, Stopwatch};
use ostler_model::config::AgentConfig;
use ostler_model::job::Job;
use ostler_model::rng::Rng;
use ostler_model::task::TaskStatus;
use tempfile::TempDir;

/// Benches are their own compile child, as the agent is: call this first in `main`. `Some` when
/// this process is that child and has done its work.
#[must_use]
pub fn compile_child() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    let child = args.next().is_some_and(|first| first == "__compile");
    child.then(|| ostler_sandbox::compile_child_main(args))
}

/// A running agent, its control runtime and its directory.
pub struct Bench {
    /// The control runtime.
    pub runtime: tokio::runtime::Runtime,
    /// The agent.
    pub agent: AgentHandle,
    dir: TempDir,
}

impl Bench {
    /// Start an agent in a fresh directory on the disk that holds the temporary directory.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let dir = tempfile::Builder::new().prefix("ostler-bench-").tempdir().expect("a directory");
        let options = AgentOptions {
            data_dir: dir.path().join("data"),
            config: AgentConfig::default(),
            kill_with_agent: true,
            compiler: None,
            code_dir: None,
            clock: Clock::system(),
            rng: Rng::system(),
        };
        let agent = match runtime.block_on(Agent::start(options)) {
            Ok(agent) => agent,
            Err(error) => panic!("the agent does not start: {error}"),
        };
        Self { runtime, agent, dir }
    }

    /// The temporary directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Submit a job of one task, and time from the call until the task is seen running (or already
    /// ended). The job is run to its end and removed outside the measured time.
    ///
    /// # Panics
    /// When the job is refused or fails.
    #[must_use]
    pub fn time_start(&self, job: &Job) -> Duration {
        self.runtime.block_on(async {
            let job = job.clone();
            let watch = Stopwatch::start();
            let handle: JobHandle = match self.agent.submit(job).await {
                Ok(handle) => handle,
                Err(error) => panic!("the job is refused: {error}"),
            };
            let alloc = handle.allocs().first().expect("one allocation");
            let mut state = alloc.state();
            let started = state.wait_for(|state| {
                state.tasks.values().all(|task| task.status != TaskStatus::Pending)
            });
            drop(started.await.expect("the runner lives"));
            let elapsed = watch.elapsed();
            handle.stop("bench").await;
            handle.wait().await;
            alloc.destroy().await;
            elapsed
        })
    }
}

/// A job of one task.
///
/// # Panics
/// When `driver` and `config` make no job.
#[must_use]
pub fn one_task(driver: &str, config: &str) -> Job {
    let text = format!(
        "job \"bench\" {{\n  type = \"batch\"\n  group \"g\" {{\n    task \"t\" {{\n      driver = \
         \"{driver}\"\n      config {{\n{config}\n      }}\n      resources {{\n        cpu = 10\n        memory = \
         32\n      }}\n    }}\n  }}\n}}\n"
    );
    match ostler_jobspec::parse(text.as_bytes(), Path::new("bench.hcl"), None) {
        Ok(job) => job,
        Err(diagnostics) => panic!("{}", diagnostics.render(&text, false)),
    }
}

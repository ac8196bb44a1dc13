//! Agents, jobs and directories for tests.

pub mod agent_process;
pub mod authority;
pub mod binary;
pub mod browser;
pub mod census;
pub mod files;
pub mod front;
pub mod http;
pub mod jobs;
pub mod lateness;
pub mod ledger;
pub mod link;
pub mod needs;
pub mod nomad;
pub mod plugins;
pub mod programs;
pub mod signer;
pub mod stock_job;
pub mod system;

use std::path::{Path, PathBuf};
use std::time::Duration;

use ostler_agent::{Agent, AgentHandle, AgentMode, AgentOptions, AllocResult, JobResult};
use ostler_model::clock::Clock;
use ostler_model::config::AgentConfig;
use ostler_model::job::Job;
use ostler_model::rng::Rng;
use tempfile::TempDir;

/// The binary under test; also the compile child of agents inside this process.
pub const OSTLER: &str = env!("CARGO_BIN_EXE_ostler");

/// Longer than anything here takes on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A data directory whose code cache has what earlier tests compiled.
pub struct DataDir(TempDir);

impl DataDir {
    pub fn new() -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let owner_alone = std::fs::Permissions::from_mode(0o700);
        let mut dir = tempfile::Builder::new();
        let dir = dir.prefix("ostler-it-").permissions(owner_alone).tempdir().unwrap();
        share(&warm_cache(), &dir.path().join("code"));
        // Entries are sealed with a secret beside the cache; without this one they would be refused.
        std::fs::hard_link(warm_secret(), dir.path().join("code.key"))
            .or_else(|_| std::fs::copy(warm_secret(), dir.path().join("code.key")).map(drop))
            .unwrap();
        Self(dir)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        share(&self.0.path().join("code"), &warm_cache());
        system::detach_mounts(self.0.path());
    }
}

fn warm_cache() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("code-sealed")
}

/// The secret of all caches of tests, made by the first.
fn warm_secret() -> PathBuf {
    let path = warm_cache().with_extension("key");
    if !path.exists() {
        let mut new = tempfile::NamedTempFile::new_in(path.parent().unwrap()).unwrap();
        let mut secret = [0; 32];
        Rng::system().fill(&mut secret);
        std::io::Write::write_all(&mut new, &secret).unwrap();
        // Another one may have been faster.
        let _ = new.persist_noclobber(&path);
    }
    path
}

/// Link (or copy, by rename) the files that are not there yet. Code files are never changed in
/// place, so one inode can serve all.
fn share(from: &Path, to: &Path) {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(to).unwrap();
    let Ok(entries) = std::fs::read_dir(from) else { return };
    for entry in entries.flatten() {
        let target = to.join(entry.file_name());
        if target.exists() || !entry.path().is_file() {
            continue;
        }
        if std::fs::hard_link(entry.path(), &target).is_ok() {
            continue;
        }
        let staging = tempfile::NamedTempFile::new_in(to).unwrap();
        if std::fs::copy(entry.path(), staging.path()).is_ok() {
            let _ = staging.persist(&target);
        }
    }
}

/// A running agent and its directory.
pub struct TestAgent {
    pub handle: AgentHandle,
    pub data: DataDir,
}

impl TestAgent {
    pub async fn start() -> Self {
        Self::with_config("").await
    }

    /// An agent with an HCL configuration.
    pub async fn with_config(config: &str) -> Self {
        let data = DataDir::new();
        let config =
            ostler_jobspec::parse_agent_config(config.as_bytes(), Path::new("/test/ostler.hcl"))
                .unwrap();
        let handle = Agent::start(options(data.path(), config)).await.unwrap();
        Self { handle, data }
    }

    /// Run a job to its end.
    pub async fn run(&self, job: &str) -> JobResult {
        let mut job = parse(job);
        // One of its name may run beside it.
        for number in 2.. {
            let there = self.handle.control().job(&job.id);
            if there.is_none_or(|view| view.status == ostler_agent::JobStatus::Dead) {
                break;
            }
            job.id = ostler_model::ids::JobId::new(format!("j{number}")).unwrap();
        }
        let job = self.handle.submit(job).await.unwrap_or_else(|e| panic!("{e}"));
        ostler_model::clock::timeout(PATIENCE, job.wait()).await.expect("the job ends")
    }

    pub async fn stop(self) {
        self.handle.shutdown().await;
    }

    /// The same, and the data directory stays until the result is dropped.
    pub async fn leave(self) -> DataDir {
        self.handle.shutdown().await;
        self.data
    }

    /// All that a task printed to standard output, over all rotated files.
    pub fn stdout(&self, result: &JobResult, task: &str) -> String {
        self.log(result, task, "stdout")
    }

    /// The directory of the allocation that a task belongs to.
    pub fn alloc_dir(&self, result: &JobResult, task: &str) -> PathBuf {
        let has = |alloc: &&AllocResult| alloc.state.tasks.keys().any(|name| name.as_str() == task);
        let alloc = result.allocs.iter().find(has).expect("the task's allocation").id;
        self.handle.data_dir().join(format!("allocs/{alloc}"))
    }

    pub fn log(&self, result: &JobResult, task: &str, stream: &str) -> String {
        let dir = self.alloc_dir(result, task).join("alloc/logs");
        let mut text = Vec::new();
        for index in 0.. {
            match std::fs::read(dir.join(format!("{task}.{stream}.{index}"))) {
                Ok(part) => text.extend(part),
                Err(_) => break,
            }
        }
        String::from_utf8(text).unwrap()
    }
}

/// Configuration of an agent that removes nothing because the disk of the machine that tests is
/// full, unless a test asks for it, and that lets tasks do what this process may.
pub const KEEPS: &str = "gc {\n disk_usage_threshold = 100\n inode_usage_threshold = 100\n}\n\
                         plugin \"raw_exec\" {\n enabled = true\n}\n";
/// The same for a test with a block of that name.
pub const KEEPS_ALONE: &str =
    "gc {\n disk_usage_threshold = 100\n inode_usage_threshold = 100\n}\n";

pub fn options(data_dir: &Path, mut config: AgentConfig) -> AgentOptions {
    config.gc.disk_usage_percent.get_or_insert(100);
    config.gc.inode_usage_percent.get_or_insert(100);
    // Most tests write and look outside the task's directories.
    config.plugins.entry("raw_exec".to_owned()).or_default().enabled.get_or_insert(true);
    AgentOptions {
        data_dir: data_dir.to_owned(),
        socket_dir: None,
        config,
        mode: AgentMode::Embedded,
        compiler: Some(OSTLER.into()),
        code_dir: None,
        clock: Clock::system(),
        rng: Rng::system(),
        other_nodes: None,
    }
}

/// A job from HCL.
pub fn parse(job: &str) -> Job {
    match ostler_jobspec::parse(job.as_bytes(), Path::new("/test/job.hcl"), None) {
        Ok(job) => job,
        Err(diagnostics) => panic!("{}", diagnostics.render(job, false)),
    }
}

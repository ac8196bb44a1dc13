//! Behaviour over real processes: `/bin/sh`, `sleep`, `cat`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use ostler_model::causes::chain;
use ostler_model::cores::CoreSet;
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::ports::SinkFiles;
use ostler_testing::files::open_to_all;
use ostler_testing::programs::write_script;

mod confined;
mod crash;
mod detached;
mod end;
mod hung;
mod inside;
mod isolated;
mod outlive;
mod over;
mod start;
mod unlinked;

/// Keeps what is printed: in memory when this process reads it, in a file when a supervisor does.
struct Kept(Mutex<Vec<u8>>, tempfile::TempDir);

/// A sink whose files lie in a directory of the test's.
struct KeptIn(PathBuf);

impl ByteSink for KeptIn {
    fn write(&self, _: &[u8]) {
        panic!("nothing is written here");
    }

    fn files(&self) -> Option<SinkFiles> {
        Some(files_in(&self.0))
    }
}

fn files_in(path: &std::path::Path) -> SinkFiles {
    SinkFiles {
        dir: std::os::fd::OwnedFd::from(std::fs::File::open(path).unwrap()).into(),
        prefix: "t.stdout.".to_owned(),
        files_max: 10,
        file_bytes_max: 10 << 20,
        fresh: false,
    }
}

impl Default for Kept {
    fn default() -> Self {
        Self(Mutex::default(), tempfile::tempdir().unwrap())
    }
}

impl ByteSink for Kept {
    fn write(&self, bytes: &[u8]) {
        self.0.lock().unwrap().extend_from_slice(bytes);
    }

    fn files(&self) -> Option<SinkFiles> {
        Some(files_in(self.1.path()))
    }
}

impl Kept {
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.0.lock().unwrap().clone();
        bytes.extend(std::fs::read(self.1.path().join("t.stdout.0")).unwrap_or_default());
        bytes
    }

    fn text(&self) -> String {
        String::from_utf8(self.bytes()).unwrap()
    }
}

/// Who starts and watches the processes of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// This process.
    Here,
    /// Supervisors.
    Supervised,
}

impl Mode {
    fn host(self) -> ProcessHost {
        match self {
            Self::Here => host_with(false),
            Self::Supervised => supervised_host(&scratch().join("exits")),
        }
    }
}

/// Each behaviour as two tests.
macro_rules! in_both_modes {
    ($($name:ident),* $(,)?) => {
        mod here {
            $(#[tokio::test] async fn $name() { super::$name(super::Mode::Here).await })*
        }
        mod supervised {
            $(#[tokio::test] async fn $name() { super::$name(super::Mode::Supervised).await })*
        }
    };
}
use in_both_modes;

/// A directory of this test process, removed by nobody.
fn scratch() -> &'static std::path::Path {
    static SCRATCH: std::sync::OnceLock<tempfile::TempDir> = std::sync::OnceLock::new();
    SCRATCH.get_or_init(|| tempfile::tempdir().unwrap()).path()
}

fn host_with(kill_with_agent: bool) -> ProcessHost {
    host_of(kill_with_agent, None)
}

fn supervised_host(records: &std::path::Path) -> ProcessHost {
    let supervision = Supervision { program: supervise_script(), records: records.to_owned() };
    host_of(false, Some(supervision))
}

fn host_of(kill_with_agent: bool, supervision: Option<Supervision>) -> ProcessHost {
    ProcessHost::new(ProcessOptions {
        control: Handle::current(),
        kill_with_agent,
        supervision,
        cgroup_parent: None,
        clock: Clock::system(),
    })
    .unwrap()
}

/// A program that answers `__supervise`: this test binary, told to do only that.
fn supervise_script() -> PathBuf {
    static SCRIPT: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    let written = SCRIPT.get_or_init(|| {
        let binary = std::env::current_exe().unwrap();
        let script = format!(
            "#!/bin/sh\nOSTLER_TEST_SUPERVISE=\"$1\" exec '{}' --exact \
             tests::the_zygote --ignored --nocapture --test-threads=1\n",
            binary.display()
        );
        // Whole before it has its name.
        let new = binary.with_extension(format!("supervise-{}", std::process::id()));
        write_script(&new, &script).unwrap();
        let path = binary.with_extension("supervise");
        std::fs::rename(&new, &path).unwrap();
        path
    });
    written.clone()
}

/// Not a test: the zygote, run by [`supervise_script`].
#[test]
#[ignore = "only does something inside a zygote"]
fn the_zygote() {
    if std::env::var("OSTLER_TEST_SUPERVISE").is_ok_and(|role| role == "__supervise") {
        let ended = supervise::main();
        std::process::exit(i32::from(ended != std::process::ExitCode::SUCCESS));
    }
}

fn run_id(number: u32) -> RunId {
    static RUN: AtomicUsize = AtomicUsize::new(0);
    let unique = RUN.fetch_add(1, Ordering::SeqCst) as u128 + 1;
    let process = u128::from(std::process::id()) << 64;
    let alloc = AllocId::new(uuid::Uuid::from_u128(process | unique));
    RunId::new(alloc, &TaskName::new("t").unwrap(), number)
}

struct Case {
    spec: ProcessSpec,
    stdout: Arc<Kept>,
    stderr: Arc<Kept>,
}

fn recorded() -> IdentityRecorder {
    Arc::new(|_| Box::pin(async { Ok(()) }))
}

fn sh(script: &str) -> Case {
    let (stdout, stderr) = (Arc::new(Kept::default()), Arc::new(Kept::default()));
    let spec = ProcessSpec {
        run_id: run_id(1),
        command: "/bin/sh".to_owned(),
        search: Vec::new(),
        args: vec!["-c".to_owned(), script.to_owned()],
        env: vec![("PATH".to_owned(), command::PATH_DEFAULT.to_owned())],
        cwd: PathBuf::from("/"),
        user: None,
        isolation: None,
        network: None,
        stdout: Arc::clone(&stdout) as Arc<dyn ByteSink>,
        stderr: Arc::clone(&stderr) as Arc<dyn ByteSink>,
        record_identity: recorded(),
        cpu_mhz: 100,
        cores: CoreSet::new(),
        memory_bytes_max: 64 * ostler_model::limits::MIB,
    };
    Case { spec, stdout, stderr }
}

/// Spawn and let go.
async fn start(host: &ProcessHost, spec: &ProcessSpec) -> Result<String, ProcessError> {
    let id = host.spawn(spec.clone()).await?;
    host.release(&spec.run_id).await?;
    Ok(id)
}

async fn to_end(host: &ProcessHost, spec: &ProcessSpec) -> RawExit {
    let id = start(host, spec).await.unwrap();
    let exit = host.wait(&spec.run_id, &id).await;
    host.forget_run(&spec.run_id);
    exit
}

/// Forget a run, and wait until the process is reaped: a test's end must not cut that short.
async fn forget(host: &ProcessHost, run: &RunId, id: &str) {
    let ended = host.wait(run, id);
    host.forget_run(run);
    ended.await;
}

fn cgroup_is_gone(identity: &ProcessIdentity) -> bool {
    identity.cgroup.as_ref().is_none_or(|path| !path.exists())
}

/// Wait until `condition` holds; fails the test after ten seconds.
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..2_000 {
        if condition() {
            return;
        }
        clock_sleep().await;
    }
    panic!("never came true: {what}");
}

async fn clock_sleep() {
    ostler_model::clock::sleep(Duration::from_millis(5)).await;
}

fn exists(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap().trim_start().starts_with('Z'))
}

fn pid_in(kept: &Kept) -> Option<u32> {
    kept.text().lines().next().and_then(|line| line.parse().ok())
}

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
use crate::model::ids::{AllocId, TaskName};

mod crash;
mod end;
mod start;

#[derive(Default)]
struct Kept(Mutex<Vec<u8>>);

impl ByteSink for Kept {
    fn write(&self, bytes: &[u8]) {
        self.0.lock().unwrap().extend_from_slice(bytes);
    }
}

impl Kept {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

fn host() -> ProcessHost {
    host_with(false)
}

fn host_with(kill_with_agent: bool) -> ProcessHost {
    ProcessHost::new(Options {
        control: Handle::current(),
        kill_with_agent,
        cgroup_parent: None,
        clock: Clock::system(),
    })
    .unwrap()
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
        args: vec!["-c".to_owned(), script.to_owned()],
        env: vec![("PATH".to_owned(), command::PATH_DEFAULT.to_owned())],
        cwd: PathBuf::from("/"),
        user: None,
        stdout: Arc::clone(&stdout) as Arc<dyn ByteSink>,
        stderr: Arc::clone(&stderr) as Arc<dyn ByteSink>,
        record_identity: recorded(),
        cpu_mhz: 100,
        memory_bytes_max: 64 * crate::limits::MIB,
    };
    Case { spec, stdout, stderr }
}

async fn to_end(host: &ProcessHost, spec: &ProcessSpec) -> RawExit {
    let id = host.spawn(spec.clone()).await.unwrap();
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
    crate::clock::sleep(Duration::from_millis(5)).await;
}

fn exists(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap().trim_start().starts_with('Z'))
}

fn pid_in(kept: &Kept) -> Option<u32> {
    kept.text().lines().next().and_then(|line| line.parse().ok())
}

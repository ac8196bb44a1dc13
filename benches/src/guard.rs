//! Ends what a bench started, however the bench ends.
//!
//! ```text
//! guard: this program ── starts itself again ─► the bench that measures ── agents, helpers, tasks
//!   │ a signal: the bench is killed                  │ ends, or is killed
//!   │ ◄──── its descendants become children ─────────┘
//!   └─► every descendant is killed, mounts are detached, the directory is removed
//! ```
//! Helpers of a stock Nomad, and supervisors of an agent, outlive the process that started them.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;

use ostler_model::clock::Stopwatch;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, kill_process, set_child_subreaper,
    set_parent_process_death_signal, wait, waitid,
};
use tokio::signal::unix::{SignalKind, signal};

use crate::machine::{BENCH_DIR, BenchDir};

/// Set for the bench that measures, and whatever it starts.
const GUARDED: &str = "OSTLER_BENCH_GUARDED";
/// How long killed processes may take to end.
const END_WAIT_MAX: Duration = Duration::from_secs(30);

/// Be the guard of a bench, to its end. `None`: this process has one already.
///
/// # Panics
/// When the system refuses a process.
#[must_use]
pub fn guard_bench() -> Option<ExitCode> {
    if std::env::var_os(GUARDED).is_some() {
        return None;
    }
    set_child_subreaper(Some(getpid())).expect("orphans come here");
    let dir = BenchDir::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime.expect("a runtime").block_on(run_bench(dir.path()));
    end_descendants();
    detach_mounts(dir.path());
    Some(ended)
}

/// Run this program again, with a directory of its own for all that it writes.
async fn run_bench(dir: &Path) -> ExitCode {
    let [mut interrupt, mut terminate, mut hang_up] =
        [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()]
            .map(|kind| signal(kind).expect("signals are heard"));
    let program = std::env::current_exe().expect("the path of this program");
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    #[expect(clippy::disallowed_methods, reason = "a process of the bench, not of an agent")]
    let mut command = std::process::Command::new(program);
    command.args(args).env(GUARDED, "1").env(BENCH_DIR, dir);
    let mut command = tokio::process::Command::from(command);
    let die_with_guard = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
    // SAFETY: between fork and exec one system call is made; nothing is allocated.
    unsafe { command.pre_exec(die_with_guard) };
    let mut ends = signal(SignalKind::child()).expect("ends of children are heard");
    let mut child = command.spawn().expect("the bench starts");
    let bench = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    let told = loop {
        break tokio::select! {
            ended = child.wait() => return code_of(ended.expect("the bench is waited for")),
            _ = ends.recv() => {
                reap_orphans(bench);
                continue;
            }
            _ = interrupt.recv() => SignalKind::interrupt(),
            _ = terminate.recv() => SignalKind::terminate(),
            _ = hang_up.recv() => SignalKind::hangup(),
        };
    };
    let _ended_already = child.start_kill();
    let _reaped = child.wait().await;
    eprintln!("the bench was ended; what it started is ended too");
    ExitCode::from(128 + u8::try_from(told.as_raw_value()).unwrap_or(0))
}

/// Reap every child that has ended, but for the bench: who looks after one by its pid would think that
/// it lives.
fn reap_orphans(bench: Option<Pid>) {
    for pid in children().into_iter().filter(|pid| Some(*pid) != bench) {
        let _lives = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
}

/// The children of this process.
fn children() -> Vec<Pid> {
    let list = format!("/proc/self/task/{}/children", getpid().as_raw_nonzero());
    let children = fs::read_to_string(list).unwrap_or_default();
    let pids = children.split_whitespace().filter_map(|pid| pid.parse().ok());
    pids.filter_map(Pid::from_raw).collect()
}

/// The exit code of the bench; 128 and the number of the signal that killed it, as a shell says it.
fn code_of(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Kill every process that the bench left, again and again: the children of a killed one come here.
#[expect(clippy::disallowed_methods, reason = "between two looks; nothing else runs here")]
fn end_descendants() {
    let watch = Stopwatch::start();
    while watch.elapsed() < END_WAIT_MAX {
        let left = children();
        if left.is_empty() {
            return;
        }
        for pid in left {
            let _ended_already = kill_process(pid, Signal::KILL);
        }
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        std::thread::sleep(Duration::from_millis(10));
    }
    eprintln!("processes that the bench started do not end: {:?}", children());
}

/// Detach everything that is mounted below a directory. Nomad leaves a mount for each allocation,
/// and the directory could not be removed.
pub fn detach_mounts(below: &Path) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mounts = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    for mount in mounts.filter(|mount| Path::new(mount).starts_with(below)) {
        let _gone = rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH);
    }
}

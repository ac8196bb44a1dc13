//! The machine a bench runs on, where it writes, and how long it may take.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ostler_model::clock::{self, Stopwatch};
use ostler_model::limits::STATE_SETTLE_IDLE;
use ostler_state::StateStore;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Variable that names the directory in which benches write.
pub(crate) const BENCH_DIR: &str = "OSTLER_BENCH_DIR";

/// A directory for one bench, removed with this.
#[derive(Debug)]
pub struct BenchDir {
    dir: TempDir,
}

impl BenchDir {
    /// A new directory in `OSTLER_BENCH_DIR`, or else beside the executable, which cargo keeps in
    /// its target directory: the temporary directory may be in memory.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn new() -> Self {
        let parent = std::env::var_os(BENCH_DIR).map_or_else(beside, PathBuf::from);
        fs::create_dir_all(&parent).expect("the bench directory");
        // Short, because one lies in that of the guard, and the path of a socket has a hundred bytes.
        let dir = tempfile::Builder::new().prefix("bench-").tempdir_in(&parent);
        Self { dir: dir.expect("a directory") }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Default for BenchDir {
    fn default() -> Self {
        Self::new()
    }
}

fn beside() -> PathBuf {
    let executable = std::env::current_exe().expect("the path of this program");
    executable.parent().expect("its directory").to_owned()
}

/// Run only so much that every line of the bench was reached: `cargo test --benches`, or `--test`.
#[must_use]
pub fn quick() -> bool {
    // Cargo passes `--bench` when it benches and nothing when it tests.
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    args.iter().any(|arg| arg == "--test") || !args.iter().any(|arg| arg == "--bench")
}

/// `full`, or `small` in a quick run.
#[must_use]
pub fn scaled<T>(full: T, small: T) -> T {
    if quick() { small } else { full }
}

/// The runtime of an agent.
///
/// # Panics
/// When it does not start.
#[must_use]
pub fn runtime() -> tokio::runtime::Runtime {
    ostler_sandbox::threads::control_runtime().expect("a runtime")
}

/// Wait until a store has moved its journal into the state file, so that this is in nobody's figures.
///
/// # Panics
/// When it does not.
pub fn at_rest(runtime: &tokio::runtime::Runtime, store: &StateStore) {
    let since = Stopwatch::start();
    while !store.is_settled() {
        assert!(since.elapsed() < 20 * STATE_SETTLE_IDLE, "the journal is not moved");
        runtime.block_on(clock::sleep(Duration::from_millis(10)));
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// What the numbers of a run depend on.
#[must_use]
pub fn facts(dir: &Path) -> Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
    let (kind, options) = file_system(dir, &read("/proc/self/mountinfo"));
    json!({
        "machine": format!("{} cores, {}", cores(), model.trim_start_matches([':', '\t', ' '])),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        "file system": format!("{kind} ({options})"),
        "load": read("/proc/loadavg").trim(),
    })
}

/// Print them.
pub fn print_facts(bench: &str, dir: &Path) {
    let facts = facts(dir);
    println!("bench {bench}{}", if quick() { " (quick: the numbers mean nothing)" } else { "" });
    for (name, fact) in facts.as_object().into_iter().flatten() {
        println!("{name}: {}", fact.as_str().unwrap_or_default());
    }
    println!("directory: {}", dir.display());
    if facts.to_string().contains("tmpfs") {
        println!("warning: in memory, so nothing here says anything about a disk");
    }
    if cfg!(debug_assertions) && !quick() {
        println!("warning: built without optimisation");
    }
}

/// Type and options of the file system that holds `dir`.
fn file_system(dir: &Path, mounts: &str) -> (String, String) {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let mut found = (0, "unknown", "");
    for line in mounts.lines() {
        // id parent major:minor root MOUNT options … - TYPE source options
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let mut left = left.split(' ').skip(4);
        let (Some(mount), Some(options)) = (left.next(), left.next()) else { continue };
        let Some(kind) = right.split(' ').next() else { continue };
        if dir.starts_with(mount) && mount.len() >= found.0 {
            found = (mount.len(), kind, options);
        }
    }
    (found.1.to_owned(), found.2.to_owned())
}

/// A time for people: three digits and a unit.
#[must_use]
pub fn show(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds >= 1.0 {
        format!("{seconds:.2} s")
    } else if seconds >= 1e-3 {
        format!("{:.2} ms", seconds * 1e3)
    } else if seconds >= 1e-6 {
        format!("{:.2} µs", seconds * 1e6)
    } else {
        format!("{:.0} ns", seconds * 1e9)
    }
}

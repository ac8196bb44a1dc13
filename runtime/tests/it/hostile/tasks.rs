//! Attacks by WASM tasks.

use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ostler_guests::fixtures::{HOSTILE_TASK, HOSTILE_TASK_P1};
use ostler_model::clock::{Stopwatch, sleep, timeout};
use ostler_model::limits::TaskLimits;
use ostler_model::ports::TaskContext;
use ostler_model::task::RawExit;
use ostler_wasm_task::{PreopenedDir, TaskStdin, WasmTaskSpec};

use super::arena::{Arena, DISK, Outcome, Printed};
use crate::support::PATIENCE;

/// How long a task that does not end by itself is let.
const LET: Duration = Duration::from_millis(300);
/// How long one that ends by itself may take.
pub const BY_ITSELF: Duration = Duration::from_secs(20);

/// What a task did until it ended or was killed.
pub struct Ended {
    exit: Option<RawExit>,
    error: String,
    pub printed: String,
    bytes: u64,
    /// From the kill to the end.
    past: Option<Duration>,
}

impl Ended {
    pub fn said(&self) -> String {
        let exit = self.exit.as_ref().map_or_else(String::new, |exit| match exit {
            RawExit { signal: Some(9), .. } => "killed".to_owned(),
            RawExit { exit_code: Some(code), error: Some(error), .. } => {
                format!("exit {code}: {error}")
            }
            RawExit { exit_code: Some(code), .. } => format!("exit {code}"),
            RawExit { error, .. } => error.clone().unwrap_or_default(),
        });
        format!("{exit}{}\n{}", self.error, self.printed)
    }
}

/// Run a file as a task, with what a task has; kill it after a while.
pub async fn run(arena: &Arena, file: &Path, words: &[&str], dir: &Path, wait: Duration) -> Ended {
    let (context, printed) = arena.context(dir);
    run_in(arena, (context, printed), file, words, wait, &[]).await
}

/// The same in this context, which assigns it more.
pub async fn run_in(
    arena: &Arena,
    (context, printed): (Arc<TaskContext>, Arc<Printed>),
    file: &Path,
    words: &[&str],
    wait: Duration,
    assigned: &[PreopenedDir],
) -> Ended {
    let dir = &context.task_dir;
    let own = |name: &str| PreopenedDir {
        host_path: dir.join(name),
        guest_path: format!("/{name}"),
        read_only: false,
    };
    let spec = WasmTaskSpec {
        path: file.to_owned(),
        args: ["attack"].iter().chain(words).map(|word| (*word).to_owned()).collect(),
        env: vec![],
        dirs: ["local", "secrets", "tmp", "alloc"]
            .map(own)
            .iter()
            .chain(assigned)
            .cloned()
            .collect(),
        limits: TaskLimits {
            memory_bytes_max: context.memory_bytes_max,
            disk_bytes_max: DISK,
            ..TaskLimits::default()
        },
        listen: false,
        connect: vec![],
        input: TaskStdin::Nothing,
    };
    let host = &arena.services.wasm_tasks;
    let id = match host.spawn(Arc::clone(&context), spec).await {
        Ok(id) => id,
        Err(error) => {
            let error = error.to_string();
            return Ended { exit: None, error, printed: String::new(), bytes: 0, past: None };
        }
    };
    host.release(&context.run_id).await.unwrap();
    let mut end = host.wait(&context.run_id, &id);
    let (exit, past) = match timeout(wait, &mut end).await {
        Some(exit) => (exit, None),
        None => {
            let watch = Stopwatch::start();
            host.kill(&context.run_id, &id).unwrap();
            let exit = timeout(PATIENCE, end).await.expect("a killed task ends");
            (exit, Some(watch.elapsed()))
        }
    };
    host.forget_run(&context.run_id);
    let (bytes, printed) = (printed.bytes(), printed.text());
    Ended { exit: Some(exit), error: String::new(), printed, bytes, past }
}

/// Lengths of all files below, and a block for each name.
fn used(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let of = |entry: std::fs::DirEntry| {
        let meta = entry.metadata().unwrap();
        4_096 + if meta.is_dir() { used(&entry.path()) } else { meta.len() }
    };
    entries.map(of).sum()
}

/// The attack as a component and as a core module.
pub async fn both(arena: &Arena, words: &[&str]) -> Outcome {
    let mut outcome = Outcome::default();
    let endless = ["spin", "spin-calls", "sleep", "flood"].contains(&words[0]);
    let wait = if endless { LET } else { BY_ITSELF };
    for file in [HOSTILE_TASK, HOSTILE_TASK_P1] {
        let dir = arena.empty("task");
        std::fs::create_dir_all(dir.join("local")).unwrap();
        std::fs::write(dir.join("local/file"), "assigned").unwrap();
        super::pipe(&dir.join("local/pipe"));
        let ended = run(arena, Path::new(file), words, &dir, wait).await;
        let said = ended.said();
        let used = used(&dir);
        if used > 2 * DISK {
            outcome.escaped = Some(format!("{used} bytes on the disk"));
        }
        if words[0] == "flood" && ended.bytes == 0 {
            return Outcome::of("it printed nothing");
        }
        if endless && !said.starts_with("killed") {
            return Outcome::of(said);
        }
        outcome.past = outcome.past.max(ended.past);
        outcome.said.push_str(said.get(..said.len().min(2_000)).unwrap_or_default());
    }
    outcome
}

/// A module or component from text.
pub async fn wat(arena: &Arena, text: impl AsRef<str>) -> Outcome {
    let dir = arena.empty("task");
    let file = dir.join("attack.wasm");
    std::fs::write(&file, wat::parse_str(text.as_ref()).unwrap()).unwrap();
    let ended = run(arena, &file, &[], &dir, 10 * LET).await;
    Outcome { past: ended.past, ..Outcome::of(ended.said()) }
}

/// Lines a task may print: what it did to its own file and to links in its own directories.
fn own(line: &str) -> bool {
    let (verb, path) = line.split_once(' ').unwrap_or((line, ""));
    match path {
        "/local/file" => true,
        "/local/link" | "/local/dir" | "/local/proc" | "/local/root" => verb == "remove",
        _ => verb == "linked",
    }
}

fn judged(arena: &Arena, ends: &[Ended]) -> Outcome {
    let lines = || ends.iter().flat_map(|ended| ended.printed.lines());
    let beyond: Vec<&str> = lines().filter(|line| !own(line)).collect();
    let escaped = arena.secret_harmed().or((!beyond.is_empty()).then(|| beyond.join(", ")));
    let all_ended = ends.iter().all(|ended| ended.said().starts_with("exit 0"));
    let honest = ends.iter().all(|ended| !ended.printed.is_empty());
    let said = if all_ended && honest {
        "only its own".to_owned()
    } else {
        ends.iter().map(Ended::said).collect()
    };
    Outcome { escaped, ..Outcome::of(said) }
}

pub async fn paths(arena: &Arena) -> Outcome {
    use std::os::unix::fs::symlink;
    let mut ends = Vec::new();
    for file in [HOSTILE_TASK, HOSTILE_TASK_P1] {
        let dir = arena.empty("task");
        let local = dir.join("local");
        std::fs::create_dir_all(&local).unwrap();
        std::fs::write(local.join("file"), "assigned").unwrap();
        symlink(arena.outside().join("x"), local.join("link")).unwrap();
        symlink("../../outside", local.join("dir")).unwrap();
        symlink("/proc/self", local.join("proc")).unwrap();
        symlink("/", local.join("root")).unwrap();
        let tricks = [
            "/local/dir/x",
            "/local/dir/",
            "/local/link/",
            "/local/proc/environ",
            "/local/proc/cwd/x",
            "/local/root/etc/passwd",
            "/local/../../outside/x",
            "/local//..//..//outside//x",
            "/local/./../../outside",
            "/local/file/",
            "/local/file/..",
            "local/../../outside/x",
            "/local/link",
            "/local/dir",
            "/local/proc",
            "/local/root",
            "/local/file",
        ];
        let words: Vec<&str> = ["paths"].into_iter().chain(tricks).collect();
        ends.push(run(arena, Path::new(file), &words, &dir, BY_ITSELF).await);
    }
    judged(arena, &ends)
}

pub async fn links(arena: &Arena) -> Outcome {
    let mut ends = Vec::new();
    for file in [HOSTILE_TASK, HOSTILE_TASK_P1] {
        let dir = arena.empty("task");
        let secret = arena.outside().join("x").display().to_string();
        let words = [
            "links",
            "/local",
            "../../outside/x",
            "../../outside",
            "..",
            "../..",
            "/etc/passwd",
            &secret,
            "/proc/self/environ",
            "/dev/null",
            ".",
        ];
        let mut ended = run(arena, Path::new(file), &words, &dir, BY_ITSELF).await;
        // `.` is its own.
        let lines = ended.printed.lines().filter(|line| !line.ends_with(" ."));
        ended.printed =
            lines.map(|line| format!("{line}\n")).collect::<String>() + "linked nothing else";
        ends.push(ended);
    }
    judged(arena, &ends)
}

pub async fn sockets(arena: &Arena) -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let here = listener.local_addr().unwrap().to_string();
    let mut said = String::new();
    for file in [HOSTILE_TASK, HOSTILE_TASK_P1] {
        let dir = arena.empty("task");
        let words = [
            "sockets",
            &here,
            "127.0.0.1:0",
            "0.0.0.0:0",
            "[::1]:0",
            "[::]:0",
            "localhost:80",
            "169.254.169.254:80",
            "192.0.2.1:9",
            "255.255.255.255:9",
            "224.0.0.1:9",
        ];
        let ended = run(arena, Path::new(file), &words, &dir, BY_ITSELF).await;
        if !ended.said().starts_with("exit 0") {
            return Outcome::of(ended.said());
        }
        said.push_str(&ended.printed);
    }
    // What was on its way is here now.
    sleep(Duration::from_millis(20)).await;
    let reached = listener.accept().is_ok() || !said.is_empty();
    let escaped = reached.then(|| format!("reached: {said}"));
    Outcome { escaped, ..Outcome::of("nothing reached") }
}

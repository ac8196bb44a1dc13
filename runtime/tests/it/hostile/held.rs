//! Attacks that make the host hold something: memory, descriptors, disk, threads.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ostler_guests::fixtures::{HOSTILE_TASK, HOSTILE_TASK_P1};
use ostler_model::clock::{Stopwatch, sleep};
use ostler_model::device::Mount;
use ostler_model::grants::{FileGrant, Grants};
use ostler_model::ports::TaskContext;
use ostler_wasm_task::PreopenedDir;
use serde_json::json;

use super::arena::{Arena, DISK, Outcome};
use super::tasks::{BY_ITSELF, run, run_in};
use super::{devices, modules};

/// What the process may grow while a task of 32 MiB does its worst, bytes.
const GROWTH_MAX: u64 = (32 + 64) << 20;

/// The most memory that the process had since it was asked last, bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    let _now = std::fs::write("/proc/self/clear_refs", "5");
    kib << 10
}

/// One task with a directory of its own, and how much the process grew for it.
async fn one(arena: &Arena, file: &str, words: &[&str], names: usize) -> Outcome {
    let dir = arena.empty("task");
    let local = dir.join("local");
    std::fs::create_dir_all(&local).unwrap();
    for name in 0..names {
        std::fs::write(local.join(format!("a-name-like-any-other-{name}")), "").unwrap();
    }
    std::fs::write(local.join("large"), vec![b'x'; 1 << 20]).unwrap();
    peak();
    let before = peak();
    let ended = run(arena, Path::new(file), words, &dir, BY_ITSELF).await;
    let grown = peak().saturating_sub(before);
    let escaped = (grown > GROWTH_MAX).then(|| format!("the process grew by {grown} bytes"));
    Outcome { escaped, ..Outcome::of(ended.said()) }
}

pub async fn listings(arena: &Arena) -> Outcome {
    one(arena, HOSTILE_TASK, &["hold-listings", "/local"], 2_000).await
}

pub async fn streams(arena: &Arena) -> Outcome {
    one(arena, HOSTILE_TASK, &["hold-streams", "/local"], 0).await
}

pub async fn truncated(arena: &Arena) -> Outcome {
    one(arena, HOSTILE_TASK, &["truncated", "/local"], 0).await
}

/// By both kinds of guest; what the first said, if the second said the same.
async fn both(arena: &Arena, words: &[&str], names: usize) -> Outcome {
    let first = one(arena, HOSTILE_TASK, words, names).await;
    let second = one(arena, HOSTILE_TASK_P1, words, names).await;
    if second.said == first.said {
        Outcome { escaped: first.escaped.or(second.escaped), ..first }
    } else {
        Outcome::of(format!("{} as a component, {}", first.said, second.said))
    }
}

pub async fn unlinked(arena: &Arena) -> Outcome {
    both(arena, &["unlinked", "/local"], 0).await
}

pub async fn replaced(arena: &Arena) -> Outcome {
    both(arena, &["replaced", "/local"], 0).await
}

pub async fn names(arena: &Arena) -> Outcome {
    let outcome = both(arena, &["list", "/local"], 20_000 - 1).await;
    let _cleared = arena.empty("task");
    outcome
}

pub async fn logs(arena: &Arena) -> Outcome {
    let mut said = String::new();
    let mut escaped = None;
    for file in [HOSTILE_TASK, HOSTILE_TASK_P1] {
        let dir = arena.empty("task");
        let (context, printed) = arena.context(&dir);
        let log = dir.join("alloc/logs/other.stdout.0");
        std::fs::write(&log, "honest").unwrap();
        std::fs::write(dir.join("alloc/data/own"), "forged").unwrap();
        let words = ["logs", "/alloc"];
        let ended =
            run_in(arena, (context, printed), Path::new(file), &words, BY_ITSELF, &[]).await;
        let names = std::fs::read_dir(dir.join("alloc/logs")).unwrap().count();
        let whole = std::fs::read_to_string(&log).is_ok_and(|text| text == "honest");
        if !whole || names != 1 || ended.printed.lines().count() != 1 {
            escaped = Some(format!("{names} logs, {}", ended.said()));
        }
        said = ended.said();
    }
    Outcome { escaped, ..Outcome::of(said) }
}

/// Linked into a directory of the agent, so that the task sees it: not into one that the task writes.
pub async fn assigned(arena: &Arena) -> Outcome {
    let mut escaped = None;
    for file in [HOSTILE_TASK, HOSTILE_TASK_P1] {
        let assigned = arena.empty("assigned").join("file");
        std::fs::write(&assigned, "assigned").unwrap();
        let mount = Mount {
            host_path: assigned.display().to_string(),
            task_path: "/assigned/file".to_owned(),
            read_only: true,
        };
        let seen = PreopenedDir {
            host_path: assigned.clone(),
            guest_path: "/assigned/file".to_owned(),
            read_only: true,
        };
        for path in
            ["/assigned/file", "/tmp/assigned files/0/file", "/tmp/../assigned files/task/0/file"]
        {
            let (context, printed) = arena.context(&arena.empty("task"));
            let context = TaskContext { mounts: vec![mount.clone()], ..(*context).clone() };
            let context = (Arc::new(context), printed);
            let words = ["overwrite", path];
            let seen = std::slice::from_ref(&seen);
            let ended = run_in(arena, context, Path::new(file), &words, BY_ITSELF, seen).await;
            let own = format!("read {path}\nstat {path}\n8 bytes\n");
            let expected = if path == "/assigned/file" { own.as_str() } else { "0 bytes\n" };
            if !ended.printed.ends_with(expected) {
                escaped = Some(ended.said());
            }
        }
        if std::fs::read_to_string(&assigned).unwrap() != "assigned" {
            escaped = Some("it was changed".to_owned());
        }
    }
    Outcome { escaped, ..Outcome::of("read it and no more") }
}

fn open_here() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Each opens what it can and keeps it until it is killed; the agent opens more all the same.
pub async fn descriptors(arena: &Arena) -> Outcome {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap();
    let before = open_here();
    let hold = r#"(module
        (import "wasi_snapshot_preview1" "path_open" (func $open
            (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
        (memory (export "memory") 1)
        (data (i32.const 64) "file")
        (func (export "_start")
            (loop
                (br_if 0 (i32.eqz (call $open (i32.const 3) (i32.const 0) (i32.const 64)
                    (i32.const 4) (i32.const 0) (i64.const 2) (i64.const 0) (i32.const 0)
                    (i32.const 0))))
                (br 0))))"#;
    let dir = arena.empty("task");
    let module = dir.join("hold.wasm");
    std::fs::write(&module, wat::parse_str(hold).unwrap()).unwrap();
    let most = AtomicUsize::new(0);
    let watch = async {
        loop {
            most.fetch_max(open_here(), Ordering::Relaxed);
            sleep(Duration::from_millis(20)).await;
        }
    };
    let all = (0..12).map(|number| {
        let (dir, module) = (dir.join(number.to_string()), &module);
        std::fs::create_dir_all(dir.join("local")).unwrap();
        std::fs::write(dir.join("local/file"), "").unwrap();
        async move { run(arena, module, &[], &dir, Duration::from_secs(2)).await }
    });
    let all = futures_util::future::join_all(all);
    tokio::select! {
        _ended = all => {}
        () = watch => {}
    }
    let most = most.into_inner().saturating_sub(before) as u64;
    let escaped = (most > limit / 2 + 200).then(|| format!("{most} open of {limit}"));
    let said = if most > 1_000 { "descriptors left" } else { "they opened nothing" };
    Outcome { escaped, ..Outcome::of(said) }
}

/// As many as there are places for tasks, and one that only computes a little, again and again.
pub async fn filler(arena: &Arena) -> Outcome {
    let dir = arena.empty("task");
    let text = |name: &str, text: &str| {
        let path = dir.join(name);
        std::fs::write(&path, wat::parse_str(text).unwrap()).unwrap();
        path
    };
    let fill = text("fill.wasm", &modules::filler(256));
    let honest = text("honest.wasm", r#"(module (func (export "_start")))"#);
    let places = arena.services.sandbox.guest_threads();
    let let_go = Duration::from_secs(2);
    let fillers = (0..places).map(|number| {
        let dir = dir.join(number.to_string());
        let fill = &fill;
        async move {
            let (context, printed) = arena.context(&dir);
            let large = TaskContext { memory_bytes_max: 300 << 20, ..(*context).clone() };
            run_in(arena, (Arc::new(large), printed), fill, &[], let_go, &[]).await
        }
    });
    let watched = async {
        let watch = Stopwatch::start();
        let mut worst = Duration::ZERO;
        let mut ends = 0;
        while watch.elapsed() < let_go / 2 {
            let once = Stopwatch::start();
            let ended = run(arena, &honest, &[], &dir.join("honest"), BY_ITSELF).await;
            worst = worst.max(once.elapsed());
            ends += usize::from(ended.said().starts_with("exit 0"));
        }
        (worst, ends)
    };
    let (_killed, (worst, ends)) = tokio::join!(futures_util::future::join_all(fillers), watched);
    let late = worst > let_go;
    let escaped = late.then(|| format!("an honest task of nothing took {worst:?}"));
    let said = if ends > 0 { "the honest task went on" } else { "no honest task ended" };
    Outcome { escaped, ..Outcome::of(said) }
}

/// A plugin that may read `/proc`.
pub async fn processes(arena: &Arena) -> Outcome {
    let own = std::process::id();
    let tid = rustix::thread::gettid().as_raw_nonzero();
    let forbidden = [
        "/proc/self/environ".to_owned(),
        "/proc/self/mem".to_owned(),
        "/proc/thread-self/environ".to_owned(),
        "/proc/self/task/../environ".to_owned(),
        "/proc/self/root/etc/passwd".to_owned(),
        format!("/proc/{own}/environ"),
        format!("/proc/{own}/maps"),
        format!("/proc/{own}/mem"),
        format!("/proc/{own}/fd/0"),
        format!("/proc/{own}/task/{tid}/environ"),
        format!("/proc/{tid}/environ"),
        "/proc/1/environ".to_owned(),
        "/proc/1/mem".to_owned(),
        "/proc/kmsg".to_owned(),
        "/proc/kcore".to_owned(),
        "/proc/meminfo".to_owned(),
    ];
    let files = vec![FileGrant { path: "/proc".into(), write: false }];
    let grants = Grants { files, ..devices::grants(arena).0 };
    let config = json!({ "mode": "paths", "paths": forbidden });
    let said = devices::burglar(arena, config, grants, devices::patient()).await;
    let read: Vec<_> = said.lines().filter(|line| line.starts_with("read ")).collect();
    let honest = read.contains(&"read /proc/meminfo");
    let beyond: Vec<_> = read.into_iter().filter(|line| *line != "read /proc/meminfo").collect();
    let escaped = (!beyond.is_empty()).then(|| beyond.join(", "));
    let verdict = if honest { "the node and no process of ours" } else { &said };
    Outcome { escaped, ..Outcome::of(verdict) }
}

/// A room of ten mebibytes is what the figures of the table are about.
const _: () = assert!(DISK == 10 << 20);

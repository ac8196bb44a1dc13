//! How many instructions the hot paths take, counted by valgrind where it is installed: unlike times
//! they are the same on a loaded machine. More than 15 % over the committed figure fails.
//!
//! The figures are of the profile of the tests, in which the compiler takes a generic function from
//! whichever crate has it already, optimised or not: a change elsewhere moves them by up to 8 %. A
//! path that has become shorter is said, too: then
//! `instructions.txt` is to be lowered to what is printed.
//!
//! A call of a plugin is not among them: wasmtime reserves more address space than valgrind has.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test, which runs itself under valgrind"
)]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ostler_device::stats::StatsIndex;
use ostler_lifecycle::task::machine::{
    MachineState, StepContext, TaskInput, TaskMachine, TaskRules,
};
use ostler_model::device::GroupKey;
use ostler_model::ids::{AllocId, PluginName, TaskName};
use ostler_model::job::{RestartMode, RestartPolicy};
use ostler_model::resources::AllocatedDevice;
use ostler_model::stats::{DeviceGroupStats, InstanceStats, StatObject};
use ostler_model::time::Timestamp;
use ostler_state::records::TaskStateKey;
use ostler_state::{PutOutcome, StateStore};

/// What is committed: a name and its figure a line.
const COMMITTED: &str = include_str!("instructions.txt");
/// First argument of this program as the one that is counted.
const COUNTED: &str = "__counted";
/// How often a path is walked.
const TIMES: u64 = 100;
/// Devices, and as many tasks, of the node whose statistics are looked up.
const DEVICES: usize = 1_000;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [role, path] = args.as_slice()
        && role == COUNTED
    {
        walk(path);
        return ExitCode::SUCCESS;
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("skipped: valgrind is not installed");
        return ExitCode::SUCCESS;
    }
    let figures = COMMITTED.lines().map(|line| line.split_once(' ').expect("a name and a figure"));
    // All are shown before one fails.
    let kept: Vec<bool> =
        figures.map(|(path, figure)| judged(path, figure.parse().unwrap())).collect();
    if kept.into_iter().all(|kept| kept) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn judged(path: &str, committed: u64) -> bool {
    let counted = counted(path);
    let verdict = match counted {
        more if more * 100 > committed * 115 => "more than 15 % over the committed figure",
        less if less * 100 < committed * 85 => "ok; lower the figure in instructions.txt",
        _ => "ok",
    };
    println!("instructions {path} {counted} (committed {committed}): {verdict}");
    !verdict.starts_with("more")
}

/// Instructions of one walk.
fn counted(path: &str) -> u64 {
    let this = std::env::current_exe().expect("the path of this program");
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    let output = command.arg("--toggle-collect=*walked*").arg(this).args([COUNTED, path]).output();
    let said = String::from_utf8_lossy(&output.expect("valgrind runs").stderr).into_owned();
    let line = said.lines().find_map(|line| line.split_once("Collected :"));
    let figure = line.and_then(|(_, figure)| figure.trim().parse::<u64>().ok());
    figure.unwrap_or_else(|| panic!("valgrind counts nothing:\n{said}")) / TIMES
}

/// Everything in here is counted, and nothing else.
#[inline(never)]
fn walked(work: &mut dyn FnMut()) {
    (0..TIMES).for_each(|_| work());
}

fn walk(path: &str) {
    match path {
        "duplicate_write" => duplicate_write(),
        "task_start" => task_start(),
        "stat_look_up" => stat_look_up(),
        other => panic!("no path is called {other}"),
    }
}

/// A task's state put again as it is.
fn duplicate_write() {
    let store = StateStore::in_memory().unwrap();
    let state = started().public().clone();
    let key = TaskStateKey::of(AllocId::default(), task());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert_eq!(runtime.block_on(store.put(&key, &state)).unwrap(), PutOutcome::Written);
    walked(&mut || {
        let put = std::pin::pin!(store.put(&key, black_box(&state)));
        let put = put.poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(put, Poll::Ready(Ok(PutOutcome::Unchanged))), "nothing waits: {put:?}");
    });
}

/// A task from its gate until it runs, in the machine.
fn task_start() {
    walked(&mut || assert_eq!(black_box(started()).state(), MachineState::Running));
}

fn started() -> TaskMachine {
    let at = StepContext { now: Timestamp::from_nanos(1_000), random: 0 };
    let policy = RestartPolicy {
        attempts: 3,
        interval: Duration::from_secs(60),
        delay: Duration::from_secs(15),
        mode: RestartMode::Fail,
    };
    let rules = TaskRules {
        policy,
        restart_on_success: false,
        kill_timeout: Duration::from_secs(5),
        shutdown_delay: None,
        restartable: false,
    };
    let mut machine = TaskMachine::new(rules, at.now);
    for input in [TaskInput::GateOpened, TaskInput::Prepared, TaskInput::Started] {
        black_box(machine.step(at, input));
    }
    machine
}

/// The statistics of one task's device, of many.
fn stat_look_up() {
    let key = |number: usize| GroupKey {
        vendor: "vendor".into(),
        kind: "gpu".into(),
        name: format!("accelerator model {number}"),
    };
    let now = Timestamp::from_nanos(1_000);
    let measured = Arc::new(InstanceStats {
        summary: None,
        stats: StatObject { nested: BTreeMap::new(), attributes: BTreeMap::new() },
        taken_at: now,
    });
    let groups = (0..DEVICES).map(|number| DeviceGroupStats {
        key: key(number),
        instances: [(format!("GPU-{number}"), Arc::clone(&measured))].into(),
        stale: None,
    });
    let mut index = StatsIndex::new(Duration::from_secs(60));
    index.replace(&PluginName::new("measuring").unwrap(), groups.collect(), now);
    let lent = [AllocatedDevice { group: key(500), ids: vec!["GPU-500".to_owned()] }];
    walked(&mut || assert_eq!(index.stats_of_task(black_box(&lent), now).len(), 1));
}

fn task() -> TaskName {
    TaskName::new("server").unwrap()
}

//! What starting and stopping leaves behind in the agent: nothing.
//!
//! ```text
//!   warm-up cycles ─► count ─► many cycles ─► count again: the same
//!   cycle: register ─ runs ─ deregister with purge ─ collected; a native task, then a WASM one
//! ```
//! Alone in its process, a child of the test: other tests open files and threads of their own.
//! 60 cycles of each; 1,000 with `OSTLER_SOAK=1`.

use std::process::Stdio;

use ostler_agent::StopOptions;
use ostler_model::alloc::ClientStatus;
use ostler_model::ids::JobId;

use crate::agent::Served;
use crate::support::census::{Census, entries};
use crate::support::jobs::{shell, wasm, with_guests};
use crate::support::system::eventually;
use crate::support::{PATIENCE, parse};

const CYCLES: &str = "OSTLER_TEST_CYCLES";
/// Before the first count: pools, caches and buffers grow to their size.
const WARM_UP: usize = 15;
/// What the heap may grow in all, bytes. It is what one cycle must not do 60 times over.
const HEAP_GROWTH_MAX: usize = 2 << 20;

/// What may leak.
#[derive(Clone, Copy, Debug)]
struct Count {
    census: Census,
    heap: usize,
}

fn heap() -> usize {
    // SAFETY: it takes nothing and returns a plain struct.
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd
}

impl Count {
    fn now() -> Self {
        Self { census: Census::now(&tokio::runtime::Handle::current()), heap: heap() }
    }

    /// No more than before, but for the heap, which has its bound.
    fn within(&self, before: &Self) -> bool {
        self.census.within(&before.census) && self.heap <= before.heap + HEAP_GROWTH_MAX
    }
}

async fn cycle(served: &Served, text: &str) {
    let job = parse(text);
    let id: JobId = job.id.clone();
    served.register(text).await;
    eventually("it runs", || {
        let views = served.agent.control().allocs();
        views.len() == 1 && views.iter().all(|v| v.state.client_status == ClientStatus::Running)
    })
    .await;
    let purge = StopOptions { purge: true, ..StopOptions::default() };
    served.agent.deregister(&id, purge).await.unwrap();
    eventually("it is collected", || served.agent.control().allocs().is_empty()).await;
}

/// The child; without its variable there is nothing to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by another test"]
async fn starts_and_stops() {
    let Some(cycles) = std::env::var_os(CYCLES) else { return };
    let cycles: usize = cycles.to_str().unwrap().parse().unwrap();
    let job =
        |task: String| with_guests(&format!("job \"web\" {{\n group \"g\" {{\n {task}\n }}\n}}"));
    let native = job(shell("t", "echo up; exec sleep 1000", "kill_signal = \"SIGKILL\""));
    let wasm = job(wasm("t", "guest:toolbox", &["sleep", "1000000"], ""));
    let served = Served::start().await;
    for _ in 0..WARM_UP {
        cycle(&served, &native).await;
        cycle(&served, &wasm).await;
    }
    let before = Count::now();
    for _ in 0..cycles {
        cycle(&served, &native).await;
        cycle(&served, &wasm).await;
    }
    eventually_within(&before).await;
    println!("{cycles} cycles of each: {before:?}, then {:?}", Count::now());
    for dir in ["exits", "allocs"] {
        let dir = served.data.path().join(dir);
        eventually(&format!("{} is empty", dir.display()), || entries(&dir) == 0).await;
    }
    served.end().await;
}

/// What ends a moment later has a moment.
async fn eventually_within(before: &Count) {
    let text = format!("as before: {before:?}");
    let settled = async {
        while !Count::now().within(before) {
            ostler_model::clock::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let wall = PATIENCE / 6;
    let settled = ostler_model::clock::timeout(wall, settled).await;
    assert!(settled.is_some(), "{text}, now {:?}", Count::now());
}

#[tokio::test]
async fn a_start_and_a_stop_leave_nothing_behind() {
    let soak = std::env::var_os("OSTLER_SOAK").is_some_and(|value| value == "1");
    let (cycles, patience) = if soak { (1_000, PATIENCE * 30) } else { (60, PATIENCE) };
    let child = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "leaks::starts_and_stops", "--ignored", "--nocapture"])
        .args(["--test-threads", "1"])
        .env(CYCLES, cycles.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let ended = ostler_model::clock::timeout(patience, child.wait_with_output()).await;
    let ended = ended.expect("it ends").unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{said}\n{}", String::from_utf8_lossy(&ended.stderr));
    let counts = said.lines().find(|line| line.contains("cycles of each")).expect("it counts");
    println!("{counts}");
}

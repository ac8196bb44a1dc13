//! What tasks print on its way into rotated files: how much of it, what a line costs the task that prints
//! it, and how soon somebody who follows sees it.
//!
//! Baselines in the same run: the same program into a pipe that one thread copies to a file; a line of a
//! native task.
//!
//! This program is also its agent's supervisor and compile child, and, with `print`, the native task.
#![allow(
    missing_docs,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a bench that cannot set up has to end, and starts processes of its own"
)]

use std::fs::File;
use std::io::{self, BufWriter, Read as _, Write as _};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ostler_benches::live::{LiveAgent, job, own_child};
use ostler_benches::machine::{runtime, scaled};
use ostler_benches::percentiles::{median, number, quantile};
use ostler_benches::promise::Promises;
use ostler_benches::report::{Report, bench};
use ostler_guests::fixtures::{TOOLBOX, TOOLBOX_P1};
use ostler_logs::{FollowFrom as Begin, LineFollower};
use ostler_model::alloc::ClientStatus;
use ostler_model::clock::Stopwatch;
use ostler_model::ids::TaskName;
use tokio::runtime::Runtime;

/// First argument of this program as a native task.
const PRINT: &str = "print";
/// Bytes of a short line, its end included.
const LINE: u64 = 64;
/// Bytes moved at once by the copying thread, and printed at once of a raw stream.
const PIECE: usize = 64 * 1024;
/// Bytes that programs gather before they print, where they print into a pipe.
const GATHERED: usize = 4 * 1024;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // A task of an agent, which does not inherit that it belongs to a bench.
    if let [role, kind, count] = &*args
        && role == PRINT
    {
        print(kind, count.parse().expect("a number")).expect("it prints");
        return ExitCode::SUCCESS;
    }
    if let Some(code) = own_child() {
        return code;
    }
    bench("logs", measured)
}

fn measured(report: &mut Report) {
    let (runtime, dir) = (runtime(), report.dir().to_owned());
    let (data, code) = (dir.join("data"), dir.join("code"));
    let agent = runtime.block_on(LiveAgent::start(&data, &code));
    let [copies, prints, follows] = report.parts(["copy", "lines", "follow"]);
    if copies {
        copy(&runtime, &agent, &dir, &mut report.promises);
    }
    if prints {
        lines(&runtime, &agent, &mut report.promises);
    }
    if follows {
        follow(&runtime, &agent, &mut report.promises);
    }
    runtime.block_on(agent.handle.shutdown());
}

// ---- the native task -------------------------------------------------------------------------

/// Print, and then to standard error how many nanoseconds it took.
fn print(kind: &str, count: u64) -> io::Result<()> {
    let mut line = vec![b'x'; usize::try_from(LINE - 1).unwrap_or(0)];
    line.push(b'\n');
    // Nothing of the standard library between it and the pipe.
    let mut out = File::options().write(true).open("/proc/self/fd/1")?;
    let watch = Stopwatch::start();
    match kind {
        "each" => {
            for _ in 0..count {
                out.write_all(&line)?;
            }
        }
        "gathered" => {
            let mut out = BufWriter::with_capacity(GATHERED, out);
            for _ in 0..count {
                out.write_all(&line)?;
            }
            out.flush()?;
        }
        "raw" => {
            let piece = vec![b'x'; PIECE];
            for _ in 0..count {
                out.write_all(&piece)?;
            }
        }
        "times" => {
            for _ in 0..count {
                std::thread::sleep(BETWEEN);
                writeln!(out, "{}", now())?;
            }
        }
        other => panic!("{other} is nothing to print"),
    }
    eprintln!("{}", watch.elapsed().as_nanos());
    Ok(())
}

/// What to tell `raw_exec` to run this program as such a task.
fn native(kind: &str, count: u64) -> String {
    let program = std::env::current_exe().expect("the path of this program");
    format!("command = \"{}\"\n args = [\"{PRINT}\", \"{kind}\", \"{count}\"]", program.display())
}

/// Run a task to its end; what it says on standard error, which is a number.
fn took(runtime: &Runtime, agent: &LiveAgent, driver: &str, config: &str) -> Duration {
    // Of its own: the allocation of the job before may not be gone yet.
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let id = format!("prints-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let job = job(&id, "batch", 1, driver, 64, config);
    let said = runtime.block_on(async {
        let handles = agent.run(job.clone(), 1).await;
        let handle = handles.first().expect("one allocation");
        let logs = handle.wait_for_logs(&task()).await.expect("the owner lives");
        let mut said = Vec::new();
        let mut follower = logs.stderr.follow(Begin::Start);
        handle.wait_done().await;
        let state = handle.state();
        let complete = state.borrow().client_status == ClientStatus::Complete;
        assert!(complete, "the task failed: {:?}", *state.borrow());
        while let Some(chunk) = follower.next(PIECE).await {
            said.extend(chunk.bytes);
        }
        agent.purge(&job.id).await;
        said
    });
    nanos(&said)
}

fn nanos(said: &[u8]) -> Duration {
    let text = String::from_utf8_lossy(said);
    let number = text.trim().parse();
    Duration::from_nanos(number.unwrap_or_else(|error| panic!("{error}: the task said {text:?}")))
}

fn task() -> TaskName {
    TaskName::new("t").expect("a name")
}

// ---- how much --------------------------------------------------------------------------------

/// The same program into a pipe that one thread copies to a file.
fn copied(kind: &str, count: u64, file: &Path) -> Duration {
    let program = std::env::current_exe().expect("the path of this program");
    let mut command = Command::new(program);
    command.args([PRINT, kind, &count.to_string()]).stdin(Stdio::null());
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut out = child.stdout.take().expect("a pipe");
    let mut to = File::create(file).expect("a file");
    let mut buffer = vec![0; PIECE];
    loop {
        let read = out.read(&mut buffer).expect("the pipe is read");
        if read == 0 {
            break;
        }
        to.write_all(buffer.get(..read).unwrap_or_default()).expect("the file is written");
    }
    let said = child.wait_with_output().expect("the program ends").stderr;
    drop(to);
    std::fs::remove_file(file).expect("the file goes");
    nanos(&said)
}

fn copy(runtime: &Runtime, agent: &LiveAgent, dir: &Path, promises: &mut Promises) {
    println!("\nfrom a native task through its supervisor into rotated files, MB/s");
    let mb = |bytes: u64, took: Duration| number(bytes) / 1e6 / took.as_secs_f64();
    let mut ratios = Vec::new();
    let short = scaled(32 << 20, 1 << 16) / LINE;
    let kinds = [
        ("short lines, each by itself", "each", short, LINE),
        ("short lines, gathered", "gathered", 4 * short, LINE),
        ("a raw stream", "raw", scaled(256 << 20, 1 << 18) / PIECE as u64, PIECE as u64),
    ];
    for (name, kind, count, bytes) in kinds {
        let (mut ours, mut plain) = (Vec::new(), Vec::new());
        for turn in 0..scaled(8, 1) {
            let through = took(runtime, agent, "raw_exec", &native(kind, count));
            let alone = copied(kind, count, &dir.join("copy"));
            // The first turn fills caches.
            if turn > 0 || scaled(false, true) {
                ours.push(mb(count * bytes, through));
                plain.push(mb(count * bytes, alone));
            }
        }
        let (through, alone) = (median(&ours), median(&plain));
        println!(
            "{name:<28} rotated {through:>7.0}   one thread, one file {alone:>7.0}   {:.2} of it",
            through / alone
        );
        ratios.push(through / alone);
    }
    let [each, gathered, raw] = ratios.as_slice() else { panic!("three") };
    promises.at_least("log_lines_vs_copy", each.min(*gathered), "of a plain copy", 0.5);
    promises.at_least("log_raw_vs_copy", *raw, "of a plain copy", 0.8);
}

// ---- what a line costs -----------------------------------------------------------------------

fn wasm(module: &str, words: &str) -> String {
    format!("module = \"{module}\"\n args = [{words}]")
}

/// What a line costs the task that prints it, each line by itself.
fn lines(runtime: &Runtime, agent: &LiveAgent, promises: &mut Promises) {
    let count = scaled(200_000, 100);
    println!("\none line of {LINE} bytes, printed by itself, of {count}");
    let words = format!("\"say-lines\", \"{count}\", \"{}\"", LINE - 1);
    let tasks = [
        ("native", "raw_exec", native("each", count)),
        ("WASM, a component", "wasm", wasm(TOOLBOX, &words)),
        ("WASM, a module of preview 1", "wasm", wasm(TOOLBOX_P1, &words)),
    ];
    let mut times: [Vec<f64>; 3] = Default::default();
    for _ in 0..scaled(11, 1) {
        for ((_, driver, config), times) in tasks.iter().zip(&mut times) {
            let took = took(runtime, agent, driver, config);
            times.push(took.as_secs_f64() * 1e6 / number(count));
        }
    }
    for ((name, ..), times) in tasks.iter().zip(&mut times) {
        let [low, middle, high] = [0.0, 0.5, 1.0].map(|share| quantile(times, share));
        println!("{name:<28} {middle:>6.2} µs   (from {low:.2} to {high:.2})");
    }
    let [native, component, module] = times.map(|times| median(&times));
    let over = component.max(module) - native;
    promises.at_most("wasm_output_per_line_over_native", over, "µs", 1.0);
}

// ---- how soon it is seen ---------------------------------------------------------------------

/// Between two lines of a task that is followed.
const BETWEEN: Duration = Duration::from_millis(5);

fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos()
}

/// From a line printed, with the time in it, until it is seen by who follows the stream.
fn follow(runtime: &Runtime, agent: &LiveAgent, promises: &mut Promises) {
    let count = scaled(1_000, 5);
    println!("\nfrom a line printed until it is seen by who follows, {count} of them");
    let words = format!("\"say-times\", \"{count}\", \"{}\"", BETWEEN.as_millis());
    let tasks =
        [("native", "raw_exec", native("times", count)), ("WASM", "wasm", wasm(TOOLBOX, &words))];
    let mut worst = 0.0_f64;
    for (name, driver, config) in tasks {
        let job = job("followed", "batch", 1, driver, 64, &config);
        let mut times = runtime.block_on(runtime.spawn(seen(agent.clone(), job))).expect("lines");
        let [middle, late] = [0.5, 0.99].map(|share| quantile(&mut times, share));
        println!("{name:<28} p50 {middle:>6.0} µs   p99 {late:>6.0} µs   of {}", times.len());
        worst = worst.max(late);
    }
    promises.at_most("log_follow_p99", worst / 1e3, "ms", 20.0);
}

async fn seen(agent: LiveAgent, job: ostler_model::job::Job) -> Vec<f64> {
    let handles = agent.run(job.clone(), 1).await;
    let logs = handles.first().expect("one allocation").wait_for_logs(&task()).await;
    let mut lines = LineFollower::new(logs.expect("the owner lives").stdout.follow(Begin::Now));
    let mut times = Vec::new();
    while let Some(line) = lines.next().await {
        let now = now();
        let text = String::from_utf8_lossy(&line.bytes);
        let printed: u128 = text.parse().expect("a time");
        let late = Duration::from_nanos(u64::try_from(now.saturating_sub(printed)).unwrap_or(0));
        times.push(late.as_secs_f64() * 1e6);
    }
    agent.purge(&job.id).await;
    times
}

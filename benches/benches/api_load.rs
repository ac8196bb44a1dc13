//! The API of an agent under load: five hundred queries that wait, a hundred followers of logs and fifty streams of
//! events while a hundred tasks a second start, and whether each stream had every event; then floods, and how soon
//! somebody else is answered meanwhile; then an agent at rest to which a page looks. Parts: `load`, `floods`, `idle`.
//!
//! Baselines in the same run: the same questions to the same agent before anybody else asks; an agent at rest to
//! which nobody looks.
//!
//! The agent is a process of its own, this program itself ([`own_child`]); those who ask are threads of the bench, on
//! the same machine.
#![allow(missing_docs, clippy::expect_used, reason = "a bench that cannot set up has to end")]

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ostler_benches::live::own_child;
use ostler_benches::load::{
    EventsSeen, Times, ask_on, follow_events, follow_log, open, wait_on, write_on,
};
use ostler_benches::machine::scaled;
use ostler_benches::node::{Node, job};
use ostler_benches::percentiles::{number, quantile, size};
use ostler_benches::report::{Report, bench};
use ostler_guests::fixtures::HELLO;
use ostler_model::clock::{self, Stopwatch};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Where the agents listen, one after the other.
const PORT: u16 = 24_846;
/// The lists that somebody asks for meanwhile.
const LISTS: [&str; 2] = ["/v1/jobs", "/v1/allocations?per_page=100"];
/// What the page asks for and keeps open.
const PAGE: &str = "/v1/event/stream?namespace=*&topic=*&live=true";
/// Between two questions of the one who asks for lists.
const PAUSE: Duration = Duration::from_millis(20);
/// How long streams may take to tell of the last event.
const TOLD: Duration = Duration::from_secs(60);
const MB: f64 = 1e6;

fn main() -> ExitCode {
    if let Some(code) = own_child() {
        return code;
    }
    bench("api_load", |report| {
        raise_files();
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(measured(report));
    })
}

/// Ten thousand connections are ten thousand files of the bench.
fn raise_files() {
    let now = getrlimit(Resource::Nofile);
    let most = Rlimit { current: now.maximum, maximum: now.maximum };
    setrlimit(Resource::Nofile, most).expect("as many files as this process may open");
}

async fn measured(report: &mut Report) {
    let [load, floods, idle] = report.parts(["load", "floods", "idle"]);
    if load {
        loaded(report).await;
    }
    if floods {
        flooded(report).await;
    }
    if idle {
        looked_at(report).await;
    }
}

/// An agent with its API over TCP too.
async fn node(report: &Report, name: &str, turn: u16) -> (Node, SocketAddr) {
    let at = SocketAddr::from(([127, 0, 0, 1], PORT + turn));
    let config = format!(
        "ports {{\n http = {}\n}}\nplugin \"raw_exec\" {{\n enabled = true\n}}\ngc {{\n max_allocs = \
         20000\n}}\nclient {{\n cpu_total_compute = 1000000\n memory_total_mb = 1000000\n}}\n",
        at.port()
    );
    let mut node = Node::ostler(&report.dir().join(name), &config);
    node.start().await;
    (node, at)
}

/// Ask for lists on a thread of its own.
fn asking(at: SocketAddr, turns: usize) -> JoinHandle<[Times; 2]> {
    tokio::task::spawn_blocking(move || ask_on(at, LISTS, PAUSE, |turn| turn >= turns))
}

fn millis(times: &Times) -> Vec<f64> {
    times.took.iter().map(|took| took.as_secs_f64() * 1e3).collect()
}

fn late(times: &[Times]) -> f64 {
    let each = times.iter().map(|times| quantile(&mut millis(times), 0.99));
    each.fold(0.0, f64::max)
}

/// Those who wait and follow.
struct Crowd {
    end: CancellationToken,
    waits: Vec<JoinHandle<Result<u64, String>>>,
    logs: Vec<JoinHandle<Result<(u64, u64), String>>>,
    events: Vec<JoinHandle<Result<EventsSeen, String>>>,
}

impl Crowd {
    /// Nine in ten of the queries wait for what does not change meanwhile, the others for the list of jobs, which
    /// they ask for again whenever it did.
    async fn gather(at: SocketAddr, talkers: &[String]) -> Self {
        let end = CancellationToken::new();
        let begun = Arc::new(AtomicU64::new(0));
        let (waits, logs, events) = (scaled(500, 5), scaled(100, 3), scaled(50, 2));
        let talker = |number: usize| talkers.get(number % talkers.len()).cloned();
        let waiting = |number: usize| {
            let path = match talker(number) {
                Some(id) if !number.is_multiple_of(10) => format!("/v1/allocation/{id}?"),
                _ => "/v1/jobs?".to_owned(),
            };
            let (end, begun) = (end.clone(), Arc::clone(&begun));
            tokio::spawn(async move { wait_on(at, &path, &end, &begun).await })
        };
        let following = |number: usize| {
            let id = talker(number).unwrap_or_default();
            let path = format!("/v1/client/fs/logs/{id}?task=t&type=stdout&follow=true&plain=true");
            let (end, begun) = (end.clone(), Arc::clone(&begun));
            tokio::spawn(async move { follow_log(at, &path, &end, &begun).await })
        };
        let listening = |_| {
            let (end, begun) = (end.clone(), Arc::clone(&begun));
            let path = "/v1/event/stream?topic=*";
            tokio::spawn(async move { follow_events(at, path, &end, &begun).await })
        };
        let crowd = Self {
            waits: (0..waits).map(waiting).collect(),
            logs: (0..logs).map(following).collect(),
            events: (0..events).map(listening).collect(),
            end: end.clone(),
        };
        let all = u64::try_from(waits + logs + events).unwrap_or(u64::MAX);
        let watch = Stopwatch::start();
        while begun.load(Ordering::Relaxed) < all {
            assert!(watch.elapsed() < TOLD, "{} of {all}", begun.load(Ordering::Relaxed));
            assert!(!crowd.waits.iter().any(JoinHandle::is_finished), "a query was refused");
            assert!(!crowd.logs.iter().any(JoinHandle::is_finished), "a follower was refused");
            assert!(!crowd.events.iter().any(JoinHandle::is_finished), "a stream was refused");
            clock::sleep(PAUSE).await;
        }
        crowd
    }
}

/// A task that prints numbers.
fn talker(id: &str) -> Value {
    let script = "i=0; while :; do echo $i; i=$((i+1)); sleep 1; done";
    job(id, "service", 1, "raw_exec", &json!({ "command": "/bin/sh", "args": ["-c", script] }))
}

async fn loaded(report: &mut Report) {
    let (mut node, at) = node(report, "load", 0).await;
    let mut talkers = Vec::new();
    for number in 0..scaled(10, 2) {
        let id = format!("talker-{number}");
        node.register(&talker(&id)).await;
        node.until("it talks", async |node: &mut Node| node.count(&id, "Running").await == 1).await;
        let allocs = node.allocs(&id).await;
        talkers.extend(allocs.iter().filter_map(|one| Some(one["ID"].as_str()?.to_owned())));
    }
    // The driver is loaded, and the program compiled.
    node.register(&short("warm", 1)).await;
    node.until("it ran", async |node: &mut Node| node.count("warm", "Complete").await == 1).await;
    let alone = asking(at, scaled(300, 2)).await.expect("the one who asks");
    let crowd = Crowd::gather(at, &talkers).await;
    let quiet = asking(at, scaled(300, 2)).await.expect("the one who asks");

    let done = Arc::new(AtomicBool::new(false));
    let asks = {
        let done = Arc::clone(&done);
        let enough = move |turn| turn > 0 && done.load(Ordering::Relaxed);
        tokio::task::spawn_blocking(move || ask_on(at, LISTS, PAUSE, enough))
    };
    let (jobs, each) = (scaled(200, 2), 10);
    let (watch, before) = (Stopwatch::start(), node.processor_time());
    for number in 0..jobs {
        node.register(&short(&format!("batch-{number}"), each)).await;
        clock::sleep((Duration::from_millis(100) * (number + 1)).saturating_sub(watch.elapsed()))
            .await;
    }
    let (asked_for, used) = (watch.elapsed(), node.processor_time() - before);
    let tasks = u64::from(jobs) * each;
    // Those of the last job are through its list later than its registration.
    let wanted = node_allocs(&mut node, tasks).await;
    let ended = watch.elapsed();
    done.store(true, Ordering::Relaxed);
    let busy = asks.await.expect("the one who asks");
    let memory = node.memory();
    clock::sleep(scaled(Duration::from_secs(5), Duration::from_secs(1))).await;
    let seen = Had::of(crowd, &wanted).await;

    println!(
        "\n{tasks} tasks of WASM asked for in {:.1} s, all ended after {:.1} s; agent: {:.0} % of a core, {:.0} MB",
        asked_for.as_secs_f64(),
        ended.as_secs_f64(),
        used / asked_for.as_secs_f64() * 100.0,
        number(memory) / MB,
    );
    seen.print();
    rows(
        report,
        "a list while others wait and tasks start",
        [
            ("jobs, all of it at once", &busy[0]),
            ("100 allocations, all of it", &busy[1]),
            ("jobs, those who wait alone", &quiet[0]),
            ("100 allocations, those alone", &quiet[1]),
            ("100 allocations, nobody else", &alone[1]),
            ("jobs, nobody else", &alone[0]),
        ],
    );
    let rate = number(tasks) / ended.as_secs_f64();
    let refused: u64 =
        [&busy, &quiet].iter().flat_map(|all| all.iter()).map(|one| one.refused).sum();
    let promises = &mut report.promises;
    promises.at_least("api_load_tasks_ended", rate, "a second", 90.0);
    promises.at_most("api_load_list_p99", late(&busy), "ms", 250.0);
    promises.at_most("api_load_events_lost", number(seen.lost_events), "", 0.0);
    promises.at_most("api_load_lines_lost", number(seen.lost_lines), "", 0.0);
    promises.at_most("api_load_refused", number(refused + seen.refused), "", 0.0);
}

/// A task that ends by itself.
fn short(id: &str, count: u64) -> Value {
    job(id, "batch", count, "wasm", &json!({ "module": HELLO }))
}

/// Identifiers and indexes of all allocations of these jobs, once all have ended.
async fn node_allocs(node: &mut Node, tasks: u64) -> Vec<(String, u64)> {
    let watch = Stopwatch::start();
    loop {
        let all = node.ask("GET", "/v1/allocations?prefix=", None).await;
        let of = |one: &&Value| one["JobID"].as_str().is_some_and(|id| id.starts_with("batch-"));
        let ended: Vec<_> = all
            .as_array()
            .into_iter()
            .flatten()
            .filter(of)
            .filter(|one| one["ClientStatus"] == "complete")
            .filter_map(|one| Some((one["ID"].as_str()?.to_owned(), one["ModifyIndex"].as_u64()?)))
            .collect();
        if size(ended.len()) >= number(tasks) {
            return ended;
        }
        assert!(watch.elapsed() < 2 * TOLD, "{} of {tasks} tasks have ended", ended.len());
        clock::sleep(Duration::from_millis(250)).await;
    }
}

/// What the crowd had.
#[derive(Default)]
struct Had {
    streams: u64,
    events: u64,
    bytes: u64,
    lost_events: u64,
    lines: u64,
    lost_lines: u64,
    answers: u64,
    refused: u64,
}

impl Had {
    async fn of(crowd: Crowd, wanted: &[(String, u64)]) -> Self {
        crowd.end.cancel();
        let mut had = Self::default();
        for one in crowd.waits {
            match one.await.expect("a query that waits") {
                Ok(answers) => had.answers += answers,
                Err(why) => had.refuse("a query that waits", &why),
            }
        }
        for one in crowd.logs {
            match one.await.expect("a follower of a log") {
                Ok((lines, lost)) => {
                    had.lines += lines;
                    had.lost_lines += lost;
                }
                Err(why) => had.refuse("a follower of a log", &why),
            }
        }
        let mut streams = Vec::new();
        for one in crowd.events {
            match one.await.expect("a stream of events") {
                Ok(seen) => streams.push(seen),
                Err(why) => had.refuse("a stream of events", &why),
            }
        }
        // What one stream had from the time on when all were there the others must have too.
        let from = streams.iter().filter_map(|one| one.all.first()).max().copied();
        let mut all = std::collections::BTreeSet::new();
        for one in &streams {
            all.extend(one.all.iter().filter(|event| Some(**event) >= from).copied());
        }
        for one in &streams {
            let missing = all.difference(&one.all).count();
            let known =
                |(id, index): &&(String, u64)| one.allocs.get(id).is_some_and(|at| at >= index);
            let unknown = wanted.len() - wanted.iter().filter(known).count();
            had.lost_events +=
                u64::try_from(missing + unknown).unwrap_or(u64::MAX) + one.disordered;
            had.bytes += one.bytes;
        }
        had.streams = u64::try_from(streams.len()).unwrap_or(u64::MAX);
        had.events = u64::try_from(all.len()).unwrap_or(u64::MAX);
        had
    }

    fn refuse(&mut self, who: &str, why: &str) {
        println!("{who} ended: {why}");
        self.refused += 1;
    }

    fn print(&self) {
        let Self { streams, events, bytes, lost_events, lines, lost_lines, answers, refused } =
            self;
        println!(
            "{streams} streams of {events} events each, {} MB in all: {lost_events} lost",
            bytes / 1_000_000
        );
        println!(
            "{lines} lines of logs followed: {lost_lines} lost; waiting queries answered {answers} times"
        );
        println!("{refused} were refused or cut off");
    }
}

fn rows<const N: usize>(report: &mut Report, title: &str, rows: [(&str, &Times); N]) {
    let samples = rows.each_ref().map(|(name, times)| (*name, millis(times)));
    report.samples(title, "ms", samples.each_ref().map(|(name, times)| (*name, &**times)));
}

/// One kind of clients that mean ill.
struct Flood {
    name: &'static str,
    clients: usize,
    first: Vec<u8>,
    again: Vec<u8>,
    pause: Duration,
}

fn floods(at: SocketAddr) -> [Flood; 7] {
    let (forever, second) = (Duration::from_secs(3_600), Duration::from_secs(1));
    let head = |what: &str| format!("{what} HTTP/1.1\r\nHost: {at}\r\n").into_bytes();
    let whole = |what: &str, more: &str| {
        format!("{what} HTTP/1.1\r\nHost: {at}\r\n{more}\r\n").into_bytes()
    };
    let flood = |name, clients, first, again: &[u8], pause| Flood {
        name,
        clients: scaled(clients, 2),
        first,
        again: again.to_vec(),
        pause,
    };
    let space = [b' '; 65_536];
    let mut part = b"10000\r\n".to_vec();
    part.extend(space);
    part.extend(b"\r\n");
    let mut header = b"X-Much: ".to_vec();
    header.extend([b'y'; 1_000]);
    header.extend(b"\r\n");
    let length = "Content-Length: 1073741824\r\n";
    let chunked = "Transfer-Encoding: chunked\r\n";
    [
        flood("10,000 idle connections", 10_000, Vec::new(), b"", forever),
        flood("2,000 slow-loris", 2_000, head("GET /v1/jobs"), b"X", second),
        flood("2,000 that read nothing", 2_000, whole("GET /v1/event/stream", ""), b"", forever),
        flood("2,000 half-open: half a request", 2_000, head("PUT /v1/jobs"), b"", forever),
        flood("50 bodies of 1 GB", 50, whole("PUT /v1/jobs", length), &space, Duration::ZERO),
        flood(
            "50 endless bodies in chunks",
            50,
            whole("PUT /v1/jobs", chunked),
            &part,
            Duration::ZERO,
        ),
        flood("50 endless headers", 50, head("GET /v1/jobs"), &header, Duration::ZERO),
    ]
}

async fn flooded(report: &mut Report) {
    let (node, at) = node(report, "floods", 1).await;
    let alone = asking(at, scaled(200, 2)).await.expect("the one who asks");
    let (mut worst, mut refused, mut grown) = (0.0_f64, 0, 0.0_f64);
    let mut figures =
        vec![("nobody else", vec![late(&alone), number(node.memory()) / MB, 0.0, 0.0])];
    let before = number(node.memory()) / MB;
    for flood in floods(at) {
        let (end, connected) = (CancellationToken::new(), Arc::new(AtomicU64::new(0)));
        let attackers: Vec<_> = (0..flood.clients)
            .map(|_| {
                let (end, connected) = (end.clone(), Arc::clone(&connected));
                let (first, again, pause) = (flood.first.clone(), flood.again.clone(), flood.pause);
                tokio::spawn(async move {
                    write_on(at, &first, &again, pause, (&end, &connected)).await
                })
            })
            .collect();
        let asks = asking(at, scaled(200, 2));
        let mut most = 0.0_f64;
        while !asks.is_finished() {
            most = most.max(number(node.memory()) / MB);
            clock::sleep(Duration::from_millis(100)).await;
        }
        let times = asks.await.expect("the one who asks");
        let open = connected.load(Ordering::Relaxed);
        end.cancel();
        for one in attackers {
            one.await.expect("an attacker");
        }
        let missed: u64 = times.iter().map(|one| one.refused).sum();
        figures.push((flood.name, vec![late(&times), most, number(open), number(missed)]));
        worst = worst.max(late(&times));
        refused += missed;
        grown = grown.max(most - before);
        clock::sleep(scaled(Duration::from_secs(2), Duration::ZERO)).await;
    }
    figures.push(("nobody any more", vec![0.0, number(node.memory()) / MB, 0.0, 0.0]));
    let columns = ["p99, ms", "most MB", "connected", "refused"];
    report.figures("a list for somebody else during floods", &columns, &figures);
    report.promises.at_most("api_flood_list_p99", worst, "ms", 250.0);
    report.promises.at_most("api_flood_refused", number(refused), "", 0.0);
    report.promises.at_most("api_flood_memory", grown, "MB", 128.0);
}

/// An agent with a few tasks that do nothing, with a page open and without, in turns.
async fn looked_at(report: &mut Report) {
    let (mut node, at) = node(report, "idle", 2).await;
    let sleeps = json!({ "command": "/bin/sleep", "args": ["100000"] });
    let count = scaled(10, 1);
    node.register(&job("sleeps", "service", count, "raw_exec", &sleeps)).await;
    let so = async |node: &mut Node| node.count("sleeps", "Running").await == count;
    node.until("they sleep", so).await;
    clock::sleep(scaled(Duration::from_secs(20), Duration::ZERO)).await;
    let span = scaled(Duration::from_secs(60), Duration::from_secs(1));
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..scaled(2, 1) {
        without.push(node.idle(span).await);
        let page = open(at, PAGE).await.expect("the page's stream");
        let (end, told) = (CancellationToken::new(), Arc::new(AtomicU64::new(0)));
        let reads = {
            let (end, told) = (end.clone(), Arc::clone(&told));
            tokio::spawn(async move { end.run_until_cancelled(read(page, &told)).await })
        };
        with.push(node.idle(span).await);
        assert!(!reads.is_finished(), "the stream ended");
        end.cancel();
        println!(
            "the page was told {} bytes in {:.0} s",
            told.load(Ordering::Relaxed),
            span.as_secs_f64()
        );
    }
    let title = "an agent with ten tasks that sleep";
    let [with, without] = report.samples(
        title,
        "% of a core",
        [("a page looks at it", &with), ("nobody looks", &without)],
    );
    println!("the page: {:.2} % of a core", with - without);
    report.promises.at_most("idle_with_page", with, "% of a core", 1.0);
}

async fn read(page: hyper::Response<hyper::body::Incoming>, told: &AtomicU64) {
    use http_body_util::BodyExt as _;
    let mut body = page.into_body();
    while let Some(Ok(frame)) = body.frame().await {
        let bytes = frame.data_ref().map_or(0, |data| data.len());
        told.fetch_add(u64::try_from(bytes).unwrap_or(0), Ordering::Relaxed);
    }
}

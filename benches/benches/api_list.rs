//! What it costs to look at a node of ten thousand allocations over its API: the list, a page of it,
//! one allocation, the jobs; and how that grows with their number.
//!
//! Baseline in the same run, in turns: `serde_json` writes as many values as the list has, which are
//! there already.
#![allow(
    missing_docs,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a bench that cannot set up has to end, and compares with what the agent does not use"
)]

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use ostler_api::server::{self, ListenOptions};
use ostler_benches::live::{LiveAgent, job, own_child};
use ostler_benches::machine::{runtime, scaled, show};
use ostler_benches::percentiles::{micros, number, quantile, size};
use ostler_benches::report::{Report, bench};
use ostler_model::access::AclConfig;
use ostler_model::clock::Stopwatch;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// How many allocations there are when it is looked, one after the other.
const STEPS: [u64; 3] = [1_000, 3_000, 10_000];
const LIST: &str = "/v1/allocations";

fn main() -> ExitCode {
    if let Some(code) = own_child() {
        return code;
    }
    bench("api_list", measured)
}

fn measured(report: &mut Report) {
    let (runtime, dir) = (runtime(), report.dir().to_owned());
    let agent = runtime.block_on(LiveAgent::start(&dir.join("data"), &dir.join("code")));
    let socket = dir.join("api.sock");
    let promises = &mut report.promises;
    let stop = CancellationToken::new();
    let tokens = agent.handle.tokens(&AclConfig::default()).expect("there are no tokens");
    let faces = ListenOptions { socket: &socket, tcp: None, tokens };
    let served = runtime.block_on(async {
        server::serve(agent.handle.clone(), faces, stop.clone()).expect("the API is served")
    });
    let mut there = 0;
    let mut lists: Vec<(u64, f64)> = Vec::new();
    println!(
        "\n{:>12} {:>11} {:>11} {:>11} {:>11} {:>11} {:>9}",
        "allocations", "list p50", "p99", "serde_json", "page of 100", "one", "jobs"
    );
    for count in STEPS.map(|count| scaled(count, count / 100)) {
        let more = count - there;
        let name = format!("many-{count}");
        let watch = Stopwatch::start();
        let job = job(&name, "service", more, "mock_driver", 1, "run_for = \"0s\"");
        runtime.block_on(agent.run(job, usize::try_from(more).unwrap_or(0)));
        let started = watch.elapsed();
        there = count;
        let seen = look(&socket, count);
        println!(
            "{count:>12} {:>8.0} µs {:>8.0} µs {:>8.0} µs {:>8.0} µs {:>8.0} µs {:>6.0} µs",
            seen.list, seen.list_late, seen.bare, seen.page, seen.one, seen.jobs
        );
        println!(
            "{:>12} {} bytes; {more} more were running after {}",
            "",
            seen.bytes,
            show(started)
        );
        lists.push((count, seen.list));
        if count == scaled(10_000, 100) {
            promises.at_most("list_10000_p99", seen.list_late / 1e3, "ms", 100.0);
            promises.at_most("list_10000_over_serde_json", seen.list / seen.bare, "times", 6.0);
            promises.at_most("list_10000_page_of_100", seen.page / seen.list, "of the list", 0.2);
            promises.at_most("one_of_10000", seen.one / 1e3, "ms", 2.0);
        }
    }
    if let [(few, quick), .., (many, slow)] = *lists.as_slice() {
        let exponent = (slow / quick).ln() / (number(many) / number(few)).ln();
        println!("cost of the list grows with the number to the power of {exponent:.2}");
        promises.at_most("list_cost_exponent", exponent, "", 1.05);
    }
    stop.cancel();
    runtime.block_on(async {
        served.stop().await;
        agent.handle.shutdown().await;
    });
}

/// Medians in microseconds.
struct Seen {
    list: f64,
    list_late: f64,
    bare: f64,
    page: f64,
    one: f64,
    jobs: f64,
    bytes: usize,
}

fn look(socket: &Path, count: u64) -> Seen {
    let body = get(socket, LIST);
    let all: Vec<Value> = serde_json::from_slice(&body).expect("a list");
    assert_eq!(size(all.len()), number(count));
    let id = all.first().and_then(|one| one.get("ID")).and_then(Value::as_str).expect("an id");
    let one = format!("/v1/allocation/{id}");
    let mut took: [Vec<Duration>; 5] = Default::default();
    let timed = |what: &dyn Fn()| {
        let watch = Stopwatch::start();
        what();
        watch.elapsed()
    };
    for turn in 0..scaled(60, 2) {
        let turns = [
            timed(&|| drop(get(socket, LIST))),
            timed(&|| drop(serde_json::to_vec(&all).expect("JSON"))),
            timed(&|| drop(get(socket, &format!("{LIST}?per_page=100")))),
            timed(&|| drop(get(socket, &one))),
            timed(&|| drop(get(socket, "/v1/jobs"))),
        ];
        // The first turns fill caches.
        if turn >= scaled(10, 0) {
            took.iter_mut().zip(turns).for_each(|(all, one)| all.push(one));
        }
    }
    let at = |which: usize, fraction| {
        quantile(&mut micros(took.get(which).map(Vec::as_slice).unwrap_or_default()), fraction)
    };
    Seen {
        list: at(0, 0.5),
        list_late: at(0, 0.99),
        bare: at(1, 0.5),
        page: at(2, 0.5),
        one: at(3, 0.5),
        jobs: at(4, 0.5),
        bytes: body.len(),
    }
}

/// The body of an answer, over a connection of its own, as a command has one.
fn get(socket: &Path, path: &str) -> Vec<u8> {
    let mut stream = UnixStream::connect(socket).expect("the API answers");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: agent\r\nconnection: close\r\n\r\n")
        .expect("the request is written");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("the answer is read");
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head");
    answer.split_off(head + 4)
}

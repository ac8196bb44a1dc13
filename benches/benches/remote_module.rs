//! A thousand WASM tasks of one module that lies at a server: how often the server is asked, and how much later
//! each is at its end than one of a module that lies on the node.
//!
//! Baseline in the same run, in turns: the same tasks of the same module as a file of the node.
#![allow(
    missing_docs,
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a bench that cannot set up has to end, and starts processes of its own"
)]

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ostler_benches::live::{LiveAgent, job, own_child};
use ostler_benches::machine::{runtime, scaled};
use ostler_benches::percentiles::{median, number};
use ostler_benches::report::{Report, bench};
use ostler_guests::fixtures::HELLO;
use ostler_model::clock::Stopwatch;
use ostler_model::digest::Digest;
use ostler_model::job::Job;
use tokio::runtime::Runtime;

fn main() -> ExitCode {
    if let Some(code) = own_child() {
        return code;
    }
    bench("remote_module", measured)
}

fn measured(report: &mut Report) {
    let (runtime, dir) = (runtime(), report.dir().to_owned());
    let count = scaled(1_000, 5);
    let module = std::fs::read(HELLO).expect("the guest is built");
    let (port, asked) = serve(&module);
    let sum = Digest::compute(&module).to_tagged();
    let source = format!("http://127.0.0.1:{port}/hello.wasm?checksum={sum}");
    let agent = runtime.block_on(LiveAgent::start(&dir.join("data"), &dir.join("code")));
    let of =
        |module: &str| job("short", "batch", count, "wasm", 10, &format!("module = \"{module}\""));
    let (local, remote) = (of(HELLO), of(&source));
    let (mut locals, mut remotes, mut first) = (Vec::new(), Vec::new(), 0.0);
    for round in 0..scaled(6, 1) {
        locals.push(per_task(&runtime, &agent, &local, count));
        let taken = per_task(&runtime, &agent, &remote, count);
        if round == 0 {
            first = taken;
        }
        remotes.push(taken);
    }
    let (local, remote) = (median(&locals), median(&remotes));
    let requests = number(asked.load(Ordering::SeqCst));
    report.figures(
        "tasks of one module, ms per task",
        &["ms/task"],
        &[
            ("a file of the node", vec![local]),
            ("at a server, fetched by the first", vec![first]),
            ("at a server", vec![remote]),
        ],
    );
    report.promises.at_most("remote_module_requests", requests, "requests", 1.0);
    report.promises.at_most("remote_module_pace", first.max(remote) - local, "ms", 2.0);
    runtime.block_on(agent.handle.shutdown());
}

/// Milliseconds from the registration of all to the end of the last, per task.
fn per_task(runtime: &Runtime, agent: &LiveAgent, job: &Job, count: u64) -> f64 {
    runtime.block_on(async {
        agent.settle(Duration::from_millis(400)).await;
        let watch = Stopwatch::start();
        let (id, this, asked) = (job.id.clone(), agent.clone(), job.clone());
        let registered = tokio::spawn(async move { this.register(asked).await });
        for alloc in &agent.owned(&id, usize::try_from(count).unwrap_or(0)).await {
            alloc.wait_done().await;
        }
        let taken = watch.elapsed().as_secs_f64() * 1e3 / number(count);
        registered.await.expect("the job is registered");
        agent.purge(&id).await;
        taken
    })
}

/// A server of one file: its port, and how often it was asked.
fn serve(body: &[u8]) -> (u16, Arc<AtomicU64>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
    let port = listener.local_addr().expect("it has a port").port();
    let (asked, body) = (Arc::new(AtomicU64::new(0)), body.to_vec());
    let counted = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            counted.fetch_add(1, Ordering::SeqCst);
            // Who asks has gone, or has what it asked for.
            let _gone = answer(stream, &body);
        }
    });
    (port, asked)
}

fn answer(mut stream: TcpStream, body: &[u8]) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.extend(byte);
    }
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len())?;
    stream.write_all(body)
}

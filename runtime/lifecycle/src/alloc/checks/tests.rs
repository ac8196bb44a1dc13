#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::alloc::health::expected_checks;
use ostler_model::limits::CHECK_OUTPUT_BYTES_MAX;
use ostler_model::time::Timestamp;

/// Far beyond what anything here takes: a test that waits so long has failed.
const PATIENCE: Duration = Duration::from_secs(20);

fn http(method: &str) -> CheckKind {
    CheckKind::Http { method: method.to_owned(), path: "/health?x=1".to_owned() }
}

/// Answers every connection with these bytes after its request was read; gives the requests.
async fn server(answer: Vec<u8>) -> (SocketAddr, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, requests) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let request = read_head(&mut stream).await;
            let _ = sender.send(request);
            // The client may have hung up before all was written.
            let _ = stream.write_all(&answer).await;
            let _ = stream.shutdown().await;
        }
    });
    (address, requests)
}

async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).await.unwrap_or(0) == 1 {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

async fn ask(kind: &CheckKind, address: SocketAddr) -> Answer {
    let asked = probe::ask(kind, address, PATIENCE);
    clock::timeout(PATIENCE * 2, asked).await.expect("the check's own timeout holds")
}

async fn answered_with(answer: impl Into<Vec<u8>>) -> Answer {
    let (address, _requests) = server(answer.into()).await;
    ask(&http("GET"), address).await
}

/// An address where nobody listens.
async fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

#[tokio::test]
async fn a_tcp_check_passes_where_somebody_listens() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = ask(&CheckKind::Tcp, address).await;
    assert_eq!(answer, Answer { passing: true, output: format!("connected to {address}") });
}

#[tokio::test]
async fn a_refused_connection_fails_both_kinds() {
    let address = nobody().await;
    for kind in [CheckKind::Tcp, http("GET")] {
        let answer = ask(&kind, address).await;
        assert!(!answer.passing);
        assert!(answer.output.starts_with(&format!("cannot connect to {address}: ")), "{answer:?}");
    }
}

#[tokio::test]
async fn an_http_check_asks_as_it_was_told_and_keeps_the_answer() {
    let (address, mut requests) =
        server(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nfine\n".to_vec()).await;
    let answer = ask(&http("POST"), address).await;
    assert_eq!(answer, Answer { passing: true, output: "status 200 OK: fine".to_owned() });
    let request = requests.recv().await.unwrap();
    assert!(request.starts_with("POST /health?x=1 HTTP/1.1\r\n"), "{request}");
    assert!(request.contains(&format!("host: {address}\r\n")), "{request}");
}

#[tokio::test]
async fn only_a_status_from_200_to_299_passes_and_redirects_are_not_followed() {
    for (status, passing) in [
        ("200 OK", true),
        ("204 No Content", true),
        ("299 Fine", true),
        ("301 Moved Permanently", false),
        ("404 Not Found", false),
        ("503 Service Unavailable", false),
    ] {
        let location = "location: http://127.0.0.1:1/\r\n";
        let text = format!("HTTP/1.1 {status}\r\n{location}content-length: 0\r\n\r\n");
        let answer = answered_with(text).await;
        assert_eq!(answer.passing, passing, "{status}: {answer:?}");
        assert!(answer.output.starts_with(&format!("status {}", &status[..3])), "{answer:?}");
    }
}

#[tokio::test]
async fn a_huge_body_is_cut_and_does_not_harm() {
    let mut text = b"HTTP/1.1 500 Oh\r\n\r\n".to_vec();
    text.extend(std::iter::repeat_n(b'x', 10_000_000));
    let answer = answered_with(text).await;
    assert!(!answer.passing);
    assert_eq!(answer.output.len(), CHECK_OUTPUT_BYTES_MAX);
    assert!(answer.output.ends_with("xxx"));
}

#[tokio::test]
async fn huge_and_many_headers_fail_the_check() {
    let huge = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(1_000_000));
    let many = (0..1_000).map(|i| format!("x{i}: 1\r\n")).collect::<String>();
    for text in [huge, format!("HTTP/1.1 200 OK\r\n{many}\r\n")] {
        let answer = answered_with(text).await;
        assert!(!answer.passing && answer.output.starts_with("no HTTP answer from"), "{answer:?}");
    }
}

#[tokio::test]
async fn what_is_no_http_fails_the_check() {
    for text in [&b"SSH-2.0-x\r\n"[..], b"", b"\0\xff\xfe garbage", b"HTTP/1.1 abc\r\n\r\n"] {
        let answer = answered_with(text).await;
        assert!(!answer.passing && answer.output.starts_with("no HTTP answer from"), "{answer:?}");
    }
}

#[tokio::test]
async fn an_answer_cut_off_after_its_status_counts_by_the_status() {
    let answer = answered_with("HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nhalf").await;
    assert_eq!(answer, Answer { passing: true, output: "status 200 OK: half".to_owned() });
}

#[tokio::test]
async fn output_has_no_control_characters() {
    let answer = answered_with("HTTP/1.1 500 Oh\r\ncontent-length: 9\r\n\r\na\x1b[2Jb\n\tc").await;
    assert_eq!(answer.output, "status 500 Internal Server Error: a\u{fffd}[2Jb\n\tc");
}

#[tokio::test]
async fn silence_ends_with_the_timeout() {
    // Accepts connections into its queue and never answers.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let get = http("GET");
    let asked = probe::ask(&get, address, Duration::from_millis(20));
    let answer = clock::timeout(PATIENCE, asked).await.expect("the timeout holds");
    assert_eq!(answer.output, format!("no answer from {address} within the timeout of 20ms"));
    assert!(!answer.passing);
}

#[tokio::test]
async fn a_body_that_never_ends_does_not_hold_a_check_beyond_its_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 503 No\r\n\r\nwait").await.unwrap();
        // Holds the connection until the client goes.
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
    });
    let get = http("GET");
    // Long enough for the status to arrive on a busy machine.
    let asked = probe::ask(&get, address, Duration::from_secs(2));
    let answer = clock::timeout(PATIENCE, asked).await.expect("the timeout holds");
    assert_eq!(answer.output, "status 503 Service Unavailable: wait");
    clock::timeout(PATIENCE, server).await.expect("the connection is closed").unwrap();
}

fn group(checks: &str) -> TaskGroup {
    let text = format!(
        "job \"j\" {{\ngroup \"g\" {{\nnetwork {{\nport \"p\" {{}}\n}}\ntask \"t\" {{\ndriver = \"mock\"\nservice {{\nname = \"s\"\nport = \"p\"\n{checks}\n}}\n}}\n}}\n}}"
    );
    let parsed = ostler_jobspec::parse(text.as_bytes(), Path::new("-"), None);
    parsed.unwrap_or_else(|found| panic!("{}", found.render(&text, false))).groups.remove(0)
}

const TCP_CHECK: &str =
    "check {\nname = \"tcp\"\ntype = \"tcp\"\ninterval = \"1s\"\ntimeout = \"5s\"\n}";
const HTTP_CHECK: &str = "check {\nname = \"http\"\ntype = \"http\"\npath = \"/\"\ninterval = \"1s\"\ntimeout = \"5s\"\n}";

fn port(address: SocketAddr) -> AllocatedPort {
    let value = address.port();
    AllocatedPort {
        label: "p".to_owned(),
        value,
        to: value,
        host_ip: "0.0.0.0".to_owned(),
        task: None,
    }
}

/// Wait until the results are as wanted.
async fn until(checks: &Checks, wanted: impl Fn(&[CheckResult]) -> bool) -> Arc<[CheckResult]> {
    let mut results = checks.results();
    let found = clock::timeout(PATIENCE, results.wait_for(|results| wanted(results))).await;
    found.expect("the results come").unwrap().clone()
}

#[tokio::test]
async fn all_checks_of_a_group_are_asked_again_and_again_and_changes_are_told() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let asked = Arc::clone(&count);
    let server = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let head = read_head(&mut stream).await;
            // The TCP check sends nothing.
            if head.is_empty() {
                continue;
            }
            let well = asked.fetch_add(1, Ordering::SeqCst) > 0;
            let status = if well { "200 OK" } else { "500 Oh" };
            let text = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            let _ = stream.write_all(text.as_bytes()).await;
        }
    });
    let clock = Clock::fixed(Timestamp::from_nanos(5));
    let group = group(&format!("{TCP_CHECK}\n{HTTP_CHECK}"));
    let checks = Checks::spawn(&group, &[port(address)], clock.clone()).unwrap();
    let first = until(&checks, |results| results.len() == 2).await;
    assert_eq!(first.iter().map(|r| r.id.clone()).collect::<Vec<_>>(), expected_checks(&group));
    assert_eq!((first[0].passing, first[1].passing), (true, false));
    assert_eq!(first[1].output, "status 500 Internal Server Error");
    clock.advance(Duration::from_nanos(2));
    let second = until(&checks, |results| results[1].passing).await;
    assert_eq!(second[0], first[0]);
    assert_eq!(second[1].since, Timestamp::from_nanos(7));
    server.abort();
    let _ = server.await;
    let third = until(&checks, |results| results.iter().all(|result| !result.passing)).await;
    assert!(third[0].output.starts_with("cannot connect to 127.0.0.1:"), "{third:?}");
}

#[tokio::test]
async fn an_answer_that_says_the_same_is_no_news() {
    let mut place = None;
    let clock = Clock::fixed(Timestamp::from_nanos(1));
    let id = expected_checks(&group(TCP_CHECK)).remove(0);
    let answer = |passing, output: &str| Answer { passing, output: output.to_owned() };
    assert!(take(&mut place, &id, answer(true, "a"), &clock));
    clock.advance(Duration::from_nanos(1));
    assert!(!take(&mut place, &id, answer(true, "a"), &clock));
    assert!(take(&mut place, &id, answer(true, "b"), &clock));
    let result = place.clone().unwrap();
    assert_eq!((result.output.as_str(), result.since), ("b", Timestamp::from_nanos(1)));
    assert!(take(&mut place, &id, answer(false, "b"), &clock));
    assert_eq!(place.unwrap().since, Timestamp::from_nanos(2));
}

#[tokio::test]
async fn nothing_is_asked_after_the_checks_were_dropped() {
    let (address, mut requests) = server(b"HTTP/1.1 200 OK\r\n\r\n".to_vec()).await;
    let checks = Checks::spawn(&group(HTTP_CHECK), &[port(address)], Clock::system()).unwrap();
    until(&checks, |results| results.len() == 1).await;
    assert!(requests.recv().await.is_some());
    let mut results = checks.results();
    drop(checks);
    // The owner is gone, and with it whoever could ask.
    let ended = clock::timeout(PATIENCE, async { while results.changed().await.is_ok() {} });
    ended.await.expect("the owner ends");
}

#[tokio::test]
async fn a_check_without_an_address_fails_and_says_why() {
    let checks = Checks::spawn(&group(TCP_CHECK), &[], Clock::system()).unwrap();
    let results = until(&checks, |results| results.len() == 1).await;
    assert_eq!(
        (results[0].passing, results[0].output.as_str()),
        (false, "the allocation has no port \"p\"")
    );
}

#[tokio::test]
async fn a_group_without_checks_asks_nothing() {
    assert!(Checks::spawn(&group(""), &[], Clock::system()).is_none());
}

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;

use super::*;
use crate::routes::endpoints::{ListJobs, ReadLogs, StopJob};
use ostler_state::DataDirLock;

/// An agent that answers one request with `answer`. Returns it with the request that it got.
async fn asked<T>(
    answer: &str,
    ask: impl AsyncFnOnce(ApiClient) -> Result<T, ClientError>,
) -> (Result<T, ClientError>, String) {
    let dir = tempfile::tempdir().unwrap();
    let address = AgentAddress::in_dir(dir.path());
    let listener = UnixListener::bind(address.at.socket().unwrap()).unwrap();
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 4096];
        let read = stream.read(&mut request).await.unwrap();
        stream.write_all(answer.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        String::from_utf8_lossy(&request[..read]).into_owned()
    };
    tokio::join!(ask(ApiClient::new(address, |_, _| {})), serve)
}

fn jobs() -> ApiRequest<(), Value> {
    ListJobs::request([]).read_as()
}

fn http(status: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nX-Nomad-Index: 7\r\nContent-Length: {length}\r\n\r\n{body}")
}

#[tokio::test]
async fn an_answer_is_read_with_its_index() {
    let answer = http("200 OK", r#"{"a":1}"#);
    let (got, request) = asked(&answer, async |client| {
        client.read_after(&jobs().with(QueryKey::Prefix, "a"), 6).await
    })
    .await;
    assert_eq!(got.unwrap(), (json!({"a": 1}), 7));
    assert!(
        request.starts_with("GET /v1/jobs?prefix=a&index=6&wait=60s HTTP/1.1\r\n"),
        "{request}"
    );
}

#[tokio::test]
async fn a_refusal_says_what_was_asked_and_ends_as_its_status_says() {
    for (status, wrong) in [
        ("404 Not Found", true),
        ("400 Bad Request", true),
        ("409 Conflict", false),
        ("500 Internal Server Error", false),
    ] {
        let answer = http(status, "because\n");
        let (got, _) = asked(&answer, async |c| {
            c.send(&StopJob::request([&"a"]).with(QueryKey::Purge, true)).await
        })
        .await;
        let error = got.unwrap_err();
        let text = error.to_string();
        let code = status.split(' ').next().unwrap();
        match code {
            // This is the caller's error, so the text says only what is wrong.
            "400" | "409" => assert_eq!(text, "because"),
            _ => assert!(
                text.starts_with(&format!("because (status {code}) (DELETE /v1/job/a at /")),
                "{text}"
            ),
        }
        assert_eq!((error.is_wrong_input(), error.is_not_found()), (wrong, code == "404"));
    }
}

#[tokio::test]
async fn without_an_agent_the_message_says_where_and_how_to_start_one() {
    let dir = tempfile::tempdir().unwrap();
    let client = ApiClient::new(AgentAddress::in_dir(dir.path()), |_, _| {});
    assert!(!client.is_there().await);
    let error = client.send(&jobs()).await.unwrap_err();
    let (text, dir) = (error.to_string(), dir.path().display().to_string());
    assert!(text.contains(&format!("no agent runs at {dir}/ostler.sock")), "{text}");
    assert!(text.contains(&format!("`ostler agent --data-dir {dir}`")), "{text}");
    assert!(!error.is_wrong_input());
}

#[tokio::test]
async fn an_agent_that_starts_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let mut lock = DataDirLock::acquire(dir.path()).unwrap();
    lock.note_serving().unwrap();
    let client = ApiClient::new(AgentAddress::in_dir(dir.path()), |_, _| {});
    assert!(client.is_there().await, "it will be");
    let served = async {
        // The client looked for the agent before it had a socket.
        clock::sleep(CLIENT_START_PAUSE * 2).await;
        let listener = UnixListener::bind(client.endpoint().socket().unwrap()).unwrap();
        let starting = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n\
                        Content-Length: 5\r\n\r\nsoon\n";
        for answer in [starting.to_owned(), http("200 OK", "1")] {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _request = stream.read(&mut [0; 4096]).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    };
    let number = jobs().read_as::<u8>();
    let (got, ()) = tokio::join!(client.send(&number), served);
    assert_eq!(got.unwrap(), 1);
}

#[tokio::test]
async fn an_agent_that_ends_is_not_said_to_start_and_its_end_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut lock = DataDirLock::acquire(dir.path()).unwrap();
    lock.note_serving().unwrap();
    lock.note_ending().unwrap();
    let client = ApiClient::new(AgentAddress::in_dir(dir.path()), |text, _| {
        let ends = format!("the agent (pid {}) is shutting down", std::process::id());
        assert!(text.starts_with(&ends), "{text}");
    });
    assert!(!client.is_there().await, "nor will it be");
    let ended = async {
        clock::sleep(CLIENT_START_PAUSE * 2).await;
        drop(lock);
    };
    let request = jobs();
    let (got, ()) = tokio::join!(client.send(&request), ended);
    let text = got.unwrap_err().to_string();
    assert!(text.starts_with("no agent runs at "), "{text}");
}

#[tokio::test]
async fn an_agent_that_is_only_busy_is_not_waited_for() {
    let (got, _) = asked(&http("503 Busy", "full"), async |c| c.send(&jobs()).await).await;
    assert!(got.unwrap_err().to_string().starts_with("full (status 503)"));
}

#[tokio::test]
async fn a_directory_in_use_for_one_command_is_no_agents_and_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let _lock = DataDirLock::acquire(dir.path()).unwrap();
    let client = ApiClient::new(AgentAddress::in_dir(dir.path()), |_, _| {});
    assert!(!client.is_there().await);
    let error = client.send(&jobs()).await.unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains(&format!("process {} uses its data directory", std::process::id())),
        "{text}"
    );
    assert!(!error.is_wrong_input());
}

#[tokio::test]
async fn what_is_no_answer_or_too_large_is_an_error() {
    let (got, _) = asked("hello\r\n\r\n", async |c| c.send(&jobs()).await).await;
    assert!(got.unwrap_err().to_string().contains("broke"));
    let (got, _) = asked(&http("200 OK", "{"), async |c| c.send(&jobs()).await).await;
    assert!(got.unwrap_err().to_string().contains("is its version different"));
    let cut = "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{}";
    let (got, _) = asked(cut, async |c| c.send(&jobs()).await).await;
    assert!(got.unwrap_err().to_string().contains("broke"));
}

#[tokio::test]
async fn a_stream_gives_frames_to_its_end() {
    let body = "1b\r\n{\"Data\":\"aGk=\",\"Offset\":2}{\r\n1\r\n}\r\n0\r\n\r\n";
    let answer = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
    let (got, _) = asked(&answer, async |client| {
        let mut frames = client.stream_frames(&ReadLogs::request([&"x"])).await?;
        let mut all = Vec::new();
        while let Some(frame) = frames.next().await? {
            all.push((frame.data, frame.offset));
        }
        Ok(all)
    })
    .await;
    assert_eq!(got.unwrap(), [(b"hi".to_vec(), 2), (Vec::new(), 0)]);
}

#[tokio::test]
async fn an_answer_that_is_no_http_leads_to_https() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let client = ApiClient::new(AgentAddress::from_options(Some(&url), None).unwrap(), |_, _| {});
    let serve = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        let _request = stream.read(&mut [0; 4096]).await.unwrap();
        // The bytes are an alert of TLS.
        stream.write_all(b"\x15\x03\x01\x00\x02\x02\x46").await.unwrap();
    };
    let request = jobs();
    let (got, ()) = tokio::join!(client.send(&request), serve);
    let text = got.unwrap_err().to_string();
    assert!(text.contains("does not speak HTTP") && text.contains("https://"), "{text}");
}

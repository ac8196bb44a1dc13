#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::http2;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use super::grpc::{CHECK, HealthCheckRequest, HealthCheckResponse};
use super::*;
use ostler_model::service::HttpCheck;

/// Far longer than anything here takes: a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(20);

fn http(method: &str) -> CheckKind {
    CheckKind::Http(Box::new(HttpCheck::new(method, "/health?x=1")))
}

/// A server that reads a request on every connection and answers with these bytes. It returns
/// the requests.
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

async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).await.unwrap_or(0) == 1 {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

fn target(address: SocketAddr) -> CheckTarget {
    CheckTarget { host: address.ip().to_string(), port: address.port() }
}

async fn asked(kind: &CheckKind, address: SocketAddr) -> CheckAnswer {
    let target = target(address);
    let asked = ask(kind, &target, PATIENCE);
    clock::timeout(PATIENCE * 2, asked).await.expect("the check's own timeout holds")
}

async fn answered_with(answer: impl Into<Vec<u8>>) -> CheckAnswer {
    let (address, _requests) = server(answer.into()).await;
    asked(&http("GET"), address).await
}

/// An address where nobody listens.
async fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

#[tokio::test]
async fn a_tcp_check_passes_where_somebody_listens() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = asked(&CheckKind::Tcp, address).await;
    assert_eq!(answer, CheckAnswer::new_passing(&format!("connected to {address}")));
}

#[tokio::test]
async fn a_refused_connection_fails_both_kinds() {
    let address = nobody().await;
    for kind in [CheckKind::Tcp, http("GET")] {
        let answer = asked(&kind, address).await;
        assert_eq!(answer.status, CheckStatus::Critical);
        assert!(answer.output.starts_with(&format!("cannot connect to {address}: ")), "{answer:?}");
    }
}

#[tokio::test]
async fn an_http_check_asks_as_it_was_told_and_keeps_the_answer() {
    let (address, mut requests) =
        server(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nfine\n".to_vec()).await;
    let answer = asked(&http("POST"), address).await;
    assert_eq!(
        answer,
        CheckAnswer { code: Some(200), ..CheckAnswer::new_passing("status 200 OK: fine") }
    );
    let request = requests.recv().await.unwrap();
    assert!(request.starts_with("POST /health?x=1 HTTP/1.1\r\n"), "{request}");
    assert!(request.contains(&format!("host: {address}\r\n")), "{request}");
}

#[tokio::test]
async fn a_status_from_200_to_299_passes_429_warns_and_redirects_are_not_followed() {
    use CheckStatus::{Critical, Passing, Warning};
    for (status, word) in [
        ("200 OK", Passing),
        ("204 No Content", Passing),
        ("299 Fine", Passing),
        ("301 Moved Permanently", Critical),
        ("404 Not Found", Critical),
        ("429 Too Many Requests", Warning),
        ("503 Service Unavailable", Critical),
    ] {
        let location = "location: http://127.0.0.1:1/\r\n";
        let text = format!("HTTP/1.1 {status}\r\n{location}content-length: 0\r\n\r\n");
        let answer = answered_with(text).await;
        assert_eq!(answer.status, word, "{status}: {answer:?}");
        assert_eq!(answer.code, status[..3].parse().ok());
        assert!(answer.output.starts_with(&format!("status {}", &status[..3])), "{answer:?}");
    }
}

#[tokio::test]
async fn a_huge_body_is_cut_and_does_not_harm() {
    let mut text = b"HTTP/1.1 500 Oh\r\n\r\n".to_vec();
    text.extend(std::iter::repeat_n(b'x', 10_000_000));
    let answer = answered_with(text).await;
    assert_eq!(answer.status, CheckStatus::Critical);
    assert_eq!(answer.output.len(), CHECK_OUTPUT_BYTES_MAX);
    assert!(answer.output.ends_with("xxx"));
}

#[tokio::test]
async fn huge_and_many_headers_fail_the_check() {
    let huge = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(1_000_000));
    let many = (0..1_000).map(|i| format!("x{i}: 1\r\n")).collect::<String>();
    for text in [huge, format!("HTTP/1.1 200 OK\r\n{many}\r\n")] {
        let answer = answered_with(text).await;
        assert!(
            answer.status == CheckStatus::Critical
                && answer.output.starts_with("no HTTP answer from"),
            "{answer:?}"
        );
    }
}

#[tokio::test]
async fn what_is_no_http_fails_the_check() {
    for text in [&b"SSH-2.0-x\r\n"[..], b"", b"\0\xff\xfe garbage", b"HTTP/1.1 abc\r\n\r\n"] {
        let answer = answered_with(text).await;
        assert!(
            answer.status == CheckStatus::Critical
                && answer.output.starts_with("no HTTP answer from"),
            "{answer:?}"
        );
    }
}

#[tokio::test]
async fn an_answer_cut_off_after_its_status_counts_by_the_status() {
    let answer = answered_with("HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nhalf").await;
    assert_eq!(
        answer,
        CheckAnswer { code: Some(200), ..CheckAnswer::new_passing("status 200 OK: half") }
    );
}

#[tokio::test]
async fn output_has_no_control_characters() {
    let answer = answered_with("HTTP/1.1 500 Oh\r\ncontent-length: 9\r\n\r\na\x1b[2Jb\n\tc").await;
    assert_eq!(answer.output, "status 500 Internal Server Error: a\u{fffd}[2Jb\n\tc");
}

#[tokio::test]
async fn silence_ends_with_the_timeout() {
    // The server accepts connections into its queue and never answers.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let get = http("GET");
    let target = target(address);
    let asked = ask(&get, &target, Duration::from_millis(20));
    let answer = clock::timeout(PATIENCE, asked).await.expect("the timeout holds");
    assert_eq!(answer.output, format!("no answer from {address} within the timeout of 20ms"));
    assert_eq!(answer.status, CheckStatus::Critical);
}

#[tokio::test]
async fn a_body_that_never_ends_does_not_hold_a_check_beyond_its_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 503 No\r\n\r\nwait").await.unwrap();
        // This holds the connection until the client goes.
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
    });
    let get = http("GET");
    // This is long enough for the status to arrive on a busy machine.
    let target = target(address);
    let asked = ask(&get, &target, Duration::from_secs(2));
    let answer = clock::timeout(PATIENCE, asked).await.expect("the timeout holds");
    assert_eq!(answer.output, "status 503 Service Unavailable: wait");
    clock::timeout(PATIENCE, server).await.expect("the connection is closed").unwrap();
}

#[tokio::test]
async fn headers_and_the_body_are_sent_as_the_job_has_them() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let head = read_head(&mut stream).await;
        let mut body = [0; 5];
        stream.read_exact(&mut body).await.unwrap();
        stream.write_all(b"HTTP/1.1 204 Fine\r\n\r\n").await.unwrap();
        (head, String::from_utf8(body.to_vec()).unwrap())
    });
    let headers = [
        ("Host".to_owned(), vec!["example.org".to_owned()]),
        ("X-Many".to_owned(), vec!["one".to_owned(), "two".to_owned()]),
    ];
    let body = "hello".to_owned();
    let check = HttpCheck { headers: headers.into(), body, ..HttpCheck::new("PUT", "/x") };
    let answer = asked(&CheckKind::Http(Box::new(check)), address).await;
    assert_eq!(answer.status, CheckStatus::Passing, "{answer:?}");
    let (head, body) = clock::timeout(PATIENCE, server).await.unwrap().unwrap();
    let head = head.to_ascii_lowercase();
    assert!(head.contains("host: example.org\r\n") && head.matches("host:").count() == 1, "{head}");
    assert!(head.contains("x-many: one\r\n") && head.contains("x-many: two\r\n"), "{head}");
    assert!(head.contains("content-length: 5\r\n"), "{head}");
    assert_eq!(body, "hello");
}

/// An acceptor of TLS with its own certificate for `localhost`.
fn acceptor(alpn: &[u8]) -> TlsAcceptor {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![alpn.to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

#[tokio::test]
async fn https_takes_a_certificate_of_nobody_only_where_the_job_says_so() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = acceptor(b"http/1.1");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            read_head(&mut stream).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        }
    });
    let with = |skip_verify| {
        let tls = Some(CheckTls { skip_verify, server_name: Some("localhost".to_owned()) });
        CheckKind::Http(Box::new(HttpCheck { tls, ..HttpCheck::new("GET", "/") }))
    };
    let any = asked(&with(true), address).await;
    assert_eq!((any.status, any.code), (CheckStatus::Passing, Some(200)), "{any:?}");
    let verified = asked(&with(false), address).await;
    assert_eq!(verified.status, CheckStatus::Critical);
    assert!(verified.output.starts_with(&format!("TLS failed with {address}: ")), "{verified:?}");
}

/// The health service of a small gRPC server: `known` serves, `ill` does not, others are unknown.
async fn health(request: Request<Incoming>) -> Result<Response<GrpcBody>, hyper::Error> {
    let path = request.uri().path().to_owned();
    let sent = request.into_body().collect().await?.to_bytes();
    let asked = HealthCheckRequest::decode(sent.get(5..).unwrap_or_default()).unwrap();
    let status = match asked.service.as_str() {
        _ if path != CHECK => Err("12"),
        "" | "known" => Ok(1),
        "ill" => Ok(2),
        _ => Err("5"),
    };
    let message = HealthCheckResponse { status: status.unwrap_or(0) }.encode_to_vec();
    let mut frame = vec![0];
    frame.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    frame.extend(message);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", status.err().unwrap_or("0").parse().unwrap());
    let mut frames = vec![Ok(Frame::trailers(trailers))];
    if status.is_ok() {
        frames.insert(0, Ok(Frame::data(Bytes::from(frame))));
    }
    let body = StreamBody::new(tokio_frames(frames));
    let response = Response::builder().header("content-type", "application/grpc").body(body);
    Ok(response.unwrap())
}

type Frames = Vec<Result<Frame<Bytes>, std::convert::Infallible>>;
type GrpcBody = StreamBody<FrameStream>;

struct FrameStream(std::vec::IntoIter<Result<Frame<Bytes>, std::convert::Infallible>>);

fn tokio_frames(frames: Frames) -> FrameStream {
    FrameStream(frames.into_iter())
}

impl futures_util::Stream for FrameStream {
    type Item = Result<Frame<Bytes>, std::convert::Infallible>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Ready(self.0.next())
    }
}

async fn grpc_server(tls: Option<TlsAcceptor>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let stream: Box<dyn Stream> = match &tls {
                None => Box::new(stream),
                Some(tls) => Box::new(tls.accept(stream).await.unwrap()),
            };
            let service = hyper::service::service_fn(health);
            let served = http2::Builder::new(TokioExecutor::new());
            let _ = served.serve_connection(TokioIo::new(stream), service).await;
        }
    });
    address
}

#[tokio::test]
async fn a_grpc_check_asks_the_health_service() {
    let plain = grpc_server(None).await;
    let secret = grpc_server(Some(acceptor(b"h2"))).await;
    let skip = Some(CheckTls { skip_verify: true, server_name: None });
    for (address, tls) in [(plain, None), (secret, skip)] {
        for (service, status, output) in [
            ("", CheckStatus::Passing, "SERVING"),
            ("known", CheckStatus::Passing, "SERVING"),
            ("ill", CheckStatus::Critical, "NOT_SERVING"),
            ("other", CheckStatus::Critical, "the server knows no such service"),
        ] {
            let kind = CheckKind::Grpc { service: service.to_owned(), tls: tls.clone() };
            let answer = asked(&kind, address).await;
            assert_eq!((answer.status, answer.output.as_str()), (status, output), "{service}");
        }
    }
}

#[tokio::test]
async fn who_speaks_no_grpc_fails_a_grpc_check() {
    let kind = CheckKind::Grpc { service: String::new(), tls: None };
    for text in ["HTTP/1.1 200 OK\r\n\r\n", "SSH-2.0-x\r\n", ""] {
        let (address, _requests) = server(text.into()).await;
        let answer = asked(&kind, address).await;
        assert_eq!(answer.status, CheckStatus::Critical, "{answer:?}");
    }
    let answer = asked(&kind, nobody().await).await;
    assert!(answer.output.starts_with("cannot connect to "), "{answer:?}");
}

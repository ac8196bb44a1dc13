#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::os::fd::AsFd as _;
use std::time::Duration;

use base64::Engine as _;
use ostler_cluster::client::DiskDoor as _;
use ostler_cluster::previous::DiskSource;
use ostler_cluster::tls::TlsFiles;
use ostler_cluster::tls_nodes::NodeTls;
use ostler_lifecycle::alloc::dir::AllocDir;
use ostler_lifecycle::alloc::snapshot::{UnpackBounds, unpack_into};
use ostler_model::limits::MIB;
use ostler_model::other_nodes::NoDisk;
use ostler_model::rng::Rng;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::disk_fetch::HttpDisks;

const SECRET: &str = "11111111-2222-4333-8444-555555555555";

fn alloc() -> AllocId {
    AllocId::new(Rng::from_seed(50).uuid())
}

fn task() -> TaskName {
    "web".parse().unwrap()
}

/// An allocation that has ended, with data; another one runs.
struct Ended(tempfile::TempDir);

impl Ended {
    fn new() -> Arc<Self> {
        let root = tempfile::tempdir().unwrap();
        let dir = AllocDir::create(root.path(), alloc()).unwrap();
        std::fs::write(dir.data().join("kept"), vec![7; 300_000]).unwrap();
        std::fs::write(dir.create_task(&task()).unwrap().local.join("mine"), "own").unwrap();
        Arc::new(Self(root))
    }
}

impl Allocs for Ended {
    fn find_ended_disk(&self, id: AllocId) -> BoxFuture<'_, Result<EndedDisk, DiskRefusal>> {
        let runs = AllocId::new(Rng::from_seed(51).uuid());
        Box::pin(async move {
            match id {
                _ if id == alloc() => {
                    Ok(EndedDisk { root: self.0.path().to_owned(), tasks: vec![task()] })
                }
                _ if id == runs => Err(DiskRefusal::Runs),
                _ => Err(DiskRefusal::Unknown),
            }
        })
    }
}

async fn serving(tls: Option<TlsAcceptor>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let bind = listener.local_addr().unwrap();
    let at = DiskServerAddress { address: bind.to_string(), tls: tls.is_some() };
    let server = DiskServer { allocs: Ended::new(), secret: SECRET.to_owned(), bind, at, tls };
    drop(tokio::spawn(serve(server, listener, watch::Sender::new(None))));
    bind
}

fn token(of: AllocId) -> String {
    let hash = blake2b_simd::Params::new().key(SECRET.as_bytes()).hash(of.to_string().as_bytes());
    base64::engine::general_purpose::URL_SAFE.encode(hash.as_bytes())
}

fn source(at: SocketAddr, tls: bool) -> DiskSource {
    let address = at.to_string().parse().unwrap();
    DiskSource { alloc: alloc(), node: "one".to_owned(), address, tls, token: token(alloc()) }
}

async fn fetch(from: &DiskSource, tls: Option<&NodeTls>) -> Result<Vec<u8>, NoDisk> {
    let door = HttpDisks { tls: tls.cloned().map(Arc::new) };
    let mut pieces = door.fetch(from).await?;
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.next().await.map_err(NoDisk::Now)? {
        bytes.extend(piece);
    }
    Ok(bytes)
}

fn assert_whole(bytes: &[u8]) {
    let to = tempfile::tempdir().unwrap();
    let top = std::fs::File::open(to.path()).unwrap();
    let tasks = BTreeSet::from([task()]);
    let unpacked =
        unpack_into(top.as_fd(), bytes, alloc(), &tasks, UnpackBounds::of_disk(MIB)).unwrap();
    assert_eq!((unpacked.files, unpacked.bytes), (2, 300_003));
    assert_eq!(std::fs::read_to_string(to.path().join("web/local/mine")).unwrap(), "own");
}

#[tokio::test]
async fn a_disk_comes_as_a_whole_to_who_shows_the_token() {
    let at = serving(None).await;
    assert_whole(&fetch(&source(at, false), None).await.unwrap());
}

#[tokio::test]
async fn nobody_without_the_token_of_this_allocation_gets_anything_of_it() {
    let at = serving(None).await;
    let other = AllocId::new(Rng::from_seed(52).uuid());
    for wrong in [String::new(), "x".to_owned(), token(other), token(alloc()).replace('=', "")] {
        let source = DiskSource { token: wrong, ..source(at, false) };
        let refused = fetch(&source, None).await.unwrap_err();
        assert_eq!(
            refused,
            NoDisk::Ever("it answered with status 403: Permission denied".to_owned())
        );
    }
    // Nor does the caller learn whether there is such an allocation.
    let unknown = DiskSource { alloc: other, ..source(at, false) };
    assert!(fetch(&unknown, None).await.unwrap_err().to_string().contains("403"));
}

#[tokio::test]
async fn what_runs_is_not_sent_yet_and_what_is_not_there_never() {
    let at = serving(None).await;
    for (seed, again, status) in [(51, true, "409"), (53, false, "404")] {
        let alloc = AllocId::new(Rng::from_seed(seed).uuid());
        let source = DiskSource { alloc, token: token(alloc), ..source(at, false) };
        let refused = fetch(&source, None).await.unwrap_err();
        assert!(refused.to_string().contains(status), "{refused}");
        assert_eq!(matches!(refused, NoDisk::Now(_)), again);
    }
}

/// The answer to these bytes.
async fn raw(at: SocketAddr, request: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(at).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // The connection may be reset; then nothing came either.
    let _closed = stream.read_to_end(&mut answer).await;
    answer
}

#[tokio::test]
async fn for_anything_else_the_connection_is_closed_without_an_answer() {
    let at = serving(None).await;
    let (id, token) = (alloc(), token(alloc()));
    for (method, path) in [
        ("GET", format!("/v1/client/fs/logs/{id}?task=web&type=stdout")),
        ("GET", format!("/v1/client/fs/ls/{id}?path=/")),
        ("GET", format!("/v1/client/allocation/{id}/exec")),
        ("GET", format!("/v1/client/allocation/{id}/stats")),
        ("PUT", format!("/v1/client/allocation/{id}/restart")),
        ("PUT", format!("/v1/client/allocation/{id}/snapshot")),
        ("GET", "/v1/agent/self".to_owned()),
        ("GET", "/".to_owned()),
    ] {
        let request =
            format!("{method} {path} HTTP/1.1\r\nHost: x\r\nX-Nomad-Token: {token}\r\n\r\n");
        assert_eq!(raw(at, &request).await, b"", "{method} {path}");
    }
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13";
    let exec =
        format!("GET /v1/client/allocation/{id}/exec HTTP/1.1\r\nHost: x\r\n{upgrade}\r\n\r\n");
    assert_eq!(raw(at, &exec).await, b"");
}

#[tokio::test]
async fn a_head_without_end_is_refused() {
    let at = serving(None).await;
    let path = format!("/v1/client/allocation/{}/snapshot", alloc());
    let long = format!("GET {path} HTTP/1.1\r\nX-Nomad-Token: {}\r\n\r\n", "x".repeat(100_000));
    let many = format!("GET {path} HTTP/1.1\r\n{}\r\n", "X: y\r\n".repeat(100));
    for request in [long, many] {
        let answer = raw(at, &request).await;
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_that_does_not_come_ends_the_connection() {
    let at = serving(None).await;
    let mut stream = TcpStream::connect(at).await.unwrap();
    stream.write_all(b"GET /v1/client/alloc").await.unwrap();
    #[expect(clippy::disallowed_methods, reason = "virtual time")]
    let waited = tokio::time::Instant::now();
    let mut answer = Vec::new();
    let _closed = stream.read_to_end(&mut answer).await;
    assert!(waited.elapsed() < DISK_SERVED_HEAD_WALL + Duration::from_secs(5));
    assert!(!answer.starts_with(b"HTTP/1.1 200"));
}

#[tokio::test]
async fn so_many_connections_are_taken_and_one_more_is_closed() {
    let at = serving(None).await;
    let mut held = Vec::new();
    for _ in 0..DISK_SERVED_CONNECTIONS_MAX {
        held.push(TcpStream::connect(at).await.unwrap());
    }
    // Connections are taken in their order.
    let mut more = TcpStream::connect(at).await.unwrap();
    let closed = more.read(&mut [0]).await;
    assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
    drop(held);
    // Afterwards there is room again.
    loop {
        if let Ok(bytes) = fetch(&source(at, false), None).await {
            assert_whole(&bytes);
            break;
        }
    }
}

/// Certificates of a region, in files.
struct Authority {
    dir: tempfile::TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { dir, issuer }
    }

    /// The TLS configuration with a certificate of this name.
    fn node(&self, name: Option<&str>) -> NodeTls {
        let file = |name: &str| self.dir.path().join(name);
        let own = name.map(|name| {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            let certificate = params.signed_by(&key, &self.issuer).unwrap();
            std::fs::write(file("node.pem"), certificate.pem()).unwrap();
            std::fs::write(file("key.pem"), key.serialize_pem()).unwrap();
            (file("node.pem"), file("key.pem"))
        });
        let files = TlsFiles { authorities: file("ca.pem"), own, verify_name: true };
        NodeTls::read(&files, "global").unwrap()
    }
}

const NAME: &str = "client.global.nomad";

#[tokio::test]
async fn with_tls_both_nodes_must_be_of_the_cluster() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let node = ours.node(Some(NAME));
    assert!(node.is_named);
    let at = serving(node.acceptor.clone()).await;
    assert_whole(&fetch(&source(at, true), Some(&node)).await.unwrap());
    // A client without a certificate, with one of another authority, or without TLS gets nothing.
    for stranger in [ours.node(None), theirs.node(Some(NAME))] {
        fetch(&source(at, true), Some(&stranger)).await.unwrap_err();
    }
    fetch(&source(at, false), None).await.unwrap_err();
    let without = fetch(&source(at, true), None).await.unwrap_err();
    assert!(without.to_string().contains("speaks TLS, and this one has no tls block"), "{without}");
}

#[tokio::test]
async fn a_node_with_a_certificate_of_another_name_is_not_asked_for_a_disk() {
    let ours = Authority::new();
    let (server, node) = (ours.node(Some("server.global.nomad")), ours.node(Some(NAME)));
    assert!(!server.is_named, "and it says so itself");
    let at = serving(server.acceptor).await;
    let refused = fetch(&source(at, true), Some(&node)).await.unwrap_err();
    assert!(
        matches!(&refused, NoDisk::Ever(why) if why.contains("the TLS handshake failed")),
        "{refused}"
    );
}

/// Forwards connections to a node, and cuts the answer after `after` bytes.
async fn cutting(to: SocketAddr, after: usize) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let at = listener.local_addr().unwrap();
    drop(tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let (mut from_client, mut to_client) = client.into_split();
            let (from_node, mut to_node) = TcpStream::connect(to).await.unwrap().into_split();
            drop(tokio::spawn(async move {
                let _passed = tokio::io::copy(&mut from_client, &mut to_node).await;
            }));
            let mut some = from_node.take(after as u64);
            let _passed = tokio::io::copy(&mut some, &mut to_client).await;
        }
    }));
    at
}

#[tokio::test]
async fn what_is_cut_on_its_way_is_never_taken_for_the_whole() {
    let node = serving(None).await;
    let whole = fetch(&source(node, false), None).await.unwrap().len();
    for after in [0, 10, 200, 1_000, whole / 2, whole - 1, whole] {
        let at = cutting(node, after).await;
        let cut = fetch(&source(at, false), None).await.unwrap_err();
        assert!(matches!(cut, NoDisk::Now(_)), "{after}: {cut}");
    }
}

#[tokio::test]
async fn a_node_that_answers_something_else_is_not_believed() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let at = listener.local_addr().unwrap();
    let answers = [
        ("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", "302"),
        ("HTTP/1.1 500 No\r\nContent-Length: 10\r\n\r\nnot \x1b[2Jme", "500: not \\u{1b}[2Jme"),
        ("SSH-2.0-OpenSSH\r\n", ""),
    ];
    drop(tokio::spawn(async move {
        for (answer, _) in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _request = stream.read(&mut [0; 2_000]).await;
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    }));
    for (_, said) in answers {
        let refused = fetch(&source(at, false), None).await.unwrap_err();
        assert!(refused.to_string().contains(said), "{refused}");
    }
}

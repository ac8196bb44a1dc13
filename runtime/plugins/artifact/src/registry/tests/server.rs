//! A registry for tests: the pull half of the distribution specification over real sockets, and a
//! script that is asked first and may answer anything.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::manifest;
use ostler_model::digest::Digest;
use ostler_model::oci::OciReference;

/// A request as it came in.
#[derive(Clone, Debug)]
pub struct Asked {
    pub path: String,
    /// Headers by lower-case name.
    pub headers: BTreeMap<String, String>,
}

/// An answer of the script.
pub enum Reply {
    /// A status, further headers, and a body with its length.
    Full(u16, Vec<(String, String)>, Vec<u8>),
    /// These bytes, then the connection ends.
    Raw(Vec<u8>),
    /// These bytes, then nothing for ever.
    Stall(Vec<u8>),
    /// A body of pieces without end.
    Endless,
}

impl Reply {
    pub fn status(status: u16) -> Self {
        Self::Full(status, Vec::new(), Vec::new())
    }

    pub fn with(status: u16, header: (&str, &str)) -> Self {
        Self::Full(status, vec![(header.0.into(), header.1.into())], Vec::new())
    }

    pub fn body(body: &[u8]) -> Self {
        Self::Full(200, Vec::new(), body.to_vec())
    }
}

type Script = dyn Fn(&Asked, usize) -> Option<Reply> + Send + Sync;

struct Content {
    script: Box<Script>,
    /// The content, by path.
    things: Mutex<BTreeMap<String, Vec<u8>>>,
    asked: Mutex<Vec<Asked>>,
}

/// A running registry, which ends when this is dropped.
pub struct Server {
    port: u16,
    content: Arc<Content>,
    accepting: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl Server {
    /// A registry that does everything right.
    pub async fn new() -> Self {
        Self::with(|_, _| None).await
    }

    /// A registry with a script. `script` gets each request and the number of requests before it.
    /// What it does not answer is answered right.
    pub async fn with(
        script: impl Fn(&Asked, usize) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        Self::start(Box::new(script), None).await
    }

    pub async fn with_tls(acceptor: TlsAcceptor) -> Self {
        Self::start(Box::new(|_, _| None), Some(acceptor)).await
    }

    async fn start(script: Box<Script>, tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let content =
            Arc::new(Content { script, things: Mutex::default(), asked: Mutex::default() });
        let served = Arc::clone(&content);
        let accepting = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (content, tls) = (Arc::clone(&served), tls.clone());
                connections.spawn(async move {
                    match tls {
                        None => serve(stream, &content).await,
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => serve(stream, &content).await,
                            Err(_) => None,
                        },
                    }
                });
            }
        });
        Self { port, content, accepting }
    }

    pub fn host(&self) -> String {
        format!("localhost:{}", self.port)
    }

    /// The reference of `team/plugin` with this version.
    pub fn reference(&self, version: &str) -> OciReference {
        format!("oci://{}/team/plugin{version}", self.host()).parse().unwrap()
    }

    /// Put a component, and a signature, under a tag.
    pub fn push(&self, tag: &str, component: &[u8], signature: Option<&[u8]>) -> Digest {
        let manifest = manifest(component, signature);
        let digest = Digest::compute(&manifest);
        self.put(&format!("/v2/team/plugin/manifests/{tag}"), &manifest);
        self.put(&format!("/v2/team/plugin/manifests/{}", digest.to_tagged()), &manifest);
        for blob in [component].into_iter().chain(signature) {
            self.put(&format!("/v2/team/plugin/blobs/{}", Digest::compute(blob).to_tagged()), blob);
        }
        digest
    }

    pub fn put(&self, path: &str, bytes: &[u8]) {
        self.content.things.lock().unwrap().insert(path.to_owned(), bytes.to_vec());
    }

    pub fn asked(&self) -> Vec<Asked> {
        self.content.asked.lock().unwrap().clone()
    }
}

/// Serve one request of one connection.
async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin, content: &Content) -> Option<()> {
    let asked = request(&mut stream).await?;
    let before = {
        let mut all = content.asked.lock().unwrap();
        all.push(asked.clone());
        all.len() - 1
    };
    let right = || match content.things.lock().unwrap().get(&asked.path) {
        Some(bytes) => Reply::body(bytes),
        None => Reply::status(404),
    };
    match (content.script)(&asked, before).unwrap_or_else(right) {
        Reply::Full(status, headers, body) => {
            let mut head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n", body.len());
            for (name, value) in headers {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
            stream.write_all(format!("{head}\r\n").as_bytes()).await.ok()?;
            stream.write_all(&body).await.ok()?;
        }
        Reply::Raw(bytes) => stream.write_all(&bytes).await.ok()?,
        Reply::Stall(bytes) => {
            stream.write_all(&bytes).await.ok()?;
            stream.flush().await.ok()?;
            std::future::pending::<()>().await;
        }
        Reply::Endless => {
            let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
            stream.write_all(head.as_bytes()).await.ok()?;
            let piece = [&b"2000\r\n"[..], &[b'x'; 0x2000], b"\r\n"].concat();
            loop {
                stream.write_all(&piece).await.ok()?;
            }
        }
    }
    stream.flush().await.ok()?;
    stream.shutdown().await.ok()
}

async fn request(stream: &mut (impl AsyncRead + Unpin)) -> Option<Asked> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let text = String::from_utf8(head).ok()?;
    let mut lines = text.lines();
    let path = lines.next()?.split(' ').nth(1)?.to_owned();
    let header = |line: &str| {
        let (name, value) = line.split_once(": ")?;
        Some((name.to_ascii_lowercase(), value.to_owned()))
    };
    Some(Asked { path, headers: lines.filter_map(header).collect() })
}

//! A server of files by HTTP, and by HTTPS, that counts what it is asked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// What is answered.
#[derive(Clone)]
pub enum Reply {
    Body(Vec<u8>),
    Redirect(String),
    Status(u16),
    /// The head of a body of this length and its beginning, then nothing until somebody lets it go on.
    Held(usize, Arc<tokio::sync::Notify>),
    /// Zeros without end.
    Endless,
    /// A length that is not kept.
    Cut(Vec<u8>),
}

#[derive(Default)]
struct Content {
    things: Mutex<BTreeMap<String, Reply>>,
    asked: Mutex<Vec<(String, String)>>,
}

/// A running server; it ends with its runtime.
#[derive(Clone)]
pub struct Files {
    content: Arc<Content>,
    base: String,
}

impl Files {
    pub async fn start() -> Self {
        Self::behind(None).await
    }

    pub async fn behind(tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let base = match tls {
            Some(_) => format!("https://localhost:{port}"),
            None => format!("http://127.0.0.1:{port}"),
        };
        let files = Self { content: Arc::default(), base };
        let content = Arc::clone(&files.content);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (content, tls) = (Arc::clone(&content), tls.clone());
                tokio::spawn(async move {
                    match tls {
                        None => answer(socket, &content).await,
                        Some(tls) => match tls.accept(socket).await {
                            Ok(socket) => answer(socket, &content).await,
                            Err(_) => None,
                        },
                    }
                });
            }
        });
        files
    }

    /// Have something at a path; its address.
    pub fn put(&self, path: &str, reply: Reply) -> String {
        self.content.things.lock().unwrap().insert(path.to_owned(), reply);
        format!("{}{path}", self.base)
    }

    pub fn body(&self, path: &str, body: &[u8]) -> String {
        self.put(path, Reply::Body(body.to_vec()))
    }

    /// How often a path was asked for.
    pub fn count(&self, path: &str) -> usize {
        self.content.asked.lock().unwrap().iter().filter(|(asked, _)| asked == path).count()
    }

    /// The heads of the requests for a path.
    pub fn heads(&self, path: &str) -> Vec<String> {
        let asked = self.content.asked.lock().unwrap();
        asked.iter().filter(|(asked, _)| asked == path).map(|(_, head)| head.clone()).collect()
    }
}

async fn answer(mut socket: impl AsyncRead + AsyncWrite + Unpin, content: &Content) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await.ok()?);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1)?.to_owned();
    let thing = {
        content.asked.lock().unwrap().push((path.clone(), head));
        content.things.lock().unwrap().get(&path).cloned()
    };
    let head = |length: usize| format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
    match thing.unwrap_or(Reply::Status(404)) {
        Reply::Body(body) => {
            socket.write_all(head(body.len()).as_bytes()).await.ok()?;
            socket.write_all(&body).await.ok()?;
        }
        Reply::Cut(body) => {
            socket.write_all(head(body.len() + 1).as_bytes()).await.ok()?;
            socket.write_all(&body).await.ok()?;
        }
        Reply::Redirect(to) => {
            let text = format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n");
            socket.write_all(text.as_bytes()).await.ok()?;
        }
        Reply::Status(status) => {
            let text = format!("HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n");
            socket.write_all(text.as_bytes()).await.ok()?;
        }
        Reply::Held(length, go_on) => {
            socket.write_all(head(length).as_bytes()).await.ok()?;
            socket.write_all(&vec![b'x'; length / 2]).await.ok()?;
            socket.flush().await.ok()?;
            go_on.notified().await;
            go_on.notify_one();
            socket.write_all(&vec![b'x'; length - length / 2]).await.ok()?;
        }
        Reply::Endless => {
            socket.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.ok()?;
            loop {
                socket.write_all(&[0; 65_536]).await.ok()?;
            }
        }
    }
    socket.flush().await.ok()?;
    socket.shutdown().await.ok()
}

//! What stands between nodes and a server and keeps what both say.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// Bytes kept of each direction of a connection.
const KEPT_MAX: usize = 64 << 20;

/// One connection: what each end said.
#[derive(Clone, Debug, Default)]
pub struct Said {
    pub client: Vec<u8>,
    pub server: Vec<u8>,
}

/// A port of loopback that leads to a server.
pub struct Proxy {
    pub port: u16,
    listener: Option<TcpListener>,
    said: Arc<Mutex<Vec<Said>>>,
}

impl Proxy {
    pub async fn bind() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        Self { port, listener: Some(listener), said: Arc::default() }
    }

    /// Lead every connection to the server at this port, and keep what is said on it.
    pub fn lead_to(&mut self, server: u16) {
        let (listener, said) = (self.listener.take().unwrap(), Arc::clone(&self.said));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else { continue };
                let mut all = said.lock().unwrap();
                let at = all.len();
                all.push(Said::default());
                let ((of_client, to_client), (of_server, to_server)) =
                    (client.into_split(), server.into_split());
                let by_client = Arc::clone(&said);
                tokio::spawn(pass(of_client, to_server, move |piece| {
                    keep(&mut by_client.lock().unwrap()[at].client, piece);
                }));
                let by_server = Arc::clone(&said);
                tokio::spawn(pass(of_server, to_client, move |piece| {
                    keep(&mut by_server.lock().unwrap()[at].server, piece);
                }));
            }
        });
    }

    /// What was said so far.
    pub fn said(&self) -> Vec<Said> {
        self.said.lock().unwrap().clone()
    }
}

fn keep(kept: &mut Vec<u8>, piece: &[u8]) {
    assert!(kept.len() + piece.len() <= KEPT_MAX, "too much to be kept");
    kept.extend_from_slice(piece);
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, heard: impl Fn(&[u8])) {
    let mut piece = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        heard(&piece[..length]);
        if to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
    let _gone = to.shutdown().await;
}

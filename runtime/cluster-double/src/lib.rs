//! A double of Nomad's servers, for tests, the simulation and benches: it speaks the wire over any stream.
//!
//! ```text
//! listen, serve(stream) ─► session ─ streams ─► calls ─► Book::answer (pure) ─► answer
//!                                                  ▲ held │
//!                                                  └──────┘ until the book has changed
//! ```
//! It places nothing by itself: whoever has it writes into its [`Book`]. Start with [`Double`].

mod book;

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::io::{AsyncReadExt as _, AsyncWriteExt as _};
use ostler_cluster::msgpack::Value;
use ostler_cluster::rpc::{self, Calls, Header, field};
use ostler_cluster::session::{CALLS, MULTIPLEX, Session, Stream};
use ostler_model::clock::{self, Stopwatch};
use ostler_model::limits::CLUSTER_ANSWER_BYTES_MAX;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::compat::TokioAsyncReadCompatExt as _;

pub use book::{Book, BookAlloc, BookNode, recorded};

/// A server whose answers stand in a book. Clones are the same one.
#[derive(Clone, Default)]
pub struct Double(Arc<Shared>);

#[derive(Default)]
struct Shared {
    book: Mutex<Book>,
    changed: watch::Sender<()>,
}

/// What is known of everything that was asked and is answered. Whoever waits looks again when this goes.
pub struct OpenBook<'a> {
    book: MutexGuard<'a, Book>,
    before: u64,
    changed: &'a watch::Sender<()>,
}

impl std::ops::Deref for OpenBook<'_> {
    type Target = Book;

    fn deref(&self) -> &Book {
        &self.book
    }
}

impl std::ops::DerefMut for OpenBook<'_> {
    fn deref_mut(&mut self) -> &mut Book {
        &mut self.book
    }
}

impl Drop for OpenBook<'_> {
    fn drop(&mut self) {
        if self.book.index != self.before {
            self.changed.send_replace(());
        }
    }
}

impl Double {
    /// Look into its book, or write there.
    #[must_use]
    pub fn book(&self) -> OpenBook<'_> {
        let book = self.0.book.lock().unwrap_or_else(PoisonError::into_inner);
        OpenBook { before: book.index, book, changed: &self.0.changed }
    }

    /// Take connections on a port of loopback, as long as the runtime lives.
    ///
    /// # Errors
    /// When there is no port.
    pub async fn listen(&self) -> io::Result<u16> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let double = self.clone();
        drop(tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                drop(tokio::spawn(double.clone().serve(socket)));
            }
        }));
        Ok(port)
    }

    /// Answer on one connection until it ends.
    pub async fn serve<S>(self, mut socket: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        if socket.read_u8().await.ok() != Some(MULTIPLEX) {
            return;
        }
        let (session, mut arrivals) = Session::drive(socket.compat(), true);
        let mut answering = JoinSet::new();
        while let Some(stream) = arrivals.recv().await {
            while answering.try_join_next().is_some() {}
            answering.spawn(self.clone().calls(stream));
        }
        // The connection ends when nobody holds its session.
        drop(session);
    }

    /// One call after another on a stream, as servers do.
    pub async fn calls(self, mut stream: Stream) {
        let answered = async {
            let mut first = [0];
            stream.read_exact(&mut first).await?;
            if first != [CALLS] {
                return Ok(());
            }
            let (mut calls, mut piece) = (Calls::new(CLUSTER_ANSWER_BYTES_MAX), [0; 4096]);
            loop {
                let length = stream.read(&mut piece).await?;
                if length == 0 {
                    return Ok(());
                }
                calls.extend(piece.get(..length).unwrap_or_default());
                while let Some((header, body)) = calls.take_next().map_err(io::Error::other)? {
                    let answer = self.answer(&header, &body).await;
                    let answer = answer.as_ref().map_err(String::as_str);
                    let bytes = rpc::answer(&header.method, header.seq, answer);
                    stream.write_all(&bytes).await?;
                    stream.flush().await?;
                }
            }
        };
        // Whoever asked has gone: nobody is to hear of it.
        let _ended: io::Result<()> = answered.await;
    }

    /// What the book says; a question for news when there is some.
    async fn answer(&self, header: &Header, body: &Value) -> Result<Value, String> {
        let asked = Stopwatch::start();
        let most = field(body, "MaxQueryTime").and_then(Value::as_u64).unwrap_or_default();
        loop {
            let mut changed = self.0.changed.subscribe();
            let left = Duration::from_nanos(most).saturating_sub(asked.elapsed());
            let answer = self.book().answer(&header.method, body, left.is_zero());
            if let Some(answer) = answer {
                return answer;
            }
            // No error: the sender is held here.
            let _changed = clock::timeout(left, changed.changed()).await;
        }
    }
}

//! A test double of Nomad's servers, for tests, the simulation and benches. It speaks their
//! protocol over any stream.
//!
//! ```text
//! listen, serve(stream) ─► session ─ streams ─► calls ─► fault? ─► ServerBook::answer (pure) ─► answer
//!                                                  ▲ held  │
//!                                                  └───────┘ until the book has news for the node
//! ```
//! It places no allocations by itself: tests write them into its [`ServerBook`]. Start with
//! [`ServerDouble`].
//!
//! It is behind the feature `servers`, because it needs the client of the servers with all its
//! libraries, which tests of other crates are not to wait for.

mod beats;
mod book;
pub mod traffic;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::io::{AsyncReadExt as _, AsyncWriteExt as _};
use ostler_cluster::msgpack::Value;
use ostler_cluster::rpc::{self, Calls, Header, field, text};
use ostler_cluster::session::{CALLS, ClusterSession, MULTIPLEX, Stream};
use ostler_model::clock::{self, Clock, Stopwatch};
use ostler_model::limits::CLUSTER_ANSWER_BYTES_MAX;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::compat::TokioAsyncReadCompatExt as _;

pub use beats::BeatRule;
pub use book::{BookAlloc, BookNode, Fields, ServerBook, is_over, recorded_alloc};

/// How often to check whether a silence has ended.
const SILENCE_TICK: Duration = Duration::from_millis(50);

/// What happens to a call instead of a normal answer.
#[derive(Clone, Debug)]
pub enum CallFault {
    /// It is answered after this time.
    Late(Duration),
    /// It is refused with this message.
    Refused(&'static str),
    /// It is answered with these bytes.
    Garbage(Vec<u8>),
    /// It is answered at once from this older book.
    Older(Arc<Mutex<ServerBook>>),
    /// The stream ends without an answer.
    HangsUp,
}

/// The function that chooses the fault of each call, if any.
pub type CallFaults = dyn Fn(&Header, &Value) -> Option<CallFault> + Send + Sync;

/// A server that answers from a book. Clones share the state.
#[derive(Clone, Default)]
pub struct ServerDouble(Arc<ServerDoubleInner>);

#[derive(Default)]
struct ServerDoubleInner {
    clock: Clock,
    book: Mutex<ServerBook>,
    troubles: OnceLock<Box<CallFaults>>,
    /// For each node, notifies its open question that there may be an answer.
    news: Mutex<BTreeMap<String, watch::Sender<()>>>,
}

impl ServerDoubleInner {
    fn news_of(&self, node: &str) -> watch::Receiver<()> {
        let mut news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        news.entry(node.to_owned()).or_default().subscribe()
    }
}

/// The locked book, for reading and writing. When it is dropped, waiting questions are answered if
/// the changes concern them.
pub struct OpenBook<'a> {
    book: MutexGuard<'a, ServerBook>,
    shared: &'a ServerDoubleInner,
}

impl std::ops::Deref for OpenBook<'_> {
    type Target = ServerBook;

    fn deref(&self) -> &ServerBook {
        &self.book
    }
}

impl std::ops::DerefMut for OpenBook<'_> {
    fn deref_mut(&mut self) -> &mut ServerBook {
        &mut self.book
    }
}

impl Drop for OpenBook<'_> {
    fn drop(&mut self) {
        let touched = self.book.take_touched();
        let news = self.shared.news.lock().unwrap_or_else(PoisonError::into_inner);
        for of_node in touched.iter().filter_map(|node| news.get(node)) {
            of_node.send_replace(());
        }
    }
}

impl ServerDouble {
    /// A server with this clock and these faults.
    #[must_use]
    pub fn new(clock: Clock, troubles: Box<CallFaults>) -> Self {
        Self(Arc::new(ServerDoubleInner {
            clock,
            troubles: OnceLock::from(troubles),
            ..ServerDoubleInner::default()
        }))
    }

    /// Lock the book, to read or write it.
    #[must_use]
    pub fn book(&self) -> OpenBook<'_> {
        let book = self.0.book.lock().unwrap_or_else(PoisonError::into_inner);
        OpenBook { book, shared: &self.0 }
    }

    /// Accept connections on a port of the loopback address, as long as the runtime lives.
    ///
    /// # Errors
    /// When no port is free.
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

    /// Answer the calls of one connection until it ends.
    pub async fn serve<S>(self, mut socket: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        if socket.read_u8().await.ok() != Some(MULTIPLEX) {
            return;
        }
        let (session, mut arrivals) = ClusterSession::drive(socket.compat(), true);
        let mut answering = JoinSet::new();
        while let Some(stream) = arrivals.recv().await {
            while answering.try_join_next().is_some() {}
            answering.spawn(self.clone().answer_calls(stream));
        }
        // The connection ends when nobody holds its session.
        drop(session);
    }

    /// Answer the calls of a stream one after another, as servers do.
    pub async fn answer_calls(self, mut stream: Stream) {
        let answered = async {
            let mut first = [0];
            stream.read_exact(&mut first).await?;
            if first != [CALLS] {
                return Ok(());
            }
            let (mut calls, mut piece) = (Calls::new(CLUSTER_ANSWER_BYTES_MAX), [0; 4096]);
            // The bytes since the last call; nodes make one call after another on a stream.
            let mut came = 0_usize;
            loop {
                let length = stream.read(&mut piece).await?;
                if length == 0 {
                    return Ok(());
                }
                calls.extend(piece.get(..length).unwrap_or_default());
                came = came.saturating_add(length);
                while let Some((header, body)) = calls.take_next().map_err(io::Error::other)? {
                    let Some(bytes) = self.answer_bytes(&header, &body).await else {
                        return Ok(());
                    };
                    self.book().weigh(&header.method, std::mem::take(&mut came), bytes.len());
                    stream.write_all(&bytes).await?;
                    stream.flush().await?;
                }
            }
        };
        // The caller is gone, so nobody needs the error.
        let _ended: io::Result<()> = answered.await;
    }

    /// The bytes of an answer; none to end the stream.
    async fn answer_bytes(&self, header: &Header, body: &Value) -> Option<Vec<u8>> {
        self.book().count(self.0.clock.now(), &header.method);
        while self.book().silent {
            clock::sleep(SILENCE_TICK).await;
        }
        let answer = match self.0.troubles.get().and_then(|troubles| troubles(header, body)) {
            None => self.answer(header, body).await,
            Some(CallFault::Late(after)) => {
                clock::sleep(after).await;
                self.answer(header, body).await
            }
            Some(CallFault::Refused(why)) => Err(why.to_owned()),
            Some(CallFault::Garbage(bytes)) => return Some(bytes),
            Some(CallFault::Older(older)) => {
                let mut older = older.lock().unwrap_or_else(PoisonError::into_inner);
                let answer = older.answer(self.0.clock.now(), &header.method, body, true);
                answer.unwrap_or_else(|| Err("no answer".to_owned()))
            }
            Some(CallFault::HangsUp) => return None,
        };
        let answer = answer.as_ref().map_err(String::as_str);
        Some(rpc::answer(&header.method, header.seq, answer))
    }

    /// The answer of the book. A question for news is answered when there is some.
    async fn answer(&self, header: &Header, body: &Value) -> Result<Value, String> {
        let asked = Stopwatch::start();
        let most = field(body, "MaxQueryTime").and_then(Value::as_u64).unwrap_or_default();
        let node = field(body, "NodeID").and_then(text).unwrap_or_default();
        loop {
            let mut news = self.0.news_of(node);
            let left = Duration::from_nanos(most).saturating_sub(asked.elapsed());
            let now = self.0.clock.now();
            let answer = self.book().answer(now, &header.method, body, left.is_zero());
            if let Some(answer) = answer {
                return answer;
            }
            // This cannot fail, because the sender is kept.
            let _news = clock::timeout(left, news.changed()).await;
        }
    }
}

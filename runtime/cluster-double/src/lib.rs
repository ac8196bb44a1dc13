//! A double of Nomad's servers, for tests, the simulation and benches: it speaks the wire over any stream.
//!
//! ```text
//! listen, serve(stream) ─► session ─ streams ─► calls ─► trouble? ─► Book::answer (pure) ─► answer
//!                                                  ▲ held │
//!                                                  └──────┘ until the book has news for the node
//! ```
//! It places nothing by itself: whoever has it writes into its [`Book`]. Start with [`Double`].

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
use ostler_cluster::session::{CALLS, MULTIPLEX, Session, Stream};
use ostler_model::clock::{self, Clock, Stopwatch};
use ostler_model::limits::CLUSTER_ANSWER_BYTES_MAX;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::compat::TokioAsyncReadCompatExt as _;

pub use beats::BeatRule;
pub use book::{Book, BookAlloc, BookNode, Fields, is_over, recorded};

/// How often it is looked whether a silence is over.
const SILENCE_TICK: Duration = Duration::from_millis(50);

/// What happens to a call instead of an answer as it should be.
#[derive(Clone, Debug)]
pub enum Trouble {
    /// It is answered after this time.
    Late(Duration),
    /// It is refused.
    Refused(&'static str),
    /// By these bytes.
    Garbage(Vec<u8>),
    /// By what this book says, which is older, and at once.
    Older(Arc<Mutex<Book>>),
    /// The stream ends.
    HangsUp,
}

/// Asked before each answer.
pub type Troubles = dyn Fn(&Header, &Value) -> Option<Trouble> + Send + Sync;

/// A server whose answers stand in a book. Clones are the same one.
#[derive(Clone, Default)]
pub struct Double(Arc<Shared>);

#[derive(Default)]
struct Shared {
    clock: Clock,
    book: Mutex<Book>,
    troubles: OnceLock<Box<Troubles>>,
    /// Of each node: its question may have an answer.
    news: Mutex<BTreeMap<String, watch::Sender<()>>>,
}

impl Shared {
    fn news_of(&self, node: &str) -> watch::Receiver<()> {
        let mut news = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        news.entry(node.to_owned()).or_default().subscribe()
    }
}

/// The book, to be looked into and written. Whoever waits for what was written looks when this goes.
pub struct OpenBook<'a> {
    book: MutexGuard<'a, Book>,
    shared: &'a Shared,
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
        let touched = self.book.take_touched();
        let news = self.shared.news.lock().unwrap_or_else(PoisonError::into_inner);
        for of_node in touched.iter().filter_map(|node| news.get(node)) {
            of_node.send_replace(());
        }
    }
}

impl Double {
    /// One with a clock of its own, and whatever is to go wrong.
    #[must_use]
    pub fn new(clock: Clock, troubles: Box<Troubles>) -> Self {
        Self(Arc::new(Shared { clock, troubles: OnceLock::from(troubles), ..Shared::default() }))
    }

    /// Look into its book, or write there.
    #[must_use]
    pub fn book(&self) -> OpenBook<'_> {
        let book = self.0.book.lock().unwrap_or_else(PoisonError::into_inner);
        OpenBook { book, shared: &self.0 }
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
            // Since the last call: nodes make one after another on a stream.
            let mut came = 0_usize;
            loop {
                let length = stream.read(&mut piece).await?;
                if length == 0 {
                    return Ok(());
                }
                calls.extend(piece.get(..length).unwrap_or_default());
                came = came.saturating_add(length);
                while let Some((header, body)) = calls.take_next().map_err(io::Error::other)? {
                    let Some(bytes) = self.bytes(&header, &body).await else { return Ok(()) };
                    self.book().weigh(&header.method, std::mem::take(&mut came), bytes.len());
                    stream.write_all(&bytes).await?;
                    stream.flush().await?;
                }
            }
        };
        // Whoever asked has gone: nobody is to hear of it.
        let _ended: io::Result<()> = answered.await;
    }

    /// The bytes of an answer; none: the stream ends.
    async fn bytes(&self, header: &Header, body: &Value) -> Option<Vec<u8>> {
        self.book().count(self.0.clock.now(), &header.method);
        while self.book().silent {
            clock::sleep(SILENCE_TICK).await;
        }
        let answer = match self.0.troubles.get().and_then(|troubles| troubles(header, body)) {
            None => self.answer(header, body).await,
            Some(Trouble::Late(after)) => {
                clock::sleep(after).await;
                self.answer(header, body).await
            }
            Some(Trouble::Refused(why)) => Err(why.to_owned()),
            Some(Trouble::Garbage(bytes)) => return Some(bytes),
            Some(Trouble::Older(older)) => {
                let mut older = older.lock().unwrap_or_else(PoisonError::into_inner);
                let answer = older.answer(self.0.clock.now(), &header.method, body, true);
                answer.unwrap_or_else(|| Err("no answer".to_owned()))
            }
            Some(Trouble::HangsUp) => return None,
        };
        let answer = answer.as_ref().map_err(String::as_str);
        Some(rpc::answer(&header.method, header.seq, answer))
    }

    /// What the book says; to a question for news when there is some.
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
            // No error: the sender is kept.
            let _news = clock::timeout(left, news.changed()).await;
        }
    }
}

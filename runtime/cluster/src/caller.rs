//! Calls to a server on one stream of a session; answers come in any order.
//!
//! ```text
//! call ─ bytes ─► writer ─► stream ─► reader ─ answer, by number ─► call
//! ```
//! A call that is given up leaves nothing behind; its answer is dropped when it comes. A call that is late
//! ends the stream.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use ostler_model::clock;
use ostler_model::limits::{CLUSTER_OPEN_WALL_MAX, CLUSTER_REQUESTS_MAX};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::msgpack::Value;
use super::rpc::{self, Calls, Header};
use super::session::{CALLS, Session, Stream};

/// Bytes read at once.
const READ_BYTES: usize = 16 * 1024;

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerCallError {
    /// The server says so.
    #[error("the server refused {method}: {message}")]
    Refused {
        /// What was called.
        method: String,
        /// What the server said.
        message: String,
    },
    /// The connection ended first.
    #[error("the connection to the server ended before it answered {method}")]
    Ended {
        /// What was called.
        method: String,
    },
    /// It answered with what this end cannot read: too much, or values too deep within each other.
    #[error("the answer of the server to {method} cannot be read: {why}")]
    Unreadable {
        /// What was called.
        method: String,
        /// What is wrong with it.
        why: String,
    },
    /// It took too long.
    #[error("the server did not answer {method} within {wall:?}")]
    Late {
        /// What was called.
        method: String,
        /// How long was waited.
        wall: Duration,
    },
    /// It answered with something else than the answer to this.
    #[error("the server answered {method} without {what} that can be read")]
    Answer {
        /// What was called.
        method: String,
        /// What is not there.
        what: &'static str,
    },
}

/// Why a call that was answered has no value.
#[derive(Debug)]
enum NoValue {
    Refused(String),
    Unreadable(String),
}

type Answered = oneshot::Sender<Result<Value, NoValue>>;

/// Calls without an answer yet; `None`: the stream is over.
#[derive(Debug)]
struct Pending(Mutex<Option<BTreeMap<u64, Answered>>>);

impl Pending {
    fn lock(&self) -> MutexGuard<'_, Option<BTreeMap<u64, Answered>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, seq: u64) -> Option<Answered> {
        self.lock().as_mut()?.remove(&seq)
    }

    /// Nothing is answered any more.
    fn close(&self) {
        *self.lock() = None;
    }

    fn is_open(&self) -> bool {
        self.lock().is_some()
    }
}

/// A call that waits; it is forgotten when this goes.
struct Wanted<'a> {
    pending: &'a Pending,
    seq: u64,
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        drop(self.pending.take(self.seq));
    }
}

/// The way to call a server. Clones share the stream, which is closed when the last one goes.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The connection ends when nobody holds its session.
    session: Session,
    requests: mpsc::Sender<Vec<u8>>,
    pending: Arc<Pending>,
    over: CancellationToken,
    last: Arc<AtomicU64>,
}

impl Caller {
    /// Open a stream for calls. `longest`: bytes of an answer that are taken.
    ///
    /// # Errors
    /// When the connection is over, or takes no more streams in time.
    pub async fn open(session: &Session, longest: usize) -> io::Result<Self> {
        let mut stream = session.open().await?;
        clock::timeout(CLUSTER_OPEN_WALL_MAX, stream.write_all(&[CALLS]))
            .await
            .ok_or(io::ErrorKind::TimedOut)??;
        let (reads, writes) = stream.split();
        let (requests, queue) = mpsc::channel(CLUSTER_REQUESTS_MAX);
        let pending = Arc::new(Pending(Mutex::new(Some(BTreeMap::new()))));
        let over = CancellationToken::new();
        let (of_reader, reader_over) = (Arc::clone(&pending), over.clone());
        let writer_over = over.clone();
        tokio::spawn(async move {
            let reading = read(reads, &of_reader, longest);
            if let Some(Err(error)) = reader_over.run_until_cancelled(reading).await {
                tracing::debug!(%error, "a stream of calls ended");
            }
            of_reader.close();
            reader_over.cancel();
        });
        tokio::spawn(async move {
            let writing = write(writes, queue);
            if let Some(Err(error)) = writer_over.run_until_cancelled(writing).await {
                tracing::debug!(%error, "a stream of calls cannot be written to");
            }
            writer_over.cancel();
        });
        let (session, last) = (session.clone(), Arc::new(AtomicU64::new(0)));
        Ok(Self { session, requests, pending, over, last })
    }

    /// The session this is a stream of.
    #[must_use]
    pub const fn session(&self) -> &Session {
        &self.session
    }

    /// Is the stream open, and its connection? Not when what came on it cannot be read, or a call on it was
    /// late.
    #[must_use]
    pub fn stands(&self) -> bool {
        !self.session.is_over() && self.pending.is_open()
    }

    /// Call a method and wait for its answer, at most for `wall`. A call that is late ends the stream: a
    /// server answers one call of a stream after another, and this one may hold up the next for ever.
    ///
    /// # Errors
    /// When the server refuses it, the connection ends, or the time is over.
    pub async fn call(
        &self,
        method: &str,
        body: &Value,
        wall: Duration,
    ) -> Result<Value, ServerCallError> {
        let seq = self.last.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let ended = || ServerCallError::Ended { method: method.to_owned() };
        let (answered, answer) = oneshot::channel();
        self.pending.lock().as_mut().ok_or_else(ended)?.insert(seq, answered);
        let _wanted = Wanted { pending: &self.pending, seq };
        let request = rpc::request(method, seq, body);
        let called = async {
            self.requests.send(request).await.map_err(|_| ended())?;
            let method = method.to_owned();
            answer.await.map_err(|_| ended())?.map_err(|none| match none {
                NoValue::Refused(message) => ServerCallError::Refused { method, message },
                NoValue::Unreadable(why) => ServerCallError::Unreadable { method, why },
            })
        };
        let called = clock::timeout(wall, called).await;
        called.ok_or_else(|| {
            self.pending.close();
            self.over.cancel();
            ServerCallError::Late { method: method.to_owned(), wall }
        })?
    }
}

async fn write(
    mut stream: WriteHalf<Stream>,
    mut queue: mpsc::Receiver<Vec<u8>>,
) -> io::Result<()> {
    while let Some(request) = queue.recv().await {
        stream.write_all(&request).await?;
        stream.flush().await?;
    }
    stream.close().await
}

async fn read(mut stream: ReadHalf<Stream>, pending: &Pending, longest: usize) -> io::Result<()> {
    let mut calls = Calls::new(longest);
    let mut piece = vec![0; READ_BYTES];
    loop {
        let length = stream.read(&mut piece).await?;
        if length == 0 {
            return Ok(());
        }
        calls.extend(piece.get(..length).unwrap_or_default());
        loop {
            let (seq, answer) = match calls.take_next() {
                Ok(None) => break,
                Ok(Some((Header { seq, error, .. }, body))) => {
                    (seq, error.map_or(Ok(body), |error| Err(NoValue::Refused(error))))
                }
                Err(error) => {
                    if let Some(answered) = calls.begun().and_then(|call| pending.take(call.seq)) {
                        let _gone = answered.send(Err(NoValue::Unreadable(error.to_string())));
                    }
                    return Err(io::Error::other(error));
                }
            };
            if let Some(answered) = pending.take(seq) {
                // Who called may have given up just now.
                let _gone = answered.send(answer);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use tokio_util::compat::TokioAsyncReadCompatExt;

    use super::*;
    use crate::rpc::{field, map, text};

    const WALL: Duration = Duration::from_secs(20);

    /// A session, and a server that answers `Echo` with its request and `Deep` with values in values, refuses
    /// `No`, hangs up at `Bye` and says nothing to anything else.
    fn pair() -> Session {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let (session, _arrivals) = Session::drive(ours.compat(), false);
        let (server, mut arrivals) = Session::drive(theirs.compat(), true);
        let deep = (0..80).fold(Value::Nil, |inner, _| Value::Array(vec![inner]));
        tokio::spawn(async move {
            let _server = server;
            let mut stream = arrivals.recv().await.unwrap();
            let mut first = [0];
            stream.read_exact(&mut first).await.unwrap();
            assert_eq!(first, [CALLS]);
            let (mut calls, mut piece) = (Calls::new(1 << 20), [0; 1024]);
            loop {
                let length = stream.read(&mut piece).await.unwrap_or(0);
                if length == 0 {
                    return;
                }
                calls.extend(&piece[..length]);
                while let Some((Header { method, seq, .. }, body)) = calls.take_next().unwrap() {
                    let answer = match method.as_str() {
                        "Echo" => rpc::answer("Echo", seq, Ok(&body)),
                        "No" => rpc::answer("No", seq, Err("not here")),
                        "Deep" => rpc::answer("Deep", seq, Ok(&deep)),
                        "Bye" => return,
                        _ => continue,
                    };
                    stream.write_all(&answer).await.unwrap();
                    stream.flush().await.unwrap();
                }
            }
        });
        session
    }

    #[tokio::test]
    async fn many_calls_share_a_stream_and_each_gets_its_own_answer() {
        let caller = Caller::open(&pair(), 1 << 20).await.unwrap();
        let calls = (0..200_u64).map(|number| {
            let caller = caller.clone();
            tokio::spawn(async move {
                let body = map([("Number", number.into()), ("Text", "x".repeat(3_000).into())]);
                let answer = caller.call("Echo", &body, WALL).await.unwrap();
                assert_eq!(field(&answer, "Number").and_then(Value::as_u64), Some(number));
                assert_eq!(field(&answer, "Text").and_then(text).map(str::len), Some(3_000));
            })
        });
        for call in calls.collect::<Vec<_>>() {
            call.await.unwrap();
        }
        assert!(caller.pending.lock().as_ref().is_some_and(BTreeMap::is_empty));
    }

    #[tokio::test]
    async fn a_refusal_and_a_lost_connection_are_told_apart() {
        let session = pair();
        let caller = Caller::open(&session, 1 << 20).await.unwrap();
        let refused = caller.call("No", &Value::Nil, WALL).await.unwrap_err();
        assert_eq!(refused.to_string(), "the server refused No: not here");
        let ended = caller.call("Bye", &Value::Nil, WALL).await.unwrap_err();
        assert_eq!(ended, ServerCallError::Ended { method: "Bye".to_owned() });
        session.ended().await;
        assert!(session.is_over());
        assert!(Caller::open(&session, 1 << 20).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_gets_no_answer_ends_in_time_and_its_stream_with_it() {
        let session = pair();
        let caller = Caller::open(&session, 1 << 20).await.unwrap();
        let given_up = caller.call("Silence", &Value::Nil, WALL);
        assert_eq!(clock::timeout(WALL / 2, given_up).await, None);
        assert!(caller.pending.lock().as_ref().is_some_and(BTreeMap::is_empty));
        assert!(caller.stands(), "whoever gave up did not wait");
        let late = caller.call("Silence", &Value::Nil, WALL).await.unwrap_err();
        assert_eq!(late, ServerCallError::Late { method: "Silence".to_owned(), wall: WALL });
        assert!(!caller.stands(), "the next call is not made behind it");
        assert!(!session.is_over());
    }

    #[tokio::test]
    async fn an_answer_that_cannot_be_read_ends_the_stream_and_its_call_says_why() {
        let long = map([("It", "x".repeat(3_000).into())]);
        for (method, why) in [
            ("Echo", "a message of more than 1000 bytes"),
            ("Deep", "values more than 64 deep within each other"),
        ] {
            let caller = Caller::open(&pair(), 1_000).await.unwrap();
            let unread = caller.call(method, &long, WALL).await.unwrap_err();
            let (method, why) = (method.to_owned(), why.to_owned());
            assert_eq!(unread, ServerCallError::Unreadable { method, why });
            assert!(!caller.stands());
        }
    }

    #[tokio::test]
    async fn a_connection_that_is_given_up_ends_the_calls_of_everybody_on_it() {
        let session = pair();
        let caller = Caller::open(&session, 1 << 20).await.unwrap();
        let waiting = tokio::spawn({
            let caller = caller.clone();
            async move { caller.call("Silence", &Value::Nil, WALL).await }
        });
        while caller.pending.lock().as_ref().is_some_and(BTreeMap::is_empty) {
            tokio::task::yield_now().await;
        }
        session.give_up();
        let ended = waiting.await.unwrap().unwrap_err();
        assert_eq!(ended, ServerCallError::Ended { method: "Silence".to_owned() });
        session.ended().await;
    }
}

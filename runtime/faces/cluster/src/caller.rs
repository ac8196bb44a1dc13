//! Calls to a server on one stream of a session; answers come in any order.
//!
//! ```text
//! call ─ bytes ─► writer ─► stream ─► reader ─ answer, by number ─► call
//! ```
//! A call that is given up leaves nothing behind, and its answer is dropped when it comes. A call
//! that is late ends the stream.

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
use super::session::{CALLS, ClusterSession, Stream};

/// The number of bytes that are read at once.
const READ_BYTES: usize = 16 * 1024;

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerCallError {
    /// The server refused the call.
    #[error("the server refused {method}: {message}")]
    Refused {
        /// The name of the method.
        method: String,
        /// The message of the server.
        message: String,
    },
    /// The connection ended before the answer came.
    #[error("the connection to the server ended before it answered {method}")]
    Ended {
        /// The name of the method.
        method: String,
    },
    /// The answer cannot be read: it is too long, or too deeply nested.
    #[error("the answer of the server to {method} cannot be read: {why}")]
    Unreadable {
        /// The name of the method.
        method: String,
        /// What is wrong with the answer.
        why: String,
    },
    /// The answer took too long.
    #[error("the server did not answer {method} within {wall:?}")]
    Late {
        /// The name of the method.
        method: String,
        /// How long the caller waited.
        wall: Duration,
    },
    /// The answer lacks a field that this call needs.
    #[error("the server answered {method} without readable {what}")]
    Answer {
        /// The name of the method.
        method: String,
        /// The field that is missing or cannot be read.
        what: &'static str,
    },
}

/// Why an answered call has no value.
#[derive(Debug)]
enum NoValue {
    Refused(String),
    Unreadable(String),
}

type AnswerSender = oneshot::Sender<Result<Value, NoValue>>;

/// The calls without an answer yet, by number; `None` if the stream has ended.
#[derive(Debug)]
struct PendingCalls(Mutex<Option<BTreeMap<u64, AnswerSender>>>);

impl PendingCalls {
    fn lock(&self) -> MutexGuard<'_, Option<BTreeMap<u64, AnswerSender>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, seq: u64) -> Option<AnswerSender> {
        self.lock().as_mut()?.remove(&seq)
    }

    /// End all calls: no answer will come any more.
    fn close(&self) {
        *self.lock() = None;
    }

    fn is_open(&self) -> bool {
        self.lock().is_some()
    }
}

/// A call that waits for its answer. When this is dropped, the call is forgotten.
struct PendingCall<'a> {
    pending: &'a PendingCalls,
    seq: u64,
}

impl Drop for PendingCall<'_> {
    fn drop(&mut self) {
        drop(self.pending.take(self.seq));
    }
}

/// Calls a server on one stream. Clones share the stream; dropping the last one closes it.
#[derive(Clone, Debug)]
pub struct ServerCaller {
    /// The session, because the connection ends when nobody holds it.
    session: ClusterSession,
    requests: mpsc::Sender<Vec<u8>>,
    pending: Arc<PendingCalls>,
    over: CancellationToken,
    last: Arc<AtomicU64>,
}

impl ServerCaller {
    /// Open a stream for calls. `longest` is the longest answer that is accepted, bytes.
    ///
    /// # Errors
    /// When the connection has ended, or takes no further stream in time.
    pub async fn open(session: &ClusterSession, longest: usize) -> io::Result<Self> {
        let mut stream = session.open().await?;
        clock::timeout(CLUSTER_OPEN_WALL_MAX, stream.write_all(&[CALLS]))
            .await
            .ok_or(io::ErrorKind::TimedOut)??;
        let (reads, writes) = stream.split();
        let (requests, queue) = mpsc::channel(CLUSTER_REQUESTS_MAX);
        let pending = Arc::new(PendingCalls(Mutex::new(Some(BTreeMap::new()))));
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

    /// The session that the stream belongs to.
    #[must_use]
    pub const fn session(&self) -> &ClusterSession {
        &self.session
    }

    /// Whether the stream and its connection are open. The stream ends when data on it cannot be
    /// read, or a call on it was late.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.session.is_over() && self.pending.is_open()
    }

    /// Call a method and wait for its answer, at most for `wall`. A late call ends the stream,
    /// because a server answers the calls of a stream one after another, and this one may delay the
    /// next for ever.
    ///
    /// # Errors
    /// When the server refuses the call, the connection ends, or the time is over.
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
        let _wanted = PendingCall { pending: &self.pending, seq };
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

async fn read(
    mut stream: ReadHalf<Stream>,
    pending: &PendingCalls,
    longest: usize,
) -> io::Result<()> {
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
                    if let Some(answered) =
                        calls.pending_header().and_then(|call| pending.take(call.seq))
                    {
                        let _gone = answered.send(Err(NoValue::Unreadable(error.to_string())));
                    }
                    return Err(io::Error::other(error));
                }
            };
            if let Some(answered) = pending.take(seq) {
                // The caller may have given up just now.
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

    /// A session with a server that answers `Echo` with its request and `Deep` with nested values,
    /// refuses `No`, hangs up at `Bye`, and does not answer anything else.
    fn pair() -> ClusterSession {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let (session, _arrivals) = ClusterSession::drive(ours.compat(), false);
        let (server, mut arrivals) = ClusterSession::drive(theirs.compat(), true);
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
        let caller = ServerCaller::open(&pair(), 1 << 20).await.unwrap();
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
        let caller = ServerCaller::open(&session, 1 << 20).await.unwrap();
        let refused = caller.call("No", &Value::Nil, WALL).await.unwrap_err();
        assert_eq!(refused.to_string(), "the server refused No: not here");
        let ended = caller.call("Bye", &Value::Nil, WALL).await.unwrap_err();
        assert_eq!(ended, ServerCallError::Ended { method: "Bye".to_owned() });
        session.wait_until_over().await;
        assert!(session.is_over());
        assert!(ServerCaller::open(&session, 1 << 20).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_gets_no_answer_ends_in_time_and_its_stream_with_it() {
        let session = pair();
        let caller = ServerCaller::open(&session, 1 << 20).await.unwrap();
        let given_up = caller.call("Silence", &Value::Nil, WALL);
        assert_eq!(clock::timeout(WALL / 2, given_up).await, None);
        assert!(caller.pending.lock().as_ref().is_some_and(BTreeMap::is_empty));
        assert!(caller.is_open(), "whoever gave up did not wait");
        let late = caller.call("Silence", &Value::Nil, WALL).await.unwrap_err();
        assert_eq!(late, ServerCallError::Late { method: "Silence".to_owned(), wall: WALL });
        assert!(!caller.is_open(), "the next call is not made behind it");
        assert!(!session.is_over());
    }

    #[tokio::test]
    async fn an_answer_that_cannot_be_read_ends_the_stream_and_its_call_says_why() {
        let long = map([("It", "x".repeat(3_000).into())]);
        for (method, why) in [
            ("Echo", "a message of more than 1000 bytes"),
            ("Deep", "values more than 64 deep within each other"),
        ] {
            let caller = ServerCaller::open(&pair(), 1_000).await.unwrap();
            let unread = caller.call(method, &long, WALL).await.unwrap_err();
            let (method, why) = (method.to_owned(), why.to_owned());
            assert_eq!(unread, ServerCallError::Unreadable { method, why });
            assert!(!caller.is_open());
        }
    }

    #[tokio::test]
    async fn a_connection_that_is_given_up_ends_the_calls_of_everybody_on_it() {
        let session = pair();
        let caller = ServerCaller::open(&session, 1 << 20).await.unwrap();
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
        session.wait_until_over().await;
    }
}

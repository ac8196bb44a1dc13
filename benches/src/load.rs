//! Clients of an agent's API over TCP, many at a time: queries that wait, followers of logs and of events, and one
//! that asks again and again and is timed.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::handshake;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use ostler_model::clock::Stopwatch;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

/// Longest that an answer may take; then it counts as this long.
const ANSWER_WALL_MAX: Duration = Duration::from_secs(30);

/// One request on a connection of its own: how long until all of its answer was there, and how many bytes it has.
/// None where it was refused, or nobody answered.
#[must_use]
pub fn timed(at: SocketAddr, path: &str) -> Option<(Duration, usize)> {
    let watch = Stopwatch::start();
    let mut stream = TcpStream::connect_timeout(&at, ANSWER_WALL_MAX).ok()?;
    stream.set_read_timeout(Some(ANSWER_WALL_MAX)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\n\r\n").ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    answer.starts_with(b"HTTP/1.1 200").then_some((watch.elapsed(), answer.len()))
}

/// Times of requests.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// Of each that was answered.
    pub took: Vec<Duration>,
    /// How many were not.
    pub refused: u64,
    /// Bytes of the largest answer.
    pub bytes: usize,
}

/// Ask for these in turns, each after a pause, until it is enough. Blocks.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "a thread that does nothing else")]
pub fn ask_on<const N: usize>(
    at: SocketAddr,
    paths: [&str; N],
    pause: Duration,
    enough: impl Fn(usize) -> bool,
) -> [Times; N] {
    let mut all = [(); N].map(|()| Times::default());
    let mut turn = 0;
    while !enough(turn) {
        for (path, times) in paths.iter().zip(&mut all) {
            match timed(at, path) {
                Some((took, bytes)) => {
                    times.took.push(took);
                    times.bytes = times.bytes.max(bytes);
                }
                None => times.refused += 1,
            }
            std::thread::sleep(pause);
        }
        turn += 1;
    }
    all
}

/// Begin a request; its connection lives as long as the answer.
///
/// # Errors
/// What the agent said when it was refused, or why nobody answered.
pub async fn open(at: SocketAddr, path: &str) -> Result<Response<Incoming>, String> {
    let stream = tokio::net::TcpStream::connect(at).await.map_err(|error| error.to_string())?;
    let spoken = handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    let (mut sender, connection) = spoken;
    tokio::spawn(connection);
    let request = Request::builder().uri(path).header("host", at.to_string());
    let request = request.body(Empty::<Bytes>::new()).map_err(|error| error.to_string())?;
    let answer = sender.send_request(request).await.map_err(|error| error.to_string())?;
    match answer.status() {
        StatusCode::OK => Ok(answer),
        status => Err(status.to_string()),
    }
}

/// Ask, and again from the index of the answer whenever there is one, until the end: what waiting queries are for.
/// How many answers there were; an error when one was refused.
///
/// # Errors
/// As [`open`].
pub async fn wait_on(
    at: SocketAddr,
    path: &str,
    end: &CancellationToken,
    waiting: &AtomicU64,
) -> Result<u64, String> {
    let (mut index, mut answers) = (0, 0);
    loop {
        let query = format!("{path}index={index}&wait=10m");
        if index > 0 && answers == 1 {
            waiting.fetch_add(1, Ordering::Relaxed);
        }
        let answered = async {
            let answer = open(at, &query).await?;
            let index = answer.headers().get("x-nomad-index");
            let index = index.and_then(|text| text.to_str().ok()?.parse().ok()).unwrap_or(0);
            answer.into_body().collect().await.map_err(|error| error.to_string())?;
            Ok::<u64, String>(index)
        };
        match end.run_until_cancelled(answered).await {
            Some(answered) => index = answered?,
            None => return Ok(answers),
        }
        answers += 1;
    }
}

/// What one follower of a log saw: lines, and lines that were left out before them.
///
/// # Errors
/// As [`open`].
pub async fn follow_log(
    at: SocketAddr,
    path: &str,
    end: &CancellationToken,
    begun: &AtomicU64,
) -> Result<(u64, u64), String> {
    let mut body = open(at, path).await?.into_body();
    begun.fetch_add(1, Ordering::Relaxed);
    let (mut next, mut lost, mut left) = (0_u64, 0, Vec::new());
    while let Some(frame) = end.run_until_cancelled(body.frame()).await {
        let frame = frame.ok_or("the log ended")?.map_err(|error| error.to_string())?;
        for line in lines(&mut left, frame.data_ref()) {
            // The lines are numbers, each one more than the one before.
            let number: u64 = line.parse().map_err(|_| format!("a line of a log: {line}"))?;
            lost += number.abs_diff(next);
            next = number + 1;
        }
    }
    Ok((next, lost))
}

/// What one stream of events had.
#[derive(Clone, Debug, Default)]
pub struct EventsSeen {
    /// Each event: its index, and its topic and key in one.
    pub all: BTreeSet<(u64, u64)>,
    /// Each allocation, and the index of its last event.
    pub allocs: BTreeMap<String, u64>,
    /// Events with a lower index than one before.
    pub disordered: u64,
    /// Bytes.
    pub bytes: u64,
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(rename = "Events", default, borrow)]
    events: Vec<Event<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Event<'a> {
    #[serde(borrow)]
    topic: Cow<'a, str>,
    #[serde(borrow)]
    key: Cow<'a, str>,
    index: u64,
}

impl EventsSeen {
    fn take(&mut self, line: &str) -> Result<(), String> {
        let line: Line<'_> = serde_json::from_str(line).map_err(|error| error.to_string())?;
        for Event { topic, key, index } in line.events {
            self.disordered += u64::from(self.all.last().is_some_and(|(last, _)| index < *last));
            let mut hasher = DefaultHasher::new();
            (&topic, &key).hash(&mut hasher);
            self.all.insert((index, hasher.finish()));
            if topic == "Allocation" {
                self.allocs.insert(key.into_owned(), index);
            }
        }
        Ok(())
    }
}

/// Follow events until the end.
///
/// # Errors
/// As [`open`]; when the stream ends before.
pub async fn follow_events(
    at: SocketAddr,
    path: &str,
    end: &CancellationToken,
    begun: &AtomicU64,
) -> Result<EventsSeen, String> {
    let mut body = open(at, path).await?.into_body();
    begun.fetch_add(1, Ordering::Relaxed);
    let (mut seen, mut left) = (EventsSeen::default(), Vec::new());
    while let Some(frame) = end.run_until_cancelled(body.frame()).await {
        let frame = frame.ok_or("the stream ended")?.map_err(|error| error.to_string())?;
        seen.bytes += frame.data_ref().map_or(0, |data| u64::try_from(data.len()).unwrap_or(0));
        for line in lines(&mut left, frame.data_ref()) {
            seen.take(&line)?;
        }
    }
    Ok(seen)
}

/// The whole lines that are there now; `left` keeps what is begun.
fn lines(left: &mut Vec<u8>, more: Option<&Bytes>) -> Vec<String> {
    left.extend_from_slice(more.map(Bytes::as_ref).unwrap_or_default());
    let Some(end) = left.iter().rposition(|byte| *byte == b'\n') else { return Vec::new() };
    let rest = left.split_off(end + 1);
    let whole = std::mem::replace(left, rest);
    String::from_utf8_lossy(&whole).lines().map(str::to_owned).collect()
}

/// Connections that write these bytes again and again, each after a pause, until the end; they begin anew when the
/// agent closes them. How many are open now is counted.
pub async fn write_on(
    at: SocketAddr,
    first: &[u8],
    again: &[u8],
    pause: Duration,
    (end, open): (&CancellationToken, &Arc<AtomicU64>),
) {
    use tokio::io::AsyncWriteExt as _;
    let attack = async {
        loop {
            let Ok(mut stream) = tokio::net::TcpStream::connect(at).await else {
                ostler_model::clock::sleep(Duration::from_millis(100)).await;
                continue;
            };
            open.fetch_add(1, Ordering::Relaxed);
            let mut written = stream.write_all(first).await;
            while written.is_ok() {
                ostler_model::clock::sleep(pause).await;
                written = stream.write_all(again).await;
            }
            open.fetch_sub(1, Ordering::Relaxed);
            ostler_model::clock::sleep(Duration::from_millis(10)).await;
        }
    };
    end.run_until_cancelled(attack).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_is_not_there_is_noticed() {
        let mut seen = EventsSeen::default();
        for line in [
            "{}",
            r#"{"Index":4,"Events":[{"Topic":"Allocation","Key":"a","Index":4,"Payload":{"x":[1]}}]}"#,
            r#"{"Index":3,"Events":[{"Topic":"Job","Key":"a","Index":3,"Payload":null}]}"#,
        ] {
            assert_eq!(seen.take(line), Ok(()));
        }
        assert_eq!((seen.all.len(), seen.disordered), (2, 1));
        assert_eq!(seen.allocs, BTreeMap::from([("a".to_owned(), 4)]));
        assert!(seen.take("{").is_err());
    }

    #[test]
    fn lines_are_put_together_again() {
        let mut left = Vec::new();
        assert_eq!(lines(&mut left, Some(&Bytes::from_static(b"1\n2"))), ["1"]);
        assert_eq!(lines(&mut left, None), Vec::<String>::new());
        assert_eq!(lines(&mut left, Some(&Bytes::from_static(b"3\n4\n"))), ["23", "4"]);
        assert!(left.is_empty());
    }
}

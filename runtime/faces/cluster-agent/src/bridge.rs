//! Files, logs and figures for servers: answers of the agent's own API in the form of the servers'
//! protocol.
//!
//! ```text
//! request (MessagePack) ─► request to the agent's API ─┬─ JSON ─► type of the API ─► message
//!                                                      └─ body ─► {Error, Payload} for each piece
//! ```
//! So a server can read what a client of this agent can read: files of allocations, and nothing
//! beyond.

use std::collections::BTreeMap;
use std::io;

use futures_util::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use ostler_agent::AgentHandle;
use ostler_api::SOCKET_NAME;
use ostler_api::client::{AgentAddress, AgentEndpoint, ApiClient, ClientError, ClientTrouble};
use ostler_api::request::{ApiRequest, ByteBody};
use ostler_api::routes::QueryKey;
use ostler_api::routes::endpoints::{
    ListAllocChecks, ListFiles, ReadAllocUsage, ReadFileAt, ReadLogs, ReadNodeUsage, StatFile,
    StreamAgentLog, StreamFile,
};
use ostler_cluster::msgpack::{self, Value, ValueReader};
use ostler_cluster::rpc::{field, map, text};
use ostler_cluster::session::Stream;
use ostler_model::clock;
use ostler_model::limits::{CLUSTER_ASKED_BYTES_MAX, CLUSTER_ASKED_WALL, CLUSTER_READ_BYTES_MAX};
use ostler_wire::{AllocUsage, CheckQueryResult, FileInfo, HostStats, message};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use super::{ServerCallContext, exec, server_calls};

fn api(agent: &AgentHandle) -> ApiClient {
    let socket = agent.data_dir().join(SOCKET_NAME);
    ApiClient::new(AgentAddress { at: AgentEndpoint::Socket(socket), data_dir: None }, |_, _| {})
}

/// Answer a call of a server that only reads. `None` if this node does not answer it.
///
/// # Errors
/// The error of the agent.
pub(crate) async fn read(
    agent: &AgentHandle,
    method: &str,
    body: &Value,
) -> Option<Result<Value, String>> {
    let (request, name, convert) = read_request(method, body)?;
    let read = fetch_whole(agent, &request).await;
    let read = read.and_then(|json| convert(&json).map_err(|error| error.to_string()));
    Some(read.map(|found| map([(name, found), ("Index", 0.into())])))
}

/// Converts an answer of the API to its form for servers.
type Converter = fn(&[u8]) -> serde_json::Result<Value>;

/// The request to the API for a call that only reads, the field of the answer, and what converts its
/// content. `None` if this node does not answer the call.
pub(crate) fn read_request(
    method: &str,
    body: &Value,
) -> Option<(ApiRequest<(), Json>, &'static str, Converter)> {
    let (alloc, path) = (text_field(body, "AllocID"), text_field(body, "Path"));
    Some(match method {
        "FileSystem.List" => {
            let request = ListFiles::request([&alloc]).with(QueryKey::Path, path);
            (request.read_as(), "Files", convert::<Vec<FileInfo<'_>>>)
        }
        "FileSystem.Stat" => {
            let request = StatFile::request([&alloc]).with(QueryKey::Path, path);
            (request.read_as(), "Info", convert::<FileInfo<'_>>)
        }
        "Allocations.Stats" => {
            let task = text_field(body, "Task");
            let request = ReadAllocUsage::request([&alloc]).with(QueryKey::Task, task);
            (request.read_as(), "Stats", convert::<AllocUsage<'_>>)
        }
        // Servers from 1.4 on use this.
        "Allocations.Checks" => (
            ListAllocChecks::request([&alloc]).read_as(),
            "Results",
            convert::<BTreeMap<String, CheckQueryResult<'_>>>,
        ),
        "ClientStats.Stats" => {
            (ReadNodeUsage::request([]).read_as(), "HostStats", convert::<HostStats<'_>>)
        }
        _ => return None,
    })
}

fn convert<T: DeserializeOwned + Serialize>(json: &[u8]) -> serde_json::Result<Value> {
    serde_json::from_slice::<T>(json).map(|read| message(&read))
}

/// Read a whole answer of the agent's API.
async fn fetch_whole(
    agent: &AgentHandle,
    request: &ApiRequest<(), Json>,
) -> Result<Vec<u8>, String> {
    let failed = |error: ClientError| refusal(&error).0;
    let mut pieces = api(agent).read_pieces(request).await.map_err(failed)?;
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.take_next().await.map_err(failed)? {
        bytes.extend_from_slice(&piece);
        if bytes.len() > CLUSTER_READ_BYTES_MAX {
            return Err(format!("the answer is longer than {CLUSTER_READ_BYTES_MAX} bytes"));
        }
    }
    Ok(bytes)
}

/// The request to the API for a streaming call. `None` if this node does not answer it.
pub(crate) fn stream_request(method: &str, body: &Value) -> Option<ApiRequest<(), ByteBody>> {
    let (alloc, path) = (text_field(body, "AllocID"), text_field(body, "Path"));
    let flag = |name| field(body, name).and_then(Value::as_bool).unwrap_or(false);
    let number = |name| field(body, name).and_then(Value::as_i64).unwrap_or(0).max(0);
    let (offset, limit) = (number("Offset"), number("Limit"));
    let origin = non_empty(text_field(body, "Origin"), "start");
    let (follow, plain) = (flag("Follow"), flag("PlainText"));
    Some(match method {
        "FileSystem.Logs" => ReadLogs::request([&alloc])
            .with(QueryKey::Task, text_field(body, "Task"))
            .with(QueryKey::StreamType, text_field(body, "LogType"))
            .with(QueryKey::Follow, follow)
            .with(QueryKey::Plain, plain)
            .with(QueryKey::Offset, offset)
            .with(QueryKey::Origin, origin)
            .read_as(),
        "FileSystem.Stream" if plain && !follow => ReadFileAt::request([&alloc])
            .with(QueryKey::Path, path)
            .with(QueryKey::Offset, offset)
            .with_some(QueryKey::Limit, Some(limit).filter(|limit| *limit > 0)),
        "FileSystem.Stream" => StreamFile::request([&alloc])
            .with(QueryKey::Path, path)
            .with(QueryKey::Offset, offset)
            .with(QueryKey::Origin, origin)
            .with(QueryKey::Limit, limit)
            .with(QueryKey::Follow, follow)
            .with(QueryKey::Plain, plain)
            .read_as(),
        "Agent.Monitor" => StreamAgentLog::request([])
            .with(QueryKey::LogLevel, non_empty(text_field(body, "LogLevel"), "info"))
            .with(QueryKey::LogJson, flag("LogJSON"))
            .with(QueryKey::Plain, plain)
            .read_as(),
        _ => return None,
    })
}

/// A field with a text; empty if there is none.
fn text_field<'a>(body: &'a Value, name: &str) -> &'a str {
    field(body, name).and_then(text).unwrap_or_default()
}

fn non_empty<'a>(text: &'a str, default: &'a str) -> &'a str {
    if text.is_empty() { default } else { text }
}

/// Answer one streaming call. Its header follows the first byte of the stream.
pub(crate) async fn stream(asked: &ServerCallContext, mut stream: Stream) -> io::Result<()> {
    let agent = &asked.agent;
    let mut reader = ValueReader::new(CLUSTER_ASKED_BYTES_MAX);
    let header = next_value(&mut stream, &mut reader).await?;
    let method = field(&header, "Method").and_then(text).unwrap_or_default().to_owned();
    let known = ["FileSystem.Logs", "FileSystem.Stream", "Agent.Monitor", exec::METHOD];
    let known = known.contains(&method.as_str());
    let refused = if known { String::new() } else { server_calls::unanswered_text(&method) };
    send(&mut stream, &map([("Error", refused.as_str().into())])).await?;
    if !known {
        return stream.close().await;
    }
    if method == exec::METHOD {
        return exec::serve(asked, stream, reader).await;
    }
    let request = next_value(&mut stream, &mut reader).await?;
    let Some(request) = stream_request(&method, &request) else {
        send(&mut stream, &wrap_piece(Err((server_calls::unanswered_text(&method), 400)))).await?;
        return stream.close().await;
    };
    let mut pieces = match api(agent).read_pieces(&request).await {
        Ok(pieces) => pieces,
        Err(error) => {
            send(&mut stream, &wrap_piece(Err(refusal(&error)))).await?;
            return stream.close().await;
        }
    };
    let mut rest = [0; 64];
    loop {
        let piece = tokio::select! {
            piece = pieces.take_next() => piece,
            // The caller is gone, or sends more than was agreed on.
            _left = stream.read(&mut rest) => return Ok(()),
        };
        match piece {
            Ok(Some(bytes)) => send(&mut stream, &wrap_piece(Ok(bytes.to_vec()))).await?,
            Ok(None) => return stream.close().await,
            Err(error) => {
                send(&mut stream, &wrap_piece(Err(refusal(&error)))).await?;
                return stream.close().await;
            }
        }
    }
}

/// Wait for the next value that a server sends, with a deadline.
pub(crate) async fn next_value(
    stream: &mut (impl AsyncRead + Unpin),
    reader: &mut ValueReader,
) -> io::Result<Value> {
    let read = clock::timeout(CLUSTER_ASKED_WALL, later_value(stream, reader));
    read.await.ok_or(io::ErrorKind::TimedOut)?
}

/// Wait for the next value that a server sends, without a deadline.
pub(crate) async fn later_value(
    stream: &mut (impl AsyncRead + Unpin),
    reader: &mut ValueReader,
) -> io::Result<Value> {
    let mut piece = [0; 1024];
    loop {
        if let Some(value) = reader.take_next().map_err(io::Error::other)? {
            return Ok(value);
        }
        let length = stream.read(&mut piece).await?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        reader.extend(piece.get(..length).unwrap_or_default());
    }
}

/// Send a value. A server that does not read it in time is given up.
pub(crate) async fn send(stream: &mut (impl AsyncWrite + Unpin), value: &Value) -> io::Result<()> {
    let mut bytes = Vec::new();
    msgpack::write(&mut bytes, value);
    let sent = clock::timeout(CLUSTER_ASKED_WALL, async {
        stream.write_all(&bytes).await?;
        stream.flush().await
    });
    sent.await.ok_or(io::ErrorKind::TimedOut)?
}

pub(crate) fn wrap_piece(piece: Result<Vec<u8>, (String, u16)>) -> Value {
    match piece {
        Ok(bytes) => map([("Error", Value::Nil), ("Payload", Value::Binary(bytes))]),
        Err((message, code)) => {
            let error = map([("Message", message.as_str().into()), ("Code", code.into())]);
            map([("Error", error), ("Payload", Value::Nil)])
        }
    }
}

/// The message of an error of the agent, and its status.
fn refusal(error: &ClientError) -> (String, u16) {
    match error {
        ClientError::Failed { trouble: ClientTrouble::Refused { status, text }, .. } => {
            (text.trim().to_owned(), *status)
        }
        other => (other.to_string(), 500),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use ostler_cluster::rpc::bytes;
    use ostler_model::time::Timestamp;
    use ostler_wire::go_time;

    #[test]
    fn a_request_becomes_a_path_and_cannot_add_to_it() {
        let request = map([
            ("AllocID", "a/../b".into()),
            ("Task", "t&follow=true".into()),
            ("LogType", "stdout".into()),
            ("Offset", (-5).into()),
            ("PlainText", true.into()),
        ]);
        let asked = stream_request("FileSystem.Logs", &request).unwrap();
        let path = asked.target();
        assert!(
            path.starts_with("/v1/client/fs/logs/a%2F..%2Fb?task=t%26follow%3Dtrue&"),
            "{path}"
        );
        assert!(path.contains("follow=false") && path.contains("offset=0"), "{path}");
        assert!(stream_request("Allocations.Exec", &request).is_none());
    }

    #[test]
    fn times_are_bytes_on_the_wire_and_numbers_stay() {
        let answer = |method: &str, json: serde_json::Value| {
            let (_, _, convert) = read_request(method, &map([])).unwrap();
            convert(json.to_string().as_bytes()).unwrap()
        };
        let json = serde_json::json!({"Size": 7, "ModTime": "1970-01-01T00:00:01Z"});
        let info = answer("FileSystem.Stat", json);
        let time = field(&info, "ModTime").and_then(bytes).and_then(go_time::from_bytes);
        assert_eq!(time, Some(Timestamp::from_nanos(1_000_000_000)));
        assert_eq!(field(&info, "Size").and_then(Value::as_u64), Some(7));
        let json = serde_json::json!({"CPUTicksConsumed": 0.5, "Timestamp": 7});
        let stats = answer("ClientStats.Stats", json);
        assert_eq!(field(&stats, "CPUTicksConsumed").and_then(Value::as_f64), Some(0.5));
        assert_eq!(field(&stats, "Timestamp").and_then(Value::as_u64), Some(7));
    }
}

//! Files, logs and figures for servers: answers of the agent's own API in the form of the servers'
//! protocol.
//!
//! ```text
//! request (MessagePack) ─► path and query ─► the agent's API ─┬─ JSON ─► type of the API ─► message
//!                                                             └─ body ─► {Error, Payload} for each piece
//! ```
//! So a server can read what a client of this agent can read: files of allocations, and nothing
//! beyond.

use std::collections::BTreeMap;
use std::io;

use futures_util::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use ostler_agent::AgentHandle;
use ostler_api::SOCKET_NAME;
use ostler_api::client::{
    AgentAddress, AgentEndpoint, ApiClient, ClientError, ClientTrouble, segment,
};
use ostler_cluster::msgpack::{self, Value, ValueReader};
use ostler_cluster::rpc::{field, map, text};
use ostler_cluster::session::Stream;
use ostler_model::clock;
use ostler_model::limits::{CLUSTER_ASKED_BYTES_MAX, CLUSTER_ASKED_WALL, CLUSTER_READ_BYTES_MAX};
use ostler_wire::{AllocUsage, CheckQueryResult, FileInfo, HostStats, message};
use serde::Serialize;
use serde::de::DeserializeOwned;

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
    let (path, name, convert) = read_path(method, body)?;
    let read = fetch_whole(agent, &path).await;
    let read = read.and_then(|json| convert(&json).map_err(|error| error.to_string()));
    Some(read.map(|found| map([(name, found), ("Index", 0.into())])))
}

/// Converts an answer of the API to its form for servers.
type Converter = fn(&[u8]) -> serde_json::Result<Value>;

/// The path in the API for a call that only reads, the field of the answer, and what converts its
/// content. `None` if this node does not answer the call.
pub(crate) fn read_path(method: &str, body: &Value) -> Option<(String, &'static str, Converter)> {
    let (alloc, path) = (encoded_field(body, "AllocID"), encoded_field(body, "Path"));
    let files = |what: &str| format!("/v1/client/fs/{what}/{alloc}?path={path}");
    let of_alloc = format!("/v1/client/allocation/{alloc}");
    Some(match method {
        "FileSystem.List" => (files("ls"), "Files", convert::<Vec<FileInfo<'_>>>),
        "FileSystem.Stat" => (files("stat"), "Info", convert::<FileInfo<'_>>),
        "Allocations.Stats" => {
            let task = encoded_field(body, "Task");
            (format!("{of_alloc}/stats?task={task}"), "Stats", convert::<AllocUsage<'_>>)
        }
        // Servers from 1.4 on use this.
        "Allocations.Checks" => (
            format!("{of_alloc}/checks"),
            "Results",
            convert::<BTreeMap<String, CheckQueryResult<'_>>>,
        ),
        "ClientStats.Stats" => {
            ("/v1/client/stats".to_owned(), "HostStats", convert::<HostStats<'_>>)
        }
        _ => return None,
    })
}

fn convert<T: DeserializeOwned + Serialize>(json: &[u8]) -> serde_json::Result<Value> {
    serde_json::from_slice::<T>(json).map(|read| message(&read))
}

/// Read a whole answer of the agent's API.
async fn fetch_whole(agent: &AgentHandle, path: &str) -> Result<Vec<u8>, String> {
    let failed = |error: ClientError| refusal(&error).0;
    let mut pieces = api(agent).body_pieces(path).await.map_err(failed)?;
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.take_next().await.map_err(failed)? {
        bytes.extend_from_slice(&piece);
        if bytes.len() > CLUSTER_READ_BYTES_MAX {
            return Err(format!("the answer is longer than {CLUSTER_READ_BYTES_MAX} bytes"));
        }
    }
    Ok(bytes)
}

/// The path in the API for a streaming call. `None` if this node does not answer it.
pub(crate) fn stream_path(method: &str, body: &Value) -> Option<String> {
    let alloc = encoded_field(body, "AllocID");
    let flag = |name| field(body, name).and_then(Value::as_bool).unwrap_or(false);
    let number = |name| field(body, name).and_then(Value::as_i64).unwrap_or(0).max(0);
    let (offset, origin) = (number("Offset"), encoded_field(body, "Origin"));
    let origin = if origin.is_empty() { "start".to_owned() } else { origin };
    match method {
        "FileSystem.Logs" => {
            let (task, kind) = (encoded_field(body, "Task"), encoded_field(body, "LogType"));
            let (follow, plain) = (flag("Follow"), flag("PlainText"));
            Some(format!(
                "/v1/client/fs/logs/{alloc}?task={task}&type={kind}&follow={follow}&plain={plain}\
                 &offset={offset}&origin={origin}"
            ))
        }
        "FileSystem.Stream" if flag("PlainText") && !flag("Follow") => {
            let (path, limit) = (encoded_field(body, "Path"), number("Limit"));
            let limit = if limit > 0 { format!("&limit={limit}") } else { String::new() };
            Some(format!("/v1/client/fs/readat/{alloc}?path={path}&offset={offset}{limit}"))
        }
        "FileSystem.Stream" => {
            let (path, limit) = (encoded_field(body, "Path"), number("Limit"));
            let (follow, plain) = (flag("Follow"), flag("PlainText"));
            Some(format!(
                "/v1/client/fs/stream/{alloc}?path={path}&offset={offset}&origin={origin}\
                 &limit={limit}&follow={follow}&plain={plain}"
            ))
        }
        "Agent.Monitor" => {
            let (level, json) = (encoded_field(body, "LogLevel"), flag("LogJSON"));
            let plain = flag("PlainText");
            let level = if level.is_empty() { "info".to_owned() } else { level };
            Some(format!("/v1/agent/monitor?log_level={level}&log_json={json}&plain={plain}"))
        }
        _ => None,
    }
}

/// A field, encoded for a path or a query.
fn encoded_field(body: &Value, name: &str) -> String {
    segment(field(body, name).and_then(text).unwrap_or_default())
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
    let Some(path) = stream_path(&method, &request) else {
        send(&mut stream, &wrap_piece(Err((server_calls::unanswered_text(&method), 400)))).await?;
        return stream.close().await;
    };
    let mut pieces = match api(agent).body_pieces(&path).await {
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
        let path = stream_path("FileSystem.Logs", &request).unwrap();
        assert!(
            path.starts_with("/v1/client/fs/logs/a%2F..%2Fb?task=t%26follow%3Dtrue&"),
            "{path}"
        );
        assert!(path.contains("follow=false") && path.contains("offset=0"), "{path}");
        assert_eq!(stream_path("Allocations.Exec", &request), None);
    }

    #[test]
    fn times_are_bytes_on_the_wire_and_numbers_stay() {
        let answer = |method: &str, json: serde_json::Value| {
            let (_, _, convert) = read_path(method, &map([])).unwrap();
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

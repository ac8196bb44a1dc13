//! Answers the calls of servers, on streams that they open.
//!
//! ```text
//! stream ─ first byte ─┬─ 1, calls ─► carried out, or refused by name
//!                      └─ 5, one call whose answer streams ─► bridge ─► logs, files; exec ─► a command
//! ```

use std::io;
use std::sync::Arc;

use futures_util::io::{AsyncReadExt, AsyncWriteExt};
use ostler_agent::RestartScope;
use ostler_model::causes;
use ostler_model::clock;
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::limits::{CLUSTER_ASKED_BYTES_MAX, CLUSTER_ASKED_WALL};
use tokio::task::JoinSet;

use ostler_cluster::msgpack::Value;
use ostler_cluster::rpc::{self, Calls, Header, field, map, text};
use ostler_cluster::session::{Arrivals, CALLS, STREAMING, Stream};

use super::{ServerCallContext, bridge};

/// The reason for a restart in the events, in Nomad's words.
const RESTARTED: &str = "User requested running tasks to restart";

/// Answer all streams of this connection until it ends.
pub(crate) async fn run(asked: &Arc<ServerCallContext>, mut arrivals: Arrivals) {
    let mut answering = JoinSet::new();
    while let Some(stream) = arrivals.recv().await {
        let asked = Arc::clone(asked);
        // The number of tasks is bounded by the streams of a connection; finished ones are removed.
        while answering.try_join_next().is_some() {}
        answering.spawn(async move {
            if let Err(error) = answer(&asked, stream).await {
                tracing::debug!(%error, "a stream of a server ended");
            }
        });
    }
}

async fn answer(asked: &ServerCallContext, mut stream: Stream) -> io::Result<()> {
    let mut first = [0];
    let read = clock::timeout(CLUSTER_ASKED_WALL, stream.read_exact(&mut first)).await;
    read.ok_or(io::ErrorKind::TimedOut)??;
    match first {
        [CALLS] => calls(&asked.agent, stream).await,
        [STREAMING] => bridge::stream(asked, stream).await,
        [other] => Err(io::Error::other(format!("a stream that begins with {other}"))),
    }
}

/// Answer the calls of one stream. Servers keep such a stream for later calls.
async fn calls(agent: &ostler_agent::AgentHandle, mut stream: Stream) -> io::Result<()> {
    let (mut calls, mut piece) = (Calls::new(CLUSTER_ASKED_BYTES_MAX), [0; 4096]);
    loop {
        let length = stream.read(&mut piece).await?;
        if length == 0 {
            return stream.close().await;
        }
        calls.extend(piece.get(..length).unwrap_or_default());
        while let Some((Header { method, seq, .. }, body)) =
            calls.take_next().map_err(io::Error::other)?
        {
            let carried = clock::timeout(CLUSTER_ASKED_WALL, carry_out(agent, &method, &body));
            let done = carried.await.unwrap_or_else(|| Err(format!("{method} takes too long")));
            let answer = rpc::answer(&method, seq, done.as_ref().map_err(String::as_str));
            stream.write_all(&answer).await?;
            stream.flush().await?;
        }
    }
}

async fn carry_out(
    agent: &ostler_agent::AgentHandle,
    method: &str,
    body: &Value,
) -> Result<Value, String> {
    let given = |name: &str| field(body, name).and_then(text).filter(|text| !text.is_empty());
    let alloc = || -> Result<AllocId, String> {
        let id = given("AllocID").ok_or("no AllocID is given")?;
        let id = id.parse().map_err(|_| "AllocID is not the id of an allocation".to_owned())?;
        // The words are those of Nomad's client; its command line looks for them.
        agent.control().alloc(id).map(|_| id).ok_or_else(|| format!("Unknown allocation \"{id}\""))
    };
    let task = |name: &str| -> Result<Option<TaskName>, String> {
        given(name)
            .map(str::parse)
            .transpose()
            .map_err(|_| format!("{name} is not the name of a task"))
    };
    let done = match method {
        "Allocations.Restart" => {
            let all = field(body, "AllTasks").and_then(Value::as_bool).unwrap_or(false);
            let scope = match task("TaskName")? {
                Some(name) => RestartScope::Task(name),
                None if all => RestartScope::All,
                None => RestartScope::Running,
            };
            agent.restart_alloc(alloc()?, scope, RESTARTED).await
        }
        "Allocations.Signal" => {
            let signal = given("Signal").unwrap_or("SIGKILL");
            agent.signal_alloc(alloc()?, task("Task")?.as_ref(), signal).await
        }
        "Allocations.GarbageCollect" => agent.control().collect(Some(alloc()?)).await.map(drop),
        "Allocations.GarbageCollectAll" => agent.control().collect(None).await.map(drop),
        _ => {
            let read = bridge::read(agent, method, body).await;
            return read.unwrap_or_else(|| Err(unanswered_text(method)));
        }
    };
    // Every answer has this part.
    done.map(|()| map([("Index", 0.into())])).map_err(|error| causes::chain(&error))
}

pub(crate) fn unanswered_text(method: &str) -> String {
    format!("this node does not answer {method} yet; ask its own agent, with ostler on the node")
}

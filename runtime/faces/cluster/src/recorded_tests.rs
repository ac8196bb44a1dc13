//! Reads recorded messages of stock servers and clients with this node's types.

use std::io;

use futures_util::io::{AsyncReadExt as _, AsyncWriteExt as _};
use ostler_model::clock::timeout;
use ostler_model::ids::NodeId;
use ostler_model::rng::Rng;
use ostler_model::time::Timestamp;
use ostler_testing::recorded::{self, Part, RecordedMessage, Side, values};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio_util::compat::TokioAsyncReadCompatExt as _;

use super::assigned_allocs;
use super::caller::ServerCaller;
use super::msgpack::{self, Value, ValueReader};
use super::rpc::{self, Calls, field, map, text};
use super::servers::{NodeStatus, ServerCalls};
use super::session::{CALLS, ClusterSession, MULTIPLEX};
use ostler_wire::go_time;

const WALL: std::time::Duration = std::time::Duration::from_secs(20);
const LONGEST: usize = 1 << 20;

fn of(method: &str, case: &str, part: Part) -> RecordedMessage {
    recorded::of(method, case, part).unwrap()
}

#[test]
fn every_recorded_message_is_read_in_pieces_and_written_again_as_the_same() {
    let all = recorded::all().unwrap();
    assert!(all.len() > 50, "the recording is whole");
    for message in all.iter().filter(|message| message.method != recorded::CONNECTION) {
        let mut reader = ValueReader::new(LONGEST);
        let mut read = Vec::new();
        for piece in message.bytes.chunks(7) {
            reader.extend(piece);
            while let Some(value) = reader.take_next().unwrap() {
                read.push(value);
            }
        }
        assert!(!read.is_empty(), "{}", message.file());
        // The bytes differ, because Go writes small numbers in longer forms.
        let mut written = message.clone();
        written.bytes.clear();
        read.iter().for_each(|value| msgpack::write(&mut written.bytes, value));
        for again in [values(message), values(&written)] {
            assert!(read == again, "{}", message.file());
        }
    }
}

#[test]
fn every_recorded_call_has_a_header_that_is_read() {
    for message in recorded::all().unwrap() {
        let streams = ["Method", "Error"].iter().any(|name| {
            let head = values(&message).into_iter().next();
            head.is_some_and(|head| {
                field(&head, name).is_some() && field(&head, "ServiceMethod").is_none()
            })
        });
        if message.method == recorded::CONNECTION || streams {
            continue;
        }
        let mut calls = Calls::new(LONGEST);
        calls.extend(&message.bytes);
        let (header, _) = calls.take_next().unwrap().unwrap();
        assert_eq!(header.method, message.method);
        assert_eq!(header.error.is_some(), message.part == Part::Refusal, "{}", message.file());
    }
}

/// Calls to a server that answers each method with the recorded answer.
async fn calls() -> ServerCalls {
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let (session, _) = ClusterSession::drive(ours.compat(), false);
    let (server, mut arrivals) = ClusterSession::drive(theirs.compat(), true);
    tokio::spawn(async move {
        let _server = server;
        let mut stream = arrivals.recv().await.unwrap();
        let (mut calls, mut piece) = (Calls::new(LONGEST), [0; 1024]);
        stream.read_exact(&mut piece[..1]).await.unwrap();
        while let Ok(length @ 1..) = stream.read(&mut piece).await {
            calls.extend(&piece[..length]);
            while let Some((header, _)) = calls.take_next().unwrap() {
                let answer = of(&header.method, "", Part::Answer);
                stream.write_all(&answer_to(&answer, header.seq)).await.unwrap();
                stream.flush().await.unwrap();
            }
        }
    });
    let caller = ServerCaller::open(&session, LONGEST).await.unwrap();
    ServerCalls::new(caller, "global".to_owned(), String::new(), WALL)
}

/// The recorded answer, as an answer to the call with this number.
fn answer_to(answer: &RecordedMessage, seq: u64) -> Vec<u8> {
    let [head, body] = &values(answer)[..] else { panic!("{} is no answer", answer.file()) };
    let head = head.as_map().unwrap().iter().map(|(key, value)| {
        let value = if text(key) == Some("Seq") { seq.into() } else { value.clone() };
        (key.clone(), value)
    });
    let mut bytes = Vec::new();
    msgpack::write(&mut bytes, &Value::Map(head.collect()));
    msgpack::write(&mut bytes, body);
    bytes
}

#[tokio::test]
async fn the_recorded_answers_of_servers_are_what_each_call_is_about() {
    let calls = calls().await;
    let node = NodeId::new(Rng::from_seed(1).uuid());
    calls.ping().await.unwrap();
    assert!(calls.leader().await.unwrap().unwrap().starts_with("127.0.0.1:"));
    for beat in [
        calls.register(map([])).await.unwrap(),
        calls.update_status(node, NodeStatus::Ready).await.unwrap(),
    ] {
        assert!(beat.within >= std::time::Duration::from_secs(5), "{beat:?}");
        assert!(beat.nodes > 0, "{beat:?}");
        assert_eq!(beat.servers.len(), 1, "{beat:?}");
        assert_eq!(beat.signed, None, "servers of 1.0 sign none");
    }
    let listed = calls.client_allocs(node, "", 0).await.unwrap();
    assert!(listed.index > 0);
    assert!(!listed.allocs.is_empty(), "there is an allocation");
    assert!(listed.allocs.values().all(|of_alloc| *of_alloc <= listed.index));
    assert_eq!(calls.allocs(&[], "", 0, true).await.unwrap().len(), 1);
    calls.update_allocs(Vec::new()).await.unwrap();
    calls.emit_events(node, Vec::new()).await.unwrap();
    calls.deregister(node).await.unwrap();
}

#[test]
fn the_recorded_allocations_of_servers_are_read_whole() {
    let read = |case| {
        let body = values(&of("Alloc.GetAllocs", case, Part::Answer)).remove(1);
        let all = field(&body, "Allocs").and_then(Value::as_array).unwrap().clone();
        let all = all.iter().map(|alloc| assigned_allocs::allocation(alloc).unwrap());
        all.collect::<Vec<_>>()
    };
    let service = read("").remove(0);
    assert_eq!(service.job.id.as_str(), "web");
    assert_eq!(service.ports.len(), 1, "{:?}", service.ports);
    assert!(service.deployment.is_some());
    let body = values(&of("Alloc.GetAlloc", "", Part::Answer)).remove(1);
    let one = assigned_allocs::allocation(field(&body, "Alloc").unwrap()).unwrap();
    assert_eq!(one.job.id.as_str(), "web");
    let with_device = read("device");
    let device = with_device.iter().flat_map(|alloc| alloc.devices.values().flatten());
    assert!(device.clone().next().is_some_and(|device| device.ids.len() == 1));
    let dispatched = read("dispatched");
    let payloads = dispatched.iter().filter_map(|alloc| {
        let task = &alloc.task_group()?.tasks[0];
        Some(task.payload.clone()?.bytes.clone())
    });
    assert!(payloads.clone().any(|bytes| bytes == b"what to import\n"));
    assert!(dispatched.iter().any(|alloc| alloc.job.parent.is_some()));
}

#[test]
fn the_recorded_times_of_both_ends_are_read() {
    let body = values(&of("Node.UpdateAlloc", "", Part::Request)).remove(1);
    let health = field(&body, "Alloc").and_then(Value::as_array).unwrap()[0].clone();
    let health = field(&health, "DeploymentStatus").cloned().unwrap();
    let time = field(&health, "Timestamp").and_then(rpc::bytes).and_then(go_time::from_bytes);
    assert!(time.unwrap() > Timestamp::from_nanos(1_600_000_000_000_000_000));
}

/// The other end of one of our sessions, as bytes.
fn raw(server: bool) -> (ClusterSession, super::session::Arrivals, DuplexStream) {
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let (session, arrivals) = ClusterSession::drive(ours.compat(), server);
    (session, arrivals, theirs)
}

async fn within<T>(what: impl Future<Output = io::Result<T>>) -> T {
    timeout(WALL, what).await.expect("it comes in time").unwrap()
}

#[tokio::test]
async fn the_recorded_first_bytes_of_a_client_open_a_stream_of_calls() {
    let first = of(recorded::CONNECTION, "client", Part::Request);
    assert_eq!((first.from, first.bytes[0]), (Side::Client, MULTIPLEX));
    let (_session, mut arrivals, mut client) = raw(true);
    client.write_all(&first.bytes[1..]).await.unwrap();
    let mut stream = timeout(WALL, arrivals.recv()).await.expect("a stream comes").unwrap();
    let mut byte = [0];
    within(stream.read_exact(&mut byte)).await;
    assert_eq!(byte, [CALLS]);
}

#[tokio::test]
async fn the_recorded_first_bytes_of_a_server_answer_the_first_call() {
    let (session, _arrivals, mut server) = raw(false);
    let caller = ServerCaller::open(&session, LONGEST).await.unwrap();
    let call = tokio::spawn(async move {
        let calls = ServerCalls::new(caller, String::new(), String::new(), WALL);
        calls.ping().await
    });
    // The answer belongs to a call, so it counts only after that call.
    let mut said = Vec::new();
    while !said.windows(11).any(|bytes| bytes == b"Status.Ping") {
        assert!(within(server.read_buf(&mut said)).await > 0);
    }
    server.write_all(&of(recorded::CONNECTION, "server", Part::Request).bytes).await.unwrap();
    call.await.unwrap().unwrap();
}

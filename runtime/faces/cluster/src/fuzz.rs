//! Entry points for fuzz targets (`runtime/tools/fuzz/`) to private code. Nothing else uses them.

use std::time::Duration;

use futures_util::io::AsyncReadExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_util::compat::TokioAsyncReadCompatExt as _;

use super::caller::ServerCaller;
use super::msgpack::{self, Value, ValueReader};
use super::rpc::{self, Calls};
use super::session::ClusterSession;
use super::{access, assigned_allocs, servers};

/// The longest value that is accepted, bytes.
const LONGEST: usize = 1 << 20;
/// The longest time that a silent connection may last.
const WALL: Duration = Duration::from_secs(20);

fn all(bytes: &[u8]) -> Vec<Value> {
    let (mut reader, mut all) = (ValueReader::new(LONGEST), Vec::new());
    for piece in bytes.chunks(11) {
        reader.extend(piece);
        while let Ok(Some(value)) = reader.take_next() {
            all.push(value);
        }
    }
    all
}

fn written(values: &[Value]) -> Vec<u8> {
    let mut bytes = Vec::new();
    values.iter().for_each(|value| msgpack::write(&mut bytes, value));
    bytes
}

/// Read bytes as values, and check that written values are read again as the same.
pub fn messages(bytes: &[u8]) {
    let once = written(&all(bytes));
    let again = written(&all(&once));
    // Some forms are only read and become longer when they are written; values that became too long
    // are not compared.
    debug_assert!(once == again || once.len() > LONGEST, "written is not what is read");
}

/// Read bytes as answers of servers to every call whose answer is parsed.
pub fn answers(bytes: &[u8]) {
    let mut calls = Calls::new(LONGEST);
    calls.extend(bytes);
    while let Ok(Some((header, body))) = calls.take_next() {
        let _beat = servers::parse_heartbeat(&header.method, &body);
        let _listed = servers::parse_client_allocs(&header.method, &body);
        access::read(body.clone());
        for alloc in servers::parse_allocs(&header.method, &body).unwrap_or_default() {
            let _read = (assigned_allocs::id_of(&alloc), assigned_allocs::allocation(&alloc));
        }
    }
}

/// Read bytes as everything that a server sends on a connection while a call waits for its answer.
/// Streams that the server opens are read as calls.
pub async fn connection(bytes: &[u8]) {
    let (ours, theirs) = tokio::io::duplex(4 << 10);
    let (session, mut arrivals) = ClusterSession::drive(ours.compat(), false);
    let (mut of_node, mut to_node) = tokio::io::split(theirs);
    let said = async {
        let _gone = to_node.write_all(bytes).await;
        let _gone = to_node.shutdown().await;
    };
    let heard = async {
        let mut piece = [0; 1_024];
        while of_node.read(&mut piece).await.is_ok_and(|length| length > 0) {}
    };
    let called = async {
        if let Ok(caller) = ServerCaller::open(&session, LONGEST).await {
            let _answer = caller.call("Status.Ping", &rpc::map([]), WALL).await;
        }
        session.wait_until_over().await;
    };
    let asked = async {
        while let Some(mut stream) = arrivals.recv().await {
            let (mut calls, mut piece) = (Calls::new(LONGEST), [0; 1_024]);
            while let Ok(length @ 1..) = stream.read(&mut piece).await {
                calls.extend(piece.get(..length).unwrap_or_default());
                while let Ok(Some(_)) = calls.take_next() {}
            }
        }
    };
    let ended = async { tokio::join!(said, heard, called, asked) };
    let ended = ostler_model::clock::timeout(WALL, ended).await;
    debug_assert!(ended.is_some(), "a connection outlives the server");
}

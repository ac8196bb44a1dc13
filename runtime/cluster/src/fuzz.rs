//! Ways in for fuzz targets (`runtime/fuzz/`) to what is private here. Nothing else uses them.

use std::time::Duration;

use futures_util::io::AsyncReadExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_util::compat::TokioAsyncReadCompatExt as _;

use super::caller::Caller;
use super::msgpack::{self, Value, ValueReader};
use super::rpc::{self, Calls};
use super::session::Session;
use super::{access, assigned, servers};

/// Longest value that is taken, bytes.
const LONGEST: usize = 1 << 20;
/// Longest a connection may last that says nothing more.
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

/// Bytes as values; what is written of them is read again as the same.
pub fn messages(bytes: &[u8]) {
    let once = written(&all(bytes));
    let again = written(&all(&once));
    // Forms that are read and never written grow: what grew too long is not read again.
    debug_assert!(once == again || once.len() > LONGEST, "written is not what is read");
}

/// Bytes as answers of servers to every call that has one which is read.
pub fn answers(bytes: &[u8]) {
    let mut calls = Calls::new(LONGEST);
    calls.extend(bytes);
    while let Ok(Some((header, body))) = calls.take_next() {
        let _beat = servers::heartbeat(&header.method, &body);
        let _listed = servers::listed(&header.method, &body);
        access::read(body.clone());
        for alloc in servers::described(&header.method, &body).unwrap_or_default() {
            let _read = (assigned::id_of(&alloc), assigned::allocation(&alloc));
        }
    }
}

/// Bytes as all that a server says on a connection, while a call waits for its answer. What comes on streams
/// of the server's is read as calls.
pub async fn connection(bytes: &[u8]) {
    let (ours, theirs) = tokio::io::duplex(4 << 10);
    let (session, mut arrivals) = Session::drive(ours.compat(), false);
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
        if let Ok(caller) = Caller::open(&session, LONGEST).await {
            let _answer = caller.call("Status.Ping", &rpc::map([]), WALL).await;
        }
        session.ended().await;
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

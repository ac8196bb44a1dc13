//! What was said on a connection, in messages. Pure.
//!
//! ```text
//! 0x06, frames of yamux ─► streams ─ 0x01 ─► header, body, header, body …
//!                                  └ 0x05 ─► {Method}, request, …   ◄─ {Error}, {Error, Payload}, …
//! ```

use std::collections::BTreeMap;

use ostler_cluster::msgpack::Value;
use ostler_cluster::rpc::{field, text};
use ostler_cluster::session::{CALLS, MULTIPLEX, STREAMING};
use ostler_testing::recorded::{CONNECTION, Part, RecordedMessage, Side};

use super::proxy::Said;

/// Kept of what is said on the stream of one streaming call, in each direction.
const STREAM_KEPT_MAX: usize = 4 << 10;

/// One stream: what each end said.
#[derive(Default)]
struct OneStream {
    client: Vec<u8>,
    server: Vec<u8>,
}

/// All messages of a connection that are whole, and its first bytes.
pub fn messages(said: &Said, of: &str) -> Vec<RecordedMessage> {
    let mut all = Vec::new();
    let Some((&MULTIPLEX, of_client)) = said.client.split_first() else { return all };
    let mut streams: BTreeMap<u32, OneStream> = BTreeMap::new();
    let client = frames(of_client, |id, piece| streams.entry(id).or_default().client.extend(piece));
    let server =
        frames(&said.server, |id, piece| streams.entry(id).or_default().server.extend(piece));
    for (id, stream) in streams {
        let (opener, asks, answers) = match id % 2 {
            1 => (Side::Client, stream.client, stream.server),
            _ => (Side::Server, stream.server, stream.client),
        };
        match asks.split_first() {
            Some((&CALLS, asks)) => calls(opener, asks, &answers, of, &mut all),
            Some((&STREAMING, asks)) => streaming(opener, asks, &answers, of, &mut all),
            _ => {}
        }
    }
    // The first frames of each end: a byte that says what follows, streams opened, the first data.
    let first = [(Side::Client, &said.client, client + 1), (Side::Server, &said.server, server)];
    for (from, bytes, end) in first {
        let bytes = bytes[..end.min(bytes.len())].to_vec();
        let case = from.to_string();
        let of = of.to_owned();
        let method = CONNECTION.to_owned();
        all.push(RecordedMessage { method, case, part: Part::Request, from, of, bytes });
    }
    all
}

/// The data in frames of yamux, by their streams. Where the first frame of data ends.
fn frames(bytes: &[u8], mut data: impl FnMut(u32, &[u8])) -> usize {
    let (mut at, mut first) = (0, 0);
    while let Some(head) = bytes.get(at..at + 12) {
        let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        let (kind, id, length) = (head[1], number(4), number(8) as usize);
        at += 12;
        if kind == 0 {
            let Some(piece) = bytes.get(at..at + length) else { break };
            data(id, piece);
            at += length;
            first = if first == 0 && length > 0 { at } else { first };
        }
    }
    first
}

/// The next value of these bytes, and how long it is.
fn value(bytes: &[u8]) -> Option<(Value, usize)> {
    let mut rest = bytes;
    let value = rmpv::decode::read_value(&mut rest).ok()?;
    Some((value, bytes.len() - rest.len()))
}

fn other(side: Side) -> Side {
    if side == Side::Client { Side::Server } else { Side::Client }
}

/// Calls one after another.
fn calls(opener: Side, asks: &[u8], answers: &[u8], of: &str, all: &mut Vec<RecordedMessage>) {
    for (from, mut rest) in [(opener, asks), (other(opener), answers)] {
        while let Some((header, head)) = value(rest) {
            let Some((body, length)) = value(&rest[head..]) else { break };
            let (bytes, after) = rest.split_at(head + length);
            rest = after;
            let error = field(&header, "Error").and_then(text).unwrap_or_default();
            let part = match (from == opener, error.is_empty()) {
                (true, _) => Part::Request,
                (false, true) => Part::Answer,
                (false, false) => Part::Refusal,
            };
            let method = field(&header, "ServiceMethod").and_then(text).unwrap().to_owned();
            let case = case_of_call(&method, part, &body).to_owned();
            let (of, bytes) = (of.to_owned(), bytes.to_vec());
            all.push(RecordedMessage { method, case, part, from, of, bytes });
        }
    }
}

/// An allocation is described with more where there is more to say.
fn case_of_call(method: &str, part: Part, body: &Value) -> &'static str {
    let allocs = field(body, "Allocs").and_then(Value::as_array).into_iter().flatten();
    if (method, part) != ("Alloc.GetAllocs", Part::Answer) {
        return "";
    }
    let with = |found: &dyn Fn(&Value) -> bool| allocs.clone().any(found);
    let dispatched = |alloc: &Value| {
        let payload = field(alloc, "Job").and_then(|job| field(job, "Payload"));
        payload.and_then(ostler_cluster::rpc::bytes).is_some_and(|bytes| !bytes.is_empty())
    };
    let device = |alloc: &Value| {
        let tasks = field(alloc, "AllocatedResources").and_then(|of| field(of, "Tasks"));
        let mut tasks = tasks.and_then(Value::as_map).into_iter().flatten();
        tasks.any(|(_, task)| field(task, "Devices").is_some_and(Value::is_array))
    };
    match () {
        () if with(&dispatched) => "dispatched",
        () if with(&device) => "device",
        () => "",
    }
}

/// One call whose answer comes in pieces.
fn streaming(opener: Side, asks: &[u8], answers: &[u8], of: &str, all: &mut Vec<RecordedMessage>) {
    let Some((header, head)) = value(asks) else { return };
    let Some((request, _)) = value(&asks[head..]) else { return };
    let method = field(&header, "Method").and_then(text).unwrap().to_owned();
    let is = |name| field(&request, name).and_then(Value::as_bool) == Some(true);
    let case = match () {
        () if is("Tty") => "tty",
        () if is("PlainText") => "plain",
        () => "",
    };
    let refused = {
        let (mut rest, mut refused) = (answers, false);
        while let Some((piece, length)) = value(rest) {
            let error = field(&piece, "Error");
            refused |= error
                .is_some_and(|error| error.is_map() || text(error).is_some_and(|e| !e.is_empty()));
            rest = &rest[length..];
        }
        refused
    };
    let part = if refused { Part::Refusal } else { Part::Answer };
    for (from, part, bytes) in [(opener, Part::Request, asks), (other(opener), part, answers)] {
        let bytes = whole_values(bytes);
        if bytes.is_empty() {
            continue;
        }
        let (method, case, of) = (method.clone(), case.to_owned(), of.to_owned());
        all.push(RecordedMessage { method, case, part, from, of, bytes });
    }
}

/// As many values as are whole and kept.
fn whole_values(bytes: &[u8]) -> Vec<u8> {
    let mut end = 0;
    while let Some((_, length)) = value(&bytes[end..]) {
        if end + length > STREAM_KEPT_MAX && end > 0 {
            break;
        }
        end += length;
    }
    bytes[..end].to_vec()
}

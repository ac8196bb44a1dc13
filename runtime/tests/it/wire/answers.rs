//! What our nodes answer to servers, held against what stock nodes answer to the same requests.

use std::collections::BTreeMap;

use futures_util::io::{AsyncReadExt as _, AsyncWriteExt as _};
use ostler_cluster::msgpack::{self, Value};
use ostler_cluster::rpc::{field, text};
use ostler_cluster::session::{CALLS, STREAMING};
use ostler_model::clock;
use ostler_testing::recorded::{self, Part, RecordedMessage, Side, values};

use super::held::{Differences, Known, LACKED, UNKNOWN, differences, fields, without};
use super::node::Placed;
use crate::support::PATIENCE;
use crate::support::system::eventually;

/// Methods whose answers come in pieces.
const STREAMS: [&str; 4] =
    ["Agent.Monitor", "Allocations.Exec", "FileSystem.Logs", "FileSystem.Stream"];

/// A recorded request, of this node's.
pub fn request(method: &str, case: &str, given: &[(&str, Value)]) -> Vec<u8> {
    let recorded = recorded::of(method, case, Part::Request).unwrap();
    let mut bytes = vec![if STREAMS.contains(&method) { STREAMING } else { CALLS }];
    for value in values(&recorded) {
        let fields = value.as_map().unwrap().iter().map(|(key, value)| {
            let given = given.iter().find(|(name, _)| text(key) == Some(name));
            (key.clone(), given.map_or(value, |(_, given)| given).clone())
        });
        msgpack::write(&mut bytes, &Value::Map(fields.collect()));
    }
    bytes
}

/// Say this on a stream of the server's; what the node answers until that is enough, or all of it.
pub async fn answered(
    node: &Placed,
    (method, part): (&str, Part),
    request: &[u8],
    enough: impl Fn(&RecordedMessage) -> bool,
) -> RecordedMessage {
    let mut stream = node.stream().await;
    stream.write_all(request).await.unwrap();
    stream.flush().await.unwrap();
    let (case, of) = (String::new(), "Ostler".to_owned());
    let (method, from) = (method.to_owned(), Side::Client);
    let mut message = RecordedMessage { method, case, part, from, of, bytes: Vec::new() };
    let mut piece = [0; 4096];
    while !enough(&message) {
        let read = clock::timeout(PATIENCE, stream.read(&mut piece)).await;
        match read.unwrap_or_else(|| panic!("{} is not answered", message.method)).unwrap() {
            0 => break,
            length => message.bytes.extend(&piece[..length]),
        }
    }
    message
}

/// How the answer to a recorded request, or its refusal, differs from the recorded one.
async fn differs(
    node: &Placed,
    (method, case, part): (&str, &str, Part),
    given: &[(&str, Value)],
) -> Differences {
    let recorded = recorded::of(method, case, part).unwrap();
    // A command ends.
    let enough = |message: &RecordedMessage| match method {
        "Allocations.Exec" => false,
        _ => values(message).len() > 1,
    };
    let answer = answered(node, (method, part), &request(method, case, given), enough).await;
    let head = values(&answer).remove(0);
    let error = field(&head, "Error").and_then(text).unwrap_or_default();
    let of_streams = STREAMS.contains(&method);
    assert_eq!(error.is_empty(), of_streams || part == Part::Answer, "{method}: {error}");
    let found = differences(&fields([&answer]), &fields([&recorded]));
    without(found, KNOWN)
}

/// How answers of ours differ.
const KNOWN: &[Known] = &[
    (
        "how near a server is to its leader; a node has none, and stock ones say so",
        LACKED,
        &["KnownLeader", "LastContact"],
    ),
    ("processes of a task are measured together", LACKED, &["Stats.Tasks.*.Pids.*"]),
    ("in the names of later versions; the one of 1.0 is shown by nobody", LACKED, CPU_OF_1_0),
    ("the same", UNKNOWN, &["HostStats.CPU[].TotalPercent", "HostStats.CPU[].TotalTicks"]),
    (
        "the recorded node has no device that measures something",
        UNKNOWN,
        &[
            "HostStats.DeviceStats[].InstanceStats.*.Stats.Attributes.*",
            "HostStats.DeviceStats[].InstanceStats.*.Stats.Attributes.*.Desc",
            "HostStats.DeviceStats[].InstanceStats.*.Stats.Attributes.*.IntNumeratorVal",
            "HostStats.DeviceStats[].InstanceStats.*.Stats.Attributes.*.Unit",
            "HostStats.DeviceStats[].InstanceStats.*.Summary.Desc",
            "HostStats.DeviceStats[].InstanceStats.*.Summary.IntNumeratorVal",
            "HostStats.DeviceStats[].InstanceStats.*.Summary.Unit",
        ],
    ),
    ("stock nodes leave out zero", UNKNOWN, &["Payload.result.exit_code"]),
];
const CPU_OF_1_0: &[&str] = &["HostStats.CPU[].Total"];

#[tokio::test]
async fn what_servers_ask_a_node_is_answered_as_stock_nodes_answer_it() {
    let node = Placed::start().await;
    let of = |alloc: &str| ("AllocID", Value::from(alloc));
    let (web, card) = (of(&node.alloc), of(&node.card));
    let log = [
        web.clone(),
        ("Path", "alloc/logs/t.stdout.0".into()),
        ("Offset", 0.into()),
        ("Origin", "start".into()),
        ("LogType", "stdout".into()),
    ];
    let (web, card, dir) = ([web.clone()], [card], [web, ("Path", "/".into())]);
    let mut all = BTreeMap::new();
    for (method, case, given) in [
        ("FileSystem.List", "", &dir[..]),
        ("FileSystem.Stat", "", &log),
        ("FileSystem.Logs", "", &log),
        ("FileSystem.Logs", "plain", &log),
        ("FileSystem.Stream", "", &log),
        ("FileSystem.Stream", "plain", &log),
        ("Allocations.Stats", "", &card),
        ("ClientStats.Stats", "", &[]),
        ("Allocations.Exec", "", &web),
        ("Allocations.Exec", "tty", &web),
        ("Allocations.Restart", "", &web),
        ("Allocations.Signal", "", &card),
        ("Allocations.GarbageCollectAll", "", &[]),
    ] {
        let found = differs(&node, (method, case, Part::Answer), given).await;
        all.insert(format!("{method} {case}"), found);
    }
    all.retain(|_, found| !found.is_empty());
    assert!(all.is_empty(), "{all:#?}");
}

#[tokio::test]
async fn what_stock_nodes_refuse_a_node_refuses_in_the_same_form() {
    let node = Placed::start().await;
    let web = || ("AllocID", Value::from(node.alloc.as_str()));
    let nowhere = [web(), ("Path", "none".into()), ("Task", "none".into())];
    let program = [web(), ("Cmd", Value::Array(vec!["/no/such/program".into()]))];
    let mut all = BTreeMap::new();
    for (method, case, given) in [
        ("FileSystem.List", "", &nowhere[..]),
        ("FileSystem.Stat", "", &nowhere),
        ("FileSystem.Logs", "", &nowhere),
        ("FileSystem.Stream", "", &nowhere),
        ("FileSystem.Stream", "plain", &nowhere),
        ("Allocations.Exec", "", &program),
        // It runs, and is not to be collected.
        ("Allocations.GarbageCollect", "", &nowhere[..1]),
    ] {
        let found = differs(&node, (method, case, Part::Refusal), given).await;
        all.insert(format!("{method} {case}"), found);
    }
    node.double.book().put(None, &[web_id(&node), ("DesiredStatus", "stop".into())]);
    let over = || node.double.book().reported_status(&node.alloc) == "complete";
    eventually("it is over", over).await;
    for method in ["Allocations.Restart", "Allocations.Signal"] {
        let found = differs(&node, (method, "", Part::Refusal), &nowhere[..1]).await;
        all.insert(method.to_owned(), found);
    }
    let found =
        differs(&node, ("Allocations.GarbageCollect", "", Part::Answer), &nowhere[..1]).await;
    all.insert("Allocations.GarbageCollect of an ended one".to_owned(), found);
    all.retain(|_, found| !found.is_empty());
    assert!(all.is_empty(), "{all:#?}");
}

fn web_id(node: &Placed) -> (&'static str, Value) {
    ("ID", node.alloc.as_str().into())
}

//! `OSTLER_RECORD=1` with `NOMAD_BIN` writes the files of `runtime/faces/cluster/fixtures/` anew.

use ostler_testing::recorded::{self, Part, RecordedMessage, Side};

use super::choice;
use super::messages::messages;
use super::proxy::Proxy;
use super::scene;
use super::stock::{Between, STOCK, StockClient};
use crate::support::binary::ostler;
use crate::support::needs::not_asked;

/// What a stock client and a server say to each other, at least.
const WANTED: [(&str, &[Part]); 23] = [
    ("connection", &[Part::Request]),
    ("Agent.Monitor", BOTH),
    ("Alloc.GetAlloc", BOTH),
    ("Alloc.GetAllocs", BOTH),
    ("Allocations.Exec", BOTH),
    ("Allocations.GarbageCollect", BOTH),
    ("Allocations.GarbageCollectAll", BOTH),
    ("Allocations.Restart", BOTH),
    ("Allocations.Signal", BOTH),
    ("Allocations.Stats", BOTH),
    ("ClientStats.Stats", BOTH),
    ("FileSystem.List", BOTH),
    ("FileSystem.Logs", BOTH),
    ("FileSystem.Stat", BOTH),
    ("FileSystem.Stream", BOTH),
    ("Node.Deregister", &[Part::Answer]),
    ("Node.EmitEvents", BOTH),
    ("Node.GetClientAllocs", BOTH),
    ("Node.Register", BOTH),
    ("Node.UpdateAlloc", BOTH),
    ("Node.UpdateStatus", BOTH),
    ("Status.Leader", &[Part::Answer]),
    ("Status.Ping", BOTH),
];
const BOTH: &[Part] = &[Part::Request, Part::Answer];

#[tokio::test]
async fn stock_clients_and_servers_are_recorded_where_that_is_asked_for() {
    if std::env::var_os("OSTLER_RECORD").is_none() {
        return not_asked("OSTLER_RECORD asks for no recording of stock Nomad");
    }
    let Some(between) = Between::start().await else { return };
    let mut all = checked(&between).await;
    let one = StockClient::start(&between, "one").await;
    let _two = StockClient::start(&between, "two").await;
    scene::jobs(&between, "mock/device").await;
    scene::asks(&between).await;
    scene::moves(&between).await;
    scene::trouble(&between, &one, "one").await;

    all.extend(between.messages());
    let words = choice::of_the_machine(&all);
    let kept = choice::richest(all);
    for (method, parts) in WANTED {
        for part in parts {
            let is = |message: &RecordedMessage| message.method == method && message.part == *part;
            assert!(kept.iter().any(is), "{method}: no {part}");
        }
    }
    for old in recorded::all().unwrap() {
        std::fs::remove_file(recorded::dir().join(old.file())).unwrap();
    }
    for message in kept {
        let message = choice::without(message, &words);
        std::fs::write(recorded::dir().join(message.file()), message.to_bytes()).unwrap();
    }
}

/// What a server answers to calls that our nodes make and stock ones do not.
async fn checked(between: &Between) -> Vec<RecordedMessage> {
    let mut proxy = Proxy::bind().await;
    proxy.lead_to(between.server.rpc);
    let servers = format!("127.0.0.1:{}", proxy.port);
    let checked = ostler(["node", "join-check", "--servers", &servers]).await;
    assert_eq!(checked.code, Some(0), "{checked:#?}");
    let all = proxy.said().into_iter().flat_map(|said| messages(&said, STOCK));
    let ours = ["Status.Leader", "Node.Deregister"];
    all.filter(|one| one.from == Side::Server && ours.contains(&one.method.as_str())).collect()
}

//! Which of many messages are kept, and what is taken out of them. Pure.

use std::collections::BTreeMap;

use ostler_cluster::msgpack::Value;
use ostler_cluster::rpc::{field, text};
use ostler_testing::recorded::{RecordedMessage, values};
use ostler_testing::shapes::{Kind, shape};

/// Longest message that is kept, bytes.
const KEPT_MAX: usize = 32 << 10;

/// Values of a node's attributes that say which machine it is.
const OF_THE_MACHINE: [&str; 6] = [
    "cpu.modelname",
    "kernel.version",
    "os.name",
    "os.version",
    "unique.network.ip-address",
    "unique.storage.volume",
];

/// One message of each kind: the one that holds the most, and of those the shortest.
pub fn richest(all: Vec<RecordedMessage>) -> Vec<RecordedMessage> {
    let mut kept: BTreeMap<String, (usize, RecordedMessage)> = BTreeMap::new();
    for message in all.into_iter().filter(|message| message.bytes.len() <= KEPT_MAX) {
        let said = |kinds: &std::collections::BTreeSet<Kind>| {
            kinds.iter().filter(|kind| **kind != Kind::Nil).count()
        };
        let values = values(&message);
        let shapes = values.iter().map(|value| shape(value).values().map(said).sum::<usize>());
        let new = (shapes.sum(), message);
        let better = |old: &(usize, RecordedMessage)| {
            (new.0, std::cmp::Reverse(new.1.bytes.len()))
                > (old.0, std::cmp::Reverse(old.1.bytes.len()))
        };
        if kept.get(&new.1.file()).is_none_or(better) {
            kept.insert(new.1.file(), new);
        }
    }
    kept.into_values().map(|(_, message)| message).collect()
}

/// What of these messages would say on which machine they were recorded.
pub fn of_the_machine(all: &[RecordedMessage]) -> Vec<String> {
    let mut words = Vec::new();
    for message in all {
        for value in values(message) {
            if let Some(attributes) =
                field(&value, "Node").and_then(|node| field(node, "Attributes"))
            {
                let said = OF_THE_MACHINE.iter().filter_map(|name| field(attributes, name));
                words.extend(said.filter_map(text).map(str::to_owned));
            }
            let stats = field(&value, "HostStats").and_then(|stats| field(stats, "DiskStats"));
            for disk in stats.and_then(Value::as_array).into_iter().flatten() {
                let said =
                    ["Device", "Mountpoint"].into_iter().filter_map(|name| field(disk, name));
                words.extend(said.filter_map(text).map(str::to_owned));
            }
        }
    }
    // Shorter ones stand in anything.
    words.retain(|word| word.len() > 5 && !word.starts_with("127."));
    words.sort_by_key(|word| std::cmp::Reverse(word.len()));
    words.dedup();
    words
}

/// The same with as many other letters in the place of these words, so that lengths stay true.
pub fn without(mut message: RecordedMessage, words: &[String]) -> RecordedMessage {
    for word in words.iter().map(String::as_bytes) {
        let mut at = 0;
        while let Some(found) =
            message.bytes[at..].windows(word.len()).position(|bytes| bytes == word)
        {
            at += found;
            message.bytes[at..at + word.len()].fill(b'x');
        }
    }
    message
}

//! What servers ask of a node that lies outside of what they have placed on it.

use std::os::unix::fs::symlink;

use base64::Engine as _;
use ostler_cluster::msgpack::Value;
use ostler_cluster::rpc::{field, text};
use ostler_testing::recorded::{Part, RecordedMessage, values};

use super::answers::{answered, request};
use super::node::Placed;
use crate::support::system::eventually;

/// Of three bytes times four: it stands in base64 as a whole.
const SECRET: &str = "do not tell!";

/// Does the node refuse this?
fn refused(answer: &RecordedMessage) -> bool {
    let said = |value: &Value| {
        let error = field(value, "Error");
        error.is_some_and(|error| error.is_map() || text(error).is_some_and(|why| !why.is_empty()))
    };
    values(answer).iter().any(said)
}

fn tells(answer: &RecordedMessage) -> bool {
    let coded = base64::prelude::BASE64_STANDARD.encode(SECRET);
    let said = String::from_utf8_lossy(&answer.bytes);
    said.contains(SECRET) || said.contains(&coded)
}

async fn ask(
    node: &Placed,
    (method, case): (&str, &str),
    given: &[(&str, Value)],
) -> RecordedMessage {
    let request = request(method, case, given);
    // One that reads on has said the first piece, or why there is none.
    let enough = |answer: &RecordedMessage| values(answer).len() > 1;
    answered(node, (method, Part::Answer), &request, enough).await
}

fn given(alloc: &str, path: &str, task: &str) -> [(&'static str, Value); 7] {
    [
        ("AllocID", alloc.into()),
        ("Path", path.into()),
        ("Task", task.into()),
        ("LogType", "stdout".into()),
        ("Offset", 0.into()),
        ("Origin", "start".into()),
        ("Follow", false.into()),
    ]
}

/// Every way to read a path.
const READS: [(&str, &str); 4] = [
    ("FileSystem.List", ""),
    ("FileSystem.Stat", ""),
    ("FileSystem.Stream", ""),
    ("FileSystem.Stream", "plain"),
];

#[tokio::test]
async fn a_server_reads_no_file_outside_of_an_allocation_whatever_it_names_and_tasks_link() {
    let node = Placed::start().await;
    let home = node.agent.data.path();
    let alloc = node.alloc.as_str();
    let place = home.join("allocs").join(alloc);
    let secret = home.join("secret");
    std::fs::write(&secret, SECRET).unwrap();
    std::fs::create_dir_all(place.join("alloc/data")).unwrap();
    std::fs::write(place.join("alloc/data/mine"), SECRET).unwrap();
    symlink(&secret, place.join("alloc/data/link")).unwrap();
    symlink(home, place.join("alloc/data/dir")).unwrap();
    symlink("../../../../secret", place.join("alloc/data/up")).unwrap();

    let mine = ask(&node, READS[3], &given(alloc, "alloc/data/mine", "t")).await;
    assert!(tells(&mine) && !refused(&mine), "what is in it is read");
    let absolute = secret.to_str().unwrap();
    let outside = [
        "../../secret",
        "/../../secret",
        "alloc/../../../secret",
        "alloc/data/./../../../../secret",
        absolute,
        "alloc/data/link",
        "alloc/data/dir/secret",
        "alloc/data/up",
        "..%2F..%2Fsecret",
        "../..",
        "alloc/data/dir",
        "/proc/self/environ",
        "alloc/data/mine\0/../../../../secret",
    ];
    for path in outside {
        for read in READS {
            let answer = ask(&node, read, &given(alloc, path, "t")).await;
            assert!(!tells(&answer), "{read:?} {path}");
            // A link is listed as what it is, and not followed.
            let links = ["alloc/data/link", "alloc/data/dir", "alloc/data/up"];
            let is_link = read.0 == "FileSystem.Stat" && links.contains(&path);
            assert!(is_link || refused(&answer), "{read:?} {path}: {:?}", values(&answer));
        }
    }
    for other in ["..", "../..", "", "00000000-0000-4000-8000-00000000ffff"] {
        for read in READS {
            let answer = ask(&node, read, &given(other, "secret", "t")).await;
            assert!(refused(&answer) && !tells(&answer), "{read:?} of {other:?}");
        }
    }
}

#[tokio::test]
async fn a_server_reads_no_log_of_a_task_that_there_is_not_and_no_log_that_is_a_link() {
    let node = Placed::start().await;
    let home = node.agent.data.path();
    let alloc = node.card.as_str();
    let logs = home.join("allocs").join(alloc).join("alloc/logs");
    let secret = home.join("secret.stdout.0");
    std::fs::write(&secret, SECRET).unwrap();
    for task in ["../../../../secret", "..", "", "x/../t", "t\0", "none"] {
        for case in ["", "plain"] {
            let answer = ask(&node, ("FileSystem.Logs", case), &given(alloc, "", task)).await;
            assert!(refused(&answer) && !tells(&answer), "{task:?}: {:?}", values(&answer));
        }
    }
    eventually("it has said something", || logs.join("t.stdout.0").exists()).await;
    std::fs::remove_file(logs.join("t.stdout.0")).unwrap();
    symlink(&secret, logs.join("t.stdout.0")).unwrap();
    for case in ["", "plain"] {
        let answer = ask(&node, ("FileSystem.Logs", case), &given(alloc, "", "t")).await;
        assert!(!tells(&answer), "{:?}", values(&answer));
    }
}

//! Golden files: every answer of the API and every listing of the command line as it was last
//! decided to be. A changed shape shows as a difference to a file here.
//!
//! `OSTLER_BLESS=1 cargo test -p ostler --test it golden` writes the files anew.

mod api;
mod cli;
mod schemas;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use ostler_testing::golden::is_blessing;
use regex::Regex;
use serde_json::{Map, Value, json};

use crate::devices::granted;
use crate::support::KEEPS;
use crate::support::agent_process::{AgentProcess, Home};
use crate::support::http::{Client, within};

/// An agent with a made up tree of devices, and none of the machine's.
async fn agent(root: &Path) -> AgentProcess {
    let data = Home::new();
    let config = data.path().join("ostler.hcl");
    let off = ["hwmon", "nvidia", "usb"];
    let off = off.map(|name| format!("plugin \"{name}\" {{\n enabled = false\n}}\n")).concat();
    let text = format!("name = \"edge\"\n{KEEPS}{off}{}", granted("pci", "root", root));
    std::fs::write(&config, text).unwrap();
    let agent = AgentProcess::start_in(data, &["--config", config.to_str().unwrap()]).await;
    // All plugins are there, found their devices, and measured those that measure something.
    let client = Client(agent.data.path().join("ostler.sock"));
    within(async {
        loop {
            let readiness = client.get("/v1/ostler/readiness").await.json();
            let devices = client.get("/v1/ostler/devices").await.json();
            let of = |vendor: &str| {
                let mut groups = devices.as_array().unwrap().iter();
                groups.find(|group| group["group"]["vendor"] == vendor).cloned()
            };
            let measured = of("ostler").is_some_and(|g| !g["instances"][0]["stats"].is_null());
            if measured && of("nvidia").is_some() && readiness["loading"] == json!([]) {
                break;
            }
        }
    })
    .await;
    agent
}

/// Paths of a test, and what stands for them.
fn paths(agent: &AgentProcess, root: &Path) -> Vec<(String, &'static str)> {
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    vec![(path(agent.data.path()), "<data>"), (path(root), "<sysfs>")]
}

/// Wait until an allocation runs and was judged; what names it: its id, the beginning of that and its
/// port.
async fn names(client: &Client, id: &str) -> [(String, &'static str); 3] {
    let runs = |alloc: &Value| {
        alloc["ClientStatus"] == "running" && alloc["DeploymentStatus"]["Healthy"] == true
    };
    let alloc = client.alloc_when(id, runs).await;
    // What follows from the verdict is there too.
    within(async {
        let path = "/v1/job/web/deployment";
        while client.get(path).await.json()["Status"] != "successful" {}
    })
    .await;
    let port = alloc["AllocatedResources"]["Shared"]["Ports"][0]["Value"].to_string();
    [(id.to_owned(), "<alloc>"), (id[..8].to_owned(), "<alloc>"), (port, "<port>")]
}

/// A service with a port that holds a device; a script says that it works.
const JOB: &str = r#"job "web" {
  group "g" {
    network {
      port "http" {}
    }
    restart {
      attempts = 0
      mode     = "fail"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "trap : USR1; echo hello; while :; do sleep 1; done"]
      }
      service {
        name = "web-${NOMAD_ALLOC_INDEX}"
        port = "http"
        tags = ["green", "urlprefix-/"]
        meta {
          version = "1"
        }
        check {
          name     = "alive"
          type     = "script"
          command  = "/bin/echo"
          args     = ["well"]
          interval = "2s"
          timeout  = "30s"
        }
      }
      resources {
        cpu    = 20
        memory = 64
        device "nvidia/display" {
          count = 1
        }
      }
    }
  }
}
"#;

/// What differs from run to run, and what stands for it.
static VARIES: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let version = regex::escape(env!("CARGO_PKG_VERSION"));
    [
        ("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<id>"),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "<time>"),
        (r"\b0?1\d{18}\b", "<time>"),
        (r#"("(?:value|to)"): \d{5}\b"#, "$1: <port>"),
        (r"\b\d+[dhms](\d\d[hms])? ago\b", "<span> ago"),
        (r"\bpid \d+", "pid <pid>"),
        (r#"("(?:pid|supervisor)"): \d+"#, "$1: <pid>"),
        (r#""name": "\d+"(,\s+"supervisor")"#, "\"name\": \"<pid>\"$1"),
        (r"\b(end-run|supervisor|process|called) \d+", "$1 <pid>"),
        (r"(?m)^(supervisor <pid>) +\d+ +(\w+\.\w+\[)", "$1  <pid>  $2"),
        ("\\b[0-9a-f]{64}\\b", "<digest>"),
        ("\\b[0-9a-f]{32}\\b", "<check>"),
        ("\\b[0-9a-f]{8}\\b", "<short>"),
        (r"\([0-9a-f]{12}\)", "(<short>)"),
        (r#"("\w*[iI]ndex"): [1-9]\d*"#, "$1: <index>"),
        (r"(modify index|check-index) [1-9]\d*", "$1 <index>"),
        // Indexes begin with the time of day: the last column of a table.
        (r" 1[78]\d{11}\b", " <index>"),
        (r"\b1\d{9}\b", "<time>"),
        (r"\b\d+(\.\d)? [KMG]?i?B\b", "<size>"),
        (r"\b\d+ bytes\b", "<size>"),
        (r#"("\w*_bytes"): \d+"#, "$1: <size>"),
        (r#"("IsDir": true,\s+"Size"): \d+"#, "$1: <size>"),
        (r"\b\d+ change\(s\)", "<n> change(s)"),
        (r"\b\d+ of \d+ are free", "<n> of <n> are free"),
        (r"\b\d+ (passed|warnings|skipped)\b", "<n> $1"),
        // Which of its calls was the last one.
        (r"(<time>-\w+)-(stats|fingerprint)\.rec", "$1-<call>.rec"),
        (&format!(r"\b{version}\b"), "<version>"),
    ]
    .map(|(pattern, put)| (Regex::new(pattern).unwrap(), put))
    .into()
});

/// A text with placeholders for what differs from run to run; `known` goes first.
fn placeholders(text: &str, known: &[(String, &str)]) -> String {
    let put = |text: String, (from, to): &(String, &str)| {
        if !from.bytes().all(|byte| byte.is_ascii_digit()) {
            return text.replace(from, to);
        }
        // A port's digits may be some of a time's.
        let whole = Regex::new(&format!(r"\b{from}\b")).unwrap();
        whole.replace_all(&text, *to).into_owned()
    };
    let text = known.iter().fold(text.to_owned(), put);
    VARIES.iter().fold(text, |text, (pattern, put)| pattern.replace_all(&text, *put).into_owned())
}

/// Maps whose keys are the machine's.
const MACHINES: &[&str] =
    &["Attributes", "Disk", "attributes", "calls", "functions", "Drivers", "drivers"];

/// Of an answer whose values are the machine's: every key with the types that its values have, sorted:
/// a machine with one disk has the shape of one with two.
/// Items of a list have one shape together, and so have the values of a map of [`MACHINES`].
fn shape(value: &Value) -> Value {
    match value {
        Value::Null => "null".into(),
        Value::Bool(_) => "bool".into(),
        Value::Number(_) => "number".into(),
        Value::String(_) => "text".into(),
        Value::Array(items) => items.iter().map(shape).reduce(merged).into_iter().collect(),
        Value::Object(members) => {
            let one = |(key, value): (&String, &Value)| match (MACHINES.contains(&&**key), value) {
                (true, Value::Object(members)) => {
                    let all = members.values().map(shape).reduce(merged);
                    (key.clone(), Map::from_iter(all.map(|all| ("*".to_owned(), all))).into())
                }
                _ => (key.clone(), shape(value)),
            };
            let mut shapes: Map<String, Value> = members.iter().map(one).collect();
            shapes.sort_keys();
            shapes.into()
        }
    }
}

fn merged(one: Value, other: Value) -> Value {
    match (one, other) {
        (Value::Object(mut one), Value::Object(other)) => {
            for (key, value) in other {
                let value = match one.remove(&key) {
                    Some(known) => merged(known, value),
                    None => value,
                };
                one.insert(key, value);
            }
            one.sort_keys();
            one.into()
        }
        (Value::Array(one), Value::Array(other)) => {
            one.into_iter().chain(other).reduce(merged).into_iter().collect()
        }
        (Value::String(null), other) | (other, Value::String(null)) if null == "null" => other,
        (Value::String(one), Value::String(other)) if one != other => {
            let mut types: Vec<&str> = one.split('|').chain(other.split('|')).collect();
            types.sort_unstable();
            types.dedup();
            types.join("|").into()
        }
        (one, _) => one,
    }
}

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden").join(name)
}

/// Compare what was seen, by file name, with the files of a folder; or write them.
fn compare(name: &str, seen: &BTreeMap<String, String>) {
    let folder = folder(name);
    if is_blessing() {
        let _absent = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        seen.iter().for_each(|(file, text)| std::fs::write(folder.join(file), text).unwrap());
        return;
    }
    let mut wrong = String::new();
    for (file, text) in seen {
        let golden = std::fs::read_to_string(folder.join(file)).unwrap_or_default();
        if golden != *text {
            let first = golden.lines().zip(text.lines()).take_while(|(old, new)| old == new);
            let line = first.count();
            let at = |text: &str| text.lines().skip(line).take(8).collect::<Vec<_>>().join("\n");
            let (old, new) = (at(&golden), at(text));
            wrong += &format!("{name}/{file}:{}:\nwas\n{old}\nis\n{new}\n\n", line + 1);
        }
    }
    for entry in std::fs::read_dir(&folder).unwrap().flatten() {
        let file = entry.file_name().to_string_lossy().into_owned();
        if !seen.contains_key(&file) {
            wrong += &format!("{name}/{file} is of nothing that was asked for\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}if that is meant, run again with OSTLER_BLESS=1");
}

#[test]
fn what_varies_is_replaced_and_a_shape_keeps_keys_and_types() {
    let text =
        "alloc 0f01c0de-0000-4000-8000-000000000000 of /tmp/x at 2026-01-02T03:04:05.6Z, 1m02s ago";
    let known = [("/tmp/x".to_owned(), "<data>")];
    assert_eq!(placeholders(text, &known), "alloc <id> of <data> at <time>, <span> ago");
    assert_eq!(
        placeholders(r#""CreateIndex": 12, "Count": 3"#, &[]),
        r#""CreateIndex": <index>, "Count": 3"#
    );
    let port = [("17959".to_owned(), "<port>")];
    assert_eq!(
        placeholders(r#""Time": 1795981712345678901, "at": "127.0.0.1:17959""#, &port),
        r#""Time": <time>, "at": "127.0.0.1:<port>""#
    );
    let value = json!({
        "Attributes": { "cpu": "x", "ram": 1 }, "List": [{ "a": null }, { "a": 1, "b": true }],
    });
    let expected = json!({
        "Attributes": { "*": "number|text" }, "List": [{ "a": "number", "b": "bool" }],
    });
    assert_eq!(shape(&value), expected);
    let disk = json!({ "Size": 1, "Device": "a" });
    let (one, two) = (json!([disk]), json!([disk, disk]));
    assert_eq!(shape(&one).to_string(), shape(&two).to_string(), "one more disk is no other shape");
}

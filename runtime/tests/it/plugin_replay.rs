//! A call that failed in an agent fails the same way again in another process, from the recording
//! and the component alone.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use ostler_agent::offline::{Recording, recording};
use ostler_guests::fixtures::{DEVICE_FILES, DEVICE_MOCK, HOSTILE_DRIVER};
use serde_json::Value;

use crate::support::TestAgent;
use crate::support::binary::{Ended, ostler};
use crate::support::plugins::script;
use crate::support::system::{eventually, until};

/// Faults of a fingerprint, and how a recording calls the end they lead to.
const FAULTS: [(&str, &str); 6] = [
    ("trap", "trap"),
    ("stack_overflow", "stack-overflow"),
    ("spin", "deadline"),
    ("memory_bomb", "memory-limit"),
    ("duplicate_ids", "broken-answer"),
    ("sleep", "deadline"),
];

fn recordings(data: &Path) -> Vec<(PathBuf, Recording)> {
    let Ok(entries) = std::fs::read_dir(data.join("recordings")) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    let paths = paths.filter(|path| path.extension().is_some_and(|end| end == "rec"));
    paths.map(|path| (path.clone(), recording(&std::fs::read(path).unwrap()).unwrap())).collect()
}

fn end_of(recording: &Recording) -> &str {
    &recording.calls.last().unwrap().outcome.end
}

async fn replay(file: &Path, component: &str, more: &[&str]) -> (Ended, Value) {
    let file = file.to_str().unwrap();
    let args = ["plugin", "replay", "--json", file, "--component", component];
    let ended = ostler(args.iter().chain(more)).await;
    let json = serde_json::from_str(&ended.stdout).unwrap_or_default();
    (ended, json)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_failed_in_an_agent_fails_the_same_way_from_the_recording_alone() {
    let dir = tempfile::tempdir().unwrap();
    script(dir.path(), "");
    let config = format!(
        r#"
        plugin "mock_device" {{
          config {{
            dir = "{at}"
          }}
          grants {{
            files "{at}" {{}}
          }}
          limits {{
            call_wall = "1s"
          }}
          failure {{
            retry_first = "100ms"
            retry_max   = "300ms"
            strikes_max = 64
          }}
        }}
        "#,
        at = dir.path().display()
    );
    let agent = TestAgent::with_config(&config).await;
    let mut ends = BTreeSet::new();
    for (fault, end) in FAULTS {
        script(dir.path(), &format!(r#"{{"do": "{fault}"}}"#));
        let data = agent.data.path();
        eventually(fault, || recordings(data).iter().any(|(_, one)| end_of(one) == end)).await;
        ends.insert(end.to_owned());
    }
    // Asked for, what it answered is written as well.
    script(dir.path(), "");
    let answered = async || {
        let recorded = agent.handle.record_plugin("mock_device").await;
        let file = recorded[0].file.clone().unwrap();
        let (ended, told) = replay(&file, DEVICE_MOCK, &[]).await;
        std::fs::remove_file(&file).unwrap();
        ended.code == Some(0) && told["replayed"]["end"] == "answered"
    };
    until("an answered call that was written down", answered).await;
    assert_eq!(agent.handle.record_plugin("nobody").await, []);
    let data = agent.leave().await;
    // What the plugin read is gone, the machine it ran on too, as far as it could tell.
    dir.close().unwrap();
    let files = recordings(data.path());
    let written: BTreeSet<String> = files.iter().map(|(_, one)| end_of(one).to_owned()).collect();
    assert_eq!(written, ends, "one of each");
    for (file, recording) in files {
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let (ended, told) = replay(&file, DEVICE_MOCK, &[]).await;
        assert_eq!(ended.code, Some(0), "{}: {}{}", end_of(&recording), ended.stdout, ended.stderr);
        assert_eq!(told["verdict"], "same", "{told:#}");
        if end_of(&recording) != "deadline" {
            for part in ["end", "frames"] {
                assert_eq!(told["recorded"][part], told["replayed"][part], "{told:#}");
            }
            // Standard error is not played.
            let [before, now] =
                ["recorded", "replayed"].map(|which| told[which]["text"].as_str().unwrap());
            assert!(before.starts_with(now), "{told:#}");
        }
        let host_calls = told["host_calls"].as_u64().unwrap();
        assert!(host_calls > 5, "it read its script from the recording: {told:#}");
        if end_of(&recording) == "trap" {
            assert!(!told["replayed"]["frames"].as_array().unwrap().is_empty(), "{told:#}");
            // A call before it, which answered.
            let (earlier, told) = replay(&file, DEVICE_MOCK, &["--call", "1"]).await;
            assert_eq!(earlier.code, Some(0), "{told:#}");
            assert_eq!(told["replayed"]["end"], "answered");
        }
    }
}

const JOB: &str = r#"
  job "secretive" {
    type = "batch"
    group "g" {
      restart {
        attempts = 0
      }
      task "t" {
        driver = "hostile"
        env {
          DATABASE = "postgres://someone:hunter22@host/db"
        }
        config {
          command = "/bin/sleep"
          args    = ["1000"]
          start   = "spawn-then-trap"
          arg     = "--at postgres://someone:hunter22@host/db"
        }
      }
    }
  }
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_recording_of_a_start_holds_no_secret_and_a_replay_starts_nothing() {
    let config = format!(
        "plugin \"hostile\" {{\n file = \"{HOSTILE_DRIVER}\"\n grants {{\n process = true\n }}\n }}"
    );
    let agent = TestAgent::with_config(&config).await;
    assert!(!agent.run(JOB).await.is_successful());
    let data = agent.data.path().to_owned();
    eventually("a recording", || !recordings(&data).is_empty()).await;
    let _data = agent.leave().await;
    let (file, recording) = recordings(&data).pop().unwrap();
    assert_eq!(recording.calls.last().unwrap().function, "start");
    let bytes = std::fs::read(&file).unwrap();
    for secret in ["hunter22", "someone", "host/db"] {
        let there = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!there, "{secret} is in the recording");
    }
    assert!(recording.redacted >= 2, "{}", recording.redacted);
    let (ended, told) = replay(&file, HOSTILE_DRIVER, &[]).await;
    assert_eq!((ended.code, &told["verdict"]), (Some(0), &Value::from("same")), "{told:#}");
    assert_eq!(told["replayed"]["end"], "trap");

    // Another component: refused, and with leave told where it departs.
    let (refused, _) = replay(&file, DEVICE_FILES, &[]).await;
    refused.said(2, &["another component", "--any-component"]);
    let (refused, _) = replay(&file, DEVICE_FILES, &["--any-component"]).await;
    refused.said(2, &["another kind"]);
    let other = data.join("other.wasm");
    let mut wasm = std::fs::read(HOSTILE_DRIVER).unwrap();
    wasm.extend([0, 4, 2, b'n', b'r', 1]);
    std::fs::write(&other, wasm).unwrap();
    let (same, told) = replay(&file, other.to_str().unwrap(), &["--any-component"]).await;
    assert_eq!(same.code, Some(0), "{told:#}");
    assert!(told["notes"][0].as_str().unwrap().contains("not the recorded one"), "{told:#}");

    // Damaged ones are refused with the reason.
    let damaged = data.join("damaged.rec");
    for (bytes, reason) in [
        (&bytes[..bytes.len() - 1], "cut short"),
        (&bytes[1..], "not a recording"),
        (b"".as_slice(), "not a recording"),
    ] {
        std::fs::write(&damaged, bytes).unwrap();
        let (refused, _) = replay(&damaged, HOSTILE_DRIVER, &[]).await;
        refused.said(2, &["damaged.rec", reason]);
    }
    let list = ostler(["plugin", "replay", "--list", file.to_str().unwrap()]).await;
    assert!(list.stdout.contains("describe") && list.stdout.contains("start"), "{}", list.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_recorded_where_it_is_switched_off() {
    let config = format!(
        "plugin \"hostile\" {{\n file = \"{HOSTILE_DRIVER}\"\n grants {{\n process = true\n }}\n
         limits {{\n recorded_calls = 0\n }}\n }}"
    );
    let agent = TestAgent::with_config(&config).await;
    assert!(!agent.run(JOB).await.is_successful());
    let data = agent.leave().await;
    assert!(recordings(data.path()).is_empty());
}

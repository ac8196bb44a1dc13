//! The agent dies without a word: its native tasks die with it, and the next start says so.

use std::collections::BTreeMap;

use ostler_model::event::EventKind;
use ostler_model::task::{TaskState, TaskStatus};
use ostler_state::{KeyPrefix, RecordKey, StateStore};

use crate::support::DataDir;
use crate::support::binary::{command, run};
use crate::support::system::{eventually, pid_in, processes_of, runs};

fn job(name: &str, config: &str) -> String {
    format!(
        r#"
        job "{name}" {{
          type = "batch"
          group "g" {{
            task "t" {{
              driver = "raw_exec"
              config {{
                {config}
              }}
            }}
          }}
        }}
        "#
    )
}

/// The last durable state of the task `t` of every allocation.
fn recorded(data: &DataDir) -> BTreeMap<String, TaskState> {
    let state = StateStore::open(&data.path().join("state.redb")).expect("the file is readable");
    assert!(state.open_report().quarantined.is_empty());
    let records = state.scan(&KeyPrefix::Allocs).unwrap();
    let states = records.iter().filter_map(|record| match &record.key {
        RecordKey::TaskState(id, _) => Some((id.to_string(), record.decode().unwrap())),
        _ => None,
    });
    states.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_killed_in_the_middle_takes_its_tasks_along_and_the_next_start_says_what_it_found()
{
    let data = DataDir::new();
    let files = tempfile::tempdir().unwrap();
    let pid_file = files.path().join("pid");
    let script = format!(
        "command = \"/bin/sh\"\n args = [\"-c\", \"echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000\"]",
        pid_file.display()
    );
    let first = files.path().join("first.hcl");
    std::fs::write(&first, job("first", &script)).unwrap();

    let data_dir = data.path().as_os_str();
    let begin = ["run", "--raw-exec", "--data-dir"].map(std::ffi::OsStr::new);
    let mut agent =
        command(begin.into_iter().chain([data_dir, first.as_os_str()])).spawn().unwrap();
    let task = pid_in(&pid_file).await;
    assert!(runs(task));
    agent.start_kill().unwrap();
    assert!(!agent.wait().await.unwrap().success());
    eventually("the task dies with its agent", || !runs(task)).await;
    assert_eq!(processes_of(data.path()), [0; 0]);

    let before = recorded(&data);
    assert_eq!(before.len(), 1, "{before:?}");
    assert!(before.values().all(|task| task.status != TaskStatus::Dead), "{before:?}");
    let crashed = before.keys().next().unwrap();

    let second = files.path().join("second.hcl");
    std::fs::write(&second, job("second", "command = \"/bin/echo\"\n args = [\"new\"]")).unwrap();
    let ended = run(data.path(), &second).await;
    let short = &crashed[..8];
    let notice = format!("allocation {short} is recorded as failed: the agent ended");
    ended.said(0, &[&notice, "job second is complete"]);
    assert!(ended.stdout.contains("new"), "{}", ended.stdout);

    let after = recorded(&data);
    assert_eq!(after.len(), 2);
    let old = &after[crashed];
    assert_eq!(old.status, TaskStatus::Dead);
    assert!(old.failed);
    assert_eq!(old.events.last().unwrap().kind, EventKind::FailedRestoring);
    let (_, new) = after.iter().find(|(id, _)| *id != crashed).unwrap();
    assert!(new.is_successful(), "{new:?}");

    // Said once: a third start finds nothing.
    let ended = run(data.path(), &second).await;
    ended.said(0, &["job second is complete"]);
    assert!(!ended.stderr.contains(short), "{}", ended.stderr);
}

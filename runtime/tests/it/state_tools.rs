//! `ostler state`: what it shows of files that are whole, damaged, old, or left by a killed agent.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use ostler_state::backend::{Backend as _, Op};
use ostler_state::disk_store::DiskBackend;
use serde_json::Value;

use crate::support::binary::{Ended, command, ostler, run};
use crate::support::system::{eventually, pid_in, runs};
use crate::support::{DataDir, TestAgent};

/// A job file with one task of `/bin/sh`.
fn job_file(dir: &Path, script: &str) -> PathBuf {
    let path = dir.join("job.hcl");
    let task = format!("config {{\n command = \"/bin/sh\"\n args = [\"-c\", \"{script}\"]\n }}");
    let task = format!("task \"t\" {{\n driver = \"raw_exec\"\n {task}\n }}");
    let job = format!("job \"j\" {{\n type = \"batch\"\n group \"g\" {{\n {task}\n }}\n }}");
    std::fs::write(&path, job).unwrap();
    path
}

async fn state<S: AsRef<OsStr>>(tool: &str, which: &str, path: &Path, more: &[S]) -> Ended {
    let mut args: Vec<&OsStr> = vec!["state".as_ref(), tool.as_ref(), which.as_ref()];
    args.push(path.as_os_str());
    args.extend(more.iter().map(AsRef::as_ref));
    ostler(args).await
}

/// A tool on the state of a data directory.
async fn of_dir(tool: &str, data: &DataDir, more: &[&str]) -> Ended {
    state(tool, "--data-dir", data.path(), more).await
}

/// A tool on a file.
async fn of_file(tool: &str, file: &Path, more: &[&str]) -> Ended {
    state(tool, "--file", file, more).await
}

#[track_caller]
fn json(ended: &Ended, code: i32) -> Value {
    assert_eq!(ended.code, Some(code), "{ended:#?}");
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:#?}"))
}

#[track_caller]
fn shows(ended: &Ended, code: i32, words: &[&str]) {
    assert_eq!(ended.code, Some(code), "{ended:#?}");
    assert!(words.iter().all(|word| ended.stdout.contains(word)), "{words:?}: {ended:#?}");
}

fn keys(records: &Value) -> Vec<String> {
    let records = records.as_array().unwrap().iter();
    records.map(|record| record["key"].as_str().unwrap().to_owned()).collect()
}

/// A data directory in which a job ran, and its state file.
async fn used() -> (DataDir, PathBuf) {
    let data = DataDir::new();
    let ended = run(data.path(), &job_file(data.path(), "echo done")).await;
    ended.said(0, &["job j is complete"]);
    let file = data.path().join("state.redb");
    (data, file)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_state_a_job_leaves_can_be_checked_shown_measured_and_compacted() {
    let (data, file) = used().await;
    let before = std::fs::read(&file).unwrap();

    let report = json(&of_dir("check", &data, &["--json"]).await, 0);
    assert_eq!((&report["healthy"], &report["recovered"]), (&true.into(), &false.into()));
    assert_eq!(report["damaged"], Value::Array(Vec::new()));
    let text = of_dir("check", &data, &[]).await;
    text.said(0, &[]);
    assert!(text.stdout.contains("healthy") && text.stdout.contains("task-state"), "{text:#?}");

    let dump = json(&of_dir("dump", &data, &["--json"]).await, 0);
    let records = dump["records"].as_array().unwrap();
    let kind = |kind: &str| records.iter().find(|record| record["kind"] == kind).unwrap();
    assert_eq!(kind("schema")["value"], dump["schema"]);
    assert_eq!(kind("allocation")["value"]["job"]["id"], "j");
    assert_eq!(kind("task-local")["value"]["run_complete"], true);
    let task = &kind("task-state")["value"];
    assert_eq!(task["events_total"], task["events"].as_array().unwrap().len());
    for record in records {
        assert!(record["value"] != Value::Null && record["bytes"].as_u64() > Some(8), "{record}");
    }
    let text = of_dir("dump", &data, &[]).await;
    text.said(0, &[]);
    assert_eq!(text.stdout.lines().count(), records.len(), "a line for each");

    // As much of a key as one likes.
    let id = kind("allocation")["value"]["id"].as_str().unwrap();
    for (prefix, expected) in [
        (format!("allocation/{}", &id[..8]), 3),
        (format!("allocation/{id}/task/t/state"), 1),
        ("meta/s".to_owned(), 1),
        ("alloc".to_owned(), 3),
    ] {
        let part = json(&of_dir("dump", &data, &["--json", "--prefix", &prefix]).await, 0);
        let keys = keys(&part["records"]);
        assert!(keys.iter().all(|key| key.starts_with(&prefix)), "{keys:?}");
        let of_alloc = keys.iter().filter(|key| !key.ends_with(&format!("{id}/state"))).count();
        assert_eq!(of_alloc, expected, "{prefix}: {keys:?}");
    }
    let none = of_dir("dump", &data, &["--prefix", "allocation/zz"]).await;
    none.said(0, &["no record's key starts with \"allocation/zz\""]);

    let stats = json(&of_dir("stats", &data, &["--json"]).await, 0);
    assert_eq!(stats["file_bytes"], before.len());
    assert!(stats["counted"]["puts"].as_u64() >= stats["counted"]["writes"].as_u64());
    assert!(stats["counted"]["commits"].as_u64() > Some(0), "{stats}");
    let of_records: u64 = records.iter().map(|record| record["bytes"].as_u64().unwrap()).sum();
    assert_eq!(stats["live_bytes"], of_records);
    let text = of_dir("stats", &data, &[]).await;
    text.said(0, &[]);
    assert!(text.stdout.contains("since the file was made"), "{text:#?}");

    assert!(std::fs::read(&file).unwrap() == before, "looking changes nothing");
    let done = json(&of_dir("compact", &data, &["--json"]).await, 0);
    assert_eq!(done["before_bytes"], before.len());
    assert_eq!(done["after_bytes"], std::fs::metadata(&file).unwrap().len());
    assert!(done["after_bytes"].as_u64() < done["before_bytes"].as_u64(), "{done}");
    let again = json(&of_dir("dump", &data, &["--json"]).await, 0);
    assert_eq!(again["records"], dump["records"]);
    of_dir("compact", &data, &[]).await.said(0, &[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_record_is_named_until_an_agent_puts_it_aside() {
    let (data, file) = used().await;
    let backend = DiskBackend::open(&file).unwrap();
    let (mut key, mut record) = (Vec::new(), Vec::new());
    let task_state = &mut |k: &[u8], r: &[u8]| {
        if k.first() == Some(&0x10) && k.ends_with(b"t\x00\x02") {
            (key, record) = (k.to_vec(), r.to_vec());
        }
        std::ops::ControlFlow::Continue(())
    };
    backend.scan(&[], task_state).unwrap();
    record[10] ^= 1;
    let put = |key: &[u8], value: &[u8]| Op::Put { key: key.into(), value: value.into() };
    backend.commit(&[put(&key, &record), put(b"\x7fwhat", b"?")]).unwrap();
    drop(backend);

    let report = json(&of_dir("check", &data, &["--json"]).await, 1);
    assert_eq!((&report["healthy"], &report["damaged_total"]), (&false.into(), &2.into()));
    let bad = keys(&report["damaged"]);
    assert!(bad[0].ends_with("/task/t/state") && bad[1] == "7f77686174", "{bad:?}");
    assert!(report["damaged"][0]["reason"].as_str().unwrap().contains("checksum"), "{report}");
    let text = of_dir("check", &data, &[]).await;
    assert_eq!(text.code, Some(1));
    assert!(text.stdout.contains("DAMAGED: 2 records"), "{text:#?}");

    let ended = of_dir("dump", &data, &["--json"]).await;
    ended.said(1, &["2 records cannot be read"]);
    let dump = json(&ended, 1);
    let shown = dump["records"].as_array().unwrap();
    let unreadable: Vec<_> = shown.iter().filter(|record| record.get("error").is_some()).collect();
    assert_eq!(unreadable.len(), 2);
    assert_eq!(unreadable[1]["first_bytes"], "3f");
    assert!(shown.iter().any(|record| record["kind"] == "allocation"), "the others are shown");
    let text = of_dir("dump", &data, &[]).await;
    assert!(text.stdout.contains("7f77686174  cannot be read: record has an unreadable key"));

    let second = run(data.path(), &job_file(data.path(), "echo again")).await;
    second.said(0, &["was put aside", "7f77686174", "job j is complete"]);
    let report = json(&of_dir("check", &data, &["--json"]).await, 0);
    assert_eq!((&report["damaged_total"], &report["quarantined_total"]), (&0.into(), &2.into()));
    assert_eq!(keys(&report["quarantined"]), bad);
    let dump = json(&of_dir("dump", &data, &["--json"]).await, 0);
    assert_eq!(keys(&dump["quarantined"]), bad);
    let stats = json(&of_dir("stats", &data, &["--json"]).await, 0);
    assert_eq!(stats["quarantined"]["records"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_truncated_file_is_reported_with_path_cause_and_next_step_and_left_as_it_is() {
    let (data, file) = used().await;
    let whole = std::fs::read(&file).unwrap();
    for keep in [0, 100, 4_096, whole.len() / 2] {
        std::fs::write(&file, &whole[..keep]).unwrap();
        let report = json(&of_file("check", &file, &["--json"]).await, 1);
        assert_eq!((&report["healthy"], &report["file_bytes"]), (&false.into(), &keep.into()));
        assert!(report["damage"].is_string(), "{report}");
        let text = of_file("check", &file, &[]).await;
        assert_eq!(text.code, Some(1), "{text:#?}");
        assert!(text.stdout.contains("Put back the newest copy"), "{text:#?}");

        let path = file.to_str().unwrap();
        let next = format!("ostler state check --file {path}");
        let mut told = Vec::new();
        for tool in ["dump", "stats", "compact"] {
            let ended = of_file(tool, &file, &[]).await;
            ended.said(1, &[path, "damaged or not a state file", &next]);
            told.push(ended.stderr);
        }
        let ended = run(data.path(), &job_file(data.path(), "echo never")).await;
        ended.said(3, &[path, "damaged or not a state file", &next]);
        told.push(ended.stderr);
        assert!(told.iter().all(|text| !text.contains("delete")), "{told:?}");
        // The engine marks a file that it opens for writing in one byte of its header.
        let (mut left, mut expected) = (std::fs::read(&file).unwrap(), whole[..keep].to_vec());
        if keep > 9 {
            (left[9], expected[9]) = (0, 0);
        }
        assert!(left == expected, "cut to {keep}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_keeps_an_agent_from_starting_is_damage_although_every_record_can_be_read() {
    let (data, file) = used().await;
    shows(&of_dir("check", &data, &[]).await, 0, &["healthy"]);

    let node_id = data.path().join("node-id");
    let kept = std::fs::read(&node_id).unwrap();
    std::fs::write(&node_id, "not an id").unwrap();
    let words = ["no agent can start with the directory", "node-id does not contain a node id"];
    shows(&of_dir("check", &data, &[]).await, 1, &words);
    run(data.path(), &job_file(data.path(), "true")).await.said(3, &[words[1]]);
    let report = json(&of_dir("check", &data, &["--json"]).await, 1);
    assert_eq!(report["healthy"], false);
    assert_eq!(report["hindrances"].as_array().unwrap().len(), 1, "{report:#}");
    std::fs::write(&node_id, kept).unwrap();

    let mut immutable = std::process::Command::new("chattr");
    if !immutable.arg("+i").arg(&file).output().is_ok_and(|done| done.status.success()) {
        eprintln!("not tried: this file system has no immutable files, or not for this user");
        return;
    }
    let checked = of_dir("check", &data, &[]).await;
    let started = run(data.path(), &job_file(data.path(), "true")).await;
    std::process::Command::new("chattr").arg("-i").arg(&file).status().unwrap();
    shows(&checked, 1, &["state.redb cannot be written by this user"]);
    assert_ne!(started.code, Some(0), "{started:#?}");
    shows(&of_dir("check", &data, &[]).await, 0, &["healthy"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_agents_state_is_not_touched() {
    let agent = TestAgent::start().await;
    let file = agent.data.path().join("state.redb");
    let holder = format!("agent running (pid {}) holds it; stop it first", std::process::id());
    for tool in ["check", "dump", "stats", "compact"] {
        of_dir(tool, &agent.data, &[]).await.said(3, &[&holder, file.to_str().unwrap()]);
        of_file(tool, &file, &[]).await.said(3, &[&holder]);
    }
    let data = agent.leave().await;
    of_dir("check", &data, &[]).await.said(0, &[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_state_of_a_killed_agent_is_read_without_being_recovered_on_disk() {
    let data = DataDir::new();
    let pid_file = data.path().join("pid");
    let script = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000", pid_file.display());
    let job = job_file(data.path(), &script);
    let begin = ["run", "--raw-exec", "--data-dir"].map(std::ffi::OsStr::new);
    let args = begin.into_iter().chain([data.path().as_os_str(), job.as_os_str()]);
    let mut agent = command(args).spawn().unwrap();
    let task = pid_in(&pid_file).await;
    agent.start_kill().unwrap();
    assert!(!agent.wait().await.unwrap().success());
    eventually("the task dies with its agent", || !runs(task)).await;

    let file = data.path().join("state.redb");
    let before = std::fs::read(&file).unwrap();
    let report = json(&of_dir("check", &data, &["--json"]).await, 0);
    assert_eq!((&report["healthy"], &report["recovered"]), (&true.into(), &true.into()));
    let dump = json(&of_dir("dump", &data, &["--json", "--prefix", "allocation/"]).await, 0);
    let local = dump["records"].as_array().unwrap().iter();
    let local = local.filter(|record| record["kind"] == "task-local").collect::<Vec<_>>();
    assert_eq!(local[0]["value"]["run"]["identities"][0]["pid"], task);
    json(&of_dir("stats", &data, &["--json"]).await, 0);
    assert!(std::fs::read(&file).unwrap() == before);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_and_what_is_not_given_are_told_apart_from_damage() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("nowhere/state.redb");
    for tool in ["check", "dump", "stats", "compact"] {
        let there_is_none = format!("there is no state file {}", missing.display());
        of_file(tool, &missing, &[]).await.said(2, &[&there_is_none, "check the path"]);
        ostler(["state", tool]).await.said(2, &["--data-dir DIR", "--file FILE"]);
        of_file(tool, dir.path(), &[]).await.said(2, &["not a regular file", "--data-dir"]);
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is made");
    let config = dir.path().join("ostler.hcl");
    std::fs::write(&config, format!("data_dir = \"{}\"\n", dir.path().display())).unwrap();
    let ended = state::<&str>("check", "--config", &config, &[]).await;
    ended.said(2, &[dir.path().join("state.redb").to_str().unwrap()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_that_nobody_reads_ends_like_a_closed_pipe() {
    let (_data, file) = used().await;
    for format in [&["--json"][..], &[]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut dump = command(["state", "dump", "--file"]);
        dump.arg(&file).args(format).stdout(writer);
        assert_eq!(dump.status().await.unwrap().code(), Some(141));
    }
}

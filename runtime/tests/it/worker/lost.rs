//! What is written about a worker, or about its tasks, is lost or older: what lives is found all the same.

use super::*;
use crate::support::agent_process::ask;
use crate::support::system::processes_of;

/// The workers of a data directory that live, whatever is written about them.
fn living(data: &Path) -> Vec<u32> {
    let is_worker = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(b"__worker")
    };
    processes_of(data).into_iter().filter(is_worker).collect()
}

/// The only directory of a worker.
fn dir_of_worker(data: &Path) -> PathBuf {
    let mut dirs = std::fs::read_dir(data.join("workers")).unwrap();
    dirs.next().unwrap().unwrap().path()
}

/// A record of another process, which lives.
fn of_another(record: &str) -> String {
    let mut record: Value = serde_json::from_str(record).unwrap();
    record["pid"] = 1.into();
    record.to_string()
}

#[tokio::test]
async fn a_worker_whose_record_is_lost_is_found_and_its_tasks_are_owned_again() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 5] = [
        ("empty", |dir| std::fs::write(dir.join("worker.json"), "").unwrap()),
        ("removed", |dir| std::fs::remove_file(dir.join("worker.json")).unwrap()),
        ("garbage", |dir| std::fs::write(dir.join("worker.json"), "{]\u{0}\u{ff}").unwrap()),
        ("of another process", |dir| {
            let path = dir.join("worker.json");
            let other = of_another(&std::fs::read_to_string(&path).unwrap());
            std::fs::write(path, other).unwrap();
        }),
        ("directory removed", |dir| std::fs::remove_dir_all(dir).unwrap()),
    ];
    for (what, damage) in damages {
        let agent = AgentProcess::start().await;
        agent.run(&idle("idle", 1)).await.said(0, &["job idle runs"]);
        let worker = only_worker(agent.data.path());
        let data = killed(agent).await;
        damage(&dir_of_worker(data.path()));
        let listed = ask(data.path(), &["state", "runs", "--json"]).await;
        let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
        assert_eq!(listed["runs"][0]["worker"], worker, "{what}: {listed:#}");
        assert_eq!(listed["runs"][0]["on_record"], true, "{what}: {listed:#}");

        let agent = AgentProcess::start_in(data, &[]).await;
        assert_eq!(living(agent.data.path()), [worker], "{what}");
        assert_eq!(
            (starts(&agent, "idle").await, state(&agent, "idle").await.as_str()),
            (1, "running")
        );
        let told = agent.ask(&["node", "status"]).await.stdout;
        assert!(!told.contains("was ended"), "{what}: {told}");
        // What it was made for nobody knows any more: it gets no new tasks.
        agent.run(&idle("more", 1)).await.said(0, &["job more runs"]);
        assert_eq!(living(agent.data.path()).len(), 2, "{what}");
        agent.ask(&["job", "stop", "--purge", "idle"]).await.said(0, &[]);
        eventually("it ends with its last task", || !runs(worker)).await;
        assert_eq!(state(&agent, "more").await, "running", "{what}");
    }
}

/// The state file and its journal.
fn copy_of_state(data: &Path) -> [(PathBuf, Vec<u8>); 2] {
    ["state.redb", "state.redb.journal"].map(|name| {
        let path = data.join(name);
        let content = std::fs::read(&path).unwrap();
        (path, content)
    })
}

async fn held(agent: &AgentProcess) -> Vec<Value> {
    agent.json(&["state", "runs", "--json"]).await["runs"].as_array().unwrap().clone()
}

#[tokio::test]
async fn a_wasm_task_that_an_older_state_file_does_not_know_is_held_back_until_it_is_ended() {
    for lost_note in [false, true] {
        let agent = AgentProcess::start().await;
        let data = killed(agent).await;
        let older = copy_of_state(data.path());
        let agent = AgentProcess::start_in(data, &[]).await;
        agent.run(&idle("idle", 1)).await.said(0, &["job idle runs"]);
        let worker = only_worker(agent.data.path());
        let alloc = agent.alloc("idle").await;
        let data = killed(agent).await;
        for (path, content) in &older {
            std::fs::write(path, content).unwrap();
        }
        if lost_note {
            std::fs::remove_dir_all(data.path().join("exits")).unwrap();
        }

        let agent = AgentProcess::start_in(data, &[]).await;
        let listed = held(&agent).await;
        assert_eq!(listed.len(), 1, "{listed:#?}");
        assert_eq!((&listed[0]["job"], &listed[0]["worker"]), (&"idle".into(), &worker.into()));
        assert_eq!((&listed[0]["index"], &listed[0]["alloc"]), (&0.into(), &alloc.as_str().into()));
        assert_eq!(living(agent.data.path()), [worker]);
        // Its job comes again, and waits with the reason.
        agent.submit(&idle("idle", 1)).await.said(0, &[]);
        until("the job waits", async || {
            agent.ask(&["job", "status", "idle"]).await.stdout.contains("held back")
        })
        .await;
        let command = listed[0]["end_with"].as_str().unwrap();
        let words: Vec<&str> = command.split_whitespace().skip(1).collect();
        let ended = crate::support::binary::ostler(words).await;
        assert!(ended.code == Some(0) && ended.stdout.contains("ended: worker"), "{ended:#?}");
        until("the job runs", async || {
            let allocs = agent.allocs("idle").await;
            allocs.iter().any(|alloc| alloc["ClientStatus"] == "running")
        })
        .await;
        assert_eq!(starts(&agent, "idle").await, 1);
        assert!(held(&agent).await.is_empty());
    }
}

#[tokio::test]
async fn a_later_run_of_a_wasm_task_that_an_older_state_file_knows_is_owned_again_and_not_doubled()
{
    let agent = AgentProcess::start().await;
    agent.run(&idle("idle", 1)).await.said(0, &["job idle runs"]);
    let data = killed(agent).await;
    let older = copy_of_state(data.path());
    let agent = AgentProcess::start_in(data, &[]).await;
    let alloc = agent.alloc("idle").await;
    agent.ask(&["alloc", "restart", &alloc]).await.said(0, &[]);
    let worker = only_worker(agent.data.path());
    let data = killed(agent).await;
    for (path, content) in &older {
        std::fs::write(path, content).unwrap();
    }

    let agent = AgentProcess::start_in(data, &[]).await;
    assert_eq!(living(agent.data.path()), [worker]);
    assert!(held(&agent).await.is_empty());
    assert_eq!(state(&agent, "idle").await, "running");
    assert_eq!(starts(&agent, "idle").await, 1, "as the file has it");
    agent.ask(&["job", "stop", "idle"]).await.said(0, &[]);
    let listed = agent.json(&["state", "runs", "--json"]).await;
    assert_eq!(listed["runs"], serde_json::json!([]));
}

#[tokio::test]
async fn a_wasm_task_can_be_ended_while_no_agent_runs() {
    let agent = AgentProcess::start().await;
    agent.run(&idle("idle", 2)).await.said(0, &["job idle runs"]);
    let data = killed(agent).await;
    let runs_of = async |data: &Path| {
        let listed = ask(data, &["state", "runs", "--json"]).await;
        let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
        listed["runs"].as_array().unwrap().clone()
    };
    let listed = runs_of(data.path()).await;
    assert_eq!(listed.len(), 2, "{listed:#?}");
    let name = listed[0]["name"].as_str().unwrap();
    let ended = ask(data.path(), &["state", "end-run", name]).await;
    assert!(ended.code == Some(0) && ended.stdout.contains("ended: worker"), "{ended:#?}");
    assert_eq!(runs_of(data.path()).await, listed[1..]);
    ask(data.path(), &["state", "end-run", name]).await.said(2, &["ostler state runs"]);
}
